"""Intervals that hold each slot of a slot program's values, whatever the inputs in their declared ranges: proved."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from heliograph.approx.fit import Fit
from heliograph.errors import InternalError, ProgramError
from heliograph.ir import Array, Node, Program
from heliograph.ir.layout import Layout
from heliograph.passes.intervals import Bounds

# Against rounding in the sums of bounds.
_WIDEN = 1e-12


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
        return _wide(low + a["value"], high + a["value"])
    if op == "add_plain":
        value = np.resize(program.array(a["value"]), slots)
        return _wide(low + value, high + value)
    if op in ("mul_plain", "mul_int"):
        factor = (
            np.resize(program.array(a["value"]), slots) if op == "mul_plain" else np.full(slots, float(a["factor"]))
        )
        return _product(low, high, factor, factor)
    if op in ("add_ct", "add_pt"):
        return _wide(low + operands[1][0], high + operands[1][1])
    if op == "sub_ct":
        return _wide(low - operands[1][1], high - operands[1][0])
    if op in ("mul_ct", "mul_pt"):
        if node.inputs[0] is node.inputs[1]:
            top = np.maximum(low * low, high * high)
            return _wide(np.where((low <= 0) & (high >= 0), 0.0, np.minimum(low * low, high * high)), top)
        return _product(low, high, *operands[1])
    if op == "poly":
        coefficients = tuple(map(float, program.array(a["coefficients"])))
        least, most = Fit(a["low"], a["high"], coefficients, "given", 0.0, 0.0).image()
        return np.full(slots, least), np.full(slots, most)
    raise InternalError(f"no bounds are known for {op}")


def _product(a: Array, b: Array, c: Array, d: Array) -> Bounds:
    corners = np.stack([a * c, a * d, b * c, b * d])
    return _wide(corners.min(axis=0), corners.max(axis=0))


def _wide(low: Array, high: Array) -> Bounds:
    slack = _WIDEN * np.maximum(np.abs(low), np.abs(high))
    return low - slack, high + slack
