"""Calibration: the smallest noise, the most steps, the largest sampling probability for a target (epsilon, delta).

Each answer is proved by the upper bound on epsilon at the answer, and is within 0.1 % of the best: the lower bound at
0.999 of the noise (1.001 of the probability, one step more) exceeds the target. If the bracket is not narrow
enough to show this, the answer says so (`tight`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heliograph.dp.accounting import Bracket, Tolerance, epsilon
from heliograph.dp.accounting.accountant import check_delta
from heliograph.dp.accounting.result import json_number
from heliograph.dp.composition import MAX_STEPS, Composition
from heliograph.dp.mechanisms import Gaussian, Mechanism, Neighboring, SampledGaussian
from heliograph.errors import PlanningError, ProgramError

_SHARE = 5e-4
"""Calibration aims this far (relative) inside the best, half of what it promises."""


@dataclass(frozen=True)
class Calibration:
    """A parameter, the bracket on epsilon there, and whether it is proved to be within 0.1 % of the best."""

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
    _check_target(target)
    check_delta(delta)
    _check_steps(steps)
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
) -> Calibration:
    """The smallest x for which the composition `build(x)` is (target, delta)-private, for several kinds of mechanisms.

    The epsilon of `build(x)` must decrease in x, for x within the limits. Raises PlanningError as `noise_multiplier`
    does.
    """
    _check_target(target)
    check_delta(delta)
    return _smallest("noise_multiplier", build, target, delta, limits, "add_remove")


def largest_p(
    target: float,
    delta: float,
    *,
    noise_multiplier: float,
    steps: int = 1,
    besides: Composition | Mechanism | None = None,
) -> Calibration:
    """The largest sampling probability with which `steps` sampled Gaussians are (target, delta)-private; at most 1."""
    _check_target(target)
    check_delta(delta)
    _check_steps(steps)
    rest = Composition.of(besides) if besides is not None else Composition()

    def build(inverse: float) -> Composition:
        p = 1 / inverse
        return SampledGaussian(p, noise_multiplier) * steps + rest

    whole = epsilon(build(1.0), delta)
    if whole.upper is not None and whole.upper <= target:
        return Calibration("p", 1.0, whole, target, True)
    found = _smallest("p", build, target, delta, (1.0, 1e9), "add_remove")
    return Calibration("p", 1 / found.value, found.bracket, target, found.tight)


def most_steps(target: float, delta: float, mechanism: Mechanism | Composition, *, limit: int = 10**8) -> Calibration:
    """The largest number of runs of a mechanism (or a composition) that is (target, delta)-private, at most `limit`.

    `tight` says that one more run (0.1 % more, from 1,000 runs on) is proved to exceed the target.
    """
    _check_target(target)
    check_delta(delta)
    limit = min(limit, MAX_STEPS // max(Composition.of(mechanism).steps, 1))
    tolerance = _tolerance(target)

    def fits(count: int) -> bool:
        # A rough bracket decides most counts; only those near the answer need the fine one.
        for each in (Tolerance(absolute=0.02 * target, relative=0.02), Tolerance(2e-3 * target, 2e-3), tolerance):
            found = epsilon(Composition.of(mechanism) * count, delta, tolerance=each)
            if found.upper is not None and found.upper <= target:
                return True
            if found.lower is not None and found.lower > target:
                return False
        return False

    low, high = 0, 1
    while high < limit and fits(high):
        low, high = high, min(high * 8, limit)
    if high == limit and fits(limit):
        bracket = epsilon(Composition.of(mechanism) * limit, delta, tolerance=tolerance)
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
            why=f"one run has epsilon {epsilon(mechanism, delta).estimate:.6g}",
            hint="use more noise or a larger epsilon",
        )
    bracket = epsilon(Composition.of(mechanism) * low, delta, tolerance=tolerance)
    more = low + max(low // 1000, 1)
    beyond = epsilon(Composition.of(mechanism) * more, delta, tolerance=tolerance).lower
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
    """The smallest x (in a falling epsilon) whose upper bound is at most the target, to `_SHARE`."""

    def ask(x: float, tolerance: Tolerance) -> Bracket:
        return epsilon(build(x), delta, tolerance=tolerance, neighboring=neighboring)

    rough = Tolerance(absolute=0.02 * target, relative=0.02)
    fine = _tolerance(target)
    low, high = limits  # epsilon(low) > target >= epsilon(high), in logarithms below
    x = min(max(1.0, low * 1.5), high)
    if _level(ask(high, rough)) > target:
        raise PlanningError(
            f"epsilon {target:g} at delta {delta:g} cannot be reached",
            where=name,
            why="the other mechanisms alone exceed it, or delta is below what they lose",
        )
    # Bracket the answer by factors, roughly.
    if _level(ask(x, rough)) > target:
        low = x
        while True:
            x = x * 4
            if x >= high:
                break
            if _level(ask(x, rough)) <= target:
                high = x
                break
            low = x
    else:
        high = x
        while True:
            x = x / 4
            if x <= low:
                low = limits[0]
                break
            if _level(ask(x, rough)) > target:
                low = x
                break
            high = x
    # Secant on the logarithms: epsilon is near a power of the noise.
    left, right = math.log(low), math.log(high)

    def gap(log_x: float, tolerance: Tolerance) -> float:
        return math.log(min(max(_level(ask(math.exp(log_x), tolerance)), 1e-12), 1e9) / target)

    gap_left, gap_right = gap(left, rough), gap(right, rough)
    middle = right
    for _ in range(60):
        if right - left < _SHARE / 8:
            break
        if gap_left > 0 >= gap_right and gap_left != gap_right:
            middle = (left * gap_right - right * gap_left) / (gap_right - gap_left)
        else:
            middle = (left + right) / 2
        span = right - left
        middle = min(max(middle, left + 0.02 * span), right - 0.02 * span)
        found = gap(middle, fine if span < 0.1 else Tolerance(absolute=2e-3 * target, relative=2e-3))
        if abs(found) < _SHARE / 8:
            break
        if found > 0:
            left, gap_left = middle, found
            gap_right /= 2 if gap_right < 0 else 1
        else:
            right, gap_right = middle, found
            gap_left /= 2
    # Increase the best guess until the upper bound proves it.
    answer = math.exp(middle)
    for _ in range(60):
        bracket = ask(answer, fine)
        if bracket.upper is not None and bracket.upper <= target:
            break
        answer *= 1 + _SHARE / 8
    else:
        raise PlanningError("no value was proved", where=name, why="the bracket is too wide near the target")
    if not limits[0] <= answer <= limits[1]:
        answer = min(max(answer, limits[0]), limits[1])
        bracket = ask(answer, fine)
    beyond = ask(max(answer * 0.999, limits[0]), fine).lower
    return Calibration(name, answer, bracket, target, beyond is not None and beyond > target)


def _level(bracket: Bracket) -> float:
    """The number to compare with a target: the estimate, or the upper bound if that is far from the lower."""
    if bracket.upper is None or (bracket.lower is not None and bracket.upper <= 1.1 * bracket.lower):
        return bracket.estimate
    return bracket.upper


def _check_target(target: float) -> None:
    if isinstance(target, bool) or not isinstance(target, int | float) or not 1e-6 <= target <= 1e5:
        raise ProgramError(
            f"epsilon = {target!r} cannot be a target", where="epsilon", why="targets lie in [1e-6, 1e5]"
        )


def _check_steps(steps: int) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
        raise ProgramError(f"steps = {steps!r} must be an integer in [1, {MAX_STEPS:,}]", where="steps")
