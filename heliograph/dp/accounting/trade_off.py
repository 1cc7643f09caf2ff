"""Trade-off curves: the least false-negative rate of an attacker at a false-positive rate, between two bounds.

For a pair (A, B) a test that rejects B with probability alpha under B misses A with probability at least f(alpha) = sup
over x > 0 of 1 - delta(log x) - x alpha (Dong, Roth, Su 2019, proposition 2.12), and some test reaches it. delta is
known only at nodes, between bounds. From below any nodes suffice. From above the supremum is over all x; between nodes
delta, convex in x, lies above the lines through its neighbours, which bounds it there.

A mechanism has two directions with curves that are inverses of each other; its own curve is the lower of the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.special import ndtr, ndtri

from heliograph.dp.accounting.accountant import delta_at, epsilon_at
from heliograph.dp.accounting.result import Tolerance
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import DIRECTIONS, Direction, Mechanism, Neighboring
from heliograph.dp.pairs import Array
from heliograph.errors import ProgramError


@dataclass(frozen=True)
class TradeOff:
    """An attacker's false-negative rate against the false-positive rate; no attacker does better than `lower`.

    `lower` and `upper` are proved (P6, test_the_curve_of_tables_by_their_best_tests), for the worse of both
    neighbouring directions; `estimate` is between them.
    """

    false_positive_rate: tuple[float, ...]
    lower: tuple[float, ...]
    estimate: tuple[float, ...]
    upper: tuple[float, ...]


@dataclass(frozen=True)
class GaussianFit:
    """The Gaussian curves that enclose a trade-off curve over a range of false-positive rates, each mu between bounds.

    private: the least mu whose curve is nowhere above the trade-off curve: the mechanism is mu-GDP on the range.
    leaky: the largest mu whose curve is nowhere below it.

    Both are pairs of bounds.
    """

    lowest_rate: float
    highest_rate: float
    private: tuple[float, float]
    leaky: tuple[float, float]


def trade_off(
    composition: Composition | Mechanism,
    false_positive_rates: Sequence[float],
    points: int = 24,
    *,
    neighboring: Neighboring = "add_remove",
) -> TradeOff:
    """The bracket of the least false-negative rate at each false-positive rate.

    `points` epsilons of at least 0 are evaluated for delta, in both directions; more make the bracket narrower.
    """
    rates = np.asarray(false_positive_rates, dtype=np.float64)
    if rates.size == 0 or not np.all((rates >= 0) & (rates <= 1)):
        raise ProgramError("false-positive rates lie in [0, 1]", where="trade_off")
    top = epsilon_at(composition, 1e-6, neighboring=neighboring, tolerance=Tolerance(absolute=0.05, relative=0.01))
    end = top.upper if top.upper is not None and math.isfinite(top.upper) else 30.0
    nodes = np.asarray(np.linspace(0.0, max(min(end, 600.0), 1e-3), max(points, 3)), dtype=np.float64)
    found = [
        delta_at(composition, float(node), tolerance=Tolerance(delta_share=0.003), neighboring=neighboring)
        for node in nodes
    ]
    bounds: dict[Direction, tuple[Array, Array]] = {}
    for direction in DIRECTIONS:
        each = [bracket.directions[direction] for bracket in found]
        bounds[direction] = (
            np.array([0.0 if e.lower is None else e.lower for e in each]),
            np.array([1.0 if e.upper is None else e.upper for e in each]),
        )
    lower: Array = np.ones(rates.size)
    # Guessing by a coin toss is always possible.
    upper: Array = np.asarray(1 - rates, dtype=np.float64)
    for direction in DIRECTIONS:
        other: Direction = "remove" if direction == "add" else "add"
        x, low, high = _whole_curve(nodes, bounds[direction], bounds[other])
        below = (1 - high[:, None] - x[:, None] * rates).max(axis=0)
        above = np.array([_most(x, low, high, float(rate)) for rate in rates])
        lower = np.asarray(np.minimum(lower, below), dtype=np.float64)
        upper = np.asarray(np.minimum(upper, above * (1 + 1e-12) + 1e-15), dtype=np.float64)
    upper = np.clip(upper, 0.0, 1.0)
    lower = np.minimum(np.clip(lower * (1 - 1e-12) - 1e-15, 0.0, 1.0), upper)
    return TradeOff(
        tuple(rates.tolist()), tuple(lower.tolist()), tuple(((lower + upper) / 2).tolist()), tuple(upper.tolist())
    )


def _whole_curve(nodes: Array, here: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array, Array]:
    """x = e^epsilon over both signs, with bounds on delta: below 1, delta(-e) = 1 - exp(-e) + exp(-e) other delta(e)."""
    small = np.exp(-nodes[:0:-1])
    low = 1 - small + small * other[0][:0:-1]
    high = 1 - small + small * other[1][:0:-1]
    x = np.concatenate((small, np.exp(nodes)))
    return x, np.concatenate((low, here[0])), np.minimum(np.concatenate((high, here[1])), 1.0)


def _most(x: Array, low: Array, high: Array, rate: float) -> float:
    """An upper bound on the supremum over x of 1 - delta(x) - x rate, from bounds on a convex, falling delta at nodes."""
    # Bounds on the slope at a node: from the chord to its right, and from the chord to its left.
    gaps = np.diff(x)
    right = np.append(np.minimum((high[1:] - low[:-1]) / gaps, 0.0), 0.0)
    left = np.concatenate(([-1.0], np.maximum((low[1:] - high[:-1]) / gaps, -1.0)))
    # Left of the first node delta is at least 1 - x; right of the last at least 0, and falls no faster than before.
    worst = float(x[0]) * (1 - rate)
    for i in range(x.size - 1):
        a, b = float(x[i]), float(x[i + 1])
        # delta >= low[i] + left[i] (t - a), and >= low[i + 1] + right[i + 1] (t - b), and >= low[i + 1].
        lines = [
            (float(low[i] - left[i] * a), float(left[i])),
            (float(low[i + 1] - right[i + 1] * b), float(right[i + 1])),
            (float(low[i + 1]), 0.0),
        ]
        candidates = [a, b]
        for (c, s), (d, t) in combinations(lines, 2):
            if s != t and a < (d - c) / (s - t) < b:
                candidates.append((d - c) / (s - t))
        # The bound 1 - max of lines - t rate is concave in t: the largest value is at an end or at a crossing.
        worst = max(worst, *(1 - max(c + s * t for c, s in lines) - t * rate for t in candidates))
    c, s, end = float(low[-1]), float(left[-1]), float(x[-1])
    beyond = [end] if s >= 0 else [end, end - c / s]
    return max(worst, *(1 - max(c + s * (t - end), 0.0) - t * rate for t in beyond))


def gaussian_fit(curve: TradeOff) -> GaussianFit:
    """The mu of the Gaussian curves that enclose a trade-off curve between its first and last rate.

    Between rates the curve falls, and so do Gaussian ones: each bound is taken at the worse end of a gap. Rates must rise,
    inside (0, 1).
    """
    rates, low, high = (np.array(each) for each in (curve.false_positive_rate, curve.lower, curve.upper))
    if rates.size < 2 or not np.all(np.diff(rates) > 0) or rates[0] <= 0 or rates[-1] >= 1:
        raise ProgramError("rates must rise inside (0, 1), at least two of them", where="gaussian_fit")

    def mu(rate: Array, missed: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(ndtri(1 - rate) - ndtri(missed), dtype=np.float64)

    # G_mu(rate) = Phi(Phi^-1(1 - rate) - mu).
    private = float(np.max(mu(rates, high))), float(np.max(mu(rates[:-1], low[1:])))
    leaky = float(np.min(mu(rates[1:], high[:-1]))), float(np.min(mu(rates, low)))
    return GaussianFit(
        float(rates[0]), float(rates[-1]), (max(private[0], 0.0), private[1]), (max(leaky[0], 0.0), max(leaky[1], 0.0))
    )


def gaussian_rates(lowest: float, count: int = 400) -> Array:
    """Rates from `lowest` to 1 - `lowest`, evenly apart in the quantiles of a Gaussian: for `gaussian_fit`."""
    if not 0 < lowest < 0.5:
        raise ProgramError(f"the lowest rate {lowest!r} is not inside (0, 0.5)", where="gaussian_rates")
    end = float(ndtri(lowest))
    return np.asarray(ndtr(np.linspace(end, -end, max(count, 2))), dtype=np.float64)


def gaussian_curve(mu: float, rate: float) -> float:
    """The false-negative rate of the Gaussian mechanism of parameter mu at a false-positive rate."""
    return float(ndtr(ndtri(1 - rate) - mu))
