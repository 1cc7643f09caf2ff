"""Intervals that hold each slot of a slot program's values, whatever the inputs in their declared ranges: proved."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from heliograph.approx.fit import Fit
from heliograph.errors import InternalError, ProgramError
from heliograph.ir import Node, Program
from heliograph.ir.layout import Layout
from heliograph.passes.intervals import Bounds, product_bounds, square_bounds, widened


def slot_intervals(program: Program) -> dict[Node, Bounds]:
    """Bounds of each slot, (slots,) low and high, for the nodes of a packed program that its author wrote.

    A polynomial's operand is taken to lie in the polynomial's interval, which is for the caller to make sure of.
    """
    table: dict[Node, Bounds] = {}
    layouts = {spec.name: spec.placed for spec in program.interface.inputs}
    for node in program.nodes:
        table[node] = _transfer(program, node, [table[operand] for operand in node.inputs], layouts)
    return table


def _transfer(program: Program, node: Node, operands: list[Bounds], layouts: Mapping[str, Layout]) -> Bounds:
    a, op = node.attrs, node.op
    if op == "input":
        least, most = float(a["low"]), float(a["high"])
        if not node.type.secret:
            size = int(np.prod(a["shape"]))
            return np.full(size, least), np.full(size, most)
        layout = layouts[a["name"]]
        one = np.ones(layout.shape)
        return layout.pack(least * one)[0], layout.pack(most * one)[0]
    if op in ("real_part", "imaginary_part") or (op == "bootstrap" and len(operands) > 1):
        raise ProgramError(
            "slots hold real numbers",
            where=node.loc,
            why=f"{op} would make, or take apart, complex ones",
            hint="write bootstrap(x) for each value: those that can be refreshed together are",
        )
    low, high = operands[0]
    slots = low.size
    if op == "pack":
        room = np.zeros(a["slots"] - slots)
        return np.concatenate([low, room]), np.concatenate([high, room])
    if op in ("rescale", "conjugate", "bootstrap"):
        return low, high
    if op == "rotate":
        return np.roll(low, -a["amount"]), np.roll(high, -a["amount"])
    if op == "negate":
        return -high, -low
    if op == "add_scalar":
        return widened(low + a["value"], high + a["value"])
    if op == "add_plain":
        value = np.resize(program.array(a["value"]), slots)
        return widened(low + value, high + value)
    if op in ("mul_plain", "mul_int"):
        factor = (
            np.resize(program.array(a["value"]), slots) if op == "mul_plain" else np.full(slots, float(a["factor"]))
        )
        return widened(*product_bounds(operands[0], (factor, factor)))
    if op in ("add_ct", "add_pt"):
        return widened(low + operands[1][0], high + operands[1][1])
    if op == "sub_ct":
        return widened(low - operands[1][1], high - operands[1][0])
    if op in ("mul_ct", "mul_pt"):
        if node.inputs[0] is node.inputs[1]:
            return widened(*square_bounds(operands[0]))
        return widened(*product_bounds(operands[0], operands[1]))
    if op == "poly":
        coefficients = tuple(map(float, program.array(a["coefficients"])))
        least, most = Fit(a["low"], a["high"], coefficients, "given", 0.0, 0.0).image()
        return np.full(slots, least), np.full(slots, most)
    raise InternalError(f"no bounds are known for {op}")
