"""The primitives on OpenFHE, in one part of the modulus chain. No secret key is ever here."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heliograph.ckks.keys import conjugation_index
from heliograph.ckks.ring import Ring
from heliograph.errors import InternalError, ProgramError, RangeError
from heliograph.execution.protocol import Composed
from heliograph.ir import Array
from heliograph.runtime import sums
from heliograph.runtime.openfhe.context import make_context
from heliograph.runtime.openfhe.serial import openfhe_ciphertext, residues_of
from heliograph.runtime.openfhe.tags import chain_levels, chain_tag
from heliograph.runtime.openfhe.template import UNNAMED, moved
from heliograph.runtime.residues import forward

# Raises the modulus of a ciphertext: residues (2, 1, N) at level 0 -> residues (2, levels + 1, N).
Raise = Callable[[Array], Array]
# OpenFHE's scale degree of a product, which it rescales.
_PRODUCT = 2


class OpenFHEPrimitives(Composed):
    """The primitives in the part of the chain with the primes of `ring`; `whole` is the ring of the whole chain.

    Evaluation keys are looked up by the tag of a ciphertext (see `chain_tag`). True scales are in the plan; OpenFHE
    assumes powers of two. OpenFHE switches to a sparse secret only inside its own bootstraps, so the modulus is raised
    by `raising`, on residues.
    """

    def __init__(self, whole: Ring, ring: Ring, raising: Raise | None = None) -> None:
        self.whole, self.ring, self._raising = whole, ring, raising
        self.context = make_context(ring)
        self._halves = functools.cache(self._half_specials)
        self._order = 2 * ring.ring_dim

    def describe(self, x: Any) -> tuple[int, int]:
        return chain_levels(str(x.GetKeyTag()), self.whole) - x.GetLevel(), x.NumberCiphertextElements()

    def encode(self, values: Array | float, log_scale: float, level: int, beside: Any = None) -> Any:
        """Encode a vector or a number; OpenFHE gets the nominal scale first and the required degree afterwards.

        OpenFHE rounds at the scale of a single degree, whatever the degree, which is coarse if the true scale is little
        larger. Numbers are encoded as vectors too: OpenFHE's own sum with a number assumes a product's scale to be
        2**scale_bits times the prime, which is off by the distance of that prime from the power of two.
        """
        degree = 1 if beside is None else beside.GetNoiseScaleDeg()
        vector = np.full(self.ring.slots, values) if isinstance(values, float) else values
        if not np.isfinite(vector).all():
            raise RangeError("a plaintext holds NaN or infinity")
        if np.iscomplexobj(vector):
            # This context is for real data and drops imaginary parts, so they become a separate plaintext.
            return tuple(self.encode(part, log_scale, level, beside) for part in (vector.real, vector.imag))
        slots, spent = vector.size, self.ring.levels - level
        scaled = np.ascontiguousarray(vector * 2.0 ** (log_scale - self.ring.scale_bits))
        try:
            plain = self.context.MakeCKKSPackedPlaintext(scaled, 1, spent, None, slots)
        except RuntimeError as error:
            # OpenFHE refuses values that all round to zero; the plaintext is then zero.
            if "Scaling factor too small" not in str(error):
                raise
            plain = self.context.MakeCKKSPackedPlaintext(np.zeros_like(scaled), 1, spent, None, slots)
        return self._of_degree(plain, degree)

    constant = diagonal = encode

    def add(self, x: Any, y: Any) -> Any:
        return self.context.EvalAdd(x, y)

    def sub(self, x: Any, y: Any) -> Any:
        return self.context.EvalSub(x, y)

    def negate(self, x: Any) -> Any:
        return self.context.EvalNegate(x)

    def accumulate(self, x: Any, y: Any) -> Any:
        self.context.EvalAddInPlace(x, y)
        return x

    def mul(self, x: Any, y: Any) -> Any:
        parts = x.NumberCiphertextElements(), y.NumberCiphertextElements()
        if parts != (2, 2):
            raise InternalError(f"a product of ciphertexts with {parts[0]} and {parts[1]} parts")
        return self.context.EvalMultNoRelin(x, y)

    def relinearize(self, x: Any) -> Any:
        return self._nearest(self.context.Relinearize(x))

    def add_plain(self, x: Any, plain: Any) -> Any:
        return self.context.EvalAdd(x, plain)

    def mul_plain(self, x: Any, plain: Any) -> Any:
        if isinstance(plain, tuple):
            real, imaginary = (self.context.EvalMult(x, part) for part in plain)
            return self.accumulate(real, self.times_i(imaginary))
        return self.context.EvalMult(x, plain)

    def mul_scalar(self, x: Any, value: float, log_scale: float) -> Any:
        if not np.isfinite(value):
            raise RangeError(f"a product with {value}")
        return self.context.EvalMult(x, float(value * 2.0 ** (log_scale - self.ring.scale_bits)))

    def weighted_sums(self, values: Sequence[Any], weights: Any, log_scale: float) -> list[Any]:
        (level, _), tag = self.describe(values[0]), str(values[0].GetKeyTag())
        # The same ciphertext may occur in several positions.
        known = {id(x): list(residues_of(x, self.ring, level).reshape(-1, self.ring.ring_dim)) for x in values}
        rows = sums.weighted_sums([known[id(x)] for x in values], weights, log_scale, 2 * self.ring.primes[: level + 1])
        made = (openfhe_ciphertext(row.reshape(2, level + 1, -1), self.ring, tag) for row in rows)
        return [self._of_degree(x, _PRODUCT) for x in made]

    def times_i(self, x: Any) -> Any:
        """A product with a monomial, which costs neither scale nor level."""
        product = self.context.EvalMult(x, complex(0.0, 2.0**-self.ring.scale_bits))
        product.SetNoiseScaleDeg(x.GetNoiseScaleDeg())
        product.SetScalingFactor(x.GetScalingFactor())
        return product

    def rotate(self, x: Any, amount: int) -> Any:
        return self._nearest(self.context.EvalRotate(x, amount))

    def decompose(self, x: Any) -> Any:
        return self.context.EvalFastRotationPrecompute(x)

    def rotate_hoisted(self, x: Any, amount: int, digits: Any) -> Any:
        return self._nearest(self.context.EvalFastRotation(x, amount, self._order, digits))

    def conjugate(self, x: Any) -> Any:
        return self._nearest(self.context.EvalRotate(x, conjugation_index(self.ring.ring_dim)))

    def rescale(self, x: Any) -> Any:
        degree = x.GetNoiseScaleDeg()
        if degree == _PRODUCT:
            return self.context.Rescale(x)
        return self._of_degree(self.context.Rescale(self._of_degree(x.Clone(), _PRODUCT)), max(1, degree - 1))

    def level_drop(self, x: Any, levels: int) -> Any:
        degree = x.GetNoiseScaleDeg()
        if x.GetLevel() + levels + degree - 1 <= self.ring.levels:
            return self.context.LevelReduce(x, None, levels)
        return self._of_degree(self.context.LevelReduce(self._of_degree(x.Clone(), 1), None, levels), degree)

    def _of_degree(self, x: Any, degree: int) -> Any:
        """Set OpenFHE's scale degree of a ciphertext or plaintext that nobody else uses, in place.

        OpenFHE assumes that each degree above the first will cost a level, and refuses operations that leave too few
        levels; the plan may spend none.
        """
        x.SetNoiseScaleDeg(degree)
        x.SetScalingFactor(2.0 ** (degree * self.ring.scale_bits))
        return x

    def move(self, x: Any, level: int) -> Any:
        return moved(x, self.ring, level, chain_tag(str(x.GetKeyTag()), self.whole, self.ring))

    def reread(self, x: Any, log_scale: float) -> Any:
        """The ciphertext itself: OpenFHE does not know true scales."""
        return x

    def raise_modulus(self, x: Any, slots: int, share: float | None = None) -> Any:
        if self._raising is None:
            raise ProgramError("this chain does not bootstrap")
        return openfhe_ciphertext(self._raising(residues_of(x, self.ring, 0)), self.ring, str(x.GetKeyTag()))

    def _nearest(self, x: Any) -> Any:
        """A key switch's result, which nobody else uses, without the mean error of OpenFHE's rounding.

        This mean would add up in low-frequency slots (ckks/noise.py), beyond the range of bootstraps.
        """
        if not self.ring.rounds_to_nearest:
            return x
        halves = self._halves(self.describe(x)[0]).Clone()
        halves.SetKeyTag(str(x.GetKeyTag()))
        return self.accumulate(x, self._of_degree(halves, x.GetNoiseScaleDeg()))

    def _half_specials(self, level: int) -> Any:
        """A ciphertext whose coefficients are half the number of special primes, rounded up or down at random.

        The roundings are the same each time, and do not add up in single slots.
        """
        random = np.random.default_rng(level)
        coefficients = (self.ring.special + random.integers(2, size=(2, self.ring.ring_dim))) // 2
        rows = [
            [forward(part.astype(np.uint64), prime) for prime in self.ring.primes[: level + 1]] for part in coefficients
        ]
        return openfhe_ciphertext(np.array(rows), self.ring, UNNAMED)
