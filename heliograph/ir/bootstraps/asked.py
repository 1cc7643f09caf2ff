"""The requirements of a program's bootstraps: derived from its nodes, stored nowhere.

A bootstrap is one op, `bootstrap`, until it is expanded (`writer.py`): then it has a `raise_modulus` in its
middle and a `refreshed` at its end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from heliograph.ckks.ring import Ring
from heliograph.ir.node import Node
from heliograph.ir.program import Program
from heliograph.ir.types import CipherType

WHOLE, RAISED, REFRESHED = "bootstrap", "raise_modulus", "refreshed"


def bootstraps(program: Program) -> Iterator[Node]:
    """The bootstraps of a program in order, each by its op, or by its last node if it is expanded."""
    return (node for node in program.nodes if node.op in (WHOLE, REFRESHED))


def bootstrapped(node: Node) -> tuple[Node, ...]:
    """The values that one of `bootstraps` refreshes: one, or two at once; the operands of any other node."""
    return node.inputs[1:] if node.op == REFRESHED else node.inputs


def bootstrap_slots(program: Program) -> tuple[int, ...]:
    """The numbers of slots that are bootstrapped, ascending."""
    return tuple(sorted({node.attrs["slots"] for node in bootstraps(program)}))


def keeps_parts(node: Node) -> bool:
    """Whether one of `bootstraps` refreshes real and imaginary parts: two values, or one that is complex."""
    return len(bootstrapped(node)) == 2 or bool(node.attrs.get("complex"))


def paired_slots(program: Program) -> tuple[int, ...]:
    """The numbers of slots for which some bootstrap refreshes two values at once."""
    return tuple(sorted({node.attrs["slots"] for node in bootstraps(program) if keeps_parts(node)}))


def raising_chains(program: Program) -> tuple[int, ...]:
    """The numbers of the chains to whose top bootstraps raise the modulus, ascending."""
    return tuple(number for number, count in enumerate(bootstraps_by_chain(program)) if count)


def bootstraps_by_chain(program: Program) -> tuple[int, ...]:
    """The number of bootstraps in each chain of the parameters."""
    counts = [0] * len(program.planned.chains)
    for node in refreshing(program):
        if isinstance(node.type, CipherType):
            counts[node.type.chain] += 1
    return tuple(counts)


def refreshing(program: Program) -> Iterator[Node]:
    """The nodes that raise the modulus: one in each expanded bootstrap."""
    return (node for node in program.nodes if node.op == RAISED)


def place_of(node: Node, rings: Sequence[Ring]) -> int:
    """The index of the chain's ring, the whole one first, to whose top one of `refreshing` raises the modulus."""
    assert isinstance(node.type, CipherType)
    level = node.type.level
    return next((i for i, ring in enumerate(rings) if ring.bootstrap is not None and ring.levels == level), 0)


def observed_sizes(program: Program) -> int:
    """The number of bootstrapped values with an observed size, rather than a proved one."""
    return sum(node.attrs.get("observed", 0) for node in bootstraps(program))


def written_out(program: Program, end: Node) -> list[Node]:
    """The nodes of the bootstrap that ends in this `refreshed`, in order, without the values that it refreshes."""
    before = set(bootstrapped(end))
    # If a value was switched to another chain, also the same value in its original chain.
    before |= {node.inputs[0] for node in before if node.op == "switch_chain"}
    found, waiting = {end}, [end.inputs[0]]
    while waiting:
        node = waiting.pop()
        if node not in found and node not in before:
            found.add(node)
            waiting += node.inputs
    return [node for node in program.nodes if node in found]


def inside_bootstraps(program: Program) -> frozenset[Node]:
    """The nodes of expanded bootstraps, without their ends, and without nodes that others read too."""
    ends = {node for node in program.nodes if node.op == REFRESHED}
    within = {node for end in ends for node in written_out(program, end)} - ends
    shared = {operand for node in program.nodes if node not in within and node not in ends for operand in node.inputs}
    return frozenset(within - shared)


def factor_key(program: Program, node: Node) -> Hashable:
    """A key for the plaintexts of a `fourier_factor`: its attributes, its level, and the primes of its chain, including
    the special ones.
    """
    assert isinstance(node.type, CipherType)
    return program.planned.chains[node.type.chain].ring, node.type.level, tuple(sorted(node.attrs.items()))


def factors(program: Program) -> dict[Hashable, Node]:
    """The distinct factors of transforms by which a program multiplies, each with one of its nodes."""
    return {factor_key(program, node): node for node in program.nodes if node.op == "fourier_factor"}
