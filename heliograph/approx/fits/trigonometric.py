"""Trigonometric series for functions on [-1, 1], which a bootstrap can compute instead of returning its value.

Their period 2 T is longer than the interval: between the ends, they may take any values that keep the coefficients
small (a Fourier extension; Huybrechs, "On the Fourier Extension of Nonperiodic Functions", 2010). ckks/trigonometric.py
describes their evaluation. A kink in the middle of [-1, 1] takes a third of the degree that an algebraic polynomial
needs, because the points of the latter crowd at the ends.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.polynomial import chebyshev

from heliograph.approx.fits.fit import FLOOR, NARROWEST, Fit, Moments, density
from heliograph.approx.proofs.fit_proof import largest_error
from heliograph.ckks.trigonometric import DEGREES, Series, evaluate
from heliograph.functions import Function

Vector = npt.NDArray[np.float64]

# The half periods to try: the closer to one, the finer the resolution of a series; but its values at -1 and 1 must
# meet.
_HALF_PERIODS = (1.1, 1.2, 1.35, 1.5, 2.0)
# Coefficients are kept small, because they amplify errors: the square of (1 + k) times the size of term k, times this,
# is added to the objective.
_RIDGE = 1e-7
_POINTS, _FEW_POINTS = 4001, 1001
# The rounds that reduce the largest error, and the least weight of a point in the next one.
_ROUNDS, _LEAST_WEIGHT = 12, 0.02


@dataclass(frozen=True, slots=True)
class SeriesFit(Series):
    """A series that approximates a function.

    `max_error`: a bound on its error if `proved`, else the largest measured error.
    `rms_error`: the root mean square error under the distribution of the inputs.
    """

    max_error: float
    rms_error: float
    proved: bool = False


def as_polynomial(coefficients: Vector, half_period: float) -> Vector:
    """Chebyshev coefficients on [-1, 1] of a polynomial that equals the series up to 2^-50 of its coefficients' sum.

    The interpolant of degree n of exp(i w t) is off by at most 4 times the sum over m > n of |J_m(w)|, and |J_m(w)| is
    at most (e w / (2 m))^m (Trefethen, Approximation Theory and Approximation Practice, theorem 4.2).
    """
    fastest = (coefficients.shape[1] - 1) * math.pi / half_period
    degree = math.ceil(0.9 * math.e * fastest) + 40
    ratio = math.e * fastest / (2 * (degree + 1))
    assert 4 * ratio ** (degree + 1) / (1 - ratio) < 2.0**-50

    def series(t: Any) -> Any:
        return evaluate(coefficients, half_period, t)

    return np.asarray(chebyshev.chebinterpolate(series, degree))


@functools.lru_cache(maxsize=64)
def _basis(degree: int, half_period: float, count: int) -> Vector:
    t = np.linspace(-1.0, 1.0, count, dtype=np.float64)
    angles = np.outer(t, np.arange(degree + 1)) * (math.pi / half_period)
    return np.concatenate([np.cos(angles), np.sin(angles[:, 1:])], axis=1)


def _least_squares(basis: Vector, target: Vector, weight: Vector) -> Vector:
    # The frequencies of the columns: cosines from 0 on, then sines from 1 on.
    degree = basis.shape[1] // 2
    k = np.concatenate([np.arange(degree + 1), np.arange(1, degree + 1)])
    system = np.concatenate([basis * weight[:, None], np.diag(math.sqrt(_RIDGE) * (1.0 + k))])
    return np.asarray(np.linalg.lstsq(system, np.append(target * weight, np.zeros(k.size)), rcond=None)[0])


def _evened(basis: Vector, target: Vector, weight: Vector, made: Vector) -> tuple[Vector, Vector]:
    """The coefficients with the least largest error in Lawson's iteration, which starts from `made`, and their errors:
    points weigh more where errors are large.
    """
    best, least = made, basis @ made - target
    error = least
    for _ in range(_ROUNDS):
        size = np.abs(error)
        weight = weight * np.sqrt(size / max(float(size.max()), 1e-300) + _LEAST_WEIGHT)
        weight /= math.sqrt(float(weight @ weight))
        made = _least_squares(basis, target, weight)
        error = basis @ made - target
        if np.abs(error).max() < np.abs(least).max():
            best, least = made, error
    return best, least


def _weights(
    low: float,
    high: float,
    mean: Moments | None,
    std: Moments | None,
    shares: Vector | None,
    spread: float,
    count: int,
) -> tuple[Vector, Vector, Vector]:
    """Points of an interval, the roots of their weights in a fit, and their weights in a mean; both sum to one."""
    x: Vector = np.linspace(low, high, count, dtype=np.float64)
    likely, exact = np.ones_like(x), np.ones_like(x)
    if mean is not None and std is not None:
        narrow = (high - low) * NARROWEST
        likely = density(x, mean, np.maximum(spread * np.asarray(std), narrow), shares)
        exact = density(x, mean, np.maximum(np.asarray(std), narrow), shares)
    return x, np.sqrt((likely + FLOOR) / (likely + FLOOR).sum()), exact / exact.sum()


def mean_square_errors(
    function: Callable[[Vector], Vector],
    low: float,
    high: float,
    mean: Moments,
    std: Moments,
    shares: Vector | None,
    spread: float,
) -> dict[int, float]:
    """The mean square error of the series of each degree, under the distribution of the inputs."""
    x, weight, exact = _weights(low, high, mean, std, shares, spread, _FEW_POINTS)
    target = np.asarray(function(x), dtype=np.float64)
    found = {}
    for degree in DEGREES:
        bases = [_basis(degree, half_period, _FEW_POINTS) for half_period in _HALF_PERIODS]
        errors = (basis @ _least_squares(basis, target, weight) - target for basis in bases)
        found[degree] = min(float(exact @ error**2) for error in errors)
    return found


def fit_series(
    of: Function,
    beside: Fit,
    mean: Moments | None,
    std: Moments | None,
    shares: Vector | None = None,
    spread: float = 1.0,
    degree: int | None = None,
) -> SeriesFit | None:
    """The series of the lowest degree that is as accurate as the polynomial `beside` on its interval; None if there is
    none.

    It is as accurate if neither its largest error nor its root mean square error under the distribution of the inputs
    is larger. It is the weighted least squares fit under that distribution, widened by `spread`, with a floor. Without
    a distribution, only the largest error counts, and is reduced. With a `degree`, it is the series of that degree,
    however accurate.
    """
    x, weight, exact = _weights(beside.low, beside.high, mean, std, shares, spread, _POINTS)
    target = np.asarray(of.evaluate(x), dtype=np.float64)
    size = max(float(np.abs(target).max()), 1e-300)
    rms_allowed = math.sqrt(float(exact @ (beside(x) - target) ** 2))
    # From this degree on, a series would spend as many levels as the polynomial.
    most = (1 << beside.degree.bit_length()) // 2
    for tried in (degree,) if degree is not None else (each for each in DEGREES if each < most):
        found: list[tuple[float, float, Vector]] = []
        for half_period in _HALF_PERIODS:
            basis = _basis(tried, half_period, _POINTS)
            made = _least_squares(basis, target, weight)
            error = basis @ made - target
            if mean is None:
                made, error = _evened(basis, target, weight, made)
            rms = math.sqrt(float(exact @ error**2))
            finer = mean is None or rms <= rms_allowed
            if degree is not None or (finer and float(np.abs(error).max()) <= beside.max_error):
                both = np.stack([made[: tried + 1], np.append(0.0, made[tried + 1 :])])
                # Far finer than the error, and short when printed.
                unit = 2.0 ** (math.floor(math.log2(size)) - 32)
                both = np.rint(both / unit) * unit
                found.append((rms, half_period, both))
        if found:
            rms, half_period, both = min(found, key=lambda one: one[0])
            bound, proved = largest_error(as_polynomial(both, half_period).tolist(), beside.low, beside.high, of)
            return SeriesFit(both, half_period, bound + 2.0**-50 * float(np.abs(both).sum()), rms, proved)
    return None
