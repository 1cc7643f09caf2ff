"""The steps of a rotation or `linear_transform`: the diagonals of each step, and steps that several maps share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heliograph.ir.maps.diagonals import DiagonalMap
from heliograph.ir.node import Node
from heliograph.ir.ops.table import NO_KEYS, OPS, Keys


def pair_offsets(
    offsets: Sequence[int], baby: Sequence[int], giant: Sequence[int], modulus: int
) -> dict[int, list[tuple[int, int]]]:
    """For each giant step the (baby step, offset) pairs that it serves; each offset is served once.

    Baby and giant step add up to the offset modulo `modulus`.
    """
    wanted = {offset % modulus: offset for offset in offsets}
    table: dict[int, list[tuple[int, int]]] = {}
    for g in giant:
        for b in baby:
            offset = wanted.pop((g + b) % modulus, None)
            if offset is not None:
                table.setdefault(g, []).append((b, offset))
    assert not wanted, "the steps do not reach every diagonal"
    return table


class Offsets(NamedTuple):
    """The part of a diagonal map that its steps depend on."""

    offsets: tuple[int, ...]
    # Rotations that differ by this serve the same diagonal.
    modulus: int


def transform_terms(
    diagonals: Sequence[DiagonalMap | Offsets], baby: Sequence[int], giant: Sequence[int]
) -> dict[int, list[tuple[int, int, int]]]:
    """For each giant step of a `linear_transform` its (operand, baby step, offset), in the order of evaluation."""
    table: dict[int, list[tuple[int, int, int]]] = {g: [] for g in giant}
    for operand, one in enumerate(diagonals):
        for g, pairs in pair_offsets(one.offsets, baby, giant, one.modulus).items():
            table[g] += [(operand, b, offset) for b, offset in pairs]
    return {g: terms for g, terms in table.items() if terms}


@dataclass(frozen=True, slots=True)
class BabySteps:
    """The baby steps of one operand at one transform.

    all: every step that the transform reads.
    make: the steps to compute now.
    keep: the steps that a later transform reads too.
    hoisted: whether the steps share a decomposition.
    decompose: whether it is computed now, for all transforms of the value.
    last: whether no later transform reads the value.
    """

    all: tuple[int, ...]
    make: tuple[int, ...]
    keep: frozenset[int]
    hoisted: bool
    decompose: bool
    last: bool


def share_babies(
    nodes: Sequence[Node], diagonals: Callable[[Node], Sequence[DiagonalMap | Offsets]], composed: Collection[int]
) -> dict[tuple[Node, int], BabySteps]:
    """For each transform and operand, in the order of evaluation, the baby steps that it computes, reads and keeps.

    Maps that read one value share its decomposition and its rotations. `composed` are the amounts that have no key of
    their own: they are not hoisted.
    """
    readers: dict[Node, list[tuple[Node, int]]] = {}
    wanted: dict[tuple[Node, int], list[int]] = {}
    for node in nodes:
        if node.op != "linear_transform":
            continue
        terms = transform_terms(diagonals(node), node.attrs["baby_steps"], node.attrs["giant_steps"])
        for position, operand in enumerate(node.inputs):
            steps = {b for group in terms.values() for number, b, _ in group if number == position and b}
            readers.setdefault(operand, []).append((node, position))
            wanted[node, position] = sorted(steps)
    table: dict[tuple[Node, int], BabySteps] = {}
    for uses in readers.values():
        hoisted = len({b for use in uses for b in wanted[use] if b not in composed}) > 1
        made: set[int] = set()
        decomposed = False
        for number, use in enumerate(uses):
            later = {b for other in uses[number + 1 :] for b in wanted[other]}
            fresh = tuple(b for b in wanted[use] if b not in made)
            decompose = hoisted and not decomposed and any(b not in composed for b in fresh)
            decomposed |= decompose
            made |= set(fresh)
            table[use] = BabySteps(
                tuple(wanted[use]), fresh, frozenset(later & made), hoisted, decompose, number == len(uses) - 1
            )
    return table


def needed_keys(node: Node) -> Keys:
    """The evaluation keys for evaluating this node, other than those of bootstraps."""
    rules = OPS[node.op].rules
    return NO_KEYS if rules is None else rules.keys


def rotation_steps(node: Node) -> Iterable[int]:
    """The amounts by which evaluating this node rotates, before any composition of keys."""
    return tuple(int(step) for step in needed_keys(node).rotations(node.attrs) if step)
