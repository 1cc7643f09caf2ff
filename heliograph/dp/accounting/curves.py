"""Curves and figures besides epsilon: epsilon against delta and steps, trade-off curves, advantage, group privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heliograph.dp.accounting.accountant import check_whole, delta_at, epsilon_at
from heliograph.dp.accounting.result import Bracket, Tolerance
from heliograph.dp.accounting.trade_off import GaussianFit, TradeOff, gaussian_fit, gaussian_rates, trade_off
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Gaussian, Mechanism


def epsilon_curve(
    composition: Composition | Mechanism, deltas: Sequence[float], *, tolerance: Tolerance | None = None
) -> list[Bracket]:
    """The bracket on epsilon at each delta."""
    return [epsilon_at(composition, delta, tolerance=tolerance) for delta in deltas]


def renyi_bounds(composition: Composition | Mechanism, deltas: Sequence[float]) -> list[float | None]:
    """Renyi accounting's upper bound on epsilon at each delta; None where it is not finite."""
    bounds = [epsilon_at(composition, delta, method="rdp").upper for delta in deltas]
    return [None if bound is None or not math.isfinite(bound) else bound for bound in bounds]


def epsilon_by_steps(
    mechanism: Composition | Mechanism, counts: Sequence[int], delta: float, *, method: str = "auto"
) -> list[Bracket]:
    """The bracket on epsilon after each number of runs of a mechanism."""
    return [epsilon_at(Composition.of(mechanism) * count, delta, method=method) for count in counts]


def advantage(composition: Composition | Mechanism) -> Bracket:
    """The largest advantage (true less false positive rate) of any membership attacker: delta at epsilon 0."""
    return delta_at(composition, 0.0)


def group_epsilon(composition: Composition | Mechanism, group: int, delta: float) -> float:
    """An upper bound on epsilon at delta for data sets that differ in up to `group` records.

    Gaussians alone: the sensitivity of each is `group` times as large. Otherwise from (e, d) for one record follows
    (g e, d (e^(g e) - 1) / (e^e - 1)) for g; the best e is searched for (Vadhan 2017, lemma 2.2, summed exactly).
    """
    check_whole(group, "group", 1, 10**6)
    whole = Composition.of(composition)
    if group == 1:
        return _upper(epsilon_at(whole, delta))
    simple = whole.simplified()
    if simple.items and all(isinstance(mechanism, Gaussian) for mechanism, _ in simple):
        return _upper(epsilon_at(simple.with_sensitivity(group), delta))

    def needed(single: float) -> float:
        # delta_g = d * sum over j < g of e^(j e); in logarithms, since e^(g e) may overflow.
        log_sum = (
            math.log(group)
            if single == 0
            else group * single + math.log(-math.expm1(-group * single)) - single - math.log(-math.expm1(-single))
        )
        return math.log(delta) - log_sum

    low, high = 0.0, 1e-3
    for _ in range(60):
        if _admits(whole, high, needed(high)):
            break
        low, high = high, high * 2
    else:
        return math.inf
    for _ in range(24):
        middle = (low + high) / 2
        if _admits(whole, middle, needed(middle)):
            high = middle
        else:
            low = middle
    return group * high


def _admits(composition: Composition, epsilon: float, log_delta: float) -> bool:
    if log_delta < -690 or epsilon > 1e5:
        return False
    return _upper(delta_at(composition, epsilon)) <= math.exp(log_delta)


def _upper(bracket: Bracket) -> float:
    return math.inf if bracket.upper is None else bracket.upper


__all__ = [
    "GaussianFit",
    "TradeOff",
    "advantage",
    "epsilon_by_steps",
    "epsilon_curve",
    "gaussian_fit",
    "gaussian_rates",
    "group_epsilon",
    "renyi_bounds",
    "trade_off",
]
