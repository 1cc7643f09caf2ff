"""Replace every activation by a polynomial on the range of its input."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from heliograph import functions, rounding
from heliograph.approx.fits.fit import Fit, smallest_degree
from heliograph.errors import ProgramError, at, said
from heliograph.functions import Function
from heliograph.ir import Array, Builder, Node, Program, Stage, size_of
from heliograph.ir.analysis.liveness import last_use_table
from heliograph.ir.ops.functions import ALONG_ROWS
from heliograph.ir.ops.table import OPS, Bounds
from heliograph.ir.ranges import RangeEntry
from heliograph.passes.base import rule_for
from heliograph.passes.polynomials.approximation import Activation, Approximations, Degrees
from heliograph.passes.polynomials.choose_degree import Chooser, degree_of_maximum, usual_polynomial
from heliograph.passes.polynomials.corrections import Correction, Linear
from heliograph.passes.polynomials.lower_functions import (
    Argument,
    Lowering,
    lower_abs,
    lower_argmax,
    lower_max,
    lower_sign,
    resolved_share,
)
from heliograph.passes.polynomials.lower_inverses import away_from_zero, lower_exp, lower_inverse, lower_softmax
from heliograph.passes.ranges.calibrate import Observed
from heliograph.passes.ranges.intervals import Interval, hull, transfer
from heliograph.passes.ranges.margins import WORTH_A_PROOF, Normals, Wide, widened
from heliograph.passes.ranges.range_table import range_entry
from heliograph.passes.ranges.units import UnitGroup, unit_groups
from heliograph.texts import number_of

# On a symmetric interval, ReLU-like functions take about a quarter fewer products. The interval is made symmetric if
# that widens it by no more than this factor.
_SYMMETRY = 1.35


@dataclass(frozen=True, slots=True)
class Approximate:
    """Replaces activations by `poly` nodes.

    A range is proved (intervals from the input range), observed, or declared at the op. Between linear maps, sums
    included, a homogeneous activation (ReLU, leaky ReLU) gets a range for each unit: f(x) = r f(x / r), and the maps
    absorb 1/r and r. One polynomial on [-1, 1] then serves units of any size equally well.

    `degree`: the degree for all layers.
    `degrees`: degrees by layer name, or one for each activation in program order.
    `target_error`: asks for the smallest degree with a largest error below it.
    `margin`: widens an observed range on each side, as a share of its width. With None, margin and degree are chosen
    together from the tails of the samples (ranges/margins.py, choose_degree.py).
    `method`: the method of the fits, unless the op has its own.
    `spread`: widens the normal distribution by which method gaussian weighs (OLA's r).
    `observed`: the result of `Calibrate`.
    `precision`: the error that encryption may add to a result, as a share of its size. A smooth function takes a lower
    degree if its error is far below that; with 0, none does.
    `closeness`: where `margin` is None, the allowed share of the usual error.
    `room`: where `margin` is None, the factors by which operands need a wider interval than the samples show.
    `fixed`: the degrees of nodes whose degree is neither requested nor to be chosen again.
    `gap_error`: the error that encryption may add to differences that an argmax compares, as a share of its gap.
    `corrections`: the corrections of linear maps (corrections.py).
    """

    degree: int | None = None
    degrees: Degrees = field(default_factory=dict)
    target_error: float | None = None
    margin: float | None = 0.1
    method: str | None = None
    spread: float = 1.0
    observed: Mapping[Node, Observed] = field(default_factory=dict)
    precision: float = 0.0
    closeness: float = 1.0
    room: Mapping[Node, float] = field(default_factory=dict)
    fixed: Mapping[Node, int] = field(default_factory=dict)
    gap_error: float = 0.0
    corrections: Mapping[Node, Correction] = field(default_factory=dict)

    name: ClassVar[str] = "approximate"
    needs: ClassVar[Stage] = Stage.TENSOR
    makes: ClassVar[Stage] = Stage.POLYNOMIAL

    def run(self, program: Program) -> Program:
        return self.table(program).write()

    def table(self, fused: Program) -> Approximations:
        """The approximation of each activation of a fused program."""
        choice = replace(self, degrees=degrees_by_layer(fused, self.degrees))
        return _Approximator(choice, fused).table()


class _Approximator:
    """The making of one table: the program with the polynomials, the bounds of its values, and the table of ranges."""

    def __init__(self, options: Approximate, program: Program) -> None:
        self.options, self.program, self.observed = options, program, options.observed
        self.builder = Builder(program.name, Stage.POLYNOMIAL, program)
        self.users = program.users()
        self.wide: dict[Node, Wide] = {}
        self.chooser: Chooser | None = None
        if options.margin is None:
            self.wide = widened(self.observed, options.room)
            self.chooser = Chooser.of(program, self.observed, options.precision, options.closeness)
            reaching = {
                node: replace(seen, reach=self.wide[node].reach) if node in self.wide else seen
                for node, seen in self.observed.items()
            }
            self.groups = unit_groups(program, reaching, 0.0, WORTH_A_PROOF)
        else:
            self.groups = unit_groups(program, self.observed, options.margin)
        # By node of the new program: bounds of each element, and the flattened unit sizes by which the value is
        # divided. Readers multiply by these sizes.
        self.bounds: dict[Node, Bounds | None] = {}
        self.divided: dict[Node, Array] = {}
        self.ranges: list[RangeEntry] = []
        self.activations: dict[int, Activation] = {}
        self.maxima: dict[Node, int] = {}
        self.linear: list[Linear] = []

    def table(self) -> Approximations:
        new: dict[Node, Node] = {}
        nodes, read = self.program.nodes, Counter[Node]()
        for node, freed in zip(nodes, last_use_table(nodes, self.program.outputs), strict=True):
            operands, known = [new[operand] for operand in node.inputs], len(self.bounds)
            if not node.type.secret:
                # The server computes its own values exactly, activations included.
                new[node] = self._copied(node, operands)
            elif OPS[node.op].activation is not None:
                new[node] = self.activation(node, operands)
            else:
                new[node] = rule_for(RULES, node, Approximate.name)(self, node, operands)
            # Bounds of each element take much more memory than the program: only those that may be read are kept.
            passed = [operand for place in freed for operand in _read_with(new[nodes[place]])]
            read.update(_read_with(new[node]))
            read.subtract(passed)
            for made in {*list(self.bounds)[known:], *passed}:
                if not read[made]:
                    self.bounds.pop(made, None)
        self.builder.ranges = self.ranges
        frame = self.builder.finish_as(self.program, new)
        return Approximations(self.options, self.program, frame, self.activations, self.maxima, tuple(self.linear))

    def margin_of(self, operand: Node) -> float:
        """The margin on the samples' range of a value of the old program, as a share of the range's width."""
        if self.options.margin is not None:
            return self.options.margin
        return self.wide[operand].margin if operand in self.wide else 0.0

    def of_maximum(self, node: Node) -> tuple[tuple[float, ...], Callable[[Mapping[int, float]], int]]:
        """For a maximum over rows: the reach of the differences that each round compares, and a function that chooses
        the degree of their polynomials by error.
        """
        operand = node.inputs[0]
        seen = self.observed.get(operand)
        if seen is None or not seen.rounds:
            return (), min

        def degree(errors: Mapping[int, float]) -> int:
            fixed = self.options.fixed.get(node)
            chosen = degree_of_maximum(seen, errors, self.options.closeness) if fixed is None else fixed
            self.maxima[node] = chosen
            return chosen

        if operand in self.wide:
            return self.wide[operand].rounds, degree
        # An interval of both signs, widened by a share of its width on each side.
        return tuple(float(each.peaks.max()) * (1.0 + 2.0 * self.margin_of(operand)) for each in seen.rounds), degree

    def interval(self, node: Node, proved: Interval | None, seen: Observed | None) -> tuple[Interval, str]:
        if "spread" in node.attrs:
            # Only differences matter, not where the values themselves lie.
            spread = float(node.attrs["spread"])
            if seen and seen.spread is not None and seen.spread > spread:
                raise ProgramError(
                    f"the spread {spread:g} given for {node.op} is contradicted by calibration",
                    where=node.loc,
                    why=f"the samples' rows are up to {seen.spread:g} apart",
                    hint="a larger one, or none: calibration then chooses",
                )
            return Interval(-spread / 2, spread / 2), "declared"
        if "low" in node.attrs and "high" in node.attrs:
            declared = Interval(node.attrs["low"], node.attrs["high"])
            if seen and (seen.low < declared.low or seen.high > declared.high):
                raise _contradicted(node, declared.low, declared.high, seen)
            return declared, "declared"
        if proved is not None and node.inputs[0].op == "input":
            return _wide(proved), "proved"  # an input's declared range holds, whatever range the samples covered
        if seen is not None:
            width = max(seen.high - seen.low, 1e-6 * max(abs(seen.high), abs(seen.low), 1e-6))
            if self.chooser is not None:
                low, high = self.wide[node.inputs[0]].low, self.wide[node.inputs[0]].high
            else:
                margin = self.margin_of(node.inputs[0])
                low, high = seen.low - margin * width, seen.high + margin * width
            if proved is None:
                return Interval(low, high), "observed"
            if proved.low >= low and proved.high <= high:
                return _wide(proved), "proved"
            if self.chooser is not None and proved.high - proved.low <= WORTH_A_PROOF * (high - low):
                return _wide(proved), "proved"
            return _wide(Interval(max(low, proved.low), min(high, proved.high))), "observed"
        if proved is not None:
            return _wide(proved), "proved"
        own = None if functions.known(node.op) is None else _function(node)
        if own is not None and own.low is not None and own.high is not None:
            return Interval(own.low, own.high), "declared"
        raise ProgramError(
            f"nothing bounds the input of {node.op}",
            where=node.loc,
            why="a polynomial is only good on an interval, and neither calibration samples nor an input range were given",
            hint=said(
                "{pass calibration=samples or input_range=(low, high) to trace|give --calibration FILE or --input-range LOW "
                "HIGH}, or a range for this layer"
            ),
        )

    def fitted(self, activation: Activation) -> tuple[Activation, tuple[float, bool]]:
        """The activation with its polynomial, and (a bound on its error, whether it is proved).

        The polynomial has the requested degree, or the smallest that meets the target error in units of the largest
        size; the proved bound decides.
        """
        options, node, of = self.options, activation.node, activation.of
        assert isinstance(options.degrees, Mapping)
        degree = options.degrees.get(node.loc.layer, node.attrs.get("degree", options.degree))
        asked = node.loc.layer in options.degrees or "degree" in node.attrs
        seen = self.observed.get(node.inputs[0])
        normals = None if seen is None or seen.tails is None else Normals.of(seen.tails, activation.sizes)
        activation = replace(activation, spread=options.spread, normals=normals, asked=asked)
        if degree is None and options.target_error is not None:
            chosen = smallest_degree(
                of.evaluate,
                activation.low,
                activation.high,
                options.target_error / activation.largest,
                activation.method,
                activation.mean,  # type: ignore[arg-type]
                activation.std,  # type: ignore[arg-type]
                spread=activation.spread,
                kinks=of.kinks,
                bound=lambda made: activation.bound(made)[0],
                coarse=True,
            )
            return replace(activation, chosen=chosen), activation.bound(chosen)
        if self.chooser is not None and normals is not None:
            activation = replace(activation, mean=normals.mean, std=normals.std, shares=normals.shares)
        degree = options.fixed.get(node) if degree is None else degree
        if degree is not None:
            chosen = activation.fit(degree)
        elif self.chooser is not None and normals is not None:
            chosen = self.chooser.polynomial(activation)
        else:
            chosen = usual_polynomial(activation, options.precision)
        return replace(activation, chosen=chosen), activation.bound(chosen)

    def _copied(self, node: Node, operands: list[Node]) -> Node:
        made = self.builder.copy(node, operands)
        self.bounds[made] = self._transferred(made)
        return made

    def _transferred(self, made: Node) -> Bounds | None:
        return transfer(made, [self.bounds[operand] for operand in made.inputs], self.builder.context, {})

    def carried(self, node: Node, operands: list[Node]) -> Node:
        """A copy of the node; in a group of values divided by unit, its operands are divided by the same sizes."""
        made = self._copied(node, operands)
        if node in self.groups:
            self.divided[made] = self.groups[node].settle(node, None)
        return made

    def affine(self, node: Node, operands: list[Node]) -> Node:
        """A linear map, which absorbs its correction, and the unit sizes of its operands and of its result."""
        correction = self.options.corrections.get(node)
        if node in self.groups or correction is not None or any(operand in self.divided for operand in operands):
            columns = [self.divided.get(operand) for operand in operands]
            rows, offset = (None, None) if correction is None else (correction.factor, correction.offset)
            made = _scaled(self.builder, node, operands, columns, rows, offset)
            self.bounds[made] = self._transferred(made)
        else:
            made = self._copied(node, operands)
        sizes = None
        if node in self.groups:
            sizes = self.groups[node].settle(node, self.bounds[made])
            made = _divided(self.builder, made, sizes, self.bounds)
            self.divided[made] = sizes
        self.linear.append(Linear(node, made, sizes))
        return made

    def activation(self, node: Node, operands: list[Node]) -> Node:
        """A function of one variable, as a polynomial, or as a composition where one polynomial is not enough."""
        if _is_composed(node, self.options.degrees):
            return self.composed(node, operands)
        if node not in self.groups:
            return self._polynomial(node, operands[0])
        made = self._unit_polynomial(node, operands[0], self.groups[node])
        self.divided[made] = self.groups[node].settle(node, None)
        return made

    def given(self, node: Node, operands: list[Node]) -> Node:
        """A polynomial of the original program; its interval is declared, or proved if it holds all bounds."""
        (operand,), builder, bounds, ranges = operands, self.builder, self.bounds, self.ranges
        made = builder.op("poly", (operand,), node.loc, **{**node.attrs, "range": len(ranges)})
        low, high = node.attrs["low"], node.attrs["high"]
        proved = None if bounds.get(operand) is None else hull(bounds[operand])  # type: ignore[arg-type]
        seen = self.observed.get(node.inputs[0])
        if seen and (seen.low < low or seen.high > high):
            raise _contradicted(node, low, high, seen)
        coefficients = tuple(map(float, builder.context.array(node.attrs["coefficients"])))
        bounds[made] = _image_bounds(node, Fit(low, high, coefficients, "given", 0.0, 0.0))
        inside = proved is not None and proved.low >= low and proved.high <= high
        ranges.append(
            range_entry(
                node,
                "poly",
                Interval(low, high),
                "proved" if inside else "declared",
                error=(0.0, True),  # the function is the polynomial itself
                degree=len(coefficients) - 1,
                method="given",
                seen=seen,
                proved=proved,
            )
        )
        return made

    def _polynomial(self, node: Node, operand: Node) -> Node:
        """The polynomial of a function of one variable."""
        builder, bounds, ranges, options = self.builder, self.bounds, self.ranges, self.options
        of = _function(node)
        proved = None if bounds.get(operand) is None else hull(bounds[operand])  # type: ignore[arg-type]
        seen = self.observed.get(node.inputs[0])
        interval, source = self.interval(node, proved, seen)
        if node.op == "relu" and source == "proved" and interval.low >= 0:
            return operand  # the identity on its whole range
        if of.positive:
            interval = Interval(*away_from_zero(interval, source, seen, proved))
        low, high = _symmetric(_settled(interval, source))
        method = node.attrs.get("method") or options.method or of.method or ("gaussian" if seen else "minimax")
        mean, std = (seen.mean, seen.std) if seen else (None, None)
        with at(node.loc):
            activation, bound = self.fitted(
                Activation(node=node, of=of, low=low, high=high, method=method, mean=mean, std=std)
            )
        self.activations[len(ranges)], chosen = activation, activation.polynomial
        coefficients = builder.constant(np.array(chosen.coefficients), f"{node.loc.layer or node.op}.poly")
        made = builder.op(
            "poly",
            (operand,),
            node.loc,
            coefficients=coefficients,
            low=chosen.low,
            high=chosen.high,
            range=len(ranges),
        )
        bounds[made] = _image_bounds(node, chosen)
        ranges.append(
            range_entry(
                node,
                node.op,
                Interval(chosen.low, chosen.high),
                source,
                error=bound,
                degree=chosen.degree,
                method=chosen.method,
                rms_error=chosen.rms_error,
                seen=seen,
                margin=self.margin_of(node.inputs[0]),
                proved=proved,
            )
        )
        return made

    def composed(self, node: Node, operands: list[Node]) -> Node:
        """A composition of several polynomials, with its proof."""
        (operand,), old = operands, node.inputs[0]
        bounds = self.bounds.get(operand)
        proved = None if bounds is None else hull(bounds)
        seen = self.observed.get(old)
        interval, source = self.interval(node, proved, seen)
        shared = len(self.users[old]) > 1 or old in self.program.outputs
        reaches, choose_degree = self.of_maximum(node)
        lowering = Lowering(
            self.builder,
            node.loc,
            node.op,
            node=node,
            bounds=self.bounds,
            ranges=self.ranges,
            margin=self.margin_of(old),
            shared=frozenset(operands if shared else ()),
            target_error=self.options.target_error,
            resolved=resolved_share(self.options.gap_error),
            reaches=reaches,
            choose_degree=choose_degree,
        )
        argument = Argument(operand, _settled(interval, source), source, seen, proved)
        return COMPOSITIONS[node.op].lower(lowering, argument)

    def _unit_polynomial(self, node: Node, operand: Node, group: UnitGroup) -> Node:
        """The polynomial of an activation with an operand divided by unit."""
        builder, bounds, ranges, options = self.builder, self.bounds, self.ranges, self.options
        of = _function(node)
        seen, sizes, reach = self.observed[node.inputs[0]], group.settle(node, None), group.reach[node]
        proved = bounds.get(operand)
        source = "observed"
        if proved is not None:
            proved = proved[0] * sizes, proved[1] * sizes
            inside = np.maximum(np.abs(proved[0]), np.abs(proved[1])) <= reach * sizes * (1.0 + 1e-9)
            source = "proved" if inside.all() else "observed"
        method = node.attrs.get("method") or options.method or of.method or "gaussian"
        activation = Activation(node=node, of=of, low=-reach, high=reach, method=method, sizes=sizes)
        size, largest = activation.size, activation.largest
        std = max(seen.std / size, 1e-3 * reach)
        with at(node.loc):
            activation, (bound, known) = self.fitted(replace(activation, mean=seen.mean / size, std=std))
        self.activations[len(ranges)], chosen = activation, activation.polynomial
        coefficients = builder.constant(np.array(chosen.coefficients), f"{node.loc.layer or node.op}.poly")
        made = builder.op(
            "poly", (operand,), node.loc, coefficients=coefficients, low=-reach, high=reach, range=len(ranges)
        )
        bounds[made] = _image_bounds(node, chosen)
        ranges.append(
            range_entry(
                node,
                node.op,
                Interval(-largest * reach, largest * reach),
                source,
                # f is homogeneous, so a unit's error is the polynomial's error times the unit's size.
                error=(bound * largest, known),
                degree=chosen.degree,
                method=chosen.method,
                rms_error=chosen.rms_error * size,
                seen=seen,
                margin=max(0.0, largest * reach / max(abs(seen.low), abs(seen.high), 1e-30) - 1.0)
                if options.margin is None
                else options.margin,
                proved=None if proved is None else hull(proved),
                units=int(np.asarray(seen.reach).size),
                smallest_unit=float(sizes.min()) * reach,
                unit_sizes=_printed(reach * sizes),
            )
        )
        return made


def _function(node: Node) -> Function:
    """The function of an activation with its attributes."""
    family = OPS[node.op].activation
    assert family is not None
    return family.of(node.attrs)


def _settled(interval: Interval, source: str) -> Interval:
    """The interval, rounded outwards so that its ends do not depend on the processor; a declared one stays exact."""
    return interval if source == "declared" else Interval(*rounding.outward(interval.low, interval.high))


@dataclass(frozen=True, slots=True)
class Composition:
    """The composition of polynomials for an op.

    `lower`: writes it.
    `unless_degree`: a single polynomial is used instead if a degree is given, at the op or by layer.
    `needs_gap`: a single polynomial is used instead if the op has no gap.
    """

    lower: Callable[[Lowering, Argument], Node]
    unless_degree: bool = False
    needs_gap: bool = False


COMPOSITIONS: Mapping[str, Composition] = {
    "sign": Composition(lower_sign),
    "argmax_rows": Composition(lower_argmax),
    "max_rows": Composition(lower_max),
    "softmax_rows": Composition(lower_softmax),
    "abs": Composition(lower_abs, needs_gap=True),
    "exp": Composition(lower_exp, unless_degree=True),
    **dict.fromkeys(("reciprocal", "sqrt", "rsqrt"), Composition(lower_inverse, unless_degree=True)),
}


def _is_composed(node: Node, degrees: Degrees = ()) -> bool:
    """Whether the node becomes a composition, given the requested degrees by layer."""
    composition = COMPOSITIONS.get(node.op)
    if composition is None or (composition.needs_gap and "gap" not in node.attrs):
        return False
    return not (composition.unless_degree and ("degree" in node.attrs or node.loc.layer in degrees))


def degrees_by_layer(program: Program, degrees: Degrees) -> Mapping[str, int]:
    """The degrees by layer name, from a mapping or from one degree for each activation in program order.

    Compositions (sign, softmax, ...) have no degree of their own and are not counted. Raises ProgramError for a name
    without an activation, for a wrong number of degrees, and for two activations with the same name and different
    degrees.
    """
    if isinstance(degrees, Mapping):
        layers = [node.loc.layer for node in program.nodes if OPS[node.op].activation is not None and node.type.secret]
        for layer in degrees:
            if layer not in layers:
                near = difflib.get_close_matches(layer, layers, n=3) or layers[:5]
                raise ProgramError(
                    f"no activation is called {layer!r}",
                    where="Options.degrees",
                    hint=f"the activations are called {', '.join(map(repr, near))}"
                    if near
                    else "there is no activation",
                )
        return degrees
    activations = (node for node in program.nodes if OPS[node.op].activation is not None and node.type.secret)
    nodes = [node for node in activations if not _is_composed(node)]
    if len(nodes) != len(degrees):
        raise ProgramError(
            f"{len(degrees)} degrees are given for {number_of(len(nodes), 'activation')}",
            hint=f"one for each, in this order: {', '.join(repr(node.loc.layer or node.op) for node in nodes[:40])}"
            if nodes
            else "",
        )
    table: dict[str, int] = {}
    for node, degree in zip(nodes, degrees, strict=True):
        if table.setdefault(node.loc.layer, degree) != degree:
            raise ProgramError(
                f"two activations are called {node.loc.layer!r}, and two degrees are given for them",
                where=node.loc,
                hint="give them different names, or one degree",
            )
    return table


def _printed(sizes: Array) -> tuple[float, ...]:
    """The sizes to nine digits. Elements of one channel have one size, which is rounded once."""
    values, places = np.unique(sizes, return_inverse=True)
    return tuple(np.array([float(f"{value:.9g}") for value in values])[places.ravel()].tolist())


def _contradicted(node: Node, low: float, high: float, seen: Observed) -> ProgramError:
    return ProgramError(
        f"the range [{low:g}, {high:g}] given for {node.op} is contradicted by calibration",
        where=node.loc,
        why=f"the samples reach [{seen.low:g}, {seen.high:g}]",
        hint="widen the range, or remove it and let calibration choose",
    )


def _read_with(made: Node) -> set[Node]:
    """A value and what is read in its place where another map is merged into the maps and sums that give it."""
    found, last = {made}, [made]
    for _ in range(2):
        last = [operand for node in last if node.op in ("affine", "add") for operand in node.inputs]
        found.update(last)
    return found


def _image_bounds(node: Node, polynomial: Fit) -> Bounds:
    """The image of the polynomial on its interval, as the bounds of every element of the node's value."""
    low, high = polynomial.image()
    return np.full(size_of(node), low), np.full(size_of(node), high)


def _divided(builder: Builder, made: Node, sizes: Array, bounds: dict[Node, Bounds | None]) -> Node:
    """The new `affine` with its rows divided by the unit sizes."""
    inner = _scaled(builder, made, list(made.inputs), [None] * len(made.inputs), 1.0 / sizes)
    known = bounds.get(made)
    bounds[inner] = None if known is None else (known[0] / sizes, known[1] / sizes)
    return inner


def _scaled(
    builder: Builder,
    node: Node,
    operands: list[Node],
    columns: list[Array | None],
    rows: Array | None,
    offset: Array | None = None,
) -> Node:
    """An `affine` with the columns of its matrices and the rows of the whole multiplied, and an offset added to it."""
    matrices = []
    for name, column in zip(node.attrs["matrices"], columns, strict=True):
        matrices.append(builder.constant(builder.context.linear_map(name).scaled(rows, column), name))
    attrs = dict(node.attrs) | {"matrices": tuple(matrices)}
    if "bias" in attrs and rows is not None:
        attrs["bias"] = builder.constant(builder.context.array(attrs["bias"]) * rows, attrs["bias"])
    if offset is not None:
        bias = builder.context.array(attrs["bias"]) if "bias" in attrs else 0.0
        attrs["bias"] = builder.constant(bias + offset, attrs.get("bias", f"{node.loc.layer or node.op}.offset"))
    return builder.op("affine", operands, node.loc, **attrs)


def _wide(interval: Interval) -> Interval:
    """The interval, made at least a little wide so that it can be scaled to [-1, 1]."""
    least = 1e-6 * max(interval.magnitude, 1e-6)
    if interval.high - interval.low >= least:
        return interval
    middle = (interval.high + interval.low) / 2
    return Interval(middle - least, middle + least)


def _symmetric(interval: Interval) -> tuple[float, float]:
    reach = interval.magnitude
    if 2 * reach <= _SYMMETRY * (interval.high - interval.low):
        return -reach, reach
    return interval.low, interval.high


# How secret values are rewritten; functions of one variable are left to `_Approximator.activation`.
RULES: Mapping[str, Callable[[_Approximator, Node, list[Node]], Node]] = {
    "affine": _Approximator.affine,
    "poly": _Approximator.given,
    **dict.fromkeys(("input", "add", "sub", "mul", "matrix_product", "reshape", "sum_runs"), _Approximator.carried),
    **dict.fromkeys(ALONG_ROWS, _Approximator.composed),
}
