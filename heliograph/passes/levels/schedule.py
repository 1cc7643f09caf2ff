"""Fix an order of the nodes that keeps few ciphertexts alive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from heliograph.ir import Node, Program, Stage
from heliograph.ir.analysis.liveness import peak_towers, size_in_towers


@dataclass(frozen=True, slots=True)
class Schedule:
    """Orders the nodes: the operand whose subtree needs more memory is evaluated first.

    This is Sethi and Ullman's rule, which is optimal on trees; on graphs it is kept only if it beats the given order.
    """

    name: ClassVar[str] = "schedule"
    needs: ClassVar[Stage] = Stage.MANAGED
    makes: ClassVar[Stage] = Stage.EXECUTABLE

    def run(self, program: Program) -> Program:
        need: dict[Node, int] = {}
        for node in program.nodes:
            operands = sorted(dict.fromkeys(node.inputs), key=lambda n: -need[n])
            held = peak = 0
            for operand in operands:
                peak = max(peak, held + need[operand])
                held += size_in_towers(operand)
            need[node] = max(peak, held + size_in_towers(node))
        order: list[Node] = list(program.inputs)
        seen = set(order)
        for output in program.outputs:
            stack: list[tuple[Node, list[Node]]] = [(output, _operands(output, need))]
            if output in seen:
                continue
            while stack:
                node, rest = stack[-1]
                while rest and rest[0] in seen:
                    rest.pop(0)
                if rest:
                    operand = rest.pop(0)
                    stack.append((operand, _operands(operand, need)))
                    continue
                stack.pop()
                if node not in seen:
                    seen.add(node)
                    order.append(node)
        if peak_towers(program.nodes, program.outputs) <= peak_towers(order, program.outputs):
            order = list(program.nodes)
        return replace(program, stage=Stage.EXECUTABLE, nodes=tuple(order))


def _operands(node: Node, need: dict[Node, int]) -> list[Node]:
    return sorted(dict.fromkeys(node.inputs), key=lambda n: -need[n])
