"""The modular reduction of bootstrapping: what lies near a whole number becomes its distance from it.

cos(2 pi (x - 1/4)) = sin(2 pi x) has the period one. The cosine of an eighth of the angle is a polynomial, and three
doublings of the angle follow (Han and Ki, "Better Bootstrapping for Approximate Homomorphic Encryption", 2020). A cubic
polynomial takes the sine back to its angle. The cosine is even, so that one squaring halves the degree.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev

from heliograph.ir import Array
from heliograph.runtime.native.ciphertext import Ciphertext
from heliograph.runtime.native.primitives import NativePrimitives

DOUBLINGS = 3
# One squaring, four levels for degree 15, the doublings, two for the way back to the angle.
LEVELS = 1 + 4 + DOUBLINGS + 2
_DEGREE = 15
# Messages are smaller than this share of the modulus, in units of 1 / `SHARE`.
SHARE = 256
# Values are bootstrapped up to this size, in units of the nominal scale.
_LARGEST = 2.0


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A ciphertext and the true scale of its value (log2)."""

    x: Ciphertext
    log_scale: float


def reduced(do: NativePrimitives, x: Ciphertext, log_scale: float, reach: float, target: float) -> Ciphertext:
    """u at scale 2^`target`, `LEVELS` lower, for x of value (I + u / SHARE) / `reach`, I whole and |u| at most 2.

    |I + u / SHARE| must not exceed `reach` - 1/4.
    """
    return _Reduction(do, reach).run(_Scaled(x, log_scale), target)


@functools.lru_cache(maxsize=16)
def cosine(reach: float) -> Array:
    """Coefficients in Chebyshev's basis of cos(2 pi reach y / 2^DOUBLINGS) as a polynomial in z = 2 y^2 - 1, |y| up to 1."""
    turn = 2 * math.pi * reach / 2**DOUBLINGS
    found: Array = chebyshev.chebinterpolate(lambda z: np.cos(turn * np.sqrt((z + 1) / 2)), _DEGREE)
    return found


@functools.cache
def angle() -> tuple[float, float]:
    """(a, b): u is close to a s + b s^3 for s = sin(2 pi u / SHARE)."""
    u = _LARGEST * np.cos(np.pi * (np.arange(64) + 0.5) / 128)
    s = np.sin(2 * np.pi * u / SHARE)
    (a, b), *_ = np.linalg.lstsq(np.stack([s, s**3], axis=1), u, rcond=None)
    return float(a), float(b)


class _Reduction:
    def __init__(self, do: NativePrimitives, reach: float) -> None:
        self._do, self._reach = do, reach
        self._logs = [math.log2(prime) for prime in do.tables.primes]

    def run(self, x: _Scaled, target: float) -> Ciphertext:
        # In units of the reach, a quarter turn to the side: the sine is a cosine there.
        y = self._plus(x, -0.25 / self._reach)
        z = self._doubled(y)
        powers, count = [z], 1
        while 2 * count <= _DEGREE:
            powers.append(self._doubled(powers[-1]))
            count *= 2
        level = z.x.level - len(powers)
        c = self._polynomial(cosine(self._reach), powers, level, float(z.log_scale))
        for _ in range(DOUBLINGS):
            c = self._doubled(c)
        return self._angle(c, target)

    def _angle(self, s: _Scaled, target: float) -> Ciphertext:
        a, b = angle()
        do, level = self._do, s.x.level
        square = self._rescaled(do.relinearize(do.mul(s.x, s.x)), 2 * s.log_scale)
        cubic_scale = target + self._logs[level - 1] - square.log_scale
        cubic = self._times(s, b, level - 1, cubic_scale)
        product = do.rescale(do.relinearize(do.mul(cubic, square.x)))
        return do.add(product, self._times(s, a, level - 2, target))

    def _polynomial(self, c: Array, powers: list[_Scaled], level: int, log_scale: float) -> _Scaled:
        """A polynomial in Chebyshev's basis of powers[0], at exactly this level and scale."""
        if c.size <= 2:
            x = self._times(powers[0], float(c[1]), level, log_scale)
            return self._plus(_Scaled(x, log_scale), float(c[0]))
        # c = quotient T_half + rest: T_(half + k) = 2 T_half T_k - T_(half - k).
        half = c.size // 2
        quotient, rest = 2 * c[half:], c[:half].copy()
        quotient[0] /= 2
        rest[1:] -= c[half + 1 :][::-1]
        power = powers[half.bit_length() - 1]
        beside = log_scale + self._logs[level + 1] - power.log_scale
        upper = self._polynomial(quotient, powers, level + 1, beside)
        lower = self._polynomial(rest, powers, level, log_scale)
        do = self._do
        product = do.relinearize(do.mul(upper.x, self._at(power, level + 1)))
        return _Scaled(do.add(do.rescale(product), lower.x), log_scale)

    def _doubled(self, t: _Scaled) -> _Scaled:
        """2 t^2 - 1."""
        do = self._do
        square = self._rescaled(do.relinearize(do.mul(t.x, t.x)), 2 * t.log_scale)
        return self._plus(_Scaled(do.add(square.x, square.x), square.log_scale), -1.0)

    def _rescaled(self, x: Ciphertext, log_scale: float) -> _Scaled:
        return _Scaled(self._do.rescale(x), log_scale - self._logs[x.level])

    def _plus(self, t: _Scaled, constant: float) -> _Scaled:
        do = self._do
        return _Scaled(do.add_plain(t.x, do.encode(constant, t.log_scale, t.x.level)), t.log_scale)

    def _times(self, t: _Scaled, factor: float, level: int, log_scale: float) -> Ciphertext:
        """t times a number, at this level and scale."""
        plain = log_scale + self._logs[level + 1] - t.log_scale
        return self._do.rescale(self._do.mul_scalar(self._at(t, level + 1), factor, plain))

    def _at(self, t: _Scaled, level: int) -> Ciphertext:
        return t.x if t.x.level == level else self._do.level_drop(t.x, t.x.level - level)
