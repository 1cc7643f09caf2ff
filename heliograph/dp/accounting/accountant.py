"""The protocol of accountants, and the driver that queries one for both neighbouring directions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from heliograph.dp.accounting.result import Bracket, Estimate, Tolerance
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import DIRECTIONS, Direction, Mechanism, Neighboring, Side
from heliograph.errors import ProgramError


class Accountant(Protocol):
    """A way to account for a composition in one direction."""

    name: str
    proved: bool
    """Its bounds hold with floating-point error included."""
    remark: str
    """What a reader must know about its numbers."""

    def epsilon(self, composition: Composition, direction: Direction, delta: float, tolerance: Tolerance) -> Estimate:
        """Epsilon at delta. Raises ProgramError (or UnsupportedError) if the method does not apply."""
        ...

    def delta(self, composition: Composition, direction: Direction, epsilon: float, tolerance: Tolerance) -> Estimate:
        """Delta at epsilon. Raises ProgramError (or UnsupportedError) if the method does not apply."""
        ...


def accountant(method: str) -> Accountant:
    """The accountant of that name: auto, pld, exact or rdp."""
    table = _table()
    if method not in table:
        raise ProgramError(f"no method {method!r}", where="method", hint=f"use one of {', '.join(table)}")
    return table[method]()


def methods() -> tuple[str, ...]:
    """The names of all accountants."""
    return tuple(_table())


def _table() -> dict[str, Callable[[], Accountant]]:
    from heliograph.dp.accounting.auto import Auto
    from heliograph.dp.accounting.exact import Exact
    from heliograph.dp.accounting.pld import LossDistribution
    from heliograph.dp.accounting.rdp import Renyi

    return {"auto": Auto, "pld": LossDistribution, "exact": Exact, "rdp": Renyi}


def epsilon_at(
    composition: Composition | Mechanism,
    delta: float,
    *,
    method: str | Accountant = "auto",
    tolerance: Tolerance | None = None,
    neighboring: Neighboring = "add_remove",
) -> Bracket:
    """The epsilon of a composition at delta, between bounds, the larger of both neighbouring directions.

    Raises ProgramError if delta is not inside (0, 1) or the method does not apply.
    """
    check_delta(delta)
    return _ask("epsilon", composition, float(delta), method, tolerance or Tolerance(), neighboring)


def delta_at(
    composition: Composition | Mechanism,
    epsilon: float,
    *,
    method: str | Accountant = "auto",
    tolerance: Tolerance | None = None,
    neighboring: Neighboring = "add_remove",
) -> Bracket:
    """The delta of a composition at epsilon, between bounds, the larger of both neighbouring directions."""
    check_epsilon(epsilon)
    return _ask("delta", composition, float(epsilon), method, tolerance or Tolerance(), neighboring)


def epsilon_of_side(
    side: Side, composition: Composition | Mechanism, delta: float, tolerance: Tolerance, neighboring: Neighboring
) -> Estimate:
    """One bound on epsilon, and how far it may lie from the best one that the pairs from this side give.

    Where another pair bounds the mechanism from the other side, that one is not computed: then the other end is no bound
    on the mechanism's epsilon.
    """
    check_delta(delta)
    found = _ask("epsilon", composition, float(delta), "auto", tolerance, neighboring, side)
    return Estimate(found.lower, found.estimate, found.upper)


def check_delta(value: float) -> None:
    """Raise ProgramError unless delta lies in [1e-300, 1)."""
    if not _is_number(value) or not 0.0 < value < 1.0:
        raise ProgramError(
            f"delta = {value!r} is not inside (0, 1)",
            where="delta",
            why="at delta 0 most mechanisms have no finite epsilon, and delta 1 promises nothing",
            hint="use a delta well below 1 / (number of records), such as 1e-6",
        )
    if value < 1e-300:
        raise ProgramError(
            f"delta = {value!r} is too small", where="delta", why="below 1e-300 a double has no accuracy"
        )


def check_epsilon(value: float) -> None:
    """Raise ProgramError unless epsilon is a finite number of at least 0."""
    if not _is_number(value) or not 0.0 <= value <= 1e6:
        raise ProgramError(f"epsilon = {value!r} is not in [0, 1,000,000]", where="epsilon")


def check_whole(value: object, name: str, low: int, high: int) -> None:
    """Raise ProgramError unless a parameter is an integer in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ProgramError(f"{name} = {value!r} must be an integer in [{low:,}, {high:,}]", where=name)


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float | np.floating) and math.isfinite(value)


def _ask(
    quantity: str,
    composition: Composition | Mechanism,
    given: float,
    method: str | Accountant,
    tolerance: Tolerance,
    neighboring: Neighboring,
    side: Side | None = None,
) -> Bracket:
    if not tolerance.absolute >= 0 or not tolerance.relative >= 0 or not tolerance.delta_share > 0:
        raise ProgramError("a tolerance must not be negative", where="tolerance")
    chosen = accountant(method) if isinstance(method, str) else method
    # The clock starts here: the lines above may have imported a method for the first time.
    started = time.perf_counter()
    asked = Composition.of(composition)
    simple = asked.under(neighboring).simplified()
    directions: dict[Direction, Estimate] = {}
    near = given if quantity == "epsilon" else 1e-10
    above, below = simple.bounded("above", near), simple.bounded("below", near)
    symmetric = all(mechanism.symmetric for mechanism, _ in (*above, *below))
    end = time.thread_time() + tolerance.seconds
    ask = chosen.epsilon if quantity == "epsilon" else chosen.delta

    def asked_of(bound: Composition, direction: Direction, share: float) -> Estimate:
        """The method's estimate for mechanisms with pairs, in a share of the seconds that are left."""
        return ask(bound, direction, given, replace(tolerance, seconds=max(share * (end - time.thread_time()), 0.0)))

    # The worse direction comes first in most cases; time that it leaves unused goes to the other.
    for number, direction in enumerate(reversed(DIRECTIONS)):
        if symmetric and directions:
            # Both directions have the same pair, so one result serves both.
            directions[direction] = next(iter(directions.values()))
            continue
        turns = 1 if symmetric else len(DIRECTIONS) - number
        if below == above or side is not None:
            directions[direction] = asked_of(below if side == "below" else above, direction, 1 / turns)
        else:
            upper_too = asked_of(above, direction, 1 / (2 * turns))
            directions[direction] = _joined(asked_of(below, direction, 1 / (2 * turns - 1)), upper_too)
    directions = {name: directions[name] for name in DIRECTIONS}
    worst: Direction = max(DIRECTIONS, key=lambda name: (directions[name].estimate, name == "remove"))
    lowers = [each.lower for each in directions.values() if each.lower is not None]
    uppers = [each.upper for each in directions.values() if each.upper is not None]
    lower = max(lowers) if lowers else None
    upper = max(uppers) if len(uppers) == len(DIRECTIONS) else None
    estimate = max(each.estimate for each in directions.values())
    reason = chosen.remark
    if quantity == "epsilon" and upper is not None and math.isinf(upper):
        reason = infinite_reason(above, given)
    width = math.inf if lower is None or upper is None else 0.0 if lower == upper else upper - lower
    allowed = tolerance.for_epsilon(lower or 0.0) if quantity == "epsilon" else tolerance.delta_share * (lower or 0.0)
    reached = width <= max(allowed, 1e-300)
    proved = chosen.proved and all(mechanism.proved for mechanism, _ in simple)
    if chosen.proved and not proved and not reason:
        reason = "masses are quadratures whose error is estimated, not bounded"
    if chosen.proved and not reached and not reason:
        reason = f"the tolerance was not reached: the bracket is {width:.3g} wide"
    return Bracket(
        quantity=quantity,
        lower=lower,
        estimate=estimate,
        upper=upper,
        epsilon=None if quantity == "epsilon" else given,
        delta=given if quantity == "epsilon" else None,
        method=getattr(chosen, "used", "") or chosen.name,
        direction=worst,
        directions=directions,
        seconds=time.perf_counter() - started,
        proved=proved,
        reached=reached,
        neighboring=asked.relation(neighboring),
        reason=reason,
        composition=asked.text(),
    )


def _joined(below: Estimate, above: Estimate) -> Estimate:
    """An estimate with the lower bound of one and the upper bound of the other."""
    if below.lower is None or above.upper is None:
        return Estimate(below.lower, above.estimate, above.upper)
    return Estimate.between(below.lower, above.upper)


def infinite_reason(composition: Composition, delta: float) -> str:
    """The reason why the epsilon of a composition is infinite at delta, or why none is known to be finite."""
    from heliograph.dp.accounting.pld import infinite_bounds

    lost = infinite_bounds([(mechanism.pair("remove"), count) for mechanism, count in composition]).lower
    if lost >= delta * (1 - 1e-9):
        return (
            f"with probability {lost:.6g} an outcome shows that only one of the data sets can have made it; "
            f"that is not below delta = {delta:g}, so no finite epsilon holds"
        )
    return "no finite epsilon was proved at this delta; the lower bound is what is known"
