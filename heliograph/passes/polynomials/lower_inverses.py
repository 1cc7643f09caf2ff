"""Write softmax, exp, inverses and roots by the plans of `approx/`."""

from __future__ import annotations

import math

import numpy as np

from heliograph import rounding
from heliograph.approx.compositions.exp import exp
from heliograph.approx.compositions.inverse import inverse
from heliograph.approx.compositions.softmax import softmax
from heliograph.errors import ProgramError, said
from heliograph.ir import Node, shape_of, size_of
from heliograph.passes.polynomials.lower_functions import Argument, Lowering
from heliograph.passes.ranges.calibrate import Observed
from heliograph.passes.ranges.intervals import Interval
from heliograph.passes.ranges.margins import positive_low

# The default errors without Options.target_error: relative to the function's value; absolute for softmax.
DEFAULT_RELATIVE_ERROR = 2.0**-10
DEFAULT_SOFTMAX_ERROR = 2.0**-10
_MOST_EXPONENT = 700.0
# An inverse is fitted down to at most the smallest observed number divided by this.
_LOWEST_SHARE = 8.0
# And to at most the interval's largest number divided by this. Below it the result is too small, harmless for a square
# root.
_WIDEST = 2.0**20
# A proved interval whose ends differ by more than this factor is replaced by the observed one.
_WIDE = 2.0**13


def lower_softmax(lowering: Lowering, argument: Argument) -> Node:
    """softmax over rows; subtracting a constant that centres the range does not change it."""
    x, interval = argument.value, argument.interval
    rows, columns = shape_of(x)
    middle, limit = (interval.low + interval.high) / 2, (interval.high - interval.low) / 2
    hint = said(
        "a narrower range (leave masked places out instead of adding a large negative number), or {target_error}"
    )
    with lowering.located(hint):
        plan = softmax(rows, limit, max_error=lowering.target_error or DEFAULT_SOFTMAX_ERROR)
    largest = plan.error - plan.rounding
    entry = lowering.entry(
        interval, argument.source, [plan.polynomial.degree], largest, seen=argument.seen, function="softmax"
    )
    if x.op not in ("affine", "input", "matrix_product") or x in lowering.shared:
        # pad_rows uses the slots after x as rows of zeros, so x must come from a map or a product of matrices, which
        # leaves zeros there.
        x = lowering.mapped(x, np.eye(rows * columns), (rows, columns))
    value = lowering.op("pad_rows", x, rows=plan.width)
    if middle:
        shift = np.zeros((plan.width, columns))
        shift[:rows] = -middle
        value = lowering.op("add", value, lowering.constant(shift, "softmax.centre"))
    made = lowering.op("crop_rows", plan.write(lowering, value, entry), rows=rows)
    size = rows * columns
    lowering.bounds[made] = (np.full(size, -largest), np.full(size, 1.0 + largest))
    return made


def lower_inverse(lowering: Lowering, argument: Argument) -> Node:
    """1/x, 1/sqrt(x) or sqrt(x) on a range above zero (for 1/x, also below)."""
    x = argument.value
    least, most = away_from_zero(argument.interval, argument.source, argument.seen, argument.proved)
    # A proved interval that reaches zero says nothing about the end that matters.
    source = argument.source if (least, most) == (argument.interval.low, argument.interval.high) else "observed"
    negative = most < 0 and lowering.node.op == "reciprocal"
    if negative:
        least, most = -most, -least
    with lowering.located():
        plan = inverse(least, most, lowering.target_error or DEFAULT_RELATIVE_ERROR, lowering.node.op)
    true = [1 / least, 1 / most] if lowering.node.op == "reciprocal" else [least**-0.5, most**-0.5]
    true = [math.sqrt(least), math.sqrt(most)] if lowering.node.op == "sqrt" else true
    ends = Interval(-most, -least) if negative else Interval(least, most)
    entry = lowering.entry(
        ends,
        source,
        [plan.start.degree],
        plan.relative_error * max(true),
        seen=argument.seen,
        relative_error=plan.relative_error,
    )
    made = plan.write(lowering, lowering.negated(x) if negative else x, entry)
    made = lowering.negated(made) if negative else made
    slack = 1.0 + plan.relative_error
    bottom, top = min(true) / slack, max(true) * slack
    size = size_of(x)
    lowering.bounds[made] = (np.full(size, -top), np.full(size, -bottom)) if negative else (
        np.full(size, bottom),
        np.full(size, top),
    )  # fmt: skip
    return made


def lower_exp(lowering: Lowering, argument: Argument) -> Node:
    """exp(x) as the power 2^k of a polynomial for exp(x / 2^k), with the degree and k of least depth."""
    x, interval = argument.value, argument.interval
    with lowering.located():
        if interval.high > _MOST_EXPONENT:
            raise ProgramError(f"exp of {interval.high:.4g} is larger than any number")
        plan = exp(interval.low, interval.high, lowering.target_error or DEFAULT_RELATIVE_ERROR)
    largest = math.exp(interval.high)
    entry = lowering.entry(
        interval,
        argument.source,
        [plan.polynomial.degree],
        plan.relative_error * largest,
        seen=argument.seen,
        relative_error=plan.relative_error,
        squarings=plan.squarings,
    )
    made = plan.write(lowering, x, entry)
    size = size_of(x)
    lowering.bounds[made] = (np.zeros(size), np.full(size, largest * (1.0 + plan.relative_error)))
    return made


def away_from_zero(
    interval: Interval, source: str, seen: Observed | None, proved: Interval | None
) -> tuple[float, float]:
    """The interval, with the end towards zero no nearer to it than unseen values of one sign are likely to come.

    The margin is for unseen values, but a layer norm's variance, for example, is never below its eps. So the margin
    towards zero is a factor: the end lies at a half to an eighth of the nearest sample, by the tail of the
    samples' logarithms. Newton's iterations are harmless below their interval (their result is too small), while a too
    wide interval costs levels or has no start. The interval of an inverse goes down to at most 2^-20 of its far end.
    """
    if seen is not None and (source == "observed" or (source == "proved" and _says_little(interval, seen))):
        lowest = 0.0 if proved is None else max(proved.low, 0.0)
        if lowest < seen.low:
            least = seen.low / 2 if seen.tails is None else min(positive_low(seen.tails.lows), seen.low / 2)
            least = max(least, seen.low / _LOWEST_SHARE, interval.high / _WIDEST, interval.low)
            return rounding.nearest(max(least, lowest), rounding.INTERVAL_BITS), interval.high
        highest = 0.0 if proved is None else min(proved.high, 0.0)
        if highest > seen.high:
            least = -seen.high / 2 if seen.tails is None else min(positive_low(-seen.tails.highs), -seen.high / 2)
            least = max(least, -seen.high / _LOWEST_SHARE, -interval.low / _WIDEST, -interval.high)
            return interval.low, rounding.nearest(min(-least, highest), rounding.INTERVAL_BITS)
    return interval.low, interval.high


def _says_little(interval: Interval, seen: Observed) -> bool:
    """Whether a proved interval reaches zero, or comes so close to it, far below all samples, that an inverse is
    costly.
    """
    near, far = sorted((abs(interval.low), abs(interval.high)))
    least = min(abs(seen.low), abs(seen.high))
    return interval.low <= 0 <= interval.high or (far > _WIDE * near and near < least / _LOWEST_SHARE)
