"""Accounting step by step while training, at a cost per step and per reading that does not grow with the steps taken.

For mechanisms that are fixed before the data (a plan): each distinct mechanism is discretized and transformed once per
horizon, a step adds to its count, a reading is one inverse transform. The mesh is made for a horizon of steps; passing it
doubles the horizon, so that the work spent on meshes is shared by as many steps again. For mechanisms chosen after seeing
outcomes use `filters`.
"""

from __future__ import annotations

import math
import time

from heliograph.dp.accounting import convolve
from heliograph.dp.accounting.accountant import check_delta, infinite_reason
from heliograph.dp.accounting.convolve import Spectrum, TooLongError
from heliograph.dp.accounting.discretize import Lattice, Mesh, TooFineError
from heliograph.dp.accounting.pld import (
    Interval,
    _epsilon_above,
    _epsilon_below,
    _first_step,
    _lattices,
    _widened,
    epsilon_interval,
    infinite_mass,
    saddle_for_delta,
    saddle_for_epsilon,
)
from heliograph.dp.accounting.result import Bracket, Estimate, Tolerance
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import DIRECTIONS, Direction, Mechanism
from heliograph.dp.pairs import Pair

_NEED = 32.0
"""log of the tilted mass that windows leave out: no delta is known beforehand to relate it to."""


class RunningAccountant:
    """An accountant that records steps during a run and gives epsilon at one delta at any time."""

    def __init__(self, delta: float, tolerance: Tolerance | None = None) -> None:
        check_delta(delta)
        self.delta = delta
        self.tolerance = tolerance or Tolerance()
        self.counts: dict[Mechanism, int] = {}
        self._plans: dict[Direction, _Plan | None] = {"add": None, "remove": None}

    def step(self, mechanism: Mechanism, count: int = 1) -> None:
        """Record `count` runs of a mechanism."""
        Composition(((mechanism, count),))  # checks the count
        self.counts[mechanism] = self.counts.get(mechanism, 0) + count

    @property
    def composition(self) -> Composition:
        """The mechanisms run so far."""
        return Composition(tuple(self.counts.items()))

    def epsilon(self) -> Bracket:
        """The bracket on epsilon now, by the certified bracket; wider than the tolerance only if it says so."""
        started = time.perf_counter()
        # Do not merge Gaussians here: the merged one would be a new mechanism, with a new mesh, at every step.
        counts = tuple((m, k) for m, k in self.counts.items() if k and Composition(((m, k),)).simplified().items)
        directions: dict[Direction, Estimate] = {}
        for direction in DIRECTIONS:
            if directions and all(mechanism.symmetric for mechanism, _ in counts):
                directions[direction] = next(iter(directions.values()))
                continue
            found = self._interval(counts, direction) if counts else Interval(0.0, 0.0)
            middle = found.upper if math.isinf(found.upper) else (found.lower + found.upper) / 2
            directions[direction] = Estimate(found.lower, middle, found.upper)
        worst: Direction = max(DIRECTIONS, key=lambda name: (directions[name].estimate, name == "remove"))
        lower = max(each.lower or 0.0 for each in directions.values())
        upper = max(math.inf if each.upper is None else each.upper for each in directions.values())
        reached = lower == upper or upper - lower <= self.tolerance.for_epsilon(lower)
        composition = Composition(counts)
        return Bracket(
            quantity="epsilon",
            lower=lower,
            estimate=max(each.estimate for each in directions.values()),
            upper=upper,
            epsilon=None,
            delta=self.delta,
            method="pld",
            direction=worst,
            directions=directions,
            seconds=time.perf_counter() - started,
            proved=True,
            reached=reached,
            reason=infinite_reason(composition, self.delta) if math.isinf(upper) else "",
            composition=composition.text(),
        )

    def _interval(self, counts: tuple[tuple[Mechanism, int], ...], direction: Direction) -> Interval:
        plan = self._plans[direction]
        if plan is None or not plan.covers(counts):
            horizon = tuple((mechanism, 2 * count) for mechanism, count in counts)
            plan = _Plan(horizon, direction, self.delta, self.tolerance)
            self._plans[direction] = plan
        found = plan.read(counts)
        allowed = self.tolerance.for_epsilon(found.lower)
        if found.lower != found.upper and not found.upper - found.lower <= allowed:
            # The horizon's mesh does not suit these counts (few steps, or a new mechanism): start afresh, but keep the plan.
            pairs = [(mechanism.pair(direction), count) for mechanism, count in counts]
            other = epsilon_interval(pairs, self.delta, self.tolerance.absolute, self.tolerance.relative)
            found = Interval(max(found.lower, other.lower), min(found.upper, other.upper))
        return found


class _Plan:
    """Spectra of mechanisms on one circle and one tilt, made for a horizon of counts."""

    def __init__(
        self,
        horizon: tuple[tuple[Mechanism, int], ...],
        direction: Direction,
        delta: float,
        tolerance: Tolerance,
    ) -> None:
        self.horizon = dict(horizon)
        self.delta = delta
        self.above: dict[Mechanism, tuple[Lattice, Spectrum]] = {}
        self.below: dict[Mechanism, tuple[Lattice, Spectrum]] = {}
        self.usable = False
        pairs = [(mechanism.pair(direction), count) for mechanism, count in horizon]
        lost = infinite_mass(pairs)
        if lost >= delta:
            return
        spare = delta - lost
        log_tail = math.log(spare) - math.log(sum(k for _, k in pairs)) - 12.0
        try:
            coarse = _first_step(pairs, log_tail)
            above, _ = _lattices(pairs, [Mesh(coarse)] * len(pairs), log_tail, tolerance.absolute)
            theta, guess = saddle_for_delta(above, math.log(spare))
            self.guess = guess = max(guess, 1e-3)
            self.theta = saddle_for_epsilon(above, guess, max(theta, 1e-6))
            # The width is about steps * mesh^2 * (1 + theta) / 8; if the horizon shows otherwise, try again.
            goal = 0.7 * tolerance.for_epsilon(guess)
            mesh = min(math.sqrt(8 * goal / (sum(k for _, k in pairs) * (1 + self.theta))), coarse)
            before = math.inf
            for _ in range(4):
                self._build(horizon, pairs, mesh, log_tail, tolerance)
                found = self.read(horizon)
                width = found.upper - found.lower
                # A width that does not follow the mesh comes from round-off or the window: a finer mesh would not help.
                if width <= goal or width > 0.7 * before:
                    break
                before = width
                mesh *= 0.9 * max(math.sqrt(goal / width), 0.3) if math.isfinite(width) else 0.5
        except (TooFineError, TooLongError):
            return

    def _build(
        self,
        horizon: tuple[tuple[Mechanism, int], ...],
        pairs: list[tuple[Pair, int]],
        mesh: float,
        log_tail: float,
        tolerance: Tolerance,
    ) -> None:
        above, below = _lattices(pairs, [Mesh(mesh)] * len(pairs), log_tail, tolerance.absolute)
        self.step = mesh
        low, high = convolve.window(above, self.theta, convolve.tilted_moments(above, self.theta), _NEED)
        # For fewer steps, epsilon lies anywhere between 0 and the horizon's: the circle covers that whole range.
        low = min(low, -0.1 * self.guess)
        self.length = convolve.length_for(mesh, self.theta, 0.0, low, max(high, self.guess), _NEED, 0.2)
        for (mechanism, _), (up, _), (down, _) in zip(horizon, above, below, strict=True):
            self.above[mechanism] = (up, convolve.spectrum(up, self.theta, self.length))
            self.below[mechanism] = (down, convolve.spectrum(down, self.theta, self.length))
        self.usable = True

    def covers(self, counts: tuple[tuple[Mechanism, int], ...]) -> bool:
        """Whether the plan was made for these mechanisms and no fewer steps of each."""
        return all(count <= self.horizon.get(mechanism, 0) for mechanism, count in counts)

    def read(self, counts: tuple[tuple[Mechanism, int], ...]) -> Interval:
        """The interval for counts within the horizon; a trivial one where the plan is of no use."""
        if not self.usable:
            return Interval(0.0, math.inf)
        result = []
        for table in (self.above, self.below):
            terms = [(table[mechanism][0], count) for mechanism, count in counts]
            moments = convolve.tilted_moments(terms, self.theta)
            low, high = convolve.window(terms, self.theta, moments, _NEED)
            spectra = [(table[mechanism][1], count) for mechanism, count in counts]
            result.append(convolve.combine(spectra, self.step, self.theta, low, high, _NEED, self.length))
        guess = min(max(moments[1], 1e-3), self.guess)
        upper = _epsilon_above(result[0], self.delta, guess)
        upper = max(upper + result[0].shift, 0.0)
        lower = _epsilon_below(result[1], self.delta, upper if math.isfinite(upper) else guess)
        return _widened(Interval(max(lower + result[1].shift, 0.0), upper))
