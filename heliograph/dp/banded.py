"""Banded factorisations for correlated noise (DP-FTRL by BandMF): the coefficients, their sensitivity, their error.

Prefix sums of gradients g are released as A (g + C^-1 z): C is lower triangular, Toeplitz, with `bands` diagonals of
coefficients c, and z is Gaussian. The release is C g + z, the rest is post-processing. A record in step i moves C g by
column i of C; columns that are at least `bands` apart do not overlap, so that with such a separation every
participation is one Gaussian release with sensitivity the largest column's norm (Choquette-Choo et al. 2023,
(Amplified) banded matrix factorization, section 3). With c of norm at most 1 the noise multiplier is z's.

The coefficients minimise the mean squared error of all prefix sums at norm 1; they start at the truncated square root of A
(Kalinin, Lampert 2024), which is optimal for no truncation and many steps, up to a constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import minimize
from scipy.signal import fftconvolve, lfilter

from heliograph.dp.pairs import Array
from heliograph.errors import ProgramError


@dataclass(frozen=True)
class Banded:
    """A banded Toeplitz factor for a number of steps, by its coefficients: the diagonal first."""

    coefficients: tuple[float, ...]
    steps: int

    @property
    def bands(self) -> int:
        """The number of diagonals."""
        return len(self.coefficients)

    def sensitivity(self) -> float:
        """The largest norm of a column: the effect on C g of one participation of a record with a vector of norm 1.

        Columns near the end are cut off, so it is the norm of the first; rounded up.
        """
        return math.sqrt(math.fsum(c * c for c in self.coefficients[: self.steps])) * (1 + 1e-15)

    def participations(self) -> int:
        """The largest number of steps with one record, if its steps are at least `bands` apart."""
        return -(-self.steps // self.bands)

    def moved(self, pattern: list[int]) -> float:
        """The effect on C g of a record of norm 1 in these steps, with parallel vectors: computed, not bounded."""
        total = np.zeros(self.steps + self.bands)
        for at in pattern:
            total[at : at + self.bands] += self.coefficients
        return float(np.linalg.norm(total[: self.steps]))

    def error(self) -> float:
        """The root mean squared error of the prefix sums for z of variance 1."""
        return math.sqrt(_squares(np.array(self.coefficients), self.steps)[0] / self.steps)


@lru_cache(maxsize=32)
def optimal_bands(bands: int, steps: int) -> Banded:
    """The factor with least mean squared error of prefix sums among Toeplitz ones with these bands and columns of norm 1."""
    for value, name in ((bands, "bands"), (steps, "steps")):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**7:
            raise ProgramError(f"{name} = {value!r} must be an integer in [1, 1e7]", where="optimal_bands")
    if bands > steps:
        raise ProgramError(
            f"{bands} bands for {steps} steps", where="optimal_bands", hint="use no more bands than steps"
        )
    start = np.cumprod(np.concatenate(([1.0], (2 * np.arange(1, bands) - 1) / (2 * np.arange(1, bands)))))

    def loss(free: Array) -> tuple[float, Array]:
        norm = float(np.linalg.norm(free))
        value, gradient = _squares(free / norm, steps)
        inner = (gradient - np.dot(gradient, free / norm) * (free / norm)) / norm
        return math.log(value), np.asarray(inner / value)

    best = start / np.linalg.norm(start)
    if bands > 1:
        found = minimize(loss, best, jac=True, method="L-BFGS-B", options={"maxiter": 300})
        if found.fun < loss(best)[0] and np.all(np.isfinite(found.x)):
            best = found.x / np.linalg.norm(found.x)
    if best[0] < 0:
        best = -best
    # Scaled down slightly, so that the norm is at most 1 despite rounding.
    return Banded(tuple((best * (1 - 4e-15 - 4e-16 * bands)).tolist()), steps)


def _squares(c: Array, steps: int) -> tuple[float, Array]:
    """The sum of squared errors of all prefix sums, and its gradient in c.

    A C^-1 is Toeplitz with first column the running sum of C^-1's first column; entry t occurs in steps - t rows.
    """
    impulse = np.zeros(steps)
    impulse[0] = 1.0
    inverse = lfilter([1.0], c, impulse)
    sums = np.cumsum(inverse)
    weights = np.arange(steps, 0, -1)
    value = float(np.dot(weights, sums * sums))
    if not math.isfinite(value):
        return 1e300, np.zeros(c.size)
    # d inverse = - inverse * inverse * dc, convolved.
    behind = np.cumsum((2 * weights * sums)[::-1])[::-1]
    twice = fftconvolve(inverse, inverse)[:steps]
    gradient = np.array([-np.dot(behind[j:], twice[: steps - j]) for j in range(c.size)])
    return value, gradient


__all__ = ["Banded", "optimal_bands"]
