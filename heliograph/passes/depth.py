"""How many levels a program takes, from its operations alone."""

from __future__ import annotations

from heliograph.approx.evaluate import depth_of_degree, trim
from heliograph.ir import Node, Program, SlotsType
from heliograph.ir.ops import OPS


def node_depth(program: Program, node: Node) -> int:
    """Levels that one node of a polynomial or packed program spends."""
    if not node.type.secret:
        return 0
    if node.op == "poly":
        degree = len(trim(program.array(node.attrs["coefficients"]))) - 1
        # On tensors the scaling to [-1, 1] is folded into what comes before; on slots it is a product.
        scaled = isinstance(node.type, SlotsType) and (node.attrs["low"], node.attrs["high"]) != (-1.0, 1.0)
        return depth_of_degree(degree) + int(scaled)
    return OPS[node.op].depth


def levels_below(program: Program) -> dict[Node, int]:
    """For each value the levels that the outputs still need after it."""
    need = dict.fromkeys(program.nodes, 0)
    for node in reversed(program.nodes):
        spent = node_depth(program, node)
        for operand in node.inputs:
            need[operand] = max(need[operand], need[node] + spent)
    return need


def program_depth(program: Program) -> int:
    """Levels between encrypted inputs and outputs."""
    need = levels_below(program)
    return max((need[node] for node in program.inputs if node.type.secret), default=0)
