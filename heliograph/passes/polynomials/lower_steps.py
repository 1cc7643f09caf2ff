"""Write the plans of `approx/` that are more than a chain of polynomials as nodes: softmax, exp, inverse and roots."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import scipy.sparse

from heliograph import rounding
from heliograph.approx.compositions.exp import exp
from heliograph.approx.compositions.inverse import inverse
from heliograph.approx.compositions.sampling import sampled_error
from heliograph.approx.compositions.softmax import softmax
from heliograph.approx.compositions.steps import run
from heliograph.approx.result import Stage, Step, StepPlan
from heliograph.errors import InternalError, ProgramError, said
from heliograph.ir import Node, shape_of, size_of
from heliograph.passes.polynomials.lower_functions import Argument, Lowering
from heliograph.passes.ranges.calibrate import Observed
from heliograph.passes.ranges.intervals import Interval
from heliograph.passes.ranges.margins import positive_low

# The error if neither Options.target_error nor the op gives one: relative to the function's value; absolute for softmax.
DEFAULT_RELATIVE_ERROR = 2.0**-10
DEFAULT_SOFTMAX_ERROR = 2.0**-10
_MOST_EXPONENT = 700.0
# An inverse is fitted down to the smallest number seen divided by this, at most.
_LOWEST_SHARE = 8.0
# And down to the largest divided by this, at most. Below that the result is too small, which for a square root is harmless.
_WIDEST = 2.0**20
# A proved interval whose ends differ by more than this factor is replaced by the observed one.
_WIDE = 2.0**13
# The error of a softmax without a proof is measured on this many random rows.
_ROWS_SEEN = 4096


def lower_softmax(lowering: Lowering, argument: Argument) -> Node:
    """softmax over rows; a constant that centres the range drops out of it."""
    x, interval = argument.value, argument.interval
    rows, columns = shape_of(x)
    middle, limit = (interval.low + interval.high) / 2, (interval.high - interval.low) / 2
    method = lowering.node.attrs.get("method", "best")
    hint = said(
        "a narrower range (leave masked places out instead of adding a large negative number), or {target_error}"
    )
    with lowering.located(hint):
        plan = softmax(rows, limit, method, max_error=lowering.target_error or DEFAULT_SOFTMAX_ERROR)
    polynomials = [step.stage.degree for step in plan.steps if step.stage is not None]
    if plan.error is None or plan.rounding is None:
        # HETAL's constructions come without a proof: their error is measured on random rows.
        largest = sampled_error(lambda some: run(plan, some), rows, limit, _ROWS_SEEN, seed=0).max_error
    else:
        largest = plan.error - plan.rounding
    proved = plan.error is not None
    entry = lowering.entry(
        interval,
        argument.source,
        polynomials,
        largest,
        proved,
        seen=argument.seen,
        function="softmax",
        construction=method,
    )
    if x.op not in ("affine", "input", "matrix_product") or x in lowering.shared:
        # pad_rows uses the slots after x as rows of zeros, so x must come from a map or a product of matrices, which leave
        # zeros there.
        x = lowering.mapped(x, np.eye(rows * columns), (rows, columns))
    value = lowering.op("pad_rows", x, rows=plan.width)
    if middle:
        shift = np.zeros((plan.width, columns))
        shift[:rows] = -middle
        value = lowering.op("add", value, lowering.constant(shift, "softmax.centre"))
    made = lowering.op("crop_rows", _steps(lowering, value, plan, entry), rows=rows)
    size = rows * columns
    lowering.bounds[made] = (np.full(size, -largest), np.full(size, 1.0 + largest)) if proved else None
    return made


def lower_inverse(lowering: Lowering, argument: Argument) -> Node:
    """1/x, 1/sqrt(x) or sqrt(x) on a range above zero (1/x: or below)."""
    x = argument.value
    least, most = away_from_zero(argument.interval, argument.source, argument.seen, argument.proved)
    # A proof that reaches zero says nothing about the end that matters.
    source = argument.source if (least, most) == (argument.interval.low, argument.interval.high) else "observed"
    negative = most < 0 and lowering.node.op == "reciprocal"
    if negative:
        least, most = -most, -least
    with lowering.located():
        plan = inverse(least, most, lowering.target_error or DEFAULT_RELATIVE_ERROR, lowering.node.op)
    true = [1 / least, 1 / most] if lowering.node.op == "reciprocal" else [least**-0.5, most**-0.5]
    true = [math.sqrt(least), math.sqrt(most)] if lowering.node.op == "sqrt" else true
    polynomials = [step.stage.degree for step in plan.steps if step.stage is not None]
    ends = Interval(-most, -least) if negative else Interval(least, most)
    entry = lowering.entry(
        ends,
        source,
        polynomials,
        plan.relative_error * max(true),
        seen=argument.seen,
        relative_error=plan.relative_error,
    )
    zero = lowering.constant(np.zeros(shape_of(x)), "zero")
    made = _steps(lowering, lowering.op("sub", zero, x) if negative else x, plan, entry)
    made = lowering.op("sub", zero, made) if negative else made
    slack = 1.0 + plan.relative_error
    bottom, top = min(true) / slack, max(true) * slack
    size = size_of(x)
    lowering.bounds[made] = (np.full(size, -top), np.full(size, -bottom)) if negative else (
        np.full(size, bottom),
        np.full(size, top),
    )  # fmt: skip
    return made


def lower_exp(lowering: Lowering, argument: Argument) -> Node:
    """exp(x) as the power 2^k of a polynomial for exp(x / 2^k): the degree and k of the least depth."""
    x, interval = argument.value, argument.interval
    with lowering.located():
        if interval.high > _MOST_EXPONENT:
            raise ProgramError(f"exp of {interval.high:.4g} is larger than any number")
        plan = exp(interval.low, interval.high, lowering.target_error or DEFAULT_RELATIVE_ERROR)
    largest = math.exp(interval.high)
    entry = lowering.entry(
        interval,
        argument.source,
        [plan.degree],
        plan.relative_error * largest,
        seen=argument.seen,
        relative_error=plan.relative_error,
        squarings=plan.squarings,
    )
    made = _steps(lowering, x, plan, entry)
    size = size_of(x)
    lowering.bounds[made] = (np.zeros(size), np.full(size, largest * (1.0 + plan.relative_error)))
    return made


def away_from_zero(
    interval: Interval, source: str, seen: Observed | None, proved: Interval | None
) -> tuple[float, float]:
    """The interval; where its margin reaches zero, or the bound that is proved of the value, it ends short of it.

    The margin is for what was not seen, and a layer norm's variance is never below its eps: towards zero it is a factor
    instead, as the samples' logarithms have it, at least a half and at most an eighth. Newton's and Goldschmidt's iterations
    are harmless below their interval (they give too little), where a too wide one costs levels or has no start. The
    interval of an inverse ends at 2^-20 of its far end at the latest.
    """
    if seen is not None and (source == "observed" or (source == "proved" and _says_little(interval, seen))):
        lowest = 0.0 if proved is None else max(proved.low, 0.0)
        if (interval.low <= lowest or source == "proved") and lowest < seen.low:
            least = seen.low / 2 if seen.tails is None else min(positive_low(seen.tails.lows), seen.low / 2)
            least = max(least, seen.low / _LOWEST_SHARE, interval.high / _WIDEST)
            return rounding.nearest(max(least, lowest), rounding.INTERVAL_BITS), interval.high
        highest = 0.0 if proved is None else min(proved.high, 0.0)
        if (interval.high >= highest or source == "proved") and highest > seen.high:
            least = -seen.high / 2 if seen.tails is None else min(positive_low(-seen.tails.highs), -seen.high / 2)
            least = max(least, -seen.high / _LOWEST_SHARE, -interval.low / _WIDEST)
            return interval.low, rounding.nearest(min(-least, highest), rounding.INTERVAL_BITS)
    return interval.low, interval.high


def _says_little(interval: Interval, seen: Observed) -> bool:
    """Whether a proved interval reaches zero, or so near to it, far below all samples, that its inverse is expensive."""
    near, far = sorted((abs(interval.low), abs(interval.high)))
    least = min(abs(seen.low), abs(seen.high))
    return interval.low <= 0 <= interval.high or (far > _WIDE * near and near < least / _LOWEST_SHARE)


@dataclass(frozen=True, slots=True)
class _Writing:
    """A plan that is being written down."""

    lowering: Lowering
    plan: StepPlan
    # The entry in the range table for the plan's input.
    entry: int
    # Steps that only bring a polynomial's argument to [-1, 1].
    skipped: frozenset[int]
    # The node made for each step so far.
    made: dict[int, Node]

    def operands(self, step: Step) -> list[Node]:
        return [self.made[number] for number in step.operands]


def _steps(lowering: Lowering, x: Node, plan: StepPlan, entry: int) -> Node:
    """The nodes of a plan on x: (rows, columns) with the plan's `width` of rows, or any shape where it has one column."""
    uses = Counter(operand for step in plan.steps for operand in step.operands)
    skipped = frozenset(
        i for i, step in enumerate(plan.steps) if _is_scaling(step) and uses[i] == 1 and _feeds_poly(plan, i, uses)
    )
    writing = _Writing(lowering, plan, entry, skipped, {0: x})
    for number, step in enumerate(plan.steps):
        if number and number not in skipped:
            if step.kind not in STEP_RULES:
                raise InternalError(f"no rule for a step of kind {step.kind}")
            writing.made[number] = STEP_RULES[step.kind](writing, step)
    return writing.made[len(plan.steps) - 1]


def _is_scaling(step: Step) -> bool:
    return step.kind in ("scale", "add_constant")


def _feeds_poly(plan: StepPlan, number: int, uses: Counter[int]) -> bool:
    """Whether the step only brings a polynomial's argument to [-1, 1]: the polynomial's interval says that for nothing."""
    for reader, step in enumerate(plan.steps):
        if number in step.operands:
            if step.kind == "poly":
                return True
            return _is_scaling(step) and uses[reader] == 1 and _feeds_poly(plan, reader, uses)
    return False


_StepRule: TypeAlias = Callable[[_Writing, Step], Node]


def _poly(w: _Writing, step: Step) -> Node:
    """The polynomial on the interval that the skipped steps before it bring to [-1, 1]."""
    assert step.stage is not None
    operand, factor, shift = step.operands[0], 1.0, 0.0
    while operand in w.skipped:
        before = w.plan.steps[operand]
        shift += factor * before.value if before.kind == "add_constant" else 0.0
        factor *= before.value if before.kind == "scale" else 1.0
        operand = before.operands[0]
    ends = sorted(((-1.0 - shift) / factor, (1.0 - shift) / factor))
    assert factor > 0, "a polynomial's argument is not mirrored"
    return w.lowering.poly(w.made[operand], step.stage, ends[0], ends[1], w.entry if operand == 0 else None)


def _of_two(op: str) -> _StepRule:
    return lambda w, step: w.lowering.op(op, *w.operands(step))


def _add_constant(w: _Writing, step: Step) -> Node:
    (x,) = w.operands(step)
    return w.lowering.op("add", x, w.lowering.constant(np.full(shape_of(x), step.value)))


def _scale(w: _Writing, step: Step) -> Node:
    (x,) = w.operands(step)
    return w.lowering.poly(x, Stage((0.0, step.value)), -1.0, 1.0)


def _scale_integer(w: _Writing, step: Step) -> Node:
    """A whole multiple by additions, or the negative."""
    (x,) = w.operands(step)
    factor, lowering = int(step.value), w.lowering
    total, power, rest = None, x, abs(factor)
    while rest:
        if rest & 1:
            total = power if total is None else lowering.op("add", total, power)
        rest >>= 1
        if rest:
            power = lowering.op("add", power, power)
    assert total is not None, "a product with zero is not a step"
    return lowering.op("sub", lowering.constant(np.zeros(shape_of(x)), "zero"), total) if factor < 0 else total


def _sum_row(w: _Writing, step: Step) -> Node:
    return _summed(w, *w.operands(step))


def _summed(w: _Writing, x: Node) -> Node:
    """The sum of all rows in each of them."""
    return w.lowering.op("repeat_row", w.lowering.op("sum_rows", x), rows=w.plan.width)


def _rotate(w: _Writing, step: Step) -> Node:
    return w.lowering.op("roll_rows", *w.operands(step), amount=int(step.value) % w.plan.width)


def _add_padding(w: _Writing, step: Step) -> Node:
    (x,) = w.operands(step)
    padding = np.zeros(shape_of(x))
    padding[w.plan.columns :] = step.value
    return w.lowering.op("add", x, w.lowering.constant(padding, "padding"))


def _mask(w: _Writing, step: Step) -> Node:
    return _first_rows(w, step, w.plan.columns)


def _first_column(w: _Writing, step: Step) -> Node:
    # A plan's columns are the rows of the program's values.
    return _summed(w, _first_rows(w, step, 1))


def _first_rows(w: _Writing, step: Step, count: int) -> Node:
    """The first rows times the step's value, zeros in the others."""
    (x,) = w.operands(step)
    kept = np.zeros(shape_of(x))
    kept[:count] = step.value
    return w.lowering.mapped(x, scipy.sparse.diags_array(kept.ravel()).tocsr(), shape_of(x))


# By the `kind` of a step (approx/result.py); "input" is the node that the plan is applied to.
STEP_RULES: Mapping[str, _StepRule] = {
    "poly": _poly,
    "multiply": _of_two("mul"),
    "add": _of_two("add"),
    "subtract": _of_two("sub"),
    "add_constant": _add_constant,
    "scale": _scale,
    "scale_integer": _scale_integer,
    "sum_row": _sum_row,
    "rotate": _rotate,
    "add_padding": _add_padding,
    "mask": _mask,
    "first_column": _first_column,
}
