"""Replace every activation by a polynomial on the range of its input."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np

from heliograph import functions, rounding
from heliograph.approx.fits.fit import Fit, Moments, fit, smallest_degree
from heliograph.approx.fits.trigonometric import SeriesFit, fit_series
from heliograph.approx.proofs.fit_proof import largest_error
from heliograph.errors import ProgramError, at, said
from heliograph.functions import Function
from heliograph.ir import Array, Builder, Node, Program, Stage, size_of
from heliograph.ir.ops.functions import ALONG_ROWS
from heliograph.ir.ops.table import OPS, Bounds
from heliograph.ir.ranges import RangeEntry
from heliograph.passes.base import rule_for
from heliograph.passes.degrees.allocate_degrees import Activation
from heliograph.passes.polynomials.lower_functions import (
    Argument,
    Lowering,
    lower_abs,
    lower_argmax,
    lower_max,
    lower_sign,
)
from heliograph.passes.polynomials.lower_inverses import away_from_zero, lower_exp, lower_inverse, lower_softmax
from heliograph.passes.polynomials.merge_activations import Offer
from heliograph.passes.ranges.calibrate import Observed
from heliograph.passes.ranges.intervals import Interval, hull, transfer
from heliograph.passes.ranges.margins import WORTH_A_PROOF, Chooser, Normals, degree_of_maximum, degrees_of, negligible
from heliograph.passes.ranges.range_table import range_entry
from heliograph.passes.ranges.units import UnitGroup, unit_groups

# By layer name, or one degree per activation in program order.
Degrees: TypeAlias = "Mapping[str, int] | Sequence[int]"

# On a symmetric interval, ReLU-like functions take about a quarter fewer products. The interval is made symmetric if
# that widens it by no more than this factor.
_SYMMETRY = 1.35
DEFAULT_DEGREE = 15
# An error below this share of a polynomial's size is smaller than the error of encryption; its exact size does not
# matter.
_NEGLIGIBLE = 2.0**-36
# The number of points at which a function's size is measured.
_SIZED = 257


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
    together from the tails of the samples (`margins.py`).
    `method`: the method of the fits, unless the op has its own.
    `spread`: widens the normal distribution by which method gaussian weighs (OLA's r).
    `observed`: the result of `Calibrate`.
    `chooser`: chooses margin and degree where `margin` is None; by default, the pass builds one.
    `activations`: if given, filled with the activations without a requested degree, by entry in the table of ranges.
    `offers`: if given, filled with the series that a bootstrap may compute in place of a polynomial.
    `alike`: if given, only these entries get an offer, with a series of the same degree.
    `precision`: the error that encryption may add to a result, as a share of its size. A smooth function takes a lower
    degree if its error is far below that; with 0, none does.
    """

    degree: int | None = None
    degrees: Degrees = field(default_factory=dict)
    target_error: float | None = None
    margin: float | None = 0.1
    method: str | None = None
    spread: float = 1.0
    observed: Mapping[Node, Observed] = field(default_factory=dict)
    chooser: Chooser | None = None
    activations: dict[int, Activation] | None = None
    offers: dict[int, Offer] | None = None
    alike: Mapping[int, Offer] | None = None
    precision: float = 0.0

    name: ClassVar[str] = "approximate"
    needs: ClassVar[Stage] = Stage.TENSOR
    makes: ClassVar[Stage] = Stage.POLYNOMIAL

    def run(self, program: Program) -> Program:
        if not isinstance(self.degrees, Mapping):
            return replace(self, degrees=degrees_by_layer(program, self.degrees)).run(program)
        if self.margin is None and self.chooser is None:
            return replace(self, chooser=Chooser.of(program, self.observed, self.precision)).run(program)
        degrees_by_layer(program, self.degrees)
        return _Approximator(self, program).run()

    def margin_of(self, operand: Node | None) -> float:
        """The margin on the samples' range of a value of the old program, as a share of the range's width."""
        if self.margin is not None:
            return self.margin
        assert self.chooser is not None
        return self.chooser.wide[operand].margin if operand is not None and operand in self.chooser.wide else 0.0

    def of_maximum(self, operand: Node) -> tuple[tuple[float, ...], Callable[[Mapping[int, float]], int]]:
        """For a maximum over the operand's rows: the reach of the differences that each round compares, and a function
        that chooses the degree of their polynomials by error.
        """
        seen = self.observed.get(operand)
        if seen is None or not seen.rounds:
            return (), min
        if self.chooser is not None:
            return self.chooser.wide[operand].rounds, partial(self.chooser.maximum, operand)
        # An interval of both signs, widened by a share of its width on each side.
        return tuple(float(each.peaks.max()) * (1.0 + 2.0 * self.margin_of(operand)) for each in seen.rounds), partial(
            degree_of_maximum, seen
        )

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
                low, high = self.chooser.wide[node.inputs[0]].low, self.chooser.wide[node.inputs[0]].high
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

    def fit(
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
    ) -> tuple[Fit, tuple[float, bool], Callable[[int], Fit], Callable[[int | None], SeriesFit | None]]:
        """The fit of a function on [low, high], as (polynomial, (error bound, whether it is proved), polynomial of a
        given degree, series).

        The polynomial has the requested degree, or the smallest that meets the target error in units of `unit`; the
        proved bound decides. The third item gives the polynomial of any degree. The last gives a series as accurate as
        the polynomial (for None), or one of a given degree; None where there is none.
        """
        assert isinstance(self.degrees, Mapping)

        def bound(made: Fit) -> tuple[float, bool]:
            size = sum(map(abs, made.coefficients))
            return largest_error(made.coefficients, made.low, made.high, of, _NEGLIGIBLE * size)

        weighted: dict[Fit, tuple[Moments, Moments, Array | None]] = {}

        def make(degree: int, low: float, high: float, mean: Moments, std: Moments, shares: Array | None) -> Fit:
            made = fit(
                of.evaluate, low, high, degree, method, mean, std, of.kinks, self.spread, shares=shares, coarse=True
            )
            weighted[made] = mean, std, shares
            return made

        def series(degree: int | None) -> SeriesFit | None:
            known: tuple[Moments | None, Moments | None, Array | None] = None, None, None
            if method == "gaussian":
                known = weighted.get(chosen, (mean, std, None))
            return fit_series(of, chosen, *known, spread=self.spread, degree=degree)

        chooses = self.chooser is not None and node.inputs[0] in self.chooser.wide

        def polynomial(degree: int | None) -> Fit:
            if chooses:
                assert self.chooser is not None
                return self.chooser.polynomial(node, of, make, low, high, degree, sizes)
            if degree is not None:
                return make(degree, low, high, mean, std, None)
            return self._usual(of, lambda degree: make(degree, low, high, mean, std, None))

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
        else:
            chosen = polynomial(degree)
        return chosen, bound(chosen), polynomial, series

    def _usual(self, of: Function, make: Callable[[int], Fit]) -> Fit:
        """The polynomial of the usual degree, or of a smaller one with a negligible error."""
        for degree in degrees_of(of):
            made = make(degree)
            size = float(np.ptp(made(np.linspace(made.low, made.high, _SIZED, dtype=np.float64)))) / 2
            if degree == DEFAULT_DEGREE or made.max_error <= negligible(self.precision, size):
                break
        return made

    def offer(
        self, entry: int, series: Callable[[int | None], SeriesFit | None], size: float = 1.0, largest: float = 1.0
    ) -> None:
        """Record the series of an activation in `offers`, if that is given."""
        if self.offers is None or (self.alike is not None and entry not in self.alike):
            return
        found = series(None if self.alike is None else self.alike[entry].series.degree)
        if found is not None:
            self.offers[entry] = Offer(found, size, largest)

    def note(
        self,
        entry: int,
        node: Node,
        of: Function,
        made: Fit,
        polynomial: Callable[[int], Fit],
        sizes: Array | None = None,
    ) -> None:
        """Record an activation in `activations`, if that is given and the degree was not requested."""
        seen = self.observed.get(node.inputs[0])
        asked = node.loc.layer in self.degrees or "degree" in node.attrs
        if self.activations is None or asked or seen is None or seen.tails is None:
            return
        normals = Normals.of(seen.tails, sizes)
        size = 1.0 if sizes is None else float(np.sqrt(np.mean(sizes**2)))
        self.activations[entry] = Activation(
            node,
            of.evaluate,
            tuple(of.kinks),
            polynomial,
            made.low,
            made.high,
            normals.mean,
            normals.std,
            normals.shares,
            self.spread,
            size,
            1.0 if sizes is None else float(sizes.max()),
        )


class _Approximator:
    """One run of the pass: the new program, the bounds of its values, and the table of ranges."""

    def __init__(self, options: Approximate, program: Program) -> None:
        self.options, self.program = options, program
        self.builder = Builder(program.name, Stage.POLYNOMIAL, program)
        self.users = program.users()
        if options.chooser is not None:
            self.groups = options.chooser.groups(program)
        else:
            self.groups = unit_groups(program, options.observed, options.margin_of(None))
        # By node of the new program: bounds of each element, and the flattened unit sizes by which the value is
        # divided. Readers multiply by these sizes.
        self.bounds: dict[Node, Bounds | None] = {}
        self.divided: dict[Node, Array] = {}
        self.ranges: list[RangeEntry] = []

    def run(self) -> Program:
        new: dict[Node, Node] = {}
        for node in self.program.nodes:
            operands = [new[operand] for operand in node.inputs]
            if not node.type.secret:
                # The server computes its own values exactly, activations included.
                new[node] = self._copied(node, operands)
            elif OPS[node.op].activation is not None:
                new[node] = self.activation(node, operands)
            else:
                new[node] = rule_for(RULES, node, Approximate.name)(self, node, operands)
        self.builder.ranges = self.ranges
        return self.builder.finish_as(self.program, new)

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
        """A linear map, which absorbs the unit sizes of its operands and of its result."""
        if node not in self.groups and not any(operand in self.divided for operand in operands):
            return self.carried(node, operands)
        columns = [self.divided.get(operand) for operand in operands]
        made = _scaled(self.builder, node, operands, columns, None)
        self.bounds[made] = self._transferred(made)
        if node in self.groups:
            sizes = self.groups[node].settle(node, self.bounds[made])
            made = _divided(self.builder, made, sizes, self.bounds)
            self.divided[made] = sizes
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
        seen = self.options.observed.get(node.inputs[0])
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
        seen = self.options.observed.get(node.inputs[0])
        interval, source = options.interval(node, proved, seen)
        if node.op == "relu" and source == "proved" and interval.low >= 0:
            return operand  # the identity on its whole range
        if of.positive:
            interval = Interval(*away_from_zero(interval, source, seen, proved))
        low, high = _symmetric(_settled(interval, source))
        method = node.attrs.get("method") or options.method or of.method or ("gaussian" if seen else "minimax")
        mean, std = (seen.mean, seen.std) if seen else (None, None)
        with at(node.loc):
            chosen, bound, polynomial, series = options.fit(node, of, low, high, method, mean, std)
        options.note(len(ranges), node, of, chosen, polynomial)
        options.offer(len(ranges), series)
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
                margin=options.margin_of(node.inputs[0]),
                proved=proved,
            )
        )
        return made

    def composed(self, node: Node, operands: list[Node]) -> Node:
        """A composition of several polynomials, with its proof."""
        (operand,), old = operands, node.inputs[0]
        bounds = self.bounds.get(operand)
        proved = None if bounds is None else hull(bounds)
        seen = self.options.observed.get(old)
        interval, source = self.options.interval(node, proved, seen)
        shared = len(self.users[old]) > 1 or old in self.program.outputs
        reaches, choose_degree = self.options.of_maximum(old)
        lowering = Lowering(
            self.builder,
            node.loc,
            node.op,
            node=node,
            bounds=self.bounds,
            ranges=self.ranges,
            margin=self.options.margin_of(old),
            shared=frozenset(operands if shared else ()),
            target_error=self.options.target_error,
            reaches=reaches,
            choose_degree=choose_degree,
        )
        argument = Argument(operand, _settled(interval, source), source, seen, proved)
        return COMPOSITIONS[node.op].lower(lowering, argument)

    def _unit_polynomial(self, node: Node, operand: Node, group: UnitGroup) -> Node:
        """The polynomial of an activation with an operand divided by unit."""
        builder, bounds, ranges, options = self.builder, self.bounds, self.ranges, self.options
        of = _function(node)
        seen, sizes, reach = self.options.observed[node.inputs[0]], group.settle(node, None), group.reach[node]
        proved = bounds.get(operand)
        source = "observed"
        if proved is not None:
            proved = proved[0] * sizes, proved[1] * sizes
            inside = np.maximum(np.abs(proved[0]), np.abs(proved[1])) <= reach * sizes * (1.0 + 1e-9)
            source = "proved" if inside.all() else "observed"
        size, largest = float(np.sqrt(np.mean(sizes**2))), float(sizes.max())
        method = node.attrs.get("method") or options.method or of.method or "gaussian"
        with at(node.loc):
            chosen, (bound, known), polynomial, series = options.fit(
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
        options.note(len(ranges), node, of, chosen, polynomial, sizes)
        options.offer(len(ranges), series, size, largest)
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
                unit_sizes=tuple(float(f"{reach * unit:.9g}") for unit in sizes),
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
            f"{len(degrees)} degrees are given for {len(nodes)} activation{'s' * (len(nodes) != 1)}",
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
        matrices.append(builder.constant(builder.context.linear_map(name).scaled(rows, column), name))
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


# How secret values are rewritten; functions of one variable are left to `_Approximator.activation`.
RULES: Mapping[str, Callable[[_Approximator, Node, list[Node]], Node]] = {
    "affine": _Approximator.affine,
    "poly": _Approximator.given,
    **dict.fromkeys(("input", "add", "sub", "mul", "matrix_product", "reshape", "sum_runs"), _Approximator.carried),
    **dict.fromkeys(ALONG_ROWS, _Approximator.composed),
}
