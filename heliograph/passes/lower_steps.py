"""Write the plans of `approx/` that are more than a chain of polynomials as nodes: softmax, exp, inverse and roots."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from heliograph import rounding
from heliograph.approx.exp import exp
from heliograph.approx.inverse import inverse
from heliograph.approx.result import Stage, Step, StepPlan
from heliograph.approx.sampling import sampled_error
from heliograph.approx.softmax import softmax
from heliograph.approx.steps import run
from heliograph.errors import ProgramError
from heliograph.ir import Array, Node, shape_of, size_of
from heliograph.passes.calibrate import Observed
from heliograph.passes.intervals import Interval
from heliograph.passes.lower_functions import Lowering
from heliograph.passes.margins import positive_low

# Where neither Options.target_error nor the op says how near a function must come: relative to its value, or, of a
# softmax, absolute.
DEFAULT_RELATIVE_ERROR = 2.0**-10
DEFAULT_SOFTMAX_ERROR = 2.0**-10
_MOST_EXPONENT = 700.0
# Random rows that a softmax without a proof is looked at on.
_ROWS_SEEN = 4096


def lower_softmax(
    low: Lowering, x: Node, interval: Interval, source: str, seen: Observed | None, error: float | None
) -> Node:
    """softmax over rows; a constant that centres the range drops out of it."""
    rows, columns = shape_of(x)
    middle, limit = (interval.low + interval.high) / 2, (interval.high - interval.low) / 2
    method = low.node.attrs.get("method", "best")
    hint = "a narrower range (leave masked places out instead of adding a large negative number), or target_error"
    with low.located(hint):
        plan = softmax(rows, limit, method, max_error=error or DEFAULT_SOFTMAX_ERROR)
    polynomials = [step.stage.degree for step in plan.steps if step.stage is not None]
    if plan.error is None or plan.rounding is None:
        # HETAL's constructions have no proof: what is known of them is what random rows show.
        largest = sampled_error(lambda some: run(plan, some), rows, limit, _ROWS_SEEN, seed=0).max_error
    else:
        largest = plan.error - plan.rounding
    proved = plan.error is not None
    entry = low.entry(
        interval, source, polynomials, largest, proved, seen=seen, function="softmax", construction=method
    )
    if x.op not in ("affine", "input") or x in low.shared:
        # Rows of zeros are put behind: what makes x must leave zeros there.
        x = low.mapped(x, np.eye(rows * columns), (rows, columns))
    value = low.op("pad_rows", x, rows=plan.width)
    if middle:
        shift = np.zeros((plan.width, columns))
        shift[:rows] = -middle
        value = low.op("add", value, low.constant(shift, "softmax.centre"))
    made = low.op("crop_rows", _steps(low, value, plan, entry), rows=rows)
    size = rows * columns
    low.bounds[made] = (np.full(size, -largest), np.full(size, 1.0 + largest)) if proved else None
    return made


def lower_inverse(
    low: Lowering,
    x: Node,
    interval: Interval,
    source: str,
    seen: Observed | None,
    error: float | None,
    proved: Interval | None = None,
) -> Node:
    """1/x, 1/sqrt(x) or sqrt(x) on a range above zero (1/x: or below)."""
    least, most = away_from_zero(interval, source, seen, proved)
    negative = most < 0 and low.node.op == "reciprocal"
    if negative:
        least, most = -most, -least
    with low.located():
        plan = inverse(least, most, error or DEFAULT_RELATIVE_ERROR, low.node.op)
    true = [1 / least, 1 / most] if low.node.op == "reciprocal" else [least**-0.5, most**-0.5]
    true = [math.sqrt(least), math.sqrt(most)] if low.node.op == "sqrt" else true
    polynomials = [step.stage.degree for step in plan.steps if step.stage is not None]
    ends = Interval(-most, -least) if negative else Interval(least, most)
    entry = low.entry(
        ends, source, polynomials, plan.relative_error * max(true), seen=seen, relative_error=plan.relative_error
    )
    zero = low.constant(np.zeros(shape_of(x)), "zero")
    made = _steps(low, low.op("sub", zero, x) if negative else x, plan, entry)
    made = low.op("sub", zero, made) if negative else made
    slack = 1.0 + plan.relative_error
    bottom, top = min(true) / slack, max(true) * slack
    size = size_of(x)
    low.bounds[made] = (np.full(size, -top), np.full(size, -bottom)) if negative else (
        np.full(size, bottom),
        np.full(size, top),
    )  # fmt: skip
    return made


def lower_exp(
    low: Lowering, x: Node, interval: Interval, source: str, seen: Observed | None, error: float | None
) -> Node:
    """exp(x) as the power 2^k of a polynomial for exp(x / 2^k): the degree and k of the least depth."""
    with low.located():
        if interval.high > _MOST_EXPONENT:
            raise ProgramError(f"exp of {interval.high:.4g} is larger than any number")
        plan = exp(interval.low, interval.high, error or DEFAULT_RELATIVE_ERROR)
    largest = math.exp(interval.high)
    entry = low.entry(
        interval,
        source,
        [plan.degree],
        plan.relative_error * largest,
        seen=seen,
        relative_error=plan.relative_error,
        squarings=plan.squarings,
    )
    made = _steps(low, x, plan, entry)
    size = size_of(x)
    low.bounds[made] = (np.zeros(size), np.full(size, largest * (1.0 + plan.relative_error)))
    return made


def away_from_zero(
    interval: Interval, source: str, seen: Observed | None, proved: Interval | None
) -> tuple[float, float]:
    """The interval; where its margin reaches zero, or the bound that is proved of the value, it ends short of it.

    The margin is for what was not seen, and a layer norm's variance is never below its eps: towards zero it is a factor
    instead, as the samples' logarithms have it, and at least a half. Newton's and Goldschmidt's iterations are harmless a
    little below their interval, where a too wide one has no start.
    """
    if source == "observed" and seen is not None:
        lowest = 0.0 if proved is None else max(proved.low, 0.0)
        if interval.low <= lowest < seen.low:
            least = seen.low / 2 if seen.tails is None else min(positive_low(seen.tails.lows), seen.low / 2)
            return rounding.nearest(max(least, lowest), rounding.INTERVAL_BITS), interval.high
        highest = 0.0 if proved is None else min(proved.high, 0.0)
        if interval.high >= highest > seen.high:
            least = -seen.high / 2 if seen.tails is None else min(positive_low(-seen.tails.highs), -seen.high / 2)
            return interval.low, rounding.nearest(min(-least, highest), rounding.INTERVAL_BITS)
    return interval.low, interval.high


def _steps(low: Lowering, x: Node, plan: StepPlan, entry: int) -> Node:
    """The nodes of a plan on x: (rows, columns) with the plan's `width` of rows, or any shape where it has one column."""
    made: dict[int, Node] = {0: x}
    uses = Counter(operand for step in plan.steps for operand in step.operands)
    skipped = {
        i for i, step in enumerate(plan.steps) if _is_scaling(step) and uses[i] == 1 and _feeds_poly(plan, i, uses)
    }
    for number, step in enumerate(plan.steps):
        if number and number not in skipped:
            made[number] = _step(low, made, plan, number, step, skipped, entry)
    return made[len(plan.steps) - 1]


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


def _step(
    low: Lowering, made: dict[int, Node], plan: StepPlan, number: int, step: Step, skipped: set[int], entry: int
) -> Node:
    if step.kind == "poly":
        assert step.stage is not None
        operand, factor, shift = step.operands[0], 1.0, 0.0
        while operand in skipped:
            before = plan.steps[operand]
            shift += factor * before.value if before.kind == "add_constant" else 0.0
            factor *= before.value if before.kind == "scale" else 1.0
            operand = before.operands[0]
        ends = sorted(((-1.0 - shift) / factor, (1.0 - shift) / factor))
        assert factor > 0, "a polynomial's argument is not mirrored"
        return low.poly(made[operand], step.stage, ends[0], ends[1], entry if operand == 0 else None)
    x = made[step.operands[0]]
    shape = shape_of(x)
    if step.kind in ("multiply", "add", "subtract"):
        op = {"multiply": "mul", "add": "add", "subtract": "sub"}[step.kind]
        return low.op(op, x, made[step.operands[1]])
    if step.kind == "add_constant":
        return low.op("add", x, low.constant(np.full(shape, step.value)))
    if step.kind == "scale":
        return low.poly(x, Stage((0.0, step.value)), -1.0, 1.0)
    if step.kind == "scale_integer":
        return _times(low, x, int(step.value))
    if step.kind == "sum_row":
        return low.op("repeat_row", low.op("sum_rows", x), rows=plan.width)
    if step.kind == "rotate":
        return low.op("roll_rows", x, amount=int(step.value) % plan.width)
    if step.kind == "add_padding":
        padding = np.zeros(shape)
        padding[plan.columns :] = step.value
        return low.op("add", x, low.constant(padding, "padding"))
    kept = np.zeros(shape)
    kept[: plan.columns if step.kind == "mask" else 1] = step.value
    masked = low.mapped(x, _diagonal(kept.ravel()), shape)
    return masked if step.kind == "mask" else low.op("repeat_row", low.op("sum_rows", masked), rows=plan.width)


def _diagonal(values: Array) -> Any:
    import scipy.sparse

    return scipy.sparse.diags_array(values).tocsr()


def _times(low: Lowering, x: Node, factor: int) -> Node:
    """A whole multiple by additions, or the negative."""
    total, power, rest = None, x, abs(factor)
    while rest:
        if rest & 1:
            total = power if total is None else low.op("add", total, power)
        rest >>= 1
        if rest:
            power = low.op("add", power, power)
    assert total is not None, "a product with zero is no step"
    return low.op("sub", low.constant(np.zeros(shape_of(x)), "zero"), total) if factor < 0 else total
