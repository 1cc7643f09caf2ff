"""Softmax of rows in few levels, without a maximum.

exp(x / 2^k) comes from a polynomial of least relative error. Then, k times: square, and bring the row's sum back near a
constant. A common factor of a row drops out of its softmax, so the sums in between may vary by a factor of a few; only
the last one must be near 1. One normalisation costs one level: p <- p (c - s), s <- s (c - s) for the row's sum s in
[low, high], with c = low + high. It turns the ratio kappa = high / low into (kappa + 1)^2 / (4 kappa), and n successive
ones are the Chebyshev polynomial of degree 2^n, so no polynomial of the same depth does better. A squaring turns kappa
into at most columns * kappa^2, since (sum p)^2 / columns <= sum p^2 <= (sum p)^2. The number of normalisations after
each squaring is found by dynamic programming.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from heliograph.approx.compositions.exp import ExpStage, least_relative, relative_exp
from heliograph.approx.compositions.written import Written
from heliograph.approx.proofs import proof
from heliograph.approx.result import Stage
from heliograph.errors import ProgramError
from heliograph.ir.node import Node, shape_of
from heliograph.ir.writer import Writer

DEFAULT_SCALE_BITS = 55  # about thirty levels of 55 bits need the ring of 2^17, as thirty of 45 do
DEFAULT_ERROR = 1e-5
_DEGREES = (7, 15, 31)
_MOST_NORMALISATIONS = 60
_CAPS = (100.0, 8.0, 4.0, 2.5, 1.8, 1.4, 1.2, 1.1)
_MARGIN = 1e-9  # relative widening of every interval of a row's sum


@dataclass(frozen=True)
class SoftmaxPlan(Written):
    """softmax of rows with entries in [-limit, limit].

    In a program, its rows are columns and its columns rows, because rows are summed by rotations alone. Its operand has
    shape (width, any), with zeros in the rows after the first `columns`.

    `columns`: the entries of a row.
    `width`: the next power of two of `columns`.
    `limit`: the bound on the entries' size.
    `polynomial`: exp(x / 2^squarings) times a factor, on [-limit, limit].
    `constants`: the c of the normalisations before the first squaring, and after each squaring.
    `error`: the proved bound on any entry's distance from the softmax.
    `rounding`: the part of `error` that evaluation at 2^scale_bits adds.
    """

    columns: int
    width: int
    limit: float
    polynomial: Stage
    constants: tuple[tuple[float, ...], ...]
    error: float
    rounding: float
    scale_bits: int

    def write(self, writer: Writer, x: Node, entry: int | None = None) -> Node:
        p = writer.poly(x, self.polynomial.coefficients, -self.limit, self.limit, entry)
        # Rows without data hold exp(0): a known constant.
        padding = np.zeros(shape_of(x))
        padding[self.columns :] = -float(self.polynomial(np.zeros(1))[0])
        p = writer.op("add", p, writer.constant(padding, "padding"))
        for turn, run in enumerate(self.constants):
            if turn:
                p = writer.op("mul", p, p)
            s = writer.rows_summed(p)
            for place, c in enumerate(run):
                factor = writer.shifted(writer.negated(s), c)
                p = writer.op("mul", p, factor)
                if place + 1 < len(run):
                    s = writer.op("mul", s, factor)
        return p

    def write_on_input(self, writer: Writer) -> Node:
        x = writer.builder.input("x", shape=(self.columns, 1))
        made = self.write(writer, writer.op("pad_rows", x, rows=self.width))
        return writer.op("crop_rows", made, rows=self.columns)


def softmax(
    columns: int, limit: float, *, max_error: float = DEFAULT_ERROR, scale_bits: int = DEFAULT_SCALE_BITS
) -> SoftmaxPlan:
    """The plan for rows of `columns` entries in [-limit, limit].

    It is the plan of fewest levels with a proved error of at most `max_error`, the rounding at 2^scale_bits included.
    """
    if columns < 2:
        raise ProgramError(f"softmax of {columns} column", hint="at least two")
    if not (math.isfinite(limit) and limit > 0):
        raise ProgramError(f"range {limit:g} is not above zero", hint="the largest absolute value of an entry")
    return _best(columns, limit, max_error, scale_bits)


@dataclass(frozen=True, slots=True)
class _Schedule:
    """The numbers of normalisations before the first squaring and after each, and the final ratio of the row's sum."""

    counts: tuple[int, ...]
    ratio: float


def _normalised(ratio: float) -> float:
    return (ratio + 1.0) ** 2 / (4.0 * ratio)


@lru_cache(maxsize=256)
def _schedule(columns: int, start: float, squarings: int, tolerance: float, cap: float) -> _Schedule | None:
    """The fewest normalisations after which the row's sum is known within 1 +- tolerance.

    `cap`: the largest ratio that is squared. A lower one costs levels and leaves small sums further above the rounding.
    None if there is no such schedule.
    """
    # By the number of normalisations so far: the schedule with the least ratio.
    best = {0: _Schedule((0,), start)}
    for turn in range(squarings + 1):
        if turn:
            best = {n: _Schedule((*s.counts, 0), columns * s.ratio**2) for n, s in best.items() if s.ratio <= cap}
        for n in range(_MOST_NORMALISATIONS):
            if n in best:
                s = best[n]
                made = _Schedule((*s.counts[:-1], s.counts[-1] + 1), _normalised(s.ratio))
                if n + 1 not in best or made.ratio < best[n + 1].ratio:
                    best[n + 1] = made
    for n in sorted(best):
        if (best[n].ratio - 1.0) / 2.0 <= tolerance:
            return best[n]
    return None


def _best(columns: int, limit: float, max_error: float, scale_bits: int) -> SoftmaxPlan:
    found: list[tuple[int, int, int, int, _Schedule]] = []
    smallest = max(0, math.ceil(math.log2(limit / 8.0)))
    for squarings in range(smallest, smallest + 8):
        reach = limit / 2**squarings
        for degree in _DEGREES:
            made = least_relative(reach, degree)
            if made.level * 2**squarings > max_error:
                continue
            stage = Stage(made.coefficients)
            start = math.exp(2.0 * reach) * (1 + made.level) / (1 - made.level)
            for cap in _CAPS:
                schedule = _schedule(columns, start, squarings, 0.1 * max_error, cap)
                if schedule is not None:
                    count = sum(schedule.counts)
                    depth = 1 + stage.depth + squarings + count
                    cost = stage.multiplications + squarings + 2 * count
                    found.append((depth, cost, squarings, degree, schedule))
    nearest = math.inf
    for _, _, squarings, degree, schedule in sorted(found, key=lambda item: item[:4]):
        reach = limit / 2**squarings
        fitted = least_relative(reach, degree)
        # First with the error that the exchange reports for exp's polynomial; only a plan that passes is proved.
        plan = _plan(columns, limit, ExpStage(Stage(fitted.coefficients), reach, fitted.level), schedule, scale_bits)
        if plan.error <= max_error:
            plan = _plan(columns, limit, relative_exp(reach, degree), schedule, scale_bits)
        if plan.error <= max_error:
            return plan
        nearest = min(nearest, plan.error)
    raise ProgramError(
        f"no softmax of {columns} columns on [-{limit:g}, {limit:g}] has a proved error of {max_error:g}",
        why=f"the nearest has {nearest:.2g} at a scale of 2^{scale_bits}",
        hint="a larger scale, a larger max_error, or a smaller range",
    )


@dataclass
class _Bound:
    """The proved bounds for every row after each step, for computed values p_i = G (r_i + d_i).

    r_i is the ratio of exp there to the row's largest, so max r_i = 1. G is the current factor of the row, which drops
    out at the end.

    `unit`: the largest error of one operation in a slot.
    `low`, `high`: bounds on the true sum of the computed p_i.
    `deviation`: a bound on |d_i|.
    `sum_error`: a bound on the distance of the computed sum from the true one, in every column.
    """

    columns: int
    width: int
    unit: float
    low: float
    high: float
    deviation: float
    sum_error: float = 0.0

    def _factor(self) -> float:
        """A lower bound on G: the sum is at most G columns (1 + deviation)."""
        return self.low / (self.columns * (1.0 + self.deviation))

    def sum_row(self) -> None:
        """Sum the row: rotations add up 1 + 2 + 4 ... errors; columns without data hold only their own errors."""
        empty = self.unit + (self.high * self.deviation) ** 2
        self.sum_error = (self.width - 1) * self.unit + (self.width - self.columns) * empty

    def square(self) -> None:
        """Square: G^2 (r + d)^2 and an error; (sum p)^2 / columns <= sum p^2 <= (sum |p|)^2."""
        slip = self.columns * self.unit
        new_error = self.unit / self._factor() ** 2
        size = self.high * (1.0 + 2.0 * self.columns * self.deviation)
        self.deviation = 2.0 * self.deviation + self.deviation**2 + new_error
        self.low = self.low**2 / self.columns - slip
        self.high = size**2 + slip
        self.sum_row()

    def normalise(self, c: float) -> None:
        """Normalise: p (c - s) and s (c - s), where the computed s is within d of the sum S in each column."""
        d = self.sum_error
        size = self.high * (1.0 + 2.0 * self.columns * self.deviation)
        slip = size * d + self.columns * self.unit
        bend = max(abs(c - 2.0 * self.low), abs(c - 2.0 * self.high))
        self.deviation += (1.0 + self.deviation) * d / (c - self.high - d)
        self.low, self.high = (
            min(self.low * (c - self.low), self.high * (c - self.high)) - slip,
            c * c / 4.0 + slip,
        )
        self.deviation += self.unit / self._factor()
        # s (c - s) - sum p_i (c - s_i) = (c - 2 S) e - e^2 + sum p_i e_i
        self.sum_error = bend * d + d * d + size * d + (self.columns + 1) * self.unit

    def error(self) -> float:
        """The largest distance of p_i from r_i / sum r: the sum's own distance from 1, plus the effect of d_i."""
        most = self.columns * self.deviation
        if most >= 1:
            return math.inf
        return max(1.0 - self.low, self.high - 1.0) + (self.columns - 1) * self.deviation / (1.0 - most)


def _plan(columns: int, limit: float, made: ExpStage, schedule: _Schedule, scale_bits: int) -> SoftmaxPlan:
    width = 1 << (columns - 1).bit_length()
    constants, scale = _constants(columns, made, schedule)
    stage = made.stage.scaled(scale)
    exact = _prove(columns, width, limit, made, scale, constants, 0.0, 0.0)
    rounding = proof.rounding_error(stage.coefficients, scale_bits)
    error = _prove(columns, width, limit, made, scale, constants, proof.unit(scale_bits), rounding)
    polynomial = Stage(stage.coefficients, -limit, limit)
    return SoftmaxPlan(columns, width, limit, polynomial, constants, error, error - exact, scale_bits)


def _constants(columns: int, made: ExpStage, schedule: _Schedule) -> tuple[tuple[tuple[float, ...], ...], float]:
    """(c of every normalisation, by squarings; the factor of exp) such that the last sums are around 1.

    Scales are found backwards: with sums in [high / kappa, high], a normalisation turns high into (high (1 + 1 / kappa)
    / 2)^2, and a squaring into high^2.
    """
    start = math.exp(2.0 * made.reach) * ((1.0 + made.relative_error) / (1.0 - made.relative_error)) * (1.0 + _MARGIN)
    turns: list[list[float]] = []
    ratio = start
    for turn, count in enumerate(schedule.counts):
        ratio = columns * ratio**2 if turn else ratio
        turns.append([])
        for _ in range(count):
            turns[-1].append(ratio)
            ratio = _normalised(ratio) * (1.0 + _MARGIN)
    high = 2.0 * ratio / (1.0 + ratio)
    constants: list[tuple[float, ...]] = []
    for turn in range(len(turns) - 1, -1, -1):
        run = []
        for kappa in reversed(turns[turn]):
            high = 2.0 * math.sqrt(high) / (1.0 + 1.0 / kappa)
            run.append(high * (1.0 + 1.0 / kappa))
        constants.append(tuple(reversed(run)))
        if turn:
            high = math.sqrt(high)
    scale = high / (columns * math.exp(made.reach) * (1.0 + made.relative_error))
    return tuple(reversed(constants)), scale


def _prove(
    columns: int,
    width: int,
    limit: float,
    made: ExpStage,
    scale: float,
    constants: tuple[tuple[float, ...], ...],
    unit: float,
    rounding: float,
) -> float:
    """The bound on any entry's error: from the sums and the rounding by `_Bound`, and from exp's polynomial.

    Relative errors e of exp, and shifts of x, become (1 + e)^(2^squarings). A factor within exp(+-h) on every weight
    moves an entry y of a softmax by at most y (1 - y) (exp(2 h) - 1).
    """
    squarings = len(constants) - 1
    least = scale * math.exp(-made.reach) * (1.0 - made.relative_error)
    most = scale * math.exp(made.reach) * (1.0 + made.relative_error)
    slip = columns * rounding
    bound = _Bound(columns, width, unit, columns * least - slip, columns * most + slip, rounding / least)
    bound.sum_row()
    for turn, run in enumerate(constants):
        if turn:
            bound.square()
        for c in run:
            if not bound.low > 0 or not c - bound.high - bound.sum_error > 0:
                return math.inf
            bound.normalise(c)
    h = -math.log1p(-made.relative_error) * 2**squarings + 2.0 * limit * unit
    return (bound.error() + math.expm1(2.0 * h) / 4.0) * (1.0 + 1e-9)
