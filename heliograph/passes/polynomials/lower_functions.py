"""Write sign, abs, argmax, max and softmax as compositions of polynomials, at the polynomial stage.

The constructions and their proofs are in `approx/`; here they become nodes. A chain's first polynomial carries the
entry of the range table: while its input stays in the interval, so do the inputs of the others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from heliograph import functions, rounding
from heliograph.approx.compositions import argmax as argmax_plans
from heliograph.approx.compositions import sign as sign_plans
from heliograph.approx.fits.fit import Fit, smallest_degree
from heliograph.approx.fits.minimax import rounded
from heliograph.approx.proofs import proof
from heliograph.approx.proofs.fit_proof import largest_error
from heliograph.approx.result import Stage
from heliograph.errors import ProgramError, at
from heliograph.ir import Array, Matrix, Node, SparseMatrix, shape_of, size_of
from heliograph.ir.analysis.depth import depth_of_degree
from heliograph.ir.maps.gather import gather_matrix
from heliograph.ir.maps.kronecker import KroneckerMatrix, identity_places
from heliograph.ir.node import next_power_of_two
from heliograph.ir.ops.table import Bounds
from heliograph.ir.ranges import RangeEntry
from heliograph.ir.writer import Writer
from heliograph.passes.polynomials.choose_degree import MAX_DEGREES
from heliograph.passes.ranges.calibrate import Observed, row_distances
from heliograph.passes.ranges.intervals import Interval, transfer
from heliograph.passes.ranges.margins import WORTH_A_PROOF
from heliograph.passes.ranges.range_table import range_entry

# The default for the smallest difference to be resolved, as a share of the range, without one from program or samples.
DEFAULT_GAP = 0.01
# If the program gives no precision, a sign comes within 2**-SIGN_BITS of its limit, and an entry of a one-hot vector
# within 2**-ONE_HOT_BITS.
SIGN_BITS = 10.0
ONE_HOT_BITS = 5.0
# Errors of compared differences are simulated on few samples. On others they may be this many times as large.
_OTHER_SAMPLES = 3.0
_MOST_ABS_DEGREE = 127
# The first polynomial of a sign is steepest at the ends of its interval, and noise must carry no value beyond them. An
# interval without a margin is widened by this share, because whole numbers may lie exactly at its ends.
_ROOM = 2.0**-7
# The gap of a comparison of values that keep a distance from the threshold, as a share of that distance.
_CLEAR = 0.8
# Fits to observed differences spread this share of the weight over the whole interval, at this many points: it greatly
# reduces the largest error, at little cost in the mean error.
_BROADLY, _EVENLY = 0.02, 1001
# Maps with at most this many entries are multiplied entry by entry.
_FEW_ENTRIES = 1 << 12
# All differences between rows, in both directions, are compared at once if they fit into one ciphertext with this many
# slots. If there are more, each pair is compared once, up to this many differences; beyond that, rows meet in a
# tournament.
_MOST_PAIRS = 1 << 15
_MOST_HALF_PAIRS = 1 << 18


@dataclass(frozen=True, slots=True)
class Argument:
    """The argument of a composition.

    `value`: a node of the new program.
    `interval`: the interval on which the polynomials are accurate.
    `source`: the source of the interval: proved, observed or declared.
    `seen`: the observed range of the value.
    `proved`: its proved interval.
    """

    value: Node
    interval: Interval
    source: str
    seen: Observed | None = None
    proved: Interval | None = None


def resolved_share(gap_error: float) -> float:
    """The share of an argmax's gap that its polynomials resolve, if encryption may add `gap_error` of it."""
    return 1.0 - _OTHER_SAMPLES * gap_error


def gap_error_for(share: float) -> float:
    """The `gap_error` with which the polynomials leave that share of the gap."""
    return share / _OTHER_SAMPLES


@dataclass(slots=True, kw_only=True)
class Lowering(Writer):
    """A writer of the nodes that replace one op, with the bounds of each."""

    node: Node
    bounds: dict[Node, Bounds | None]
    ranges: list[RangeEntry]
    margin: float
    # Values of the new program with several readers, or that are outputs.
    shared: frozenset[Node] = frozenset()
    # The requested largest error (Options.target_error).
    target_error: float | None = None
    # The share of an argmax's gap that its polynomials resolve.
    resolved: float = 1.0
    # The observed reach of the differences that each round of a maximum compares.
    reaches: tuple[float, ...] = ()
    # Chooses the degree of a maximum from samples, given the root mean square error of each degree in the samples'
    # units.
    choose_degree: Callable[[Mapping[int, float]], int] = min

    def op(self, op: str, *operands: Node, **attrs: Any) -> Node:
        made = self.builder.op(op, operands, self.loc, **attrs)
        self.bounds[made] = transfer(made, [self.bounds[operand] for operand in operands], self.builder.context, {})
        return made

    def poly(
        self, x: Node, coefficients: Sequence[float], low: float = -1.0, high: float = 1.0, entry: int | None = None
    ) -> Node:
        made = Writer.poly(self, x, coefficients, low, high, entry)
        least, most = proof.image(coefficients)
        self.bounds[made] = (np.full(size_of(made), least), np.full(size_of(made), most))
        return made

    def chain(self, x: Node, stages: Sequence[Stage], low: float, high: float, entry: int | None) -> Node:
        """Stages from [-1, 1] one after the other, the first at x in [low, high]."""
        for stage in stages:
            x = self.poly(x, stage.coefficients, low, high, entry)
            low, high, entry = -1.0, 1.0, None
        return x

    def mapped(self, x: Node, matrix: Any, shape: tuple[int, ...], bias: float = 0.0) -> Node:
        """A linear map of x plus a number. It is merged into the map that gives x if x has no other reader and it pays.

        A plain summand of x goes through the map in the clear.
        """
        if x.op == "add" and x not in self.shared and sum(operand.type.secret for operand in x.inputs) == 1:
            secret, known = sorted(x.inputs, key=lambda operand: not operand.type.secret)
            if known.op != "constant" and shape_of(known) == shape_of(secret) == shape_of(x):
                stored = matrix if isinstance(matrix, Matrix) else SparseMatrix.of(scipy.sparse.csr_array(matrix))
                return self.op(
                    "add", self.mapped(secret, matrix, shape, bias), self._affine([known], [stored], np.zeros(1), shape)
                )
        if isinstance(matrix, KroneckerMatrix):
            return self._by_channels(x, matrix, shape, bias)
        matrix = matrix.csr() if isinstance(matrix, Matrix) else scipy.sparse.csr_array(matrix)
        operands: tuple[Node, ...] = (x,)
        matrices, offset = [matrix], np.full(matrix.shape[0], bias)
        if x.op == "affine" and x not in self.shared and _pays(matrix.shape, [size_of(n) for n in x.inputs]):
            operands = x.inputs
            matrices = [matrix @ self.builder.context.linear_map(name).csr() for name in x.attrs["matrices"]]
            if "bias" in x.attrs:
                offset = offset + matrix @ self.builder.context.array(x.attrs["bias"])
        return self._affine(operands, [SparseMatrix.of(m) for m in matrices], offset, shape)

    def _affine(
        self, operands: Sequence[Node], matrices: Sequence[Matrix], offset: Array, shape: tuple[int, ...]
    ) -> Node:
        names = tuple(self.builder.constant(each, f"{self.name}.matrix") for each in matrices)
        bias = self.builder.constant(offset, f"{self.name}.bias") if offset.any() else None
        return self.op("affine", *operands, matrices=names, bias=bias, shape=shape)

    def _by_channels(self, x: Node, matrix: KroneckerMatrix, shape: tuple[int, ...], bias: float) -> Node:
        """`mapped` for a map in Kronecker form, which treats all places alike: products keep that form."""
        operands: tuple[Node, ...] = (x,)
        matrices: list[Matrix] = [matrix]
        offset: Array = np.full(matrix.shape[0], bias)
        if x.op == "affine" and x not in self.shared:
            inner = [self.builder.context.linear_map(name) for name in x.attrs["matrices"]]
            products = [_after(matrix, each) for each in inner]
            _, out, between = matrix.weights.shape
            sources = [each.weights.shape[2] for each in inner if isinstance(each, KroneckerMatrix)]
            if all(product is not None for product in products) and _pays((out, between), sources):
                operands, matrices = x.inputs, [product for product in products if product is not None]
                if "bias" in x.attrs:
                    offset = offset + matrix.apply_to_constant(self.builder.context.array(x.attrs["bias"]))
        return self._affine(operands, matrices, offset, shape)

    def entry(
        self,
        interval: Interval,
        source: str,
        degrees: Sequence[int],
        error: float,
        **more: Any,
    ) -> int:
        """Add an entry to the range table and return its number. Errors of constructions are proved."""
        self.ranges.append(
            range_entry(
                self.node,
                more.pop("function", self.node.op),
                interval,
                source,
                degree=max(degrees),
                method="composite",
                error=(error, True),
                margin=self.margin,
                degrees=tuple(degrees),
                **more,
            )
        )
        return len(self.ranges) - 1

    def gap(self, seen: float | None, reach: float) -> tuple[float, str]:
        """The smallest difference to be resolved, and its source."""
        if "gap" in self.node.attrs:
            return float(self.node.attrs["gap"]), str(self.node.attrs.get("gap_source", "declared"))
        if seen is not None:
            return min(seen, reach / 2), "observed"
        return DEFAULT_GAP * reach, "default"

    def error(self, width: float) -> float:
        """The largest error allowed for |x| or a maximum, for operands in an interval of this width.

        The op's own gap comes before the target error for all ops.
        """
        if "gap" in self.node.attrs:
            return float(self.node.attrs["gap"])
        return self.target_error or DEFAULT_GAP * width

    def located(self, hint: str = "") -> AbstractContextManager[None]:
        """A context in which errors name this op and its place, with the hint if one is given."""
        return at(self.node.loc, said_by=self.node.op, hint=hint)


def _after(matrix: KroneckerMatrix, inner: Matrix) -> Matrix | None:
    """matrix @ inner in Kronecker form, or entry by entry if `inner` has few entries; else None."""
    if isinstance(inner, KroneckerMatrix):
        return matrix.after(inner)
    return SparseMatrix.of(matrix.csr() @ inner.csr()) if inner.nnz <= _FEW_ENTRIES else None


# Prices of a rotation and of a level, in plaintext products. (A map with d diagonals takes about 2 sqrt(d) rotations.)
_ROTATION, _LEVEL = 16.0, 40.0


def _pays(shape: tuple[int, int], sources: Sequence[int]) -> bool:
    """Whether one map from the sources costs less than two, by way of `shape[1]` elements and with one more level."""

    def work(rows: int, columns: int) -> float:
        diagonals = next_power_of_two(min(rows, columns))
        return diagonals + 2.0 * _ROTATION * math.sqrt(diagonals)

    rows, between = shape
    apart = sum(work(between, source) for source in sources) + work(rows, between) + _LEVEL
    return sum(work(rows, source) for source in sources) <= apart


def lower_sign(lowering: Lowering, x: Argument) -> Node:
    """sign(x): the cheapest chain of odd polynomials for the gap and the bits; 0 stays 0."""
    reach = x.interval.magnitude
    gap, gap_source = lowering.gap(x.seen.near if x.seen else None, reach)
    room = lowering.node.attrs.get("room")
    if room is not None and _CLEAR * room < gap:
        # Values lie exactly at this distance: where the polynomials are steep, noise would move them far.
        gap, gap_source = _CLEAR * float(room), "by steps of the values"
    if x.source != "observed":
        reach *= 1.0 + _ROOM
    bits = float(lowering.node.attrs.get("bits", SIGN_BITS))
    with lowering.located():
        plan = sign_plans.sign(gap / reach, bits, lowering.node.attrs.get("method", "best"))
    entry = lowering.entry(
        Interval(-reach, reach),
        x.source,
        plan.degrees,
        plan.error,
        seen=x.seen,
        gap=gap,
        gap_source=gap_source,
        closeness_bits=plan.closeness_bits,
        moved=lowering.node.attrs.get("moved"),
    )
    return lowering.chain(x.value, plan.folded(), -reach, reach, entry)


def lower_abs(lowering: Lowering, x: Argument) -> Node:
    """|x| within the op's gap, or within the target error."""
    return _abs_within(lowering, x, lowering.error(x.interval.magnitude))


def _abs_within(lowering: Lowering, x: Argument, error: float, whole: float | None = None) -> Node:
    """|x| within `error`: one polynomial, or x sign(x), whichever takes fewer levels.

    As a part of a larger construction, `whole` is that construction's proved error, which the report gives. The
    observed range then belongs to the construction's operand, not to x itself.
    """
    reach = x.interval.magnitude
    shown: dict[str, Any] = {"seen": x.seen} if whole is None else {"seen": x.seen, "observed": None}
    polynomial = _abs_polynomial(error / reach)
    # Inside the gap the error is at most |x|, because the sign polynomials stay in [-1, 1] and do not change sign.
    gap = min(error, reach / 2)
    with lowering.located():
        plan = sign_plans.sign(gap / reach, max(1.0, float(np.log2(reach / error))))
    if polynomial is not None and depth_of_degree(polynomial.degree) <= plan.depth + 1:
        bound = reach * _abs_error(polynomial) if whole is None else whole
        entry = lowering.entry(Interval(-reach, reach), x.source, [polynomial.degree], bound, **shown)
        return lowering.poly(x.value, tuple(reach * c for c in polynomial.coefficients), -reach, reach, entry)
    entry = lowering.entry(
        Interval(-reach, reach),
        x.source,
        plan.degrees,
        error if whole is None else whole,
        **shown,
        gap=gap,
        gap_source="declared" if "gap" in lowering.node.attrs else "default",
        closeness_bits=plan.closeness_bits,
    )
    made = lowering.op("mul", x.value, lowering.chain(x.value, plan.folded(), -reach, reach, entry))
    lowering.bounds[made] = (np.full(size_of(made), -error), np.full(size_of(made), reach))
    return made


@functools.lru_cache(maxsize=64)
def _abs_polynomial(error: float) -> Fit | None:
    """The polynomial of least degree for |x| on [-1, 1] within that error; None if its degree would be too high."""
    # Bernstein: the best polynomial of even degree n has an error of about 0.2802 / n.
    if error < 0.28 / _MOST_ABS_DEGREE:
        return None
    try:
        return smallest_degree(
            np.abs, -1.0, 1.0, error, "minimax", None, None, max_degree=_MOST_ABS_DEGREE, bound=_abs_error
        )
    except ProgramError:
        return None


def _abs_error(polynomial: Fit) -> float:
    """The proved error of a polynomial for |x| on [-1, 1]."""
    return largest_error(polynomial.coefficients, -1.0, 1.0, functions.function("abs"))[0]


def lower_argmax(lowering: Lowering, x: Argument) -> Node:
    """One-hot over rows, by all pairs of rows at once or, if these are too many, by a tournament.

    All pairs take two signs in sequence whatever the number of rows, a tournament log2(rows) and one more. If all
    differences fit one ciphertext, a row's signs stand one after the other and their sum takes no level. Otherwise each
    pair is compared once, and a map that adds or subtracts its sign takes a level.

    The polynomials resolve less than the gap: encryption may move a difference by the rest of it.
    """
    classes, columns = shape_of(x.value)
    seen = _as_approximated(lowering, x)
    width = x.interval.high - x.interval.low
    if seen is not None and seen.spread is not None and x.source == "observed":
        width = min(width, rounding.upward(seen.spread * (1.0 + lowering.margin)))
    gap, gap_source = lowering.gap(seen.near if seen else None, width)
    told = {"function": "argmax", "gap": gap, "gap_source": gap_source}
    too_many = classes * (classes - 1) // 2 * columns > _MOST_HALF_PAIRS
    return (_argmax_by_tournament if too_many else _argmax_by_pairs)(
        lowering, replace(x, seen=seen), width, lowering.resolved * gap, told
    )


def _as_approximated(lowering: Lowering, x: Argument) -> Observed | None:
    """The observed rows, with distances that also cover the approximated values: `near` may shrink and `spread` may
    grow.

    The polynomials before the op can bring rows closer together than the exact values are.
    """
    seen = x.seen
    if seen is None or seen.near is None or "gap" in lowering.node.attrs or not lowering.builder.calibration:
        return seen
    near, spread = row_distances(lowering.builder.finish([x.value]))
    near = seen.near if near is None else min(seen.near, near)
    return replace(seen, near=near, spread=max(seen.spread or 0.0, spread or 0.0))


def _argmax_by_tournament(lowering: Lowering, x: Argument, width: float, gap: float, told: Mapping[str, Any]) -> Node:
    """One-hot by whether a row exceeds the maximum minus half the gap; the maximum may err by a quarter of the gap.

    `told` is what the range table says of the argmax.
    """
    classes, columns = shape_of(x.value)
    seen = x.seen
    rows, size = next_power_of_two(classes), classes * columns
    # Copies of the first row pad the number of rows to a power of two.
    take = np.concatenate([np.arange(size), np.tile(np.arange(columns), rows - classes)])
    padded = lowering.mapped(x.value, gather_matrix(take, size), (rows, columns))
    most = lowering.op("repeat_row", _max_within(lowering, replace(x, value=padded), gap / 4), rows=rows)
    above = lowering.op(
        "add", lowering.op("sub", padded, most), lowering.constant(np.full((rows, columns), gap / 2), "half_gap")
    )
    reach = width + gap
    bits = float(lowering.node.attrs.get("bits", ONE_HOT_BITS))
    with lowering.located():
        plan = sign_plans.sign(gap / 4 / reach, bits)
    entry = lowering.entry(
        Interval(-reach, reach),
        x.source,
        plan.degrees,
        plan.error / 2,
        seen=seen,
        observed=None if seen is None or seen.spread is None else (gap / 2 - seen.spread, gap / 2),
        closeness_bits=plan.closeness_bits + 1,
        **told,
    )
    stages = plan.folded()
    made = lowering.chain(above, (*stages[:-1], stages[-1].scaled(0.5, 0.5)), -reach, reach, entry)
    # The results of the copied rows are zeroed: slots without a result must not depend on the input.
    return lowering.mapped(made, scipy.sparse.eye_array(size, rows * columns, format="csr"), (classes, columns))


def _argmax_by_pairs(lowering: Lowering, x: Argument, width: float, gap: float, told: Mapping[str, Any]) -> Node:
    """The signs of all differences in one vector, summed by rotations, and a second sign of the sums.

    `told` is what the range table says of the argmax.
    """
    classes, columns = shape_of(x.value)
    seen = x.seen
    count = max(
        int(lowering.node.attrs.get("count", 1)), round(2.0 ** float(lowering.node.attrs.get("bits", ONE_HOT_BITS)))
    )
    with lowering.located():
        plan = argmax_plans.argmax(classes, gap / width, count, lowering.node.attrs.get("method", "best"))
    degrees = (*plan.sign1.degrees, *(plan.sign2.degrees if plan.sign2 else ()))
    entry = lowering.entry(
        Interval(-width, width),
        x.source,
        degrees,
        2.0**-plan.psi2,
        seen=seen,
        # The polynomials are applied to differences of two values.
        observed=None if seen is None or seen.spread is None else (-seen.spread, seen.spread),
        closeness_bits=plan.psi2,
        count=count,
        **told,
    )
    # With two classes, the signs of both differences are already the answer: there is nothing to add up.
    both = classes == 2 or next_power_of_two(classes - 1) * next_power_of_two(classes * columns) <= _MOST_PAIRS
    compared = _differences(classes) if both else _half_differences(classes)
    shape = (next_power_of_two(classes - 1), classes * columns) if both else (len(compared), columns)
    differences = lowering.mapped(x.value, _of_columns(compared, columns), shape)
    signs = lowering.chain(differences, plan.folded1(), -width, width, entry)
    offset = plan.offset2 if plan.sign2 is not None else 0.0
    if both:
        rows = shape[0] > 1
        total = lowering.op("sum_rows", signs) if rows else lowering.op("reshape", signs, shape=(classes * columns,))
        if offset:
            total = lowering.op("add", total, lowering.constant(np.full(classes * columns, offset), "argmax.offset"))
    else:
        total = lowering.mapped(signs, _of_columns(compared.T, columns), (classes, columns), offset)
    if plan.sign2 is not None:
        # The plan proves that the scores lie in the second sign's interval.
        lowering.bounds[total] = (-np.ones(classes * columns), np.ones(classes * columns))
        total = lowering.chain(total, plan.folded2(), -1.0, 1.0, None)
    lowering.bounds[total] = (np.full(classes * columns, -0.01), np.full(classes * columns, 1.01))
    return lowering.op("reshape", total, shape=(classes, columns))


def _differences(classes: int) -> Array:
    """A map: row (k, i) gives x[i] - x[(i + k + 1) mod classes], and zero from k = classes - 1 on."""
    offset, row = np.divmod(np.arange(next_power_of_two(classes - 1) * classes), classes)
    made = np.eye(classes)[row] - np.eye(classes)[(row + offset + 1) % classes]
    made[offset >= classes - 1] = 0.0
    return np.asarray(made)


def _half_differences(classes: int) -> Array:
    """A map with a row x[i] - x[j] for each pair i < j; its transpose adds up the signs of each class."""
    first, second = np.triu_indices(classes, 1)
    return np.asarray(np.eye(classes)[first] - np.eye(classes)[second])


def _of_columns(matrix: Array, columns: int) -> Any:
    """The map on rows, applied to each column; entry by entry for a single column."""
    return (
        KroneckerMatrix.of(matrix[np.newaxis], [identity_places(columns)])
        if columns > 1
        else scipy.sparse.csr_array(matrix)
    )


def lower_max(lowering: Lowering, x: Argument) -> Node:
    """The maximum over rows within the gap or the target error; with neither, as close as the samples require."""
    if lowering.reaches and lowering.target_error is None and "gap" not in lowering.node.attrs:
        return _max_by_samples(lowering, x)
    return _max_within(lowering, x, lowering.error(x.interval.high - x.interval.low))


def _max_by_samples(lowering: Lowering, x: Argument) -> Node:
    """The maximum over rows by the tournament of `_max_within`, with polynomials fitted to the observed differences.

    After a ReLU, most differences are zero or small, and none is as large as the values' interval allows. A minimax
    polynomial on that interval has its largest error where two values are equal, always upwards, and later layers add
    this up. Least squares under the differences' own distribution, on an interval that holds them, have no such drift.
    """
    assert x.seen is not None
    rows, columns = shape_of(x.value)
    width = x.interval.high - x.interval.low
    rounds = [
        _Meeting(min(rounding.upward(reach), width), each.sizes, reach * WORTH_A_PROOF >= width)
        for reach, each in zip(lowering.reaches, x.seen.rounds, strict=True)
    ]
    rms = {
        degree: math.sqrt(sum(meeting.fit(degree).rms_error ** 2 for meeting in rounds)) / 2 for degree in MAX_DEGREES
    }
    degree = lowering.choose_degree(rms)
    fits = [meeting.fit(degree) for meeting in rounds]
    errors = [meeting.reach * _abs_error(made) / 2 for meeting, made in zip(rounds, fits, strict=True)]
    value = lowering.mapped(x.value, scipy.sparse.eye_array(rows * columns, format="csr") / rows, (rows, columns))
    for number, (meeting, made) in enumerate(zip(rounds, fits, strict=True)):
        factor = 2.0**number / rows
        # Earlier rounds may have moved both values.
        reach = meeting.reach * factor + (2 * sum(errors[:number]) * factor if meeting.whole else 0.0)
        entry = lowering.entry(
            Interval(-reach, reach),
            x.source if meeting.whole else "observed",
            [degree],
            sum(errors),
            rms_error=rms[degree],
            seen=x.seen,
            observed=None,
        )
        coefficients = tuple(reach * c for c in made.coefficients)
        value = _met(lowering, value, rows >> (number + 1), coefficients, reach, entry)
        error = sum(errors[: number + 1])
        least, most = (x.interval.low - error) * 2 * factor, (x.interval.high + error) * 2 * factor
        lowering.bounds[value] = (np.full(rows * columns, least), np.full(rows * columns, most))
    return lowering.op("equal_row", value)


def _met(lowering: Lowering, value: Node, amount: int, coefficients: Sequence[float], reach: float, entry: int) -> Node:
    """Twice the larger of each row and the row `amount` after it."""
    other = lowering.op("roll_rows", value, amount=amount)
    made = lowering.poly(lowering.op("sub", value, other), coefficients, -reach, reach, entry)
    return lowering.op("add", lowering.op("add", value, other), made)


@dataclass(frozen=True, slots=True)
class _Meeting:
    """One round of a maximum.

    `reach`: the reach of its differences.
    `sizes`: quantiles of the observed differences.
    `whole`: whether the reach covers all values of the interval, not only the observed ones.
    """

    reach: float
    sizes: Array
    whole: bool

    def fit(self, degree: int) -> Fit:
        """|x| on [-1, 1], for differences divided by the reach; its mean error is in the differences' own units."""
        made = _abs_by_sizes(degree, tuple(self.sizes / self.reach))
        return replace(made, rms_error=made.rms_error * self.reach)


@functools.lru_cache(maxsize=256)
def _abs_by_sizes(degree: int, sizes: tuple[float, ...]) -> Fit:
    """|x| on [-1, 1] by least squares at quantiles of |x|, with a small share of the weight evenly on [0, 1]."""
    even = np.linspace(0.0, 1.0, _EVENLY)
    x = np.append(np.minimum(sizes, 1.0), even)
    weight = np.append(np.full(len(sizes), (1.0 - _BROADLY) / len(sizes)), np.full(_EVENLY, _BROADLY / _EVENLY))
    root = np.sqrt(weight)
    kept = np.arange(0, degree + 1, 2)
    coefficients: Array = np.zeros(int(kept[-1]) + 1)
    basis = np.polynomial.chebyshev.chebvander(x, int(kept[-1]))[:, kept]
    coefficients[kept] = np.linalg.lstsq(basis * root[:, None], x * root, rcond=None)[0]
    error = np.polynomial.chebyshev.chebval(x, coefficients) - x
    coefficients = rounded(coefficients, float(np.abs(error).max()), True)
    rms = math.sqrt(float((weight * error**2).sum()))
    return Fit(-1.0, 1.0, tuple(map(float, coefficients)), "gaussian", float(np.abs(error).max()), rms)


def _max_within(lowering: Lowering, x: Argument, error: float) -> Node:
    """The maximum over rows by a tournament: log2(rows) rounds of max(x, y) = (x + y + |x - y|) / 2 on whole vectors.

    Every round halves the distance of the rolled rows, so that in the end all rows hold the maximum. The halving of
    values is left out, so they double in each round; the map before divides by the number of rows. Each round errs by
    at most its share of `error`, also where values are equal. All pairs at once, as in argmax, would need fewer levels
    from eight rows on, but fail where the two largest are equal, which is common after a ReLU.
    """
    rows, columns = shape_of(x.value)
    interval, rounds = x.interval, rows.bit_length() - 1
    value = lowering.mapped(x.value, scipy.sparse.eye_array(rows * columns, format="csr") / rows, (rows, columns))
    width = interval.high - interval.low
    # Round j works on values scaled by 2^j / rows, and each later round doubles its error.
    share = error / max(rounds, 1)
    for number in range(rounds):
        factor = 2.0**number / rows
        other = lowering.op("roll_rows", value, amount=rows >> (number + 1))
        reach = width * factor + 2 * number * share * factor
        distance = replace(x, value=lowering.op("sub", value, other), interval=Interval(-reach, reach))
        made = _abs_within(lowering, distance, 2.0 * share * factor, whole=error)
        value = lowering.op("add", lowering.op("add", value, other), made)
        least, most = interval.low * 2 * factor - share, interval.high * 2 * factor + share
        lowering.bounds[value] = (np.full(rows * columns, least), np.full(rows * columns, most))
    return lowering.op("equal_row", value)
