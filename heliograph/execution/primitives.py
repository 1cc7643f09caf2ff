"""The table of primitives: each kind of homomorphic call, for counting, prices, floor and calibration."""

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
    """The operand on which a primitive is timed.

    `ring`, `level`: the chain and the level of the ciphertext.
    `size`: the size of the call (see `Primitive`).
    `amount`: a rotation amount with an evaluation key.
    `x`: the ciphertext.
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
    """One kind of homomorphic call.

    The third number of a call, its size, is the number of parts of its ciphertexts; for a raised modulus, the number of
    refreshed slots; for weighted sums, the numbers of sums and of ciphertexts (`sums_size`).

    `name`: the name under which it is counted.
    `price`: its price.
    `ready`: prepares the timing; the function that it returns does the work of `calls` calls.
    `methods`: the methods of `Primitives` for which a call stands; just the one of the same name if left empty.
    `switches_keys`: whether it reads an evaluation key, once.
    `rotates`: whether it is an automorphism.
    `plain_product`: whether it is a product with a plain value.
    `bootstraps`: whether it counts as a bootstrap.
    `own_chain`: whether it happens in the chain that its call names, whatever its level, because not every chain has
    its keys.
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
    """The rotated ciphertext as a wide value."""
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
    return lambda: _divided(do, do.narrow(wide))


def _divided(do: Primitives[Any], x: Any) -> Any:
    """The ciphertext itself. A backend may put off the division after a key switch: reading the value takes it."""
    return do.level_drop(x, 0)


def _narrowed_and_rescaled(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    wide = _wide(do, s)
    return lambda: do.rescale(do.narrow(wide))


def _accumulated(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    total = do.add(s.x, s.x)
    return lambda: do.accumulate(total, s.x)


def _plain_product(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    plain = s.factor(do)
    return lambda: do.mul_plain(s.x, plain)


def _summed_products(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    plain = s.factor(do)
    return lambda: do.sums_of_products([s.x], [plain], [[(0, 0)] * _TERMS])


def _plain_sum(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    plain = s.summand(do)
    return lambda: do.add_plain(s.x, plain)


def _weighted_sums(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    sums, ciphertexts = s.size >> 16, s.size & 0xFFFF
    # Weights of the size in a layer that keeps the size of its values; larger ones would take more pieces.
    weights = scipy.sparse.csr_array(
        np.sin(np.arange(sums * ciphertexts)).reshape(sums, ciphertexts) / ciphertexts**0.5
    )
    return lambda: do.weighted_sums([s.x] * ciphertexts, weights, s.ring.scale_bits)


def _raised(do: Primitives[Any], s: Sample) -> Callable[[], Any]:
    low = do.level_drop(s.x, s.level)
    return lambda: do.raise_modulus(low, s.size)


# Sums of products are timed with this many terms.
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
            methods=("sums_of_products",),
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
            lambda do, s: lambda: _divided(do, do.relinearize(s.x)),
            switches_keys=True,
        ),
        Primitive(
            # Not divided by the special primes.
            "relinearize_wide",
            lambda costs, ring, level, parts: costs.relinearize_wide_ms(ring, level),
            lambda do, s: lambda: do.relinearize(s.x),
            methods=("relinearize",),
            switches_keys=True,
        ),
        Primitive(
            # The division that was put off, by the prime of the level too.
            "narrow_rescale",
            lambda costs, ring, level, parts: costs.narrow_rescale_ms(ring, level),
            _narrowed_and_rescaled,
            methods=("rescale",),
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
# The kind of call that each other method of `Primitives` counts as.
COUNTED = {
    method: primitive
    for name, primitive in PRIMITIVES.items()
    for method in primitive.methods or (name,)
    if method == name or method not in {*PRIMITIVES, *UNCOUNTED}
}

BOOTSTRAPS = tuple(name for name, primitive in PRIMITIVES.items() if primitive.bootstraps)
ROTATIONS = tuple(name for name, primitive in PRIMITIVES.items() if primitive.rotates)
KEY_SWITCHES = tuple(name for name, primitive in PRIMITIVES.items() if primitive.switches_keys)
RELINEARIZATIONS, RESCALES = (
    tuple(name for name, primitive in PRIMITIVES.items() if method in (primitive.methods or (name,)))
    for method in ("relinearize", "rescale")
)
PLAIN_PRODUCTS = tuple(name for name, primitive in PRIMITIVES.items() if primitive.plain_product)
