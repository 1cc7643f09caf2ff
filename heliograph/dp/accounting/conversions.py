"""Conversions between accounts of privacy: zero-concentrated DP, Renyi curves, lists of (epsilon, delta).

The input is a guarantee, and the output follows from it (P7). If it is known that nothing better follows, or how far
from the best the output can be, the docstring says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.optimize import minimize_scalar

from heliograph.dp.accounting.accountant import check_delta, epsilon_at
from heliograph.dp.accounting.filters import divergence
from heliograph.dp.accounting.rdp import conversion
from heliograph.dp.batches import TruncatedPair
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import (
    Gaussian,
    Laplace,
    Mechanism,
    Pure,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
)
from heliograph.errors import ProgramError, UnsupportedError


def zcdp(composition: Composition | Mechanism) -> tuple[float, float]:
    """Bounds on the least rho such that a composition is rho-zCDP (Bun, Steinke 2016): all D_alpha at most rho alpha.

    Gaussians: 1 / (2 s^2), exactly; a sampled Gaussian has the same rho, as the limit of its ratios. Pure
    mechanisms: epsilon^2 / 2 from above (their proposition 1.4), from below the largest ratio on a grid of orders.
    Raises UnsupportedError for mechanisms without a known finite rho.
    """
    asked = Composition.of(composition)
    whole = asked.bounded("above", 1e-10)
    upper = math.fsum(count * _zcdp_above(mechanism) for mechanism, count in whole)
    orders = [1 + 10 ** (k / 4) for k in range(-12, 13)]
    lower = 0.0
    tight = asked.bounded("below", 1e-10) == whole
    if tight:
        # `divergence` is tight to 1e-12 for these mechanisms, from above.
        for order in orders:
            total = math.fsum(count * divergence(mechanism, order) for mechanism, count in whole)
            lower = max(lower, (total * (1 - 1e-9) - 1e-11) / order)
    if tight and all(isinstance(mechanism, Gaussian | SampledGaussian) for mechanism, _ in whole):
        lower = upper
    return min(lower, upper), upper


def _zcdp_above(mechanism: Mechanism) -> float:
    if isinstance(mechanism, Gaussian | SampledGaussian):
        return 1 / (2 * mechanism.noise_multiplier**2)
    if isinstance(mechanism, Pure | RandomizedResponse | Laplace | SampledLaplace):
        return mechanism.epsilon**2 / 2
    if isinstance(mechanism, TruncatedPair):
        # Of the two pairs between which it chooses, the one with twice the sensitivity has the larger.
        return 2 / mechanism.noise_multiplier**2
    raise UnsupportedError(
        f"no finite rho is known for {mechanism.name}",
        where="zcdp",
        hint="Gaussians, sampled or not, and mechanisms of pure epsilon have one",
    )


def epsilon_of_zcdp(rho: float, delta: float) -> tuple[float, float]:
    """Bounds on the least epsilon at delta that follows from rho-zCDP alone.

    Above: the best order of the conversion of Canonne, Kamath, Steinke 2020. Below: the Gaussian mechanism with this rho.
    """
    check_delta(delta)
    if not 0 < rho < 1e8:
        raise ProgramError(f"rho = {rho!r} is not in (0, 1e8)", where="zcdp")

    def bound(log_theta: float) -> float:
        theta = math.exp(log_theta)
        return rho * (theta + 1) + conversion(theta, delta)

    found = minimize_scalar(bound, bounds=(-12.0, 18.0), method="bounded", options={"xatol": 1e-8})
    least = epsilon_at(Gaussian(math.sqrt(1 / (2 * rho))), delta).lower
    return (0.0 if least is None else least), max(float(found.fun), 0.0) * (1 + 1e-12)


def zcdp_for(epsilon: float, delta: float) -> float:
    """The largest rho from which (epsilon, delta) follows by `epsilon_of_zcdp`, to 1e-9 of it, from below."""
    low, high = 1e-12, 1e8
    if epsilon_of_zcdp(low, delta)[1] > epsilon:
        return 0.0
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if epsilon_of_zcdp(middle, delta)[1] <= epsilon else (low, middle)
        if high / low < 1 + 1e-10:
            break
    return low


def renyi_curve(composition: Composition | Mechanism, orders: Sequence[float]) -> list[float]:
    """Upper bounds on the Renyi divergences of a composition at orders above 1, the larger of both directions."""
    if not orders or any(not 1 < order < 1e6 for order in orders):
        raise ProgramError("orders lie in (1, 1e6)", where="renyi_curve")
    whole = Composition.of(composition)
    return [math.fsum(count * divergence(mechanism, order) for mechanism, count in whole) for order in orders]


def epsilon_of_renyi(orders: Sequence[float], divergences: Sequence[float], delta: float) -> float:
    """The least epsilon at delta that the conversion gives for a curve of upper bounds; no lower bound follows."""
    check_delta(delta)
    pairs = list(zip(orders, divergences, strict=True))
    if not pairs or any(not order > 1 or not value >= 0 for order, value in pairs):
        raise ProgramError("orders are above 1, divergences not negative", where="epsilon_of_renyi")
    return max(min(value + conversion(order - 1, delta) for order, value in pairs), 0.0) * (1 + 1e-12)


def profile(composition: Composition | Mechanism, deltas: Sequence[float]) -> list[tuple[float, float]]:
    """(epsilon, delta) pairs that a composition satisfies: the upper bound at each delta."""
    found = [(epsilon_at(composition, delta).upper, delta) for delta in deltas]
    return [(math.inf if e is None else e, delta) for e, delta in found]


__all__ = [
    "epsilon_of_renyi",
    "epsilon_of_zcdp",
    "profile",
    "renyi_curve",
    "zcdp",
    "zcdp_for",
]
