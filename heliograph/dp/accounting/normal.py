"""Long compositions without a transform: a normal law in place of the convolution, with a bound on its error (P25).

Under the tilt theta a composition's loss is a sum of independent losses. The distribution function of such a sum is within
`0.5600 * (sum of third absolute central moments) / variance^1.5` of a normal one (Berry 1941, Esseen 1942; the constant is
Shevtsova's of 2010, for laws that differ). delta is the mean of `e^(-theta x) (1 - e^-x)` of the loss's excess x over
epsilon, a function that rises from 0 and falls to 0: another distribution function within B of that one moves it by at
most 2 B times its maximum. The tilt puts epsilon in the middle, where the normal law is good for any delta. Only moments
of single steps are needed, so each mechanism has a mesh of its own, and millions of steps cost what one does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx

from heliograph.dp.accounting import convolve
from heliograph.dp.accounting.convolve import Terms
from heliograph.dp.accounting.discretize import Lattice, TooFineError
from heliograph.dp.pairs import UNIT

_ESSEEN = 0.5600
_LEAST_TILT, _MOST_TILT = 1e-14, 1e8
_FARTHEST = 30.0
"""Deviations between epsilon and the tilted mean at which the law still says something."""


@dataclass(frozen=True)
class _Moments:
    """Of one tilted loss: log of its total weight, mean, variance, and third absolute central moment.

    `relative`: the relative error of each weight, of the variance and of the third moment. `mean_error`: of the mean.
    """

    log_weight: float
    mean: float
    variance: float
    third: float
    relative: float
    mean_error: float


def _moments(lattice: Lattice, theta: float) -> _Moments:
    losses, weights, total, top = convolve.tilted(lattice, theta)
    # Sums of numpy are pairwise, and as accurate as their terms; those of BLAS may not be.
    about = float((weights * losses).sum()) / total
    # Around a value near the mean sums are as accurate as the deviation, not as the mean.
    away = losses - about
    off = float((weights * away).sum()) / total
    away -= off
    square = away * away
    variance = float((weights * square).sum()) / total
    largest = float(np.abs(theta * losses).max(where=weights > 1e-25 * total, initial=0.0))
    relative = UNIT * (64 + 4 * largest + 4 * abs(top) + 4 * math.log2(weights.size + 1))
    return _Moments(
        top + math.log(total),
        about + off,
        variance,
        float((weights * square * np.abs(away)).sum()) / total,
        relative,
        4 * relative * math.sqrt(variance) + 4 * UNIT * abs(about),
    )


@dataclass(frozen=True)
class Normal:
    """The tilted law of a composition as a normal one, with bounds on its error.

    `delta_at` is its only reader, as of `convolve.Composed`.

    theta: the tilt.
    log_scale: the cumulant at the tilt.
    mean, deviation: of the tilted loss.
    error: the largest distance between its distribution function and the normal one.
    relative: the relative error of the scale.
    infinite_above, infinite_below: bounds on the mass of infinite loss.
    shift: moves all losses.
    """

    theta: float
    log_scale: float
    mean: float
    deviation: float
    error: float
    relative: float
    infinite_above: float
    infinite_below: float
    shift: float

    @property
    def width(self) -> float:
        """The length of losses about which it says something."""
        return 2 * _FARTHEST * self.deviation

    def log_share(self, epsilon: float) -> float:
        """log of the normal law's mean of the excess; -inf where it underflows, nan where the law says nothing."""
        place = (epsilon - self.mean) / self.deviation
        if not abs(place) < _FARTHEST:
            return -math.inf if place > 0 else math.nan
        near, far = (self.theta * self.deviation + place, (self.theta + 1) * self.deviation + place)
        if near < -_FARTHEST:
            return math.nan
        share = float(erfcx(near / math.sqrt(2)) - erfcx(far / math.sqrt(2))) / 2
        return math.log(share) - place * place / 2 if share > 0 else -math.inf

    def delta_at(self, epsilon: float) -> tuple[float, float]:
        """Lower and upper bounds on the lattice law's delta at epsilon (shift not applied)."""
        log_factor = self.log_scale - self.theta * epsilon
        log_share = self.log_share(epsilon)
        if log_factor > 690 or math.isnan(log_share):
            return self.infinite_below, 1.0
        theta = self.theta
        largest = math.exp(theta * math.log(theta / (1 + theta)) - math.log1p(theta))
        # The two values of erfcx are up to 2 + theta + 31 / deviation times their difference, and their arguments err as
        # epsilon and the mean do.
        lost = 2 + theta + (1 + _FARTHEST) / self.deviation
        digits = 64 * UNIT * lost * (1 + _FARTHEST + abs(epsilon) / self.deviation)
        # Farther away it is less than this, and far less than the noise.
        share = math.exp(max(log_share, -(_FARTHEST**2) / 2))
        noise = 2 * self.error * largest + digits * share
        relative = math.expm1(
            min(self.relative + UNIT * (64 + 4 * abs(self.log_scale) + 4 * theta * abs(epsilon)), 50.0)
        )
        factor = math.exp(log_factor)
        above = self.infinite_above + factor * (share + noise) * (1 + relative)
        below = self.infinite_below + factor * max(share - noise, 0.0) * max(1 - relative, 0.0)
        return min(max(below, 0.0), 1.0), min(above, 1.0)


def normal(terms: Terms, theta: float, gaussian: float = 0.0) -> Normal:
    """The normal law of a composition tilted by theta.

    terms: the laws of mechanisms, and their counts.
    gaussian: the sum of the squared parameters of Gaussian mechanisms in it, whose loss is a normal one of this variance.
    """
    log_scale, mean, variance = theta * (theta + 1) * gaussian / 2, (theta + 0.5) * gaussian, gaussian
    # It is a sum of as many independent normal parts as one likes, whose third moments tend to 0.
    third = shift = 0.0
    worst = 16 * UNIT
    relative, mean_error = worst * log_scale, worst * mean
    for lattice, count in terms:
        each = _moments(lattice, theta)
        log_scale += count * each.log_weight
        mean += count * each.mean
        variance += count * each.variance
        third += count * each.third
        relative += count * (each.relative + UNIT * abs(each.log_weight))
        mean_error += count * each.mean_error
        worst = max(worst, each.relative)
        shift += count * lattice.shift
    deviation = math.sqrt(variance)
    if not deviation > 1e-90:
        raise TooFineError
    # Another mean, or deviation, moves the normal distribution function by at most 0.4 of it, in deviations.
    rounding = 0.4 * mean_error / deviation + 0.25 * worst
    error = min(_ESSEEN * third * (1 + 3 * worst) / variance**1.5 + rounding, 1.0)
    above, below = convolve.infinite_mass(
        (lattice.infinite, float(lattice.mass.sum()), count) for lattice, count in terms
    )
    return Normal(theta, log_scale, mean, deviation, error, relative, above, below, shift)


def tilt_for_delta(terms: Terms, gaussian: float, log_delta: float) -> float:
    """The tilt whose mean is about the epsilon at delta, if the law is a normal one."""

    def excess(log_theta: float) -> float:
        try:
            law = normal(terms, math.exp(log_theta), gaussian)
        except TooFineError:
            # All weight is at one node: the tilt is too large.
            return -1e9
        value = law.log_scale - law.theta * law.mean + law.log_share(law.mean) - log_delta
        return value if math.isfinite(value) else math.copysign(1e9, value)

    low, high = math.log(_LEAST_TILT), math.log(_MOST_TILT)
    if not excess(low) > 0:
        return _LEAST_TILT
    if not excess(high) < 0:
        return _MOST_TILT
    return math.exp(brentq(excess, low, high, xtol=1e-3))


def tilt_for_epsilon(terms: Terms, gaussian: float, epsilon: float) -> float:
    """The tilt whose mean is epsilon, or the least one."""

    def excess(log_theta: float) -> float:
        try:
            return normal(terms, math.exp(log_theta), gaussian).mean - epsilon
        except TooFineError:
            return 1e9

    low, high = math.log(_LEAST_TILT), math.log(_MOST_TILT)
    if not excess(low) < 0:
        return _LEAST_TILT
    if not excess(high) > 0:
        return _MOST_TILT
    return math.exp(brentq(excess, low, high, xtol=1e-3))
