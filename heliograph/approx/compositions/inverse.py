"""1/x, 1/sqrt(x) and sqrt(x) on an interval of positive numbers: Newton's iteration from a minimax polynomial.

y <- y (2 - x y) squares the relative error, y <- y (3 - x y^2) / 2 turns e into (3 + e) e^2 / 2; a start that is
minimax in relative error saves the first rounds. On wide intervals, the best start for 1/sqrt(x) is too far off for
Newton's rounds to converge. Then the rounds are y <- y (a - b x y^2) with the best a and b for the interval of y
sqrt(x): the cubic of equal ripples around 1. They converge from any positive start, as compositions for the sign do
(Lee, Lee, No, 2021; here in y sqrt(x)).
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import numpy as np

from heliograph.approx.compositions.sign import DEFAULT_SCALE_BITS
from heliograph.approx.compositions.written import Written
from heliograph.approx.fits.minimax import Minimax, remez
from heliograph.approx.proofs import proof
from heliograph.approx.result import Stage
from heliograph.errors import ProgramError
from heliograph.ir.node import Node
from heliograph.ir.writer import Writer

FUNCTIONS = ("reciprocal", "rsqrt", "sqrt")
START_DEGREES = (1, 3, 7, 15, 31, 63)
_MOST_ROUNDS = 40
# Newton plans deeper than this are compared with plans by cubics.
_DEEP = 14


@dataclass(frozen=True)
class InversePlan(Written):
    """1/x, 1/sqrt(x) or sqrt(x) on an interval above zero: a start, and rounds that improve it.

    `function`: reciprocal, rsqrt or sqrt.
    `start`: a polynomial for 1/x if `rounds` is a number, else for 1/sqrt(x).
    `rounds`: the number of rounds y <- y (2 - x y), or (a, b) of each round y <- y (a - b x y^2).
    `relative_error`: the proved bound on |computed / true - 1| of the true polynomials.
    `rounding`: the bound on the absolute error that evaluation at 2^scale_bits adds.
    """

    function: str
    start: Stage
    rounds: int | tuple[tuple[float, float], ...]
    relative_error: float
    rounding: float
    scale_bits: int

    def write(self, writer: Writer, x: Node, entry: int | None = None) -> Node:
        y = writer.poly(x, self.start.coefficients, self.start.low, self.start.high, entry)
        if isinstance(self.rounds, int):
            for _ in range(self.rounds):
                y = writer.op("mul", y, writer.shifted(writer.negated(writer.op("mul", x, y)), 2.0))
            return y
        for a, b in self.rounds:
            # a y - (b x y) y^2: the square and the product with x are computed in parallel.
            other = writer.op("mul", writer.scaled(x, -b), y)
            y = writer.op("add", writer.op("mul", writer.op("mul", y, y), other), writer.scaled(y, a))
        if self.function == "sqrt":
            return writer.op("mul", x, y)
        return writer.op("mul", y, y) if self.function == "reciprocal" else y


def inverse(
    low: float,
    high: float,
    target: float,
    function: str = "reciprocal",
    *,
    scale_bits: int = DEFAULT_SCALE_BITS,
) -> InversePlan:
    """The cheapest plan for `function` (reciprocal, rsqrt, sqrt) on [low, high] with that proved relative error."""
    _check(low, high, target, function)
    # Candidates are first compared by the error that the exchange reports; only the cheapest is proved.
    found = []
    for degree in START_DEGREES:
        made = _least_relative(function, low, high, degree)
        rounds, _ = _rounds(function, made.level * 1.02, target)
        if rounds is not None:
            start = Stage(made.coefficients, low, high)
            plan = InversePlan(function, start, _newton(function, rounds), math.inf, math.inf, scale_bits)
            found.append((plan.depth, plan.multiplications, degree, made.coefficients))
    if not found:
        return _by_cubics(low, high, target, function, scale_bits)
    if min(found)[0] > _DEEP:
        # The interval is so wide that the best cubics may take fewer levels.
        with contextlib.suppress(ProgramError):
            other = _by_cubics(low, high, target, function, scale_bits)
            if other.depth < min(found)[0]:
                return other
    for _, _, _, coefficients in sorted(found):
        first = _proved_start(function, low, high, coefficients)
        rounds, error = _rounds(function, first, target)
        if rounds is not None:
            start = Stage(coefficients, low, high)
            rounding = _newton_rounding(function, start, first, rounds, scale_bits)
            return InversePlan(function, start, _newton(function, rounds), error, rounding, scale_bits)
    return _by_cubics(low, high, target, function, scale_bits)


def _by_cubics(low: float, high: float, target: float, function: str, scale_bits: int) -> InversePlan:
    """The cheapest plan with rounds that are the best cubics for their intervals. Raises ProgramError if there is none.

    1/x is the square of 1/sqrt(x), computed to half of the target.
    """
    squared = function == "reciprocal"
    target = target / 2.1 if squared else target
    found = []
    for degree in START_DEGREES:
        made = _least_relative("rsqrt", low, high, degree)
        if made.level < _WORST_START:
            cubics, _ = _cubics(min(made.level * 1.02, (1.0 + made.level) / 2), target)
            start = Stage(made.coefficients, low, high)
            plan = InversePlan(function, start, tuple(cubics), math.inf, math.inf, scale_bits)
            found.append((plan.depth, plan.multiplications, degree, made.coefficients))
    for _, _, _, coefficients in sorted(found):
        first = _proved_start("rsqrt", low, high, coefficients)
        if first < (1.0 + _WORST_START) / 2:
            cubics, error = _cubics(first, target)
            start = Stage(coefficients, low, high)
            rounding = _cubic_rounding(function, start, first, cubics, scale_bits)
            if squared:
                error = error * (2.0 + error) * (1 + 1e-12)
            return InversePlan(function, start, tuple(cubics), error, rounding, scale_bits)
    raise ProgramError(
        f"no start of degree up to {START_DEGREES[-1]} lets Newton converge on [{low:g}, {high:g}]",
        hint="give a narrower range, or add a positive constant to the argument",
    )


# A start with a relative error above this would take endless rounds.
_WORST_START = 0.999


def _cubics(error: float, target: float) -> tuple[list[tuple[float, float]], float]:
    """(a, b) of each round u <- a u - b u^3 from u = 1 +- error to 1 +- at most the target, and the error reached."""
    rounds = []
    low, high = 1.0 - error, 1.0 + error
    while error > target:
        # Equal at both ends, and as far below 1 there as it is above in between.
        middle = (low * low + low * high + high * high) / 3.0
        b = 2.0 / (low * high * (low + high) + 2.0 * middle**1.5)
        a = 3.0 * b * middle
        ends = (a * low - b * low**3, a * high - b * high**3, 2.0 * b * middle**1.5)
        error = max(abs(end - 1.0) for end in ends) * (1 + 1e-9) + 1e-15
        rounds.append((a, b))
        low, high = 1.0 - error, 1.0 + error
    return rounds, error


def _rounds(function: str, error: float, target: float) -> tuple[int | None, float]:
    """The number of Newton's rounds from one relative error to a target, None if it does not converge, and the error
    reached.
    """
    rounds = 0
    while error > target:
        better = _improved(function, error)
        if not better < error or rounds == _MOST_ROUNDS:
            return None, error
        error = better
        rounds += 1
    return rounds, error


def _check(low: float, high: float, target: float, function: str) -> None:
    if function not in FUNCTIONS:
        raise ProgramError(f"there is no inverse {function!r}", hint="one of " + ", ".join(FUNCTIONS))
    if not (0 < low < high and math.isfinite(high)):
        raise ProgramError(
            f"[{low:g}, {high:g}] is not an interval above zero",
            why=f"{function} has no polynomial near zero",
            hint="add a positive constant to the argument, or give a range with 0 < low < high",
        )
    if not 1e-13 <= target < 1:
        raise ProgramError(f"relative error {target:g} is not in [1e-13, 1)")


def _least_relative(function: str, low: float, high: float, degree: int) -> Minimax:
    """The polynomial of least relative error for 1/x or 1/sqrt(x) on [low, high]."""
    half, middle = (high - low) / 2, (high + low) / 2
    power = 1.0 if function == "reciprocal" else 0.5
    return remez(
        lambda t: (middle + half * t) ** -power, [(-1.0, 1.0)], degree, weight=lambda t: (middle + half * t) ** power
    )


def _proved_start(function: str, low: float, high: float, made: tuple[float, ...]) -> float:
    """The proved relative error of a polynomial for 1/x or 1/sqrt(x), at most 1."""
    half, middle = (high - low) / 2, (high + low) / 2
    power = 1.0 if function == "reciprocal" else 0.5
    if power == 1.0:
        # x p(x) - 1 is a polynomial: its image is the relative error.
        x_p = np.polynomial.chebyshev.chebmul((middle, half), made)
        x_p[0] -= 1.0
        slip = 2.0**-50 * sum(abs(c) for c in made) * high
        least, most = proof.image(tuple(x_p), tolerance=5e-3)
        return max(abs(least), abs(most)) + slip
    # p sqrt(x) - 1 in [-e, e] follows from x p^2 - 1 in [m, M]: 1 + m = (1 - e)^2 at worst, p being positive.
    square = np.polynomial.chebyshev.chebmul(np.polynomial.chebyshev.chebmul(made, made), (middle, half))
    slip = 2.0**-48 * sum(abs(c) for c in made) ** 2 * high
    square[0] -= 1.0
    least, most = proof.image(tuple(square), tolerance=5e-3)
    positive = proof.image(made, tolerance=5e-2)[0] > 0
    if least - slip <= -1 or not positive:
        return 1.0
    # 1 - sqrt(1 + least) and sqrt(1 + most) - 1, computed without cancellation.
    below = (slip - least) / (1.0 + math.sqrt(1.0 + least - slip))
    above = (most + slip) / (1.0 + math.sqrt(1.0 + most + slip))
    return max(below, above) * (1 + 1e-12)


def _improved(function: str, error: float) -> float:
    """The relative error after one round: e^2, or (3 + e) e^2 / 2."""
    return error * error if function == "reciprocal" else (3.0 + error) * error * error / 2.0


def _newton(function: str, rounds: int) -> int | tuple[tuple[float, float], ...]:
    """Newton's rounds in the form of a plan: for 1/sqrt(x) they are cubics."""
    return rounds if function == "reciprocal" else ((1.5, 0.5),) * rounds


def _newton_rounding(function: str, start: Stage, error: float, rounds: int, scale_bits: int) -> float:
    """A bound on the rounding error: each round starts from a relative error that includes the rounding so far."""
    unit, low, high = proof.unit(scale_bits), start.low, start.high
    power = 1.0 if function == "reciprocal" else 0.5
    half = (high - low) / 2
    # The argument's own error moves the polynomial by its slope, which is at most degree^2 times its size (Markov).
    size = sum(abs(c) for c in start.coefficients)
    absolute = proof.rounding_error(start.coefficients, scale_bits) + start.degree**2 * size * 2 * unit / min(half, 1.0)
    noisy = error + absolute * high**power
    exact = error
    for _ in range(rounds):
        largest = (1 + noisy) / low**power
        if function == "reciprocal":
            step = largest * unit + unit
        else:
            # (3/2) y - (x y / 2) y^2: errors of y^2, of x y / 2 (in two steps) and of the products.
            step = high * largest / 2 * unit + largest**2 * (largest * unit + unit) + 2 * unit
        exact, noisy = _improved(function, exact), _improved(function, noisy) + step * high**power
        if not noisy < 1:
            return math.inf
    if function == "sqrt":
        return float((noisy - exact) * math.sqrt(high) + unit)
    return float((noisy - exact) / low**power)


def _cubic_rounding(
    function: str, start: Stage, error: float, cubics: list[tuple[float, float]], scale_bits: int
) -> float:
    """A bound on the rounding error for cubics a u - b u^3 in u = y sqrt(x): errors grow by their slopes."""
    unit, low, high = proof.unit(scale_bits), start.low, start.high
    half = (high - low) / 2
    size = sum(abs(c) for c in start.coefficients)
    absolute = proof.rounding_error(start.coefficients, scale_bits) + start.degree**2 * size * 2 * unit / min(half, 1.0)
    noise, bottom, top = absolute * math.sqrt(high), 1.0 - error, 1.0 + error
    for a, b in cubics:
        largest = (top + noise) / math.sqrt(low)
        step = high * largest * b * unit + largest**2 * (largest * unit + unit) + (1.0 + a) * unit
        slope = max(abs(a - 3.0 * b * end * end) for end in (bottom - noise, top + noise))
        noise = noise * slope + 3.0 * b * (top + noise) * noise**2 + step * math.sqrt(high)
        if not noise < 1:
            return math.inf
        ends = (a * bottom - b * bottom**3, a * top - b * top**3, 2.0 / 3.0 * a * math.sqrt(a / (3.0 * b)))
        bottom, top = min(ends), max(ends)
    if function == "sqrt":
        return float(noise * math.sqrt(high) + unit)
    return float(noise / math.sqrt(low)) if function == "rsqrt" else float(noise * (2.0 + noise) / low + unit)
