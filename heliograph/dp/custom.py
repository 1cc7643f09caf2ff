"""Mechanisms given by their pairs: two tables of probabilities, or two densities on the line."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import mpmath
import numpy as np
from mpmath import mp, mpf

from heliograph.dp.mechanisms import Direction, Mechanism
from heliograph.dp.pairs import NO_ATOMS, Array, Atoms, Cells, Pair, atomic_pair
from heliograph.errors import ProgramError

_QUADRATURE = 10


@dataclass(frozen=True)
class Table(Mechanism):
    """Two tables of probabilities over the same outcomes: `upper` with the record, `lower` without it.

    In direction remove A is `upper` and B is `lower`; in direction add the reverse.
    """

    upper: tuple[float, ...]
    lower: tuple[float, ...]
    name = "table"
    relation = None

    def __post_init__(self) -> None:
        for name in ("upper", "lower"):
            values = tuple(float(value) for value in getattr(self, name))
            object.__setattr__(self, name, values)
            if not values or any(not 0.0 <= value <= 1.0 for value in values):
                raise ProgramError(f"{name} must be probabilities in [0, 1]", where=self.name)
            if abs(math.fsum(values) - 1.0) > 1e-9:
                raise ProgramError(
                    f"{name} sums to {math.fsum(values)!r}",
                    where=self.name,
                    why="probabilities sum to 1 (to 1e-9)",
                )
        if len(self.upper) != len(self.lower):
            raise ProgramError("upper and lower must have the same length", where=self.name)

    def pair(self, direction: Direction) -> Pair:
        return _table_pair(self.upper, self.lower) if direction == "remove" else _table_pair(self.lower, self.upper)


@lru_cache(maxsize=64)
def _table_pair(a: tuple[float, ...], b: tuple[float, ...]) -> Pair:
    with np.errstate(divide="ignore"):
        # Normalise: a table is given in decimals, and sums to 1 only within 1e-9.
        return atomic_pair(
            np.log(np.array(a) / math.fsum(a)),
            np.log(np.array(b) / math.fsum(b)),
            relative_error=1e-14 * len(a),
        )


@dataclass(frozen=True, eq=False)
class Densities(Mechanism):
    """A pair given by two log-densities on the line, `log_upper` with the record and `log_lower` without it.

    `points` are finite and ascending and enclose all mass but `tail_mass` under either law (that much counts as
    infinite loss in upper bounds and as nothing in lower ones). The loss `log_upper - log_lower` must be monotone over
    all points, and both densities smooth between neighbours: masses are Gauss-Legendre sums, with the difference
    between two orders as the estimate of their error. So a bracket is a bound as far as that estimate is one; give
    points dense enough. Both functions take and return arrays.
    """

    log_upper: Callable[[Array], Array]
    log_lower: Callable[[Array], Array]
    points: tuple[float, ...]
    tail_mass: float = 0.0
    _pairs: dict[str, Pair] = field(default_factory=dict, repr=False)
    name = "densities"
    proved = False
    relation = None

    def __post_init__(self) -> None:
        points = np.asarray(self.points, dtype=np.float64)
        if points.size < 2 or not np.all(np.isfinite(points)) or not np.all(np.diff(points) > 0):
            raise ProgramError("points must be finite and rising, at least two", where=self.name)
        if not 0 <= self.tail_mass < 1:
            raise ProgramError(f"tail_mass = {self.tail_mass!r} is not a probability", where=self.name)
        object.__setattr__(self, "points", tuple(float(x) for x in points))

    def pair(self, direction: Direction) -> Pair:
        if direction not in self._pairs:
            logs = (self.log_upper, self.log_lower) if direction == "remove" else (self.log_lower, self.log_upper)
            self._pairs[direction] = _density_pair(*logs, np.asarray(self.points), self.tail_mass)
        return self._pairs[direction]

    def text(self) -> str:
        return f"densities({len(self.points)} points)"


def _density_pair(
    log_a: Callable[[Array], Array], log_b: Callable[[Array], Array], points: Array, tail_mass: float
) -> Pair:
    # Check all points where densities are evaluated: between the given points, a loss might turn back unnoticed.
    seen = np.unique(
        np.concatenate((points, _nodes(points, _QUADRATURE).ravel(), _nodes(points, _QUADRATURE - 3).ravel()))
    )
    losses = log_a(seen) - log_b(seen)
    rises = np.diff(losses)
    slack = 1e-12 * (1 + np.abs(losses[1:]))
    if np.all(rises <= slack) and not np.all(rises >= -slack):
        # Read the line from the other end.
        return _density_pair(lambda x: log_a(-x), lambda x: log_b(-x), -points[::-1], tail_mass)
    if not np.all(rises >= -slack):
        raise ProgramError(
            "the loss is not monotone over the points, or between them",
            where="densities",
            why="only pairs with a monotone log-ratio are discretized",
            hint="reorder the outcomes by their loss, give denser points, or give a table",
        )
    part = DensityPart(log_a, log_b, points)
    whole = part.cells(np.array([-np.inf, np.inf]))
    for total, error in ((whole.a[0], whole.a_error[0]), (whole.b[0], whole.b_error[0])):
        if not abs(total + tail_mass - 1) <= tail_mass + error + 1e-9:
            raise ProgramError(
                f"a density integrates to {total:.12g} between the points",
                where="densities",
                why="it must be 1 but for the tail mass",
                hint="give more points, or points further out",
            )
    return Pair(NO_ATOMS, part, 0.0, tail_mass + max(0.0, 1 - float(whole.a[0]) - tail_mass))


@dataclass(frozen=True, eq=False)
class DensityPart:
    """The continuous part of a pair given by densities."""

    log_a: Callable[[Array], Array]
    log_b: Callable[[Array], Array]
    points: Array

    @property
    def low(self) -> float:
        return float(self.loss(self.points[:1])[0])

    @property
    def high(self) -> float:
        return float(self.loss(self.points[-1:])[0])

    def loss(self, x: Array) -> Array:
        inside = np.clip(x, self.points[0], self.points[-1])
        return np.asarray(self.log_a(inside) - self.log_b(inside))

    def edge(self, loss: Array) -> Array:
        low = np.full(loss.shape, self.points[0])
        high = np.full(loss.shape, self.points[-1])
        for _ in range(70):
            middle = (low + high) / 2
            below = self.loss(middle) < loss
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        result = np.where(loss <= self.low, -np.inf, np.where(loss > self.high, np.inf, high))
        return np.asarray(result)

    def edge_error(self, size: float) -> float:
        # Bisection finds x up to a rounding. Times the slope, that is an error in the loss, which 1e-12 covers amply.
        return 1e-12 * (1 + size)

    def cells(self, x: Array) -> Cells:
        x = np.maximum.accumulate(np.clip(x, self.points[0], self.points[-1]))
        merged = np.union1d(x, self.points)
        merged = merged[(merged >= x[0]) & (merged <= x[-1])]
        starts = np.searchsorted(merged, x[:-1])
        empty = x[:-1] >= x[1:]
        sums = []
        for log_density in (self.log_a, self.log_b):
            mass, error = _masses(log_density, merged) if merged.size > 1 else (np.zeros(1), np.zeros(1))
            mass, error = np.append(mass, 0.0), np.append(error, 0.0)
            for values in (mass, error):
                sums.append(np.where(empty, 0.0, np.add.reduceat(values, np.minimum(starts, values.size - 1))))
        # The last sum runs to the end of the merged points, which is the end of x.
        return Cells(sums[0], sums[2], sums[1], sums[3])

    def loss_range(self, log_bottom: float, log_top: float) -> tuple[float, float]:
        return self.low, self.high


def _masses(log_density: Callable[[Array], Array], points: Array) -> tuple[Array, Array]:
    """Integrals between points by Gauss-Legendre, and an estimate of their error: the difference to fewer nodes."""
    half = np.diff(points)[:, None] / 2
    results = []
    for count in (_QUADRATURE, _QUADRATURE - 3):
        weights = np.polynomial.legendre.leggauss(count)[1]
        results.append((np.exp(log_density(_nodes(points, count))) * weights * half).sum(axis=1))
    return results[0], np.abs(results[0] - results[1]) + 1e-15 * results[0]


def _nodes(points: Array, count: int) -> Array:
    """The Gauss-Legendre nodes between neighbouring points, [len(points) - 1, count]."""
    half = np.diff(points)[:, None] / 2
    middle = (points[:-1, None] + points[1:, None]) / 2
    return np.asarray(middle + half * np.polynomial.legendre.leggauss(count)[0], dtype=np.float64)


@dataclass(frozen=True)
class Profile(Mechanism):
    """Any mechanism that is (epsilons[i], deltas[i])-private for all i, in both directions; the worst of them.

    As a function of e^epsilon delta is convex, falls, and is at least 1 - e^epsilon; (e, d) in one direction gives a
    point of the other at -e. The largest such curve below the points is their lower convex hull, and its corners are
    the losses of the pair. With one point this is `approximate`.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    name = "profile"
    symmetric = True
    relation = None

    def __post_init__(self) -> None:
        for name in ("epsilons", "deltas"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        points = list(zip(self.epsilons, self.deltas, strict=False))
        if len(self.epsilons) != len(self.deltas) or not points:
            raise ProgramError("epsilons and deltas must have the same length, at least 1", where=self.name)
        if any(not 0 <= e <= 500 or not 0 <= d <= 1 for e, d in points):
            raise ProgramError("epsilons lie in [0, 500], deltas in [0, 1]", where=self.name)

    def pair(self, direction: Direction) -> Pair:
        return _profile_pair(self.epsilons, self.deltas)


@lru_cache(maxsize=64)
def _profile_pair(epsilons: tuple[float, ...], deltas: tuple[float, ...]) -> Pair:
    with mp.workdps(60 + int(2 * max(epsilons))):
        points = {mpf(0): mpf(1)}
        for e, d in zip(epsilons, deltas, strict=True):
            x = mpmath.exp(mpf(e))
            for at, value in ((x, mpf(d)), (1 / x, 1 - (1 - mpf(d)) / x)):
                points[at] = min(points.get(at, mpf(1)), value)
        hull: list[tuple[mpf, mpf]] = []
        for x, y in sorted(points.items()):
            # To the right of a point, delta is at most its value there.
            if hull and y >= hull[-1][1]:
                continue
            while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], (x, y)):
                hull.pop()
            hull.append((x, y))
        slopes = [_slope(a, b) for a, b in pairwise(hull)] + [mpf(0)]
        losses, masses = [], []
        for (x, _), before, after in zip(hull[1:], slopes, slopes[1:], strict=False):
            losses.append(float(mpmath.log(x)))
            masses.append(float(x * (after - before)))
        return Pair(Atoms(np.array(losses), np.array(masses), 1e-15), None, float(hull[-1][1]))


def _slope(a: tuple[mpf, mpf], b: tuple[mpf, mpf]) -> mpf:
    return (b[1] - a[1]) / (b[0] - a[0])


__all__ = ["Densities", "DensityPart", "Profile", "Table"]
