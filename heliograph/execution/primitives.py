"""The table of primitives: what counting, prices, floor and calibration know of each homomorphic call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse

from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.execution.protocol import Primitives


@dataclass(frozen=True, slots=True)
class Sample:
    """What a primitive is timed on: a ciphertext of `size` (see `Primitive`) at a level of a part of the chain.

    The evaluation key for rotations by `amount` is there.
    """

    ring: Ring
    level: int
    size: int
    amount: int
    x: Any

    @property
    def values(self) -> Any:
        return np.linspace(-1.0, 1.0, self.ring.slots)

    def factor(self, do: Primitives[Any]) -> Any:
        """A plaintext to multiply with."""
        return do.encode(self.values, self.ring.scale_bits, self.level)

    def summand(self, do: Primitives[Any]) -> Any:
        """A plaintext to add."""
        return do.encode(self.values, self.ring.scale_bits, self.level, self.x)


# (table, ring of the part of the chain, level, size) -> milliseconds.
Price: TypeAlias = "Callable[[CostTable, Ring, int, int], float]"
# Prepares everything and returns the call to be timed.
Ready: TypeAlias = "Callable[[Primitives[Any], Sample], Callable[[], Any]]"


@dataclass(frozen=True, slots=True)
class Primitive:
    """One kind of homomorphic call, by the name under which it is counted.

    The third number of a call, its size, is how many parts its ciphertexts have, of a raised modulus how many slots are
    refreshed (`bootstraps`), of weighted sums how many of how many ciphertexts (`sums_size`). `methods` are those of
    `Primitives` that a call stands for, the name itself where none are named. `switches_keys`: it reads an evaluation
    key, once; `rotates`: it is an automorphism; `plain_product`: a product with what the server knows; `own_chain`: it
    works in the chain that its call names, whatever its level, for not every chain has its keys. What `ready` returns does
    the work of `calls` calls.
    """

    name: str
    price: Price
    ready: Ready
    methods: tuple[str, ...] = ()
    switches_keys: bool = False
    rotates: bool = False
    plain_product: bool = False
    bootstraps: bool = False
    own_chain: bool = False
    calls: int = 1


def _hoisted(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    digits = do.decompose(s.x)
    return lambda: do.rotate_hoisted(s.x, s.amount, digits)


def _wide(do: Primitives[Any], s: Sample) -> Any:
    """The ciphertext rotated, wide."""
    return do.rotate_wide(s.x, s.amount, do.decompose(s.x))


def _hoisted_wide(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    digits = do.decompose(s.x)
    return lambda: do.rotate_wide(s.x, s.amount, digits)


def _wide_products(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    wide, plain = _wide(do, s), do.wide_constant(1j * s.values, s.ring.scale_bits, s.level)
    return lambda: do.wide_sums([wide], [plain], [[(0, 0)] * _TERMS])


def _step(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    wide = _wide(do, s)
    return lambda: do.step_wide(wide, s.amount, wide)


def _narrowed(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    wide = _wide(do, s)
    return lambda: do.narrow(wide)


def _accumulated(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    total = do.add(s.x, s.x)
    return lambda: do.accumulate(total, s.x)


def _plain_product(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    plain = s.factor(do)
    return lambda: do.mul_plain(s.x, plain)


def _summed_products(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    plain = s.factor(do)
    return lambda: do.sum_of_products([(s.x, plain)] * _TERMS)


def _plain_sum(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    plain = s.summand(do)
    return lambda: do.add_plain(s.x, plain)


def _weighted_sums(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    sums, ciphertexts = s.size >> 16, s.size & 0xFFFF
    # As large as the weights of a layer that keeps the size of its values; larger weights would take more pieces.
    weights = scipy.sparse.csr_array(
        np.sin(np.arange(sums * ciphertexts)).reshape(sums, ciphertexts) / ciphertexts**0.5
    )
    return lambda: do.weighted_sums([s.x] * ciphertexts, weights, s.ring.scale_bits)


def _raised(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    low = do.level_drop(s.x, s.level)
    return lambda: do.raise_modulus(low, s.size)


# Sums of products are timed with so many terms.
_TERMS = 8

PRIMITIVES = {
    primitive.name: primitive
    for primitive in (
        Primitive(
            "add",
            lambda costs, ring, level, parts: costs.add_ms(ring, level, parts),
            lambda do, s: lambda: do.add(s.x, s.x),
            methods=("add", "sub", "negate"),
        ),
        Primitive("accumulate", lambda costs, ring, level, parts: costs.add_ms(ring, level, parts), _accumulated),
        Primitive("add_plain", lambda costs, ring, level, parts: costs.add_ms(ring, level, parts), _plain_sum),
        Primitive(
            # The plaintext is known only at run time: its encoding is part of the call.
            "add_pt",
            lambda costs, ring, level, parts: costs.add_ms(ring, level, parts) + costs.encode_ms(ring, level),
            lambda do, s: lambda: do.add_plain(s.x, s.summand(do)),
            methods=("encode", "add_plain"),
        ),
        Primitive(
            "mul",
            lambda costs, ring, level, parts: costs.mul_ms(ring, level),
            lambda do, s: lambda: do.mul(s.x, s.x),
        ),
        Primitive(
            "mul_plain",
            lambda costs, ring, level, parts: costs.mul_plain_ms(ring, level, parts),
            _plain_product,
            plain_product=True,
        ),
        Primitive(
            # One term of a sum of products with plaintexts.
            "summed_product",
            lambda costs, ring, level, parts: costs.summed_product_ms(ring, level),
            _summed_products,
            methods=("sum_of_products", "sums_of_products"),
            plain_product=True,
            calls=_TERMS,
        ),
        Primitive(
            "mul_pt",
            lambda costs, ring, level, parts: costs.mul_plain_ms(ring, level, parts) + costs.encode_ms(ring, level),
            lambda do, s: lambda: do.mul_plain(s.x, s.factor(do)),
            methods=("encode", "mul_plain"),
            plain_product=True,
        ),
        Primitive(
            "mul_scalar",
            lambda costs, ring, level, parts: costs.mul_plain_ms(ring, level, parts),
            lambda do, s: lambda: do.mul_scalar(s.x, 0.5, s.ring.scale_bits),
            methods=("mul_scalar", "times_i"),
            plain_product=True,
        ),
        Primitive(
            "weighted_sums",
            lambda costs, ring, level, size: costs.weighted_sums_ms(ring, level, size >> 16, size & 0xFFFF),
            _weighted_sums,
            plain_product=True,
        ),
        Primitive(
            "rotate",
            lambda costs, ring, level, parts: costs.rotate_ms(ring, level),
            lambda do, s: lambda: do.rotate(s.x, s.amount),
            switches_keys=True,
            rotates=True,
        ),
        Primitive(
            "rotate_hoisted",
            lambda costs, ring, level, parts: costs.rotate_ms(ring, level, hoisted=True),
            _hoisted,
            switches_keys=True,
            rotates=True,
        ),
        Primitive(
            # Hoisted, and not divided by the special primes.
            "rotate_wide",
            lambda costs, ring, level, parts: costs.rotate_wide_ms(ring, level),
            _hoisted_wide,
            switches_keys=True,
            rotates=True,
        ),
        Primitive(
            "wide_product",
            lambda costs, ring, level, parts: costs.wide_product_ms(ring, level),
            _wide_products,
            methods=("wide_sums",),
            plain_product=True,
            calls=_TERMS,
        ),
        Primitive(
            "step_wide",
            lambda costs, ring, level, parts: costs.step_wide_ms(ring, level),
            _step,
            switches_keys=True,
            rotates=True,
        ),
        Primitive("narrow", lambda costs, ring, level, parts: costs.narrow_ms(ring, level), _narrowed),
        Primitive(
            "decompose",
            lambda costs, ring, level, parts: costs.decompose_ms(ring, level + 1),
            lambda do, s: lambda: do.decompose(s.x),
        ),
        Primitive(
            "conjugate",
            lambda costs, ring, level, parts: costs.rotate_ms(ring, level),
            lambda do, s: lambda: do.conjugate(s.x),
            switches_keys=True,
            rotates=True,
            own_chain=True,
        ),
        Primitive(
            "relinearize",
            lambda costs, ring, level, parts: costs.relinearize_ms(ring, level),
            lambda do, s: lambda: do.relinearize(s.x),
            switches_keys=True,
        ),
        Primitive(
            "rescale",
            lambda costs, ring, level, parts: costs.rescale_ms(ring, level, parts),
            lambda do, s: lambda: do.rescale(s.x),
        ),
        Primitive(
            "switch_chain",
            lambda costs, ring, level, parts: costs.switch_chain_ms(ring, level, parts),
            lambda do, s: lambda: do.move(s.x, s.level),
            methods=("move",),
        ),
        Primitive(
            "raise_modulus",
            lambda costs, ring, level, slots: costs.raise_modulus_ms(ring),
            _raised,
            bootstraps=True,
            own_chain=True,
        ),
    )
}
# Methods of `Primitives` that count as no call: they take little time compared to the others, or run alongside them.
UNCOUNTED = frozenset({"describe", "encode", "constant", "diagonal", "wide_constant", "level_drop", "reread"})

BOOTSTRAPS = tuple(name for name, primitive in PRIMITIVES.items() if primitive.bootstraps)
ROTATIONS = tuple(name for name, primitive in PRIMITIVES.items() if primitive.rotates)
KEY_SWITCHES = tuple(name for name, primitive in PRIMITIVES.items() if primitive.switches_keys)
PLAIN_PRODUCTS = tuple(name for name, primitive in PRIMITIVES.items() if primitive.plain_product)
