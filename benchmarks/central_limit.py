"""The central-limit estimate: the composition as one Gaussian mechanism. It is not a bound on either side.

A Gaussian mechanism of parameter mu has `delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)`. For steps of
DP-SGD mu^2 = steps * p^2 * (e^(1/s^2) - 1) (Bu, Dong, Long, Su 2020); for others mu^2 is the variance of the total loss.
The published accountants understate epsilon by this estimate; it is here for comparison.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import log_ndtr

from heliograph.dp.accounting import convolve
from heliograph.dp.accounting.discretize import Mesh, offset_for, pessimistic
from heliograph.dp.accounting.result import Estimate, Tolerance
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Direction, Gaussian, Mechanism, SampledGaussian


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta of the Gaussian mechanism with sensitivity over noise `mu`; good to some digits, see `exact` for all."""
    if mu == 0:
        return 0.0
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(first) * max(-math.expm1(min(second - first, 0.0)), 0.0)


def central_mu(composition: Composition, direction: Direction) -> float:
    """The parameter of the Gaussian mechanism to which the composition tends."""
    return math.sqrt(math.fsum(count * _variance(mechanism, direction) for mechanism, count in composition))


def _variance(mechanism: Mechanism, direction: Direction) -> float:
    if isinstance(mechanism, Gaussian):
        return mechanism.noise_multiplier**-2
    if isinstance(mechanism, SampledGaussian):
        return mechanism.p**2 * math.expm1(min(mechanism.noise_multiplier**-2, 700.0))
    pair = mechanism.pair(direction)
    low, high = pair.part.loss_range(-60.0, -60.0) if pair.part is not None else (0.0, 0.0)
    if pair.part is None:
        mass, loss = pair.atoms.a, pair.atoms.loss
        mean = float((mass * loss).sum() / mass.sum())
        return float((mass * (loss - mean) ** 2).sum() / mass.sum())
    step = (high - low) / 2000
    return convolve.tilted_moments([(pessimistic(pair, Mesh(step), offset_for(pair, step), -60.0), 1)], 0.0)[2]


class CentralLimit:
    """The central-limit estimate as an accountant."""

    name = "gdp"
    proved = False
    remark = "a central-limit estimate: not a bound, and often below the true value"

    def epsilon(self, composition: Composition, direction: Direction, delta: float, tolerance: Tolerance) -> Estimate:
        """The epsilon of the limiting Gaussian; infinite losses are ignored."""
        mu = central_mu(composition, direction)
        if gaussian_delta(mu, 0.0) <= delta:
            return Estimate(None, 0.0, None)
        high = 1.0
        while gaussian_delta(mu, high) > delta:
            high *= 2
        root = brentq(lambda e: gaussian_delta(mu, e) - delta, 0.0, high, xtol=1e-12, rtol=1e-12)
        return Estimate(None, float(root), None)

    def delta(self, composition: Composition, direction: Direction, epsilon: float, tolerance: Tolerance) -> Estimate:
        """The delta of the limiting Gaussian; infinite losses are ignored."""
        return Estimate(None, gaussian_delta(central_mu(composition, direction), epsilon), None)
