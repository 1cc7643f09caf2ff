"""Lifetimes of values: their last uses, and the largest amount that is alive at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heliograph.ir.node import Node
from heliograph.ir.types import CipherType


def last_use_table(nodes: Sequence[Node], outputs: Sequence[Node]) -> list[list[int]]:
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


def size_in_towers(node: Node) -> int:
    """Polynomials times primes of a ciphertext; 0 for a plain value."""
    return node.type.count * node.type.parts * (node.type.level + 1) if isinstance(node.type, CipherType) else 0


def peak_towers(nodes: Sequence[Node], outputs: Sequence[Node]) -> int:
    """The largest number of polynomials times primes that is alive at once."""
    return peak_alive(nodes, outputs, size_in_towers)


def peak_alive(nodes: Sequence[Node], outputs: Sequence[Node], size: Callable[[Node], int]) -> int:
    """The largest total size of values that are alive at once."""
    frees = last_use_table(nodes, outputs)
    alive = peak = 0
    for node, freed in zip(nodes, frees, strict=True):
        gone = sum(size(nodes[i]) for i in freed)
        alive += size(node)
        # A stack holds its operands, so they are not counted twice.
        peak = max(peak, alive - gone if node.op == "stack" else alive)
        alive -= gone
    return peak
