"""Renyi accounting: an upper bound on epsilon from moments of the loss, at any real order, at a cost flat in the steps.

With theta = order - 1 and K(theta) = log E_A[e^(theta L)] (K / theta is the Renyi divergence), moments of a composition
add up, and `epsilon = (K + log(1/delta) + theta log(theta / (1 + theta)) - log(1 + theta)) / theta` (the conversion of
Canonne, Kamath, Steinke 2020 and Asoodeh et al. 2020). The moments of the sampled Gaussian are integrals of analytic
functions over the line; the trapezoid rule's error is bounded by the integrand's size in a strip (Trefethen and Weideman
2014, theorem 5.1), so that any real order is as sure as the integers are. (Mironov, Talwar, Zhang 2019 sum a series.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.optimize import minimize_scalar

from heliograph.dp.accounting import convolve
from heliograph.dp.accounting.discretize import Lattice, Mesh, TooFineError, offset_for, pessimistic
from heliograph.dp.accounting.result import Estimate, Tolerance
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Direction, Gaussian, Laplace, Mechanism, SampledGaussian
from heliograph.dp.pairs import GaussianBase, Pair, Part, SampledPart
from heliograph.dp.sampled_pairs import EitherPart, ExchangedPart, JoinedPart, MixturePart

_SLACK = 1e-12
"""Added to every moment, relative and absolute, for the round-off of its evaluation."""
_THETA_RANGE = (1e-4, 1e6)
_MOST_NODES = 200_000
"""Of the quadrature of a moment; orders that need more are far beyond those that decide."""


@lru_cache(maxsize=1 << 16)
def log_moment(mechanism: Mechanism, theta: float, direction: Direction) -> float:
    """An upper bound on log E_A[e^(theta L)] over finite losses; the Renyi divergence of order 1 + theta is it / theta.

    Tight to about 1e-12 for Gaussian, sampled Gaussian, Laplace and mechanisms made of atoms, to a second-order
    discretization for the others. Infinite losses are left out: delta must pay for them (`pld.infinite_bounds`).
    """
    if isinstance(mechanism, SampledGaussian) and mechanism.p == 0:
        return 0.0
    if isinstance(mechanism, SampledGaussian) and mechanism.p < 1:
        value = _sampled_gaussian(mechanism.p, 1 / mechanism.noise_multiplier, theta, direction)
    elif isinstance(mechanism, Gaussian | SampledGaussian):
        value = theta * (theta + 1) / (2 * mechanism.noise_multiplier**2)
    elif isinstance(mechanism, Laplace):
        # Mironov 2017, table II.
        a, e = theta + 1, mechanism.epsilon
        value = float(np.logaddexp(math.log(a / (2 * a - 1)) + theta * e, math.log(theta / (2 * a - 1)) - a * e))
    else:
        value = _from_pair(mechanism.pair(direction), theta)
    return value + _SLACK * (1 + abs(value)) * min(theta, 1.0)


def _from_pair(pair: Pair, theta: float) -> float:
    if pair.part is None:
        exponent = theta * pair.atoms.loss
        top = float(exponent.max())
        return top + math.log(float(np.dot(pair.atoms.a, np.exp(exponent - top))) * (1 + pair.atoms.relative_error))
    low, high = pair.part.loss_range(-60.0, -60.0)
    step = max(high - low, 1e-9) / 4000
    try:
        lattice = pessimistic(pair, Mesh(step), offset_for(pair, step), -80.0)
    except TooFineError:
        return float(np.logaddexp(_moment_bound(pair.part, theta), 0.0))
    finite = convolve.cumulant(lattice, theta) + theta * lattice.shift
    found = float(np.logaddexp(finite, _beyond(pair, lattice, theta)))
    # Losses below 0 add at most their mass.
    return min(found, float(np.logaddexp(_moment_bound(pair.part, theta), 0.0)))


def _beyond(pair: Pair, lattice: Lattice, theta: float) -> float:
    """An upper bound on the log-moment of the finite losses that the discretization puts at infinity."""
    assert pair.part is not None
    if math.isfinite(pair.part.high):
        cut = max(lattice.infinite * (1 + 1e-12) - pair.infinite_below, 0.0) + 1e-300
        return math.log(cut) + theta * max(pair.part.high, 0.0)
    # E[e^(theta L); L > top] <= e^(-s top) E[e^((theta + s) L)], for every s >= 0.
    top = float(lattice.losses()[-1])
    top -= 1e-6 * (1 + abs(top))
    tilts = [0.0, *np.geomspace(0.01, 1e4, 40).tolist()]
    return float(min(_moment_bound(pair.part, theta + s) - s * top for s in tilts))


def _moment_bound(part: Part, theta: float) -> float:
    """An upper bound on the log-moment of an unbounded part; infinite where none is known."""
    if isinstance(part, JoinedPart):
        return _moment_bound(part.above, theta)
    if isinstance(part, EitherPart):
        first, other = (
            math.log(share) + _moment_bound(each, theta) for each, share in zip(part.parts, part.shares, strict=True)
        )
        return float(np.logaddexp(first, other)) + part.error
    if isinstance(part, ExchangedPart):
        # Moments are convex in the pair: at most the mean of that of no record and that of two records that are there.
        # And B is at least 1 - p times the law without a record.
        rest, moved = math.log1p(-part.p), math.log(part.p) + 2 * theta * (theta + 1) * part.mu**2
        added = _sampled_gaussian(part.p, part.mu, theta, "remove") - theta * rest
        return min(float(np.logaddexp(rest, moved)), added) + 1e-9
    if isinstance(part, SampledPart) and isinstance(part.base, GaussianBase) and part.remove:
        return _sampled_gaussian(part.p, part.base.mu, theta, "remove") + 1e-9
    if isinstance(part, MixturePart) and part.remove:
        # The power 1 + theta of a mean is at most the mean of the powers.
        terms = np.log(part.weights) + theta * (theta + 1) * part.shifts**2 / 2
        return float(np.logaddexp.reduce(terms)) + 1e-9
    return math.inf


def _sampled_gaussian(p: float, mu: float, theta: float, direction: Direction) -> float:
    power = theta + 1 if direction == "remove" else -theta
    # Beyond these ends the integrand's logarithm falls with a slope of at least 8.
    low = -12.0 if power > 0 else -8.0 - theta * mu
    high = power * mu + 8.0 if power > 0 else 12.0
    # For |Im x| < strip, the base 1 - p + p e^t has no zero; its size is at most (at least) a factor times that on the line.
    strip = min(0.9 * math.pi / mu, 6.0) if power > 0 else min(math.pi / (3 * mu), 6.0)
    need = 42.0 + strip**2 / 2 + (0.0 if power > 0 else theta * math.log(2.0))
    count = max(math.ceil((high - low) / (2 * math.pi * strip / need)), 16)
    if count > _MOST_NODES:
        # Sampling never increases a divergence (it is quasi-convex): use the moment of the Gaussian without sampling.
        return theta * (theta + 1) * mu * mu / 2
    x, step = np.linspace(low, high, count, retstep=True)
    t = mu * x - mu * mu / 2
    log_base = np.logaddexp(math.log1p(-p), math.log(p) + t)
    # Near 1, use log1p: otherwise a small p would lose its digits.
    log_base = np.where(t < 1.0, np.log1p(p * np.expm1(np.minimum(t, 1.0))), log_base)
    exponent = power * log_base - x * x / 2
    top = float(exponent.max())
    values = np.exp(exponent - top)
    total = float(values.sum()) * step + float(values[0] + values[-1]) / 8
    # Left of -12 with a positive power the integrand is below the normal density.
    beyond = math.exp(-72.0 - top) if power > 0 else 0.0
    return top + math.log(total + beyond) - 0.5 * math.log(2 * math.pi)


def total_log_moment(composition: Composition, theta: float, direction: Direction) -> float:
    """The log-moment of a composition: the sum over its mechanisms."""
    return math.fsum(count * log_moment(mechanism, theta, direction) for mechanism, count in composition)


def conversion(theta: float, delta: float) -> float:
    """The term that order 1 + theta adds to K / theta to give an epsilon at delta."""
    return (-math.log(delta) + theta * math.log(theta / (1 + theta)) - math.log1p(theta)) / theta


def total_lost(composition: Composition, direction: Direction) -> float:
    """An upper bound on the probability that some loss of the composition is infinite or unknown."""
    log_kept = 0.0
    for mechanism, count in composition:
        lost = lost_mass(mechanism, direction)
        log_kept += count * (math.log1p(-lost) if lost < 1 else -math.inf)
    return -math.expm1(log_kept) * (1 + 1e-12)


def lost_mass(mechanism: Mechanism, direction: Direction) -> float:
    """The probability that a mechanism's loss is infinite or unknown."""
    if isinstance(mechanism, Gaussian | SampledGaussian | Laplace):
        return 0.0
    pair = mechanism.pair(direction)
    return pair.infinite_above


def epsilon_bound(composition: Composition, direction: Direction, delta: float) -> tuple[float, float]:
    """An upper bound on epsilon at delta, and its theta."""
    spare = delta - total_lost(composition, direction)
    if not composition.items:
        return 0.0, 1.0
    if spare <= 0:
        return math.inf, 1.0

    def bound(log_theta: float) -> float:
        theta = math.exp(log_theta)
        return total_log_moment(composition, theta, direction) / theta + conversion(theta, spare)

    best, theta = _minimum(bound)
    return max(best, 0.0) * (1 + 1e-12), theta


def _minimum(bound: Callable[[float], float]) -> tuple[float, float]:
    """The least value of a function of log theta, and its theta."""
    grid = np.linspace(math.log(_THETA_RANGE[0]), math.log(_THETA_RANGE[1]), 32)
    values = np.full(grid.size, math.nan)

    def at(place: int) -> float:
        if math.isnan(values[place]):
            value = bound(float(grid[place]))
            values[place] = math.inf if math.isnan(value) else value
        return float(values[place])

    # The bound falls, then rises, and moments of high orders are expensive: search the grid by sections, do not try all of
    # it. (Every order gives a valid bound; missing the minimum only makes it looser.)
    left, right = 0, grid.size - 1
    while right - left > 2:
        first = left + max(round(0.382 * (right - left)), 1)
        second = max(first + 1, left + round(0.618 * (right - left)))
        if at(first) <= at(second):
            right = second
        else:
            left = first
    best = min(range(left, right + 1), key=at)
    if not math.isfinite(values[best]):
        return math.inf, 1.0
    left, right = grid[max(best - 1, 0)], grid[min(best + 1, grid.size - 1)]
    with np.errstate(invalid="ignore"):  # the search may meet infinite values at its ends
        found = minimize_scalar(bound, bounds=(left, right), method="bounded", options={"xatol": 1e-4})
    if found.fun < values[best]:
        return float(found.fun), math.exp(float(found.x))
    return float(values[best]), math.exp(float(grid[best]))


class Renyi:
    """Renyi accounting as an accountant: an upper bound, and no lower one but 0."""

    name = "rdp"
    proved = True
    remark = "an upper bound only"

    def epsilon(self, composition: Composition, direction: Direction, delta: float, tolerance: Tolerance) -> Estimate:
        """An upper bound on epsilon at delta."""
        bound, _ = epsilon_bound(composition, direction, delta)
        return Estimate(0.0, bound, bound)

    def delta(self, composition: Composition, direction: Direction, epsilon: float, tolerance: Tolerance) -> Estimate:
        """An upper bound on delta at epsilon."""
        lost = total_lost(composition, direction)
        if not composition.items:
            return Estimate(0.0, 0.0, 0.0)

        def bound(log_theta: float) -> float:
            theta = math.exp(log_theta)
            value = total_log_moment(composition, theta, direction) - theta * epsilon
            return value + theta * math.log(theta / (1 + theta)) - math.log1p(theta)

        best, _ = _minimum(bound)
        value = min(math.exp(min(best, 0.0)) * (1 + 1e-9) + lost, 1.0)
        return Estimate(0.0, value, value)
