"""Calibration: the smallest noise, the most steps, the largest sampling probability for a target (epsilon, delta).

Each answer is proved (P8, test_noise_is_the_smallest): the upper bound on epsilon there is at most the target, and is
within 0.1 % of the best: the lower bound at 0.999 of the noise (1.001 of the probability, one step more) exceeds the
target. If the bracket is not narrow enough to show this, the answer says so (`tight`).
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heliograph.dp.accounting import Bracket, Tolerance, epsilon_at
from heliograph.dp.accounting.accountant import check_delta, check_whole, epsilon_of_side
from heliograph.dp.accounting.result import json_number
from heliograph.dp.composition import MAX_STEPS, Composition
from heliograph.dp.mechanisms import Gaussian, Mechanism, Neighboring, SampledGaussian
from heliograph.errors import PlanningError, ProgramError, SlowWarning

_SHARE = 5e-4
"""Calibration aims this far (relative) inside the best, half of what it promises."""
_SECONDS = 15.0
"""Of the processor: a search that takes longer says so before."""
_ASKED = 8
"""Brackets that a search takes."""


@dataclass(frozen=True)
class Calibration:
    """A parameter, the bracket on epsilon there, and whether it is within 0.1 % of the best."""

    parameter: str
    value: float
    bracket: Bracket
    target: float
    tight: bool

    def to_json(self) -> dict[str, Any]:
        """The calibration as a JSON object."""
        return {
            self.parameter: self.value,
            "lower": json_number(self.bracket.lower),
            "estimate": json_number(self.bracket.estimate),
            "upper": json_number(self.bracket.upper),
            "epsilon": self.target,
            "delta": self.bracket.delta,
            "within_0.1_percent": self.tight,
            "direction": self.bracket.direction,
            "method": self.bracket.method,
        }


def noise_multiplier(
    target: float,
    delta: float,
    *,
    p: float = 1.0,
    steps: int = 1,
    besides: Composition | Mechanism | None = None,
    neighboring: Neighboring = "add_remove",
) -> Calibration:
    """The smallest noise multiplier with which `steps` (sampled) Gaussians, and `besides`, are (target, delta)-private.

    Raises PlanningError if even much noise does not reach the target (the rest alone exceeds it).
    """
    _check_target(target, delta)
    check_whole(steps, "steps", 1, MAX_STEPS)
    rest = Composition.of(besides) if besides is not None else Composition()

    def build(multiplier: float) -> Composition:
        step: Mechanism = Gaussian(multiplier) if p == 1.0 else SampledGaussian(p, multiplier)
        return step * steps + rest

    build(1.0)
    if p == 0 or steps == 0:
        raise ProgramError("nothing is to be calibrated: p or steps is 0", where="noise")
    return _smallest("noise_multiplier", build, target, delta, (1e-3, 1e9), neighboring)


def smallest_noise(
    target: float,
    delta: float,
    build: Callable[[float], Composition],
    limits: tuple[float, float] = (1e-3, 1e6),
    neighboring: Neighboring = "add_remove",
) -> Calibration:
    """The smallest x for which the composition `build(x)` is (target, delta)-private, for several kinds of mechanisms.

    The epsilon of `build(x)` must decrease in x, for x within the limits. Raises PlanningError as `noise_multiplier`
    does.
    """
    _check_target(target, delta)
    return _smallest("noise_multiplier", build, target, delta, limits, neighboring)


def largest_p(
    target: float,
    delta: float,
    *,
    noise_multiplier: float,
    steps: int = 1,
    besides: Composition | Mechanism | None = None,
) -> Calibration:
    """The largest sampling probability with which `steps` sampled Gaussians are (target, delta)-private; at most 1."""
    _check_target(target, delta)
    check_whole(steps, "steps", 1, MAX_STEPS)
    rest = Composition.of(besides) if besides is not None else Composition()

    def build(inverse: float) -> Composition:
        p = 1 / inverse
        return SampledGaussian(p, noise_multiplier) * steps + rest

    whole = epsilon_at(build(1.0), delta)
    if whole.upper is not None and whole.upper <= target:
        return Calibration("p", 1.0, whole, target, True)
    found = _smallest("p", build, target, delta, (1.0, 1e9), "add_remove")
    return Calibration("p", 1 / found.value, found.bracket, target, found.tight)


def most_steps(target: float, delta: float, mechanism: Mechanism | Composition, *, limit: int = 10**8) -> Calibration:
    """The largest number of runs of a mechanism (or a composition) that is (target, delta)-private, at most `limit`.

    `tight` says that one more run (0.1 % more, from 1,000 runs on) exceeds the target.
    """
    _check_target(target, delta)
    limit = min(limit, MAX_STEPS // max(Composition.of(mechanism).steps, 1))
    tolerance = _tolerance(target)

    def fits(count: int) -> bool:
        # A rough bracket decides most counts; only those near the answer need the fine one.
        for each in (Tolerance(absolute=0.02 * target, relative=0.02), Tolerance(2e-3 * target, 2e-3), tolerance):
            found = epsilon_at(Composition.of(mechanism) * count, delta, tolerance=each)
            if found.upper is not None and found.upper <= target:
                return True
            if found.lower is not None and found.lower > target:
                return False
        return False

    low, high = 0, 1
    while high < limit and fits(high):
        low, high = high, min(high * 8, limit)
    if high == limit and fits(limit):
        bracket = epsilon_at(Composition.of(mechanism) * limit, delta, tolerance=tolerance)
        return Calibration("steps", limit, bracket, target, False)
    while high - low > 1:
        middle = (low + high) // 2 if low < 64 or high < 2 * low else math.isqrt(low * high)
        middle = min(max(middle, low + 1), high - 1)
        if fits(middle):
            low = middle
        else:
            high = middle
        if high - low <= low // 4000:
            break
    if low == 0:
        raise PlanningError(
            f"not even one run is private at epsilon {target:g}, delta {delta:g}",
            where="steps",
            why=f"one run has epsilon {epsilon_at(mechanism, delta).estimate:.6g}",
            hint="use more noise or a larger epsilon",
        )
    bracket = epsilon_at(Composition.of(mechanism) * low, delta, tolerance=tolerance)
    more = low + max(low // 1000, 1)
    beyond = epsilon_at(Composition.of(mechanism) * more, delta, tolerance=tolerance).lower
    return Calibration("steps", low, bracket, target, beyond is not None and beyond > target)


def _tolerance(target: float) -> Tolerance:
    # Changing the noise by 0.1 % moves all but the smallest epsilons by at least 0.1 %: a tenth of that is narrow enough.
    return Tolerance(absolute=min(1e-3, 1e-4 * target), relative=1e-5)


def _smallest(
    name: str,
    build: Callable[[float], Composition],
    target: float,
    delta: float,
    limits: tuple[float, float],
    neighboring: Neighboring,
) -> Calibration:
    """The smallest x (epsilon falls in it) whose upper bound is at most the target, to `_SHARE`.

    A secant on logarithms, since epsilon is near a power of the noise; brackets are as wide as the answer is far.
    """
    finest = _tolerance(target)
    left, right = low, high = math.log(limits[0]), math.log(limits[1])
    x = min(max(0.0, low + 0.4), high)
    share, slope = 0.02, -1.0
    last: tuple[float, float, float] | None = None
    answer: float | None = None
    began = time.thread_time()
    for asked in range(60):
        fine = share <= max(finest.absolute / target, finest.relative)
        width = finest if fine else Tolerance(absolute=share * target, relative=share)
        found = epsilon_of_side("above", build(math.exp(x)), delta, width, neighboring)
        if asked == 0:
            _announce(name, time.thread_time() - began)
        upper = math.inf if found.upper is None else found.upper
        gap = math.log(min(max(upper, 1e-12 * target), 1e12 * target) / target)
        if upper <= target:
            right = answer = x
            if x <= low:
                break
        elif x >= high and (fine or found.lower is None or found.lower > target):
            raise PlanningError(
                f"epsilon {target:g} at delta {delta:g} cannot be reached",
                where=name,
                why="the other mechanisms alone exceed it, or delta is below what they lose",
            )
        elif fine or (found.lower is not None and found.lower > target):
            left = x
        known = abs(gap) < 20
        # Points closer than the brackets are wide say nothing of the slope.
        if (
            known
            and last is not None
            and abs(x - last[0]) > 4 * max(share, last[2])
            and (gap - last[1]) / (x - last[0]) < 0
        ):
            slope = (gap - last[1]) / (x - last[0])
        # The bound falls with x at `slope`: how far the answer is.
        move = (gap + _SHARE / 8) / -slope if known else math.copysign(math.log(4), gap)
        last = (x, gap, share) if known else None
        if answer is not None and (right - left < _SHARE / 4 or (fine and x == right and abs(move) < _SHARE / 4)):
            break
        new = min(max(x + max(min(move, 2.8), -2.8), low), high)
        share = min(max(abs(gap) / 10, 1e-9), 0.02)
        if not left < new < right:
            if abs(move) < 2 * _SHARE and not fine:
                new, share = x, 1e-9
            elif new < high and new > low:
                new = (left + right) / 2
            elif new == high:
                share = 1e-9
        x = new
    if answer is None:
        raise PlanningError("no value was proved", where=name, why="the bracket is too wide near the target")
    value = math.exp(answer)
    bracket = epsilon_at(build(value), delta, tolerance=finest, neighboring=neighboring)
    if bracket.upper is None or bracket.upper > target:
        raise PlanningError("no value was proved", where=name, why="the bracket is too wide near the target")
    beyond = epsilon_of_side("below", build(max(value * 0.999, limits[0])), delta, finest, neighboring).lower
    return Calibration(name, value, bracket, target, beyond is not None and beyond > target)


def _announce(name: str, seconds: float) -> None:
    """Say how long the search for a parameter takes, where that is long; `seconds` is one bracket's."""
    if _ASKED * seconds > _SECONDS:
        warnings.warn(
            f"finding {name} takes about {_ASKED * seconds:.0f} s: one bracket took {seconds:.1f} s",
            SlowWarning,
            stacklevel=4,
        )


def _check_target(target: float, delta: float) -> None:
    if isinstance(target, bool) or not isinstance(target, int | float) or not 1e-6 <= target <= 1e5:
        raise ProgramError(
            f"epsilon = {target!r} cannot be a target", where="epsilon", why="targets lie in [1e-6, 1e5]"
        )
    check_delta(delta)
