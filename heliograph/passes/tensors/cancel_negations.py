"""Negations of negations become the value itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from heliograph.ir import Builder, Node, Program, Stage


@dataclass(frozen=True, slots=True)
class CancelNegations:
    """Replaces the negative of a negative by the value."""

    name: ClassVar[str] = "cancel-negations"
    needs: ClassVar[Stage] = Stage.TENSOR
    makes: ClassVar[Stage] = Stage.TENSOR

    def run(self, program: Program) -> Program:
        builder = Builder(program.name, Stage.TENSOR, program)

        def emit(node: Node, operands: list[Node]) -> Node:
            if node.op == "neg" and operands[0].op == "neg":
                return operands[0].inputs[0]
            return builder.copy(node, operands)

        return builder.rewrite(program, emit)
