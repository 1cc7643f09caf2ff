"""Fold constants, merge equal nodes, drop neutral and dead ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from heliograph.ir import Builder, Node, Program, Stage
from heliograph.ir.ops.table import OPS, Role, role_of


@dataclass(frozen=True, slots=True)
class Simplify:
    """Constant folding, common subexpressions, neutral elements, dead code; on tensors."""

    name: ClassVar[str] = "simplify"
    needs: ClassVar[Stage] = Stage.TENSOR
    makes: ClassVar[Stage] = Stage.TENSOR

    def run(self, program: Program) -> Program:
        builder = Builder(program.name, Stage.TENSOR, program)
        known: dict[Any, Node] = {}

        def emit(node: Node, operands: list[Node]) -> Node:
            result = _neutral(builder, node, operands)
            if result is None and operands and all(operand.op == "constant" for operand in operands):
                value = OPS[node.op].evaluate(
                    [builder.context.array(operand.attrs["value"])[np.newaxis] for operand in operands],
                    node.attrs,
                    builder.context,
                )[0]
                result = builder.op("constant", (), node.loc, value=builder.constant(value, "folded"))
            if result is None:
                result = builder.copy(node, operands)
            key = (result.op, tuple(map(id, result.inputs)), tuple(result.attrs.items()))
            return known.setdefault(key, result)

        return builder.rewrite(program, emit)


def _neutral(builder: Builder, node: Node, operands: list[Node]) -> Node | None:
    """The operand if the op leaves it unchanged, else None."""
    if node.op == "power" and node.attrs["exponent"] == 1:
        return operands[0]
    # Of these only a permutation can give other values of the same shape: sums are then of single elements.
    if role_of(node) is Role.MOVE and len(operands) == 1 and operands[0].type == node.type:
        moves = node.op == "permute" and node.attrs["axes"] != tuple(range(len(node.attrs["axes"])))
        return None if moves else operands[0]
    if node.op in ("add", "mul"):
        for value, other in ((operands[0], operands[1]), (operands[1], operands[0])):
            if other.op == "constant" and value.type == node.type:
                array = builder.context.array(other.attrs["value"])
                if (array == (0.0 if node.op == "add" else 1.0)).all():
                    return value
    return None
