"""Replace every activation by a polynomial on the range of its input."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from heliograph import functions, rounding
from heliograph.approx.fit import Fit, Moments, fit, smallest_degree
from heliograph.approx.fit_proof import largest_error
from heliograph.errors import ProgramError, at
from heliograph.functions import Function
from heliograph.ir import Array, Builder, Node, Program, SparseMatrix, Stage, size_of
from heliograph.ir.ops import OPS
from heliograph.passes.calibrate import Observed, row_distances
from heliograph.passes.intervals import Bounds, Interval, hull, transfer
from heliograph.passes.lower_functions import DEFAULT_GAP, Lowering, lower_abs, lower_argmax, lower_max, lower_sign
from heliograph.passes.lower_steps import away_from_zero, lower_exp, lower_inverse, lower_softmax
from heliograph.passes.margins import WORTH_A_PROOF, Chooser
from heliograph.passes.range_table import range_entry
from heliograph.passes.units import UnitGroup, unit_groups

# By layer name, or one for each activation in program order.
Degrees: TypeAlias = "Mapping[str, int] | Sequence[int]"

# A symmetric interval lets ReLU-like functions be evaluated with about a quarter fewer products; it is taken where it is
# not wider than this factor.
_SYMMETRY = 1.35
DEFAULT_DEGREE = 15
# An error below this share of a polynomial's size is less than encryption's: how much less does not matter.
_NEGLIGIBLE = 2.0**-36
# Functions that are composed of several polynomials.
COMPOSED = frozenset({"sign", "argmax_rows", "max_rows", "softmax_rows"})
INVERTED = frozenset({"exp", "reciprocal", "sqrt", "rsqrt"})


@dataclass(frozen=True, slots=True)
class Approximate:
    """Activations become `poly` nodes.

    `degree` is for all layers, `degrees` for single ones (by layer name) or one for each in program order,
    `target_error` asks for the smallest degree whose largest error is under it. `margin` widens an observed range on each
    side, as a share of its width; with None margin and degree are chosen together from the tails of the samples
    (`margins.py`), by a `chooser` that the pass makes where it is given none. `observed` is what `Calibrate` saw. A range is
    proved (intervals from the input range), observed, or declared at the op.
    `spread` widens the normal distribution that method gaussian weighs with (OLA's r).

    Between linear maps, sums included, a homogeneous activation (ReLU, leaky ReLU) gets a range for each unit: f(x) =
    r f(x / r), and the maps take 1/r and r in. One polynomial on [-1, 1] then serves units of any size equally well.
    """

    degree: int | None = None
    degrees: Degrees = field(default_factory=dict)
    target_error: float | None = None
    margin: float | None = 0.1
    method: str | None = None
    spread: float = 1.0
    observed: Mapping[Node, Observed] = field(default_factory=dict)
    chooser: Chooser | None = None

    name: ClassVar[str] = "approximate"
    needs: ClassVar[Stage] = Stage.TENSOR
    makes: ClassVar[Stage] = Stage.POLYNOMIAL

    def run(self, program: Program) -> Program:
        if not isinstance(self.degrees, Mapping):
            return replace(self, degrees=degrees_by_layer(program, self.degrees)).run(program)
        if self.margin is None and self.chooser is None:
            return replace(self, chooser=Chooser.of(program, self.observed)).run(program)
        builder = Builder(program.name, Stage.POLYNOMIAL, program)
        degrees_by_layer(program, self.degrees)
        new: dict[Node, Node] = {}
        bounds: dict[Node, Bounds | None] = {}
        ranges: list[dict[str, Any]] = []
        users = program.users()
        if self.chooser is not None:
            groups = self.chooser.groups(program)
        else:
            groups = unit_groups(program, self.observed, self._margin(None))
        # The unit sizes that a value was divided by, flattened; its readers multiply by them.
        divided: dict[Node, Array] = {}
        for node in program.nodes:
            operands = [new[operand] for operand in node.inputs]
            if not node.type.secret:
                # The server computes what is its own exactly, activations included.
                made = node if node.op == "input" else builder.copy(node, operands)
                if node.op == "input":
                    builder.inputs.append(node)
                bounds[made] = transfer(made, [bounds[operand] for operand in made.inputs], builder.context, {})
            elif node.op == "affine" and (node in groups or any(operand in divided for operand in operands)):
                made = _scaled(builder, node, operands, [divided.get(operand) for operand in operands], None)
                bounds[made] = transfer(made, [bounds[operand] for operand in operands], builder.context, {})
                if node in groups:
                    made = _divided(builder, made, groups[node].settle(node, bounds[made]), bounds)
                    divided[made] = groups[node].settle(node, None)
            elif self._is_composed(node):
                operand = node.inputs[0]
                shared = len(users[operand]) > 1 or operand in program.outputs
                margin = self._margin(operand)
                low = Lowering(builder, node, bounds, ranges, margin, frozenset(operands if shared else ()))
                made = self._composed(low, node, operands[0])
            elif node in groups and OPS[node.op].activation is not None:
                made = self._unit_activation(builder, node, operands[0], bounds, ranges, groups[node])
                divided[made] = groups[node].settle(node, None)
            elif node.op == "poly":
                made = self._given(builder, node, operands[0], bounds, ranges)
            elif OPS[node.op].activation is None:
                made = builder.copy(node, operands) if node.op != "input" else node
                if node.op == "input":
                    builder.inputs.append(node)
                known = [bounds[operand] for operand in made.inputs]
                bounds[made] = transfer(made, known, builder.context, {})
                if node in groups:
                    divided[made] = groups[node].settle(node, None)
            else:
                made = self._activation(builder, node, operands[0], bounds, ranges)
            new[node] = made
        builder.metadata["ranges"] = ranges
        outputs = dict(zip(program.output_names, (new[node] for node in program.outputs), strict=True))
        return builder.finish(outputs)

    def _given(
        self,
        builder: Builder,
        node: Node,
        operand: Node,
        bounds: dict[Node, Bounds | None],
        ranges: list[dict[str, Any]],
    ) -> Node:
        """A polynomial that the program came with: its interval was declared, and is proved where bounds reach."""
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
                error=(0.0, True),  # the polynomial is the meaning
                degree=len(coefficients) - 1,
                method="given",
                seen=seen,
                proved=proved,
            )
        )
        return made

    def _activation(
        self,
        builder: Builder,
        node: Node,
        operand: Node,
        bounds: dict[Node, Bounds | None],
        ranges: list[dict[str, Any]],
    ) -> Node:
        of = _function(node)
        proved = None if bounds.get(operand) is None else hull(bounds[operand])  # type: ignore[arg-type]
        seen = self.observed.get(node.inputs[0])
        interval, source = self._interval(node, proved, seen)
        if node.op == "relu" and source == "proved" and interval.low >= 0:
            return operand  # the identity on its whole range
        if of.positive:
            interval = Interval(*away_from_zero(interval, source, seen, proved))
        low, high = _symmetric(_settled(interval, source))
        method = node.attrs.get("method") or self.method or of.method or ("gaussian" if seen else "minimax")
        mean, std = (seen.mean, seen.std) if seen else (None, None)
        with at(node.loc):
            chosen, bound = self._fit(node, of, low, high, method, mean, std)
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
                margin=self._margin(node.inputs[0]),
                proved=proved,
            )
        )
        return made

    def _is_composed(self, node: Node) -> bool:
        """Whether one polynomial does not serve: the function has none, or none was asked for by its degree."""
        if node.op in INVERTED and node.loc.layer in self.degrees:
            return False
        return _composed(node)

    def _composed(self, low: Lowering, node: Node, operand: Node) -> Node:
        """A composition of several polynomials, with its proof."""
        bounds = low.bounds.get(operand)
        proved = None if bounds is None else hull(bounds)
        seen = self.observed.get(node.inputs[0])
        interval, source = self._interval(node, proved, seen)
        interval = _settled(interval, source)
        if node.op in INVERTED:
            if node.op == "exp":
                return lower_exp(low, operand, interval, source, seen, self.target_error)
            return lower_inverse(low, operand, interval, source, seen, self.target_error, proved)
        if node.op == "softmax_rows":
            return lower_softmax(low, operand, interval, source, seen, self.target_error)
        if node.op == "sign":
            return lower_sign(low, operand, interval, source, seen)
        if node.op == "argmax_rows":
            return lower_argmax(low, operand, interval, source, self._as_approximated(low, operand, seen))
        width = interval.magnitude if node.op == "abs" else interval.high - interval.low
        error = self.target_error or float(node.attrs.get("gap", DEFAULT_GAP * width))
        return (lower_abs if node.op == "abs" else lower_max)(low, operand, interval, source, seen, error)

    def _as_approximated(self, low: Lowering, operand: Node, seen: Observed | None) -> Observed | None:
        """What was seen of rows, their distances as the polynomials before give them where these are nearer or wider.

        The smallest difference of the exact values would be below their error.
        """
        if seen is None or seen.near is None or "gap" in low.node.attrs or not low.builder.calibration:
            return seen
        near, spread = row_distances(low.builder.finish([operand]))
        near = seen.near if near is None else min(seen.near, near)
        return replace(seen, near=near, spread=max(seen.spread or 0.0, spread or 0.0))

    def _unit_activation(
        self,
        builder: Builder,
        node: Node,
        operand: Node,
        bounds: dict[Node, Bounds | None],
        ranges: list[dict[str, Any]],
        group: UnitGroup,
    ) -> Node:
        """The polynomial of an activation whose operand is divided by unit."""
        of = _function(node)
        seen, sizes, reach = self.observed[node.inputs[0]], group.settle(node, None), group.reach[node]
        proved = bounds.get(operand)
        source = "observed"
        if proved is not None:
            proved = proved[0] * sizes, proved[1] * sizes
            inside = np.maximum(np.abs(proved[0]), np.abs(proved[1])) <= reach * sizes * (1.0 + 1e-9)
            source = "proved" if inside.all() else "observed"
        size, largest = float(np.sqrt(np.mean(sizes**2))), float(sizes.max())
        method = node.attrs.get("method") or self.method or of.method or "gaussian"
        with at(node.loc):
            chosen, (bound, known) = self._fit(
                node,
                of,
                -reach,
                reach,
                method,
                seen.mean / size,
                max(seen.std / size, 1e-3 * reach),
                largest,
                sizes,
            )
        coefficients = builder.constant(np.array(chosen.coefficients), f"{node.loc.layer or node.op}.poly")
        made = builder.op(
            "poly", (operand,), node.loc, coefficients=coefficients, low=-reach, high=reach, range=len(ranges)
        )
        builder.metadata.setdefault("unit_sizes", {})[str(len(ranges))] = [
            float(f"{reach * unit:.9g}") for unit in sizes
        ]
        bounds[made] = _image_bounds(node, chosen)
        ranges.append(
            range_entry(
                node,
                node.op,
                Interval(-largest * reach, largest * reach),
                source,
                # f is homogeneous: the error of a unit is that of the polynomial times the unit's size.
                error=(bound * largest, known),
                degree=chosen.degree,
                method=chosen.method,
                rms_error=chosen.rms_error * size,
                seen=seen,
                margin=max(0.0, largest * reach / max(abs(seen.low), abs(seen.high), 1e-30) - 1.0)
                if self.margin is None
                else self.margin,
                proved=None if proved is None else hull(proved),
                units=int(np.asarray(seen.reach).size),
                smallest_unit=float(sizes.min()) * reach,
            )
        )
        return made

    def _margin(self, operand: Node | None) -> float:
        """By how much the samples' range of a value of the old program is widened, as a share of its width."""
        if self.margin is not None:
            return self.margin
        assert self.chooser is not None
        return self.chooser.wide[operand].margin if operand is not None and operand in self.chooser.wide else 0.0

    def _interval(self, node: Node, proved: Interval | None, seen: Observed | None) -> tuple[Interval, str]:
        if "low" in node.attrs and "high" in node.attrs:
            declared = Interval(node.attrs["low"], node.attrs["high"])
            if seen and (seen.low < declared.low or seen.high > declared.high):
                raise _contradicted(node, declared.low, declared.high, seen)
            return declared, "declared"
        if proved is not None and node.inputs[0].op == "input":
            return _wide(proved), "proved"  # what was declared of an input holds, whatever the samples reached
        if seen is not None:
            width = max(seen.high - seen.low, 1e-6 * max(abs(seen.high), abs(seen.low), 1e-6))
            if self.chooser is not None:
                low, high = self.chooser.wide[node.inputs[0]].low, self.chooser.wide[node.inputs[0]].high
            else:
                margin = self._margin(node.inputs[0])
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
            hint="pass calibration=samples or input_range=(low, high) to trace, or a range for this layer",
        )

    def _fit(
        self,
        node: Node,
        of: Function,
        low: float,
        high: float,
        method: str,
        mean: Any,
        std: Any,
        unit: float = 1.0,
        sizes: Array | None = None,
    ) -> tuple[Fit, tuple[float, bool]]:
        """The polynomial of the degree asked for, or of the smallest that meets the target in units of `unit`.

        With it the bound on its error, and whether that is proved; a target is met by what is proved.
        """
        assert isinstance(self.degrees, Mapping)

        def bound(made: Fit) -> tuple[float, bool]:
            size = sum(map(abs, made.coefficients))
            return largest_error(made.coefficients, made.low, made.high, of, _NEGLIGIBLE * size)

        degree = self.degrees.get(node.loc.layer, node.attrs.get("degree", self.degree))
        if degree is None and self.target_error is not None:
            chosen = smallest_degree(
                of.evaluate,
                low,
                high,
                self.target_error / unit,
                method,
                mean,
                std,
                spread=self.spread,
                kinks=of.kinks,
                bound=lambda made: bound(made)[0],
                coarse=True,
            )
        elif self.chooser is not None and node.inputs[0] in self.chooser.wide:

            def make(degree: int, low: float, high: float, mean: Moments, std: Moments, shares: Array | None) -> Fit:
                return fit(
                    of.evaluate, low, high, degree, method, mean, std, of.kinks, self.spread, shares=shares, coarse=True
                )

            chosen = self.chooser.polynomial(node, of.evaluate, make, low, high, degree, sizes)
        else:
            degree = DEFAULT_DEGREE if degree is None else degree
            chosen = fit(of.evaluate, low, high, degree, method, mean, std, of.kinks, self.spread, coarse=True)
        return chosen, bound(chosen)


def _function(node: Node) -> Function:
    """The function that an activation means, its attributes given."""
    family = OPS[node.op].activation
    assert family is not None
    return family.of(node.attrs)


def _settled(interval: Interval, source: str) -> Interval:
    """The interval with ends that do not depend on the processor; a declared one is as it was declared."""
    return interval if source == "declared" else Interval(*rounding.outward(interval.low, interval.high))


def _composed(node: Node) -> bool:
    """Whether several polynomials stand for the node where nothing else is asked for."""
    return (
        node.op in COMPOSED
        or (node.op in INVERTED and "degree" not in node.attrs)
        or (node.op == "abs" and "gap" in node.attrs)
    )


def degrees_by_layer(program: Program, degrees: Degrees) -> Mapping[str, int]:
    """The degrees by layer name, from a mapping or from one degree for each activation in program order.

    Compositions (sign, softmax, ...) have no degree of their own and are not counted. A `ProgramError` where a name is
    no activation's, where the number is another one, or where two activations share a name and differ.
    """
    if isinstance(degrees, Mapping):
        layers = [node.loc.layer for node in program.nodes if OPS[node.op].activation is not None and node.type.secret]
        for layer in degrees:
            if layer not in layers:
                near = difflib.get_close_matches(layer, layers, n=3) or layers[:5]
                raise ProgramError(
                    f"degrees names the layer {layer!r}, and no activation is called that",
                    where="Options.degrees",
                    hint=f"activations here: {', '.join(near) or 'none'}",
                )
        return degrees
    activations = (node for node in program.nodes if OPS[node.op].activation is not None and node.type.secret)
    nodes = [node for node in activations if not _composed(node)]
    if len(nodes) != len(degrees):
        raise ProgramError(
            f"degrees lists {len(degrees)} of them, and the program has {len(nodes)} activations that take one",
            where="Options.degrees",
            hint=f"in program order: {', '.join(node.loc.layer or node.op for node in nodes[:40]) or 'none'}",
        )
    table: dict[str, int] = {}
    for node, degree in zip(nodes, degrees, strict=True):
        if table.setdefault(node.loc.layer, degree) != degree:
            raise ProgramError(
                f"two activations are called {node.loc.layer!r}, and degrees lists two degrees for them",
                where=node.loc,
                hint="give them names of their own, or one degree",
            )
    return table


def _contradicted(node: Node, low: float, high: float, seen: Observed) -> ProgramError:
    return ProgramError(
        f"the range [{low:g}, {high:g}] given for {node.op} is contradicted by calibration",
        where=node.loc,
        why=f"the samples reach [{seen.low:g}, {seen.high:g}]",
        hint="widen the range, or remove it and let calibration choose",
    )


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
    builder: Builder, node: Node, operands: list[Node], columns: list[Array | None], rows: Array | None
) -> Node:
    """An `affine` with the columns of its matrices and the rows of the whole multiplied."""
    matrices = []
    for name, column in zip(node.attrs["matrices"], columns, strict=True):
        matrix = builder.context.matrix(name)
        data = matrix.data
        if column is not None:
            data = data * column[matrix.indices]
        if rows is not None:
            data = data * np.repeat(rows, np.diff(matrix.indptr))
        matrices.append(builder.constant(SparseMatrix(matrix.shape, data, matrix.indices, matrix.indptr), name))
    attrs = dict(node.attrs) | {"matrices": tuple(matrices)}
    if "bias" in attrs and rows is not None:
        attrs["bias"] = builder.constant(builder.context.array(attrs["bias"]) * rows, attrs["bias"])
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
