"""Put a program on slots into the ciphertexts of a ring: its vectors repeat over them, its polynomials stand on [-1, 1]."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from heliograph.ckks.ring import Ring
from heliograph.errors import PlanningError, ProgramError
from heliograph.ir import Builder, Node, Program, Stage
from heliograph.ir.layout import Layout
from heliograph.ir.ranges import RangeEntry
from heliograph.passes.intervals import Interval, hull
from heliograph.passes.place_bootstraps import MAX_SIZE_BITS
from heliograph.passes.range_table import range_entry
from heliograph.passes.slot_intervals import slot_intervals


@dataclass(frozen=True, slots=True)
class FitSlots:
    """A program on few slots becomes one on all slots of the ring.

    Its vectors repeat with their own period, so that a rotation of one period is a rotation of all of them. Raises a
    PlanningError where the ring has too few slots, a ProgramError where a polynomial's interval is proved to be left.
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
        bounds = slot_intervals(program)
        new: dict[Node, Node] = {}
        ranges: list[RangeEntry] = []
        known: dict[Any, Node] = {}
        for node in program.nodes:
            operands = [new[operand] for operand in node.inputs]
            if node.op == "input" and not node.type.secret:
                builder.inputs.append(node)
                new[node] = node
            elif node.op == "input":
                new[node] = builder.input(node.attrs["name"], node.loc, **{**node.attrs, "slots": slots})
            elif node.op == "pack":
                new[node] = builder.op("pack", operands, node.loc, **{**node.attrs, "slots": slots})
            elif node.op == "poly":
                proved = hull(bounds[node.inputs[0]])
                new[node] = _polynomial(builder, node, operands[0], proved, ranges)
            elif node.op == "bootstrap":
                if node.attrs:
                    raise ProgramError(
                        f"bootstrap takes no {next(iter(node.attrs))}",
                        where=node.loc,
                        why="its slots, its levels and the size of its input are planned",
                        hint="write bootstrap(x)",
                    )
                bits = _size_bits(node, hull(bounds[node.inputs[0]]))
                new[node] = builder.op("bootstrap", operands, node.loc, slots=period, size_bits=bits)
            elif node.op == "conjugate":
                # Slots hold real numbers: the language has no others.
                new[node] = operands[0]
            elif node.op == "rotate":
                # The vectors repeat: rotations that differ by a whole period are one, and need one key.
                amount = node.attrs["amount"] % period
                new[node] = builder.op("rotate", operands, node.loc, amount=amount) if amount else operands[0]
            else:
                new[node] = builder.copy(node, operands)
            made = new[node]
            new[node] = known.setdefault((made.op, made.inputs, tuple(made.attrs.items())), made)
        builder.interface = replace(
            program.interface,
            inputs=tuple(replace(spec, layout=replace(spec.placed, slots=slots)) for spec in program.interface.inputs),
            outputs=tuple(
                replace(spec, layout=replace(spec.placed, slots=slots)) for spec in program.interface.outputs
            ),
        )
        whole = Layout((period,), slots, period)
        builder.ranges = [replace(entry, layout=whole) for entry in ranges]
        return builder.finish(dict(zip(program.output_names, (new[node] for node in program.outputs), strict=True)))


def _size_bits(node: Node, proved: Interval) -> int:
    """The bits of the largest value that an author's bootstrap is given, from what is proved of it."""
    # Intervals are rounded outwards; a bootstrap holds twice what it is planned for.
    bits = max(0, math.ceil(math.log2(max(proved.magnitude, 1.0)) - 1e-6))
    if bits > MAX_SIZE_BITS:
        raise ProgramError(
            f"the input of bootstrap may be {proved.magnitude:.3g} in size, more than {1 << MAX_SIZE_BITS}",
            where=node.loc,
            why="a larger value leaves too few bits of the scale for its digits",
            hint="divide by a constant before it, or declare narrower ranges of the inputs",
        )
    return bits


def _polynomial(builder: Builder, node: Node, operand: Node, proved: Interval, ranges: list[RangeEntry]) -> Node:
    """The polynomial on [-1, 1]; another interval is scaled to it, which costs a level."""
    low, high = node.attrs["low"], node.attrs["high"]
    half, middle = (high - low) / 2, (high + low) / 2
    if proved.low > high or proved.high < low:
        raise ProgramError(
            f"the input of poly lies in [{proved.low:.6g}, {proved.high:.6g}], outside its interval [{low:g}, {high:g}]",
            where=node.loc,
            why="a polynomial says nothing outside its interval",
            hint="give poly the interval that its input has",
        )
    if (half, middle) != (1.0, 0.0):
        operand = builder.op("lincomb", (operand,), node.loc, weights=(1.0 / half,), constant=-middle / half)
    # Bounds are widened against rounding; a polynomial does not notice that little.
    slack = 1e-9 * (high - low)
    inside = proved.low >= low - slack and proved.high <= high + slack
    degree = len(builder.context.array(node.attrs["coefficients"])) - 1
    ranges.append(
        range_entry(
            node,
            "poly",
            Interval(low, high),
            "proved" if inside else "declared",
            error=(0.0, True),  # the polynomial is the meaning
            degree=degree,
            method="given",
            proved=proved,
        )
    )
    attrs = {**node.attrs, "low": -1.0, "high": 1.0, "range": len(ranges) - 1}
    return builder.op("poly", (operand,), node.loc, **attrs)
