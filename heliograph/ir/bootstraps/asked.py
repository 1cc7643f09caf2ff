"""What the bootstraps of a program ask for: read off its nodes, stored nowhere.

A bootstrap is one op, `bootstrap`, until it is written out (`writer.py`): then a `raise_modulus` stands in its
middle, and it ends in a `refreshed`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from heliograph.ckks.ring import Ring
from heliograph.ir.node import Node
from heliograph.ir.program import Program
from heliograph.ir.types import CipherType

WHOLE, RAISED, REFRESHED = "bootstrap", "raise_modulus", "refreshed"


def bootstraps(program: Program) -> Iterator[Node]:
    """The bootstraps of a program in order, each by its op or by the last of what it was written out as."""
    return (node for node in program.nodes if node.op in (WHOLE, REFRESHED))


def bootstrapped(node: Node) -> tuple[Node, ...]:
    """The values that one of `bootstraps` refreshes: one, or two at once."""
    return node.inputs[1:] if node.op == REFRESHED else node.inputs


def bootstrap_slots(program: Program) -> tuple[int, ...]:
    """The numbers of slots that are bootstrapped, rising."""
    return tuple(sorted({node.attrs["slots"] for node in bootstraps(program)}))


def paired_slots(program: Program) -> tuple[int, ...]:
    """The numbers of slots for which some bootstrap refreshes two values at once."""
    return tuple(sorted({node.attrs["slots"] for node in bootstraps(program) if len(bootstrapped(node)) == 2}))


def raising_chains(program: Program) -> tuple[int, ...]:
    """The chains, by their numbers, to whose top bootstraps raise the modulus, rising."""
    return tuple(number for number, count in enumerate(bootstraps_by_chain(program)) if count)


def bootstraps_by_chain(program: Program) -> tuple[int, ...]:
    """For each chain of the parameters how many bootstraps happen in it."""
    counts = [0] * len(program.planned.chains)
    for node in refreshing(program):
        if isinstance(node.type, CipherType):
            counts[node.type.chain] += 1
    return tuple(counts)


def refreshing(program: Program) -> Iterator[Node]:
    """The nodes in which modulus is raised: one in each bootstrap that is written out."""
    return (node for node in program.nodes if node.op == RAISED)


def place_of(node: Node, rings: Sequence[Ring]) -> int:
    """Which of these rings of chains, the whole one first, one of `refreshing` raises the modulus to the top of."""
    assert isinstance(node.type, CipherType)
    level = node.type.level
    return next((i for i, ring in enumerate(rings) if ring.bootstrap is not None and ring.levels == level), 0)


def observed_sizes(program: Program) -> int:
    """How many bootstrapped values have a size that samples showed, not one that is proved."""
    return sum(node.attrs.get("observed", 0) for node in bootstraps(program))


def written_out(program: Program, end: Node) -> list[Node]:
    """The nodes of the bootstrap that ends in this `refreshed`, in order: those between what it refreshes and itself."""
    before = set(bootstrapped(end))
    # If a value was switched to another chain, also the same value in the chain where it was made.
    before |= {node.inputs[0] for node in before if node.op == "switch_chain"}
    found, waiting = {end}, [end.inputs[0]]
    while waiting:
        node = waiting.pop()
        if node not in found and node not in before:
            found.add(node)
            waiting += node.inputs
    return [node for node in program.nodes if node in found]


def inside_bootstraps(program: Program) -> frozenset[Node]:
    """The nodes of bootstraps that are written out, but for the ends of them, and for what others read too."""
    ends = {node for node in program.nodes if node.op == REFRESHED}
    within = {node for end in ends for node in written_out(program, end)} - ends
    shared = {operand for node in program.nodes if node not in within and node not in ends for operand in node.inputs}
    return frozenset(within - shared)


def factor_key(program: Program, node: Node) -> Hashable:
    """What the plaintexts of a `fourier_factor` depend on: its attributes, its level, and the primes of its chain, the
    special ones too.
    """
    assert isinstance(node.type, CipherType)
    return program.planned.chains[node.type.chain].ring, node.type.level, tuple(sorted(node.attrs.items()))


def factors(program: Program) -> dict[Hashable, Node]:
    """The different factors of transforms that a program multiplies with, each by a node that does."""
    return {factor_key(program, node): node for node in program.nodes if node.op == "fourier_factor"}
