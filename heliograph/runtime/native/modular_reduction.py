"""The modular reduction of bootstrapping: what lies near a whole number becomes its distance from it.

exp(2 pi i x) has the period one. The exponential of an eighth of the angle is a polynomial, three squarings follow, and
the imaginary parts of the result and of its square, sin(phi) and sin(2 phi), together give back the small angle.

Others take the cosine and double its angle (Han and Ki, "Better Bootstrapping for Approximate Homomorphic Encryption",
2020). Near zero, where most multiples lie, a cosine is flat: the three doublings there make an error up to 64 times as
large, squarings of the exponential 8 times. The slots are complex anyway.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev

from heliograph.ckks.noise import BOOTSTRAP_FITTED
from heliograph.ir import Array
from heliograph.runtime.native.ciphertext import Ciphertext
from heliograph.runtime.native.primitives import NativePrimitives

SQUARINGS = 3
# Five for degree 31, the squarings, one for the square of the result.
LEVELS = 5 + SQUARINGS + 1
_DEGREE = 31


@dataclass(frozen=True, slots=True)
class _Scaled:
    """A ciphertext and the true scale of its value (log2)."""

    x: Ciphertext
    log_scale: float


def reduced(
    do: NativePrimitives, x: Ciphertext, log_scale: float, reach: float, share: float, target: float
) -> Ciphertext:
    """u at scale 2^`target`, `LEVELS` lower, for real x of value (I + u / `share`) / `reach`, I whole and |u| up to 2.

    |I + u / share| must not exceed `reach`.
    """
    return _Reduction(do, _Scaled(x, log_scale), reach).run(share, target)


@functools.lru_cache(maxsize=16)
def exponential(reach: float) -> Array:
    """Complex coefficients in Chebyshev's basis of exp(2 pi i reach y / 2^SQUARINGS), |y| up to 1."""
    turn = 2 * math.pi * reach / 2**SQUARINGS
    even = chebyshev.chebinterpolate(lambda y: np.cos(turn * y), _DEGREE)
    odd = chebyshev.chebinterpolate(lambda y: np.sin(turn * y), _DEGREE)
    # The others are zero but for rounding.
    even[1::2] = odd[::2] = 0
    found: Array = even + 1j * odd
    return found


@functools.cache
def angle(share: float) -> tuple[float, float]:
    """(a, b): u is close to a sin(phi) - b sin(2 phi) for phi = 2 pi u / share: best for u up to `BOOTSTRAP_FITTED`."""
    u = BOOTSTRAP_FITTED * np.cos(np.pi * (np.arange(64) + 0.5) / 128)
    phi = 2 * np.pi * u / share
    (a, b), *_ = np.linalg.lstsq(np.stack([np.sin(phi), -np.sin(2 * phi)], axis=1), u, rcond=None)
    return float(a), float(b)


class _Reduction:
    """Chebyshev's polynomials T_1, T_2, T_3, T_4, T_8, T_16 of a value, and what is made of them.

    Scales of T_k stay a bit above the primes: 2 t^2 then needs no doubling, and its rounding counts half.
    """

    def __init__(self, do: NativePrimitives, x: _Scaled, reach: float) -> None:
        self._do, self._reach = do, reach
        self._logs = [math.log2(prime) for prime in do.tables.primes]
        second = self._doubled(x)
        self._powers = {1: x, 2: second, 3: self._third(x, second), 4: self._doubled(second)}
        while 4 * max(self._powers) <= _DEGREE + 1:
            self._powers[2 * max(self._powers)] = self._doubled(self._powers[max(self._powers)])

    def run(self, share: float, target: float) -> Ciphertext:
        do, (a, b) = self._do, angle(share)
        level = self._powers[1].x.level - LEVELS
        # The scale from which the squarings lead to the target: b is in the scale of the last square.
        log_scale = target + math.log2(b / 2)
        for i in range(1, SQUARINGS + 2):
            log_scale = (log_scale + self._logs[level + i]) / 2
        w = self._polynomial(exponential(self._reach), level + SQUARINGS + 1, log_scale)
        for _ in range(SQUARINGS):
            w = self._squared(w)
        # Twice the imaginary part.
        v = do.sub(self._times(w, a / 2, level, target), self._squared(w).x)
        return do.times_i(do.sub(do.conjugate(v), v))

    def _polynomial(self, c: Array, level: int, log_scale: float) -> _Scaled:
        """A polynomial in Chebyshev's basis, at exactly this level and scale."""
        if all(k in self._powers and self._powers[k].x.level > level for k in range(1, c.size)):
            return self._combined(c, level, log_scale)
        # c = quotient T_half + rest: T_(half + k) = 2 T_half T_k - T_(half - k).
        half = c.size // 2
        quotient, rest = 2 * c[half:], c[:half].copy()
        quotient[0] /= 2
        rest[1:] -= c[half + 1 :][::-1]
        power = self._powers[half]
        upper = self._polynomial(quotient, level + 1, log_scale + self._logs[level + 1] - power.log_scale)
        lower = self._polynomial(rest, level, log_scale)
        do = self._do
        product = do.relinearize(do.mul(upper.x, self._at(power, level + 1)))
        return _Scaled(do.add(do.rescale(product), lower.x), log_scale)

    def _combined(self, c: Array, level: int, log_scale: float) -> _Scaled:
        """A sum of T_k that are there, one level higher or more, times complex numbers."""
        do, sums = self._do, []
        for weights in (c.real, c.imag):
            terms = [
                self._product(self._powers[k], float(w), level, log_scale) for k, w in enumerate(weights) if k and w
            ]
            sums.append(functools.reduce(do.accumulate, terms) if terms else None)
        real, imaginary = sums
        if imaginary is not None:
            imaginary = do.times_i(imaginary)
        total = do.add(real, imaginary) if real is not None and imaginary is not None else real or imaginary
        assert total is not None
        # Even ones have real coefficients, odd ones imaginary ones.
        assert not c[0].imag
        return self._plus(_Scaled(do.rescale(total), log_scale), float(c[0].real))

    def _third(self, first: _Scaled, second: _Scaled) -> _Scaled:
        """T_3 = 2 T_1 T_2 - T_1."""
        do, level = self._do, second.x.level
        product = do.relinearize(do.mul(self._at(first, level), second.x))
        twice = first.log_scale + second.log_scale - self._logs[level] - 1
        return _Scaled(do.sub(do.rescale(product), self._times(first, 1.0, level - 1, twice)), twice)

    def _doubled(self, t: _Scaled) -> _Scaled:
        """2 t^2 - 1: the square, read at half its scale."""
        square = self._squared(t)
        return self._plus(_Scaled(square.x, square.log_scale - 1), -1.0)

    def _squared(self, t: _Scaled) -> _Scaled:
        do = self._do
        square = do.rescale(do.relinearize(do.mul(t.x, t.x)))
        return _Scaled(square, 2 * t.log_scale - self._logs[t.x.level])

    def _plus(self, t: _Scaled, constant: float) -> _Scaled:
        do = self._do
        return _Scaled(do.add_plain(t.x, do.encode(constant, t.log_scale, t.x.level)), t.log_scale)

    def _times(self, t: _Scaled, factor: float, level: int, log_scale: float) -> Ciphertext:
        """t times a number, at this level and scale."""
        return self._do.rescale(self._product(t, factor, level, log_scale))

    def _product(self, t: _Scaled, factor: float, level: int, log_scale: float) -> Ciphertext:
        """t times a number, a level higher: rescaled it has this level and scale."""
        plain = log_scale + self._logs[level + 1] - t.log_scale
        return self._do.mul_scalar(self._at(t, level + 1), factor, plain)

    def _at(self, t: _Scaled, level: int) -> Ciphertext:
        return t.x if t.x.level == level else self._do.level_drop(t.x, t.x.level - level)
