"""What the bootstraps of a program ask for: read off its nodes, stored nowhere."""

from __future__ import annotations

from collections.abc import Iterator

from heliograph.ir.node import Node
from heliograph.ir.program import Program
from heliograph.ir.types import CipherType


def bootstraps(program: Program, chain: int | None = None) -> Iterator[Node]:
    """The bootstraps of a program in order: all of them, or those that happen in one chain of its parameters."""
    for node in program.nodes:
        if node.op == "bootstrap" and (
            chain is None or (isinstance(node.type, CipherType) and node.type.chain == chain)
        ):
            yield node


def bootstrap_slots(program: Program, chain: int | None = None) -> tuple[int, ...]:
    """The numbers of slots that are bootstrapped, rising: at all, or in one chain."""
    return tuple(sorted({node.attrs["slots"] for node in bootstraps(program, chain)}))


def paired_slots(program: Program, chain: int | None = None) -> tuple[int, ...]:
    """Those of which some bootstrap refreshes two values at once: all of such a number in a chain keep imaginary parts."""
    return tuple(sorted({node.attrs["slots"] for node in bootstraps(program, chain) if len(node.inputs) == 2}))


def slots_by_chain(program: Program) -> tuple[tuple[int, ...], ...]:
    """For each chain of the parameters, in their order, the numbers of slots that are bootstrapped in it."""
    return tuple(bootstrap_slots(program, number) for number in range(len(program.planned.chains)))


def observed_sizes(program: Program) -> int:
    """How many bootstrapped values have a size that samples showed, not one that is proved."""
    return sum(node.attrs.get("observed", 0) for node in bootstraps(program))
