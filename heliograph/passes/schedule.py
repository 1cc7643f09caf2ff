"""Fix an order that keeps few ciphertexts alive, and mark last uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from heliograph.ir import CipherType, Node, Program, Stage


def last_uses(nodes: Sequence[Node], outputs: Sequence[Node]) -> list[list[int]]:
    """For each node the indices of the values that are not needed after it; outputs are never freed."""
    index = {node: i for i, node in enumerate(nodes)}
    last: dict[Node, int] = {}
    for i, node in enumerate(nodes):
        last[node] = i
        for operand in node.inputs:
            last[operand] = i
    keep = set(outputs)
    table: list[list[int]] = [[] for _ in nodes]
    for node, i in last.items():
        if node not in keep:
            table[i].append(index[node])
    return [sorted(entry) for entry in table]


def _size(node: Node) -> int:
    return node.type.parts * (node.type.level + 1) if isinstance(node.type, CipherType) else 0


def peak_towers(nodes: Sequence[Node], outputs: Sequence[Node]) -> int:
    """The largest number of polynomials times primes that is alive at once."""
    frees = last_uses(nodes, outputs)
    alive = peak = 0
    for node, freed in zip(nodes, frees, strict=True):
        alive += _size(node)
        peak = max(peak, alive)
        alive -= sum(_size(nodes[i]) for i in freed)
    return peak


@dataclass(frozen=True, slots=True)
class Schedule:
    """Orders the nodes: of a node's operands the one whose subtree needs more room is evaluated first.

    That is Sethi and Ullman's rule, optimal on trees; on graphs it is kept only where it beats the order given.
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
                held += _size(operand)
            need[node] = max(peak, held + _size(node))
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
        metadata: dict[str, Any] = {**program.metadata, "last_uses": last_uses(order, program.outputs)}
        return replace(program, stage=Stage.EXECUTABLE, nodes=tuple(order), metadata=metadata)


def _operands(node: Node, need: dict[Node, int]) -> list[Node]:
    return sorted(dict.fromkeys(node.inputs), key=lambda n: -need[n])
