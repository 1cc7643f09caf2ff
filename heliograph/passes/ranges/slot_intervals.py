"""Proved intervals of each slot of a slot program's values, for all inputs in the declared ranges."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from heliograph.approx.fits.fit import Fit
from heliograph.errors import InternalError, ProgramError
from heliograph.ir import Node, Program
from heliograph.ir.maps.layout import Layout
from heliograph.ir.ops.table import Bounds, Context, Role, role_of, rules_of


def slot_intervals(program: Program) -> dict[Node, Bounds]:
    """Bounds of each slot, low and high of shape (slots,), for the nodes of a packed program as its author wrote it.

    The caller has to ensure that a polynomial's operand lies in the polynomial's interval.
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
    if op == "poly":
        coefficients = tuple(map(float, program.array(a["coefficients"])))
        least, most = Fit(a["low"], a["high"], coefficients, "given", 0.0, 0.0).image()
        slots = operands[0][0].size
        return np.full(slots, least), np.full(slots, most)
    bounds = rules_of(node).bounds
    if bounds is None:
        raise InternalError(f"no bounds are known for {op}")
    made = bounds(node, operands, Context(program.constants))
    if made is None:
        pairs = role_of(node) in (Role.BOOTSTRAP, Role.PART)
        raise ProgramError(
            "slots hold real numbers",
            where=node.loc,
            why=f"{op} would make, or take apart, complex ones",
            hint="write bootstrap(x) for each value: those that can be refreshed together are" if pairs else "",
        )
    return made
