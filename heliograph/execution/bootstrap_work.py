"""The calls of a bootstrap, counted on one that is written out, and their cost on a chain.

Bootstraps on chains of one shape differ only in the level to which the modulus is raised: the calls counted on one
chain are shifted to the others.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable

import numpy as np

from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.ckks.trigonometric import Series
from heliograph.execution.prices import Work, prices_on
from heliograph.execution.protocol import Call
from heliograph.execution.walk import descents, node_calls
from heliograph.ir import Builder, Node, Program, Stage
from heliograph.ir.bootstraps.asked import RAISED
from heliograph.ir.bootstraps.writer import write_bootstrap
from heliograph.ir.location import UNKNOWN


def bootstrap_ms(
    ring: Ring, slots: int, costs: CostTable, paired: bool = False, degree: int = 0, lower: tuple[Ring, ...] = ()
) -> float:
    """The milliseconds of one bootstrap of that many slots, of two values if `paired`.

    `degree`: the degree of the series that it computes, or 0.
    `lower`: sub-chains with keys of their own, in which it works where the level allows.
    """
    return _transforms_ms(ring, slots, costs, lower) + _reduction_ms(ring, paired, degree, costs, lower)


@functools.lru_cache(maxsize=1 << 16)
def _transforms_ms(ring: Ring, slots: int, costs: CostTable, lower: tuple[Ring, ...]) -> float:
    down, up = _transforms(ring, slots)
    prices = prices_on((ring, *lower), costs)
    return float(prices.ms(down.calls, ring.bootstrap_input_level) + prices.ms(up.calls, ring.levels))


@functools.lru_cache(maxsize=1 << 16)
def _reduction_ms(ring: Ring, paired: bool, degree: int, costs: CostTable, lower: tuple[Ring, ...]) -> float:
    assert ring.bootstrap is not None
    calls = _reduction(paired, degree).calls
    return float(prices_on((ring, *lower), costs).ms(calls, ring.levels - ring.bootstrap[0]))


# The works of the two transforms, by shape.
_counted: dict[tuple[object, ...], tuple[Work, Work]] = {}


def _transforms(ring: Ring, slots: int) -> tuple[Work, Work]:
    """The works of SlotsToCoeffs, relative to the level at which a value enters, and of the raised modulus and
    CoeffsToSlots, relative to the top.
    """
    assert ring.bootstrap is not None
    encode, decode = ring.bootstrap
    levels = *range(1, decode + 1), *range(ring.levels - encode + 1, ring.levels + 1)
    shape = ring.log_ring, ring.bootstrap, ring.bootstrap_babies, slots, tuple(map(ring.hoists_twice, levels))
    if shape not in _counted:
        program = _written(ring, slots)
        raised = next(node for node in program.nodes if node.op == RAISED)
        mirrored = next(node for node in program.nodes if node.op == "conjugate")
        down = _before(raised)
        up = _before(mirrored) - down
        calls = node_calls(program)
        _counted[shape] = (
            Work.of(_sum(calls, down), ring.bootstrap_input_level),
            Work.of(_sum(calls, up), ring.levels),
        )
    return _counted[shape]


@functools.lru_cache(maxsize=64)
def _reduction(paired: bool, degree: int) -> Work:
    """The work after the transforms, relative to the level at which they leave a value: the same on every chain."""
    ring = Ring(10, 48, 42, 2 + 2 + 9 + 3, 4, None, (2, 2), short_specials=True)
    program = _written(ring, ring.slots, paired, degree)
    mirrored = next(node for node in program.nodes if node.op == "conjugate")
    calls = node_calls(program)
    return Work.of(_sum(calls, calls.keys() - _before(mirrored)), ring.levels - 2)


def _written(ring: Ring, slots: int, paired: bool = False, degree: int = 0) -> Program:
    """A program with one bootstrap and nothing else."""
    builder = Builder("bootstrap", Stage.MANAGED)
    builder.set_ring(ring)
    x = builder.input(
        "x", slots=ring.slots, level=ring.bootstrap_input_level, log_scale=float(ring.scale_bits), low=-1.0, high=1.0
    )
    series = Series(np.ones((2, degree + 1)), 1.5) if degree else None
    return builder.finish({"y": write_bootstrap(builder, ring, x, slots, paired, UNKNOWN, series)})


def _before(node: Node) -> set[Node]:
    """All nodes on which a node depends."""
    found: set[Node] = set()
    waiting = list(node.inputs)
    while waiting:
        following = waiting.pop()
        if following not in found:
            found.add(following)
            waiting += following.inputs
    return found


def _sum(calls: dict[Node, Counter[Call]], nodes: Iterable[Node]) -> Counter[Call]:
    return sum((calls[node] + descents(node) for node in nodes if node in calls), Counter())
