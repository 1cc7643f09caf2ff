"""Fit a program on slots to the ciphertexts of a ring: its vectors repeat, and its polynomials move to [-1, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from heliograph.ckks.ring import Ring
from heliograph.errors import PlanningError, ProgramError
from heliograph.ir import Builder, Node, Program, Stage
from heliograph.ir.analysis.depth import trim
from heliograph.ir.maps.layout import Layout
from heliograph.ir.ops.table import Bounds, Role, role_of
from heliograph.ir.ranges import RangeEntry
from heliograph.passes.base import rule_for
from heliograph.passes.bootstraps.place_bootstraps import MAX_SIZE_BITS
from heliograph.passes.polynomials.squares import square
from heliograph.passes.ranges.intervals import Interval, hull
from heliograph.passes.ranges.range_table import range_entry
from heliograph.passes.ranges.slot_intervals import slot_intervals


@dataclass(frozen=True, slots=True)
class FitSlots:
    """Turns a program on few slots into one on all slots of the ring.

    Its vectors repeat with their own period, so that a rotation acts on every period alike. Raises a PlanningError
    where the ring has too few slots, a ProgramError where a polynomial's input is proved to lie outside its interval.
    """

    ring: Ring

    name: ClassVar[str] = "fit-slots"
    needs: ClassVar[Stage] = Stage.PACKED
    makes: ClassVar[Stage] = Stage.PACKED

    def run(self, program: Program) -> Program:
        slots = self.ring.slots
        period = max(spec.placed.slots for spec in program.interface.inputs)
        if period > slots:
            raise PlanningError(f"the program works on {period} slots, ring 2^{self.ring.log_ring} has {slots}")
        builder = Builder(program.name, Stage.PACKED, program)
        fitting = _Fitting(builder, slots, period, slot_intervals(program))
        new: dict[Node, Node] = {}
        # Nodes that become equal (rotations by amounts that differ by a period) are merged.
        known: dict[Any, Node] = {}
        for node in program.nodes:
            ruled = node.op in RULES or role_of(node) not in ALIKE
            rule = rule_for(RULES, node, self.name) if ruled else _unchanged
            made = rule(fitting, node, [new[operand] for operand in node.inputs])
            new[node] = known.setdefault((made.op, made.inputs, tuple(made.attrs.items())), made)
        builder.interface = replace(
            program.interface,
            inputs=tuple(replace(spec, layout=replace(spec.placed, slots=slots)) for spec in program.interface.inputs),
            outputs=tuple(
                replace(spec, layout=replace(spec.placed, slots=slots)) for spec in program.interface.outputs
            ),
        )
        whole = Layout((period,), slots, period)
        builder.ranges = [replace(entry, layout=whole) for entry in fitting.ranges]
        return builder.finish_as(program, new)


@dataclass(slots=True)
class _Fitting:
    """The state of the pass for its rules.

    `slots`: the ring's number of slots.
    `period`: the program's own number of slots.
    """

    builder: Builder
    slots: int
    period: int
    # The bounds of each slot, by node of the old program.
    bounds: Mapping[Node, Bounds]
    ranges: list[RangeEntry] = field(default_factory=list)

    def proved(self, node: Node) -> Interval:
        """The interval that holds all slots of the node's operand."""
        return hull(self.bounds[node.inputs[0]])


_Rule: TypeAlias = Callable[[_Fitting, Node, list[Node]], Node]


def _unchanged(fitting: _Fitting, node: Node, operands: list[Node]) -> Node:
    return fitting.builder.copy(node, operands)


def _input(fitting: _Fitting, node: Node, operands: list[Node]) -> Node:
    if not node.type.secret:
        return fitting.builder.copy(node, operands)
    return fitting.builder.input(node.attrs["name"], node.loc, **{**node.attrs, "slots": fitting.slots})


def _pack(fitting: _Fitting, node: Node, operands: list[Node]) -> Node:
    return fitting.builder.op("pack", operands, node.loc, layout=replace(node.attrs["layout"], slots=fitting.slots))


def _rotate(fitting: _Fitting, node: Node, operands: list[Node]) -> Node:
    # The vectors repeat, so rotations that differ by a whole period are the same and need only one key.
    amount = node.attrs["amount"] % fitting.period
    return fitting.builder.op("rotate", operands, node.loc, amount=amount) if amount else operands[0]


def _conjugate(fitting: _Fitting, node: Node, operands: list[Node]) -> Node:
    # Slots hold real numbers: the language has no others.
    return operands[0]


def _bootstrap(fitting: _Fitting, node: Node, operands: list[Node]) -> Node:
    if node.attrs:
        raise ProgramError(
            f"bootstrap takes no {next(iter(node.attrs))}",
            where=node.loc,
            why="its slots, its levels and the size of its input are planned",
            hint="write bootstrap(x)",
        )
    bits = _size_bits(node, fitting.proved(node))
    return fitting.builder.op("bootstrap", operands, node.loc, slots=fitting.period, size_bits=bits)


def _size_bits(node: Node, proved: Interval) -> int:
    """The bits of the largest input of an author's bootstrap, from its proved interval."""
    # Intervals are rounded outwards, and a bootstrap can hold values of twice the planned size.
    bits = max(0, math.ceil(math.log2(max(proved.magnitude, 1.0)) - 1e-6))
    if bits > MAX_SIZE_BITS:
        raise ProgramError(
            f"the input of bootstrap may be {proved.magnitude:.3g} in size, more than {1 << MAX_SIZE_BITS}",
            where=node.loc,
            why="a larger value leaves too few bits of the scale for its digits",
            hint="divide by a constant before it, or declare narrower ranges of the inputs",
        )
    return bits


def _polynomial(fitting: _Fitting, node: Node, operands: list[Node]) -> Node:
    """The polynomial on [-1, 1]; another interval is scaled to it, which costs a level."""
    (operand,), builder, proved = operands, fitting.builder, fitting.proved(node)
    low, high = node.attrs["low"], node.attrs["high"]
    half, middle = (high - low) / 2, (high + low) / 2
    if proved.low > high or proved.high < low:
        raise ProgramError(
            f"the input of poly lies in [{proved.low:.6g}, {proved.high:.6g}], outside its interval [{low:g}, {high:g}]",
            where=node.loc,
            why="a polynomial says nothing outside its interval",
            hint="give poly the interval that its input has",
        )
    coefficients = builder.context.array(node.attrs["coefficients"])
    made = square(trim(coefficients), low, high)
    if made is not None and (half, middle) == (1.0, 0.0) and made.frame != (0.0, 1.0):
        made = None  # its scaling would cost the level that it saves
    if made is not None:
        half, middle = made.half, (made.high + made.low) / 2
    if (half, middle) != (1.0, 0.0):
        operand = builder.op("lincomb", (operand,), node.loc, weights=(1.0 / half,), constant=-middle / half)
    # Bounds are widened to cover rounding; the polynomial is not affected by so little.
    slack = 1e-9 * (high - low)
    inside = proved.low >= low - slack and proved.high <= high + slack
    fitting.ranges.append(
        range_entry(
            node,
            "poly",
            Interval(low, high),
            "proved" if inside else "declared",
            error=(0.0, True),  # the function is the polynomial itself
            degree=len(coefficients) - 1,
            method="given",
            proved=proved,
            frame=None if made is None else made.frame,
        )
    )
    series = (
        node.attrs["coefficients"] if made is None else builder.constant(made.coefficients, node.attrs["coefficients"])
    )
    attrs = {**node.attrs, "coefficients": series, "low": -1.0, "high": 1.0, "range": len(fitting.ranges) - 1}
    return builder.op("poly", (operand,), node.loc, **attrs)


# The ops that do not act on each copy of a vector alike, and those of which something is to be saved.
RULES: Mapping[str, _Rule] = {
    "input": _input,
    "pack": _pack,
    "poly": _polynomial,
    "bootstrap": _bootstrap,
    "conjugate": _conjugate,
    "rotate": _rotate,
}
# The roles of ops that act on each copy of a vector alike. (A linear map's type says on how many slots it works.)
ALIKE = frozenset({Role.SUM, Role.PRODUCT, Role.PLAIN_PRODUCT, Role.TRANSPARENT, Role.ROTATION, Role.STACK, Role.LEVEL})
