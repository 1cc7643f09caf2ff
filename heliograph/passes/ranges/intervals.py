"""Proved intervals: they hold every element of a value for all inputs in the declared ranges."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from heliograph.ir import Node, Program, size_of
from heliograph.ir.analysis.liveness import last_use_table
from heliograph.ir.ops.table import OPS, Bounds, Context


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float

    @property
    def magnitude(self) -> float:
        return max(abs(self.low), abs(self.high))


def hull(bounds: Bounds) -> Interval:
    """The smallest interval around all elements."""
    return Interval(float(bounds[0].min()), float(bounds[1].max()))


def transfer(
    node: Node, operands: list[Bounds | None], context: Context, images: Mapping[Node, Interval]
) -> Bounds | None:
    """Bounds of a node's value from the bounds of its operands; None where nothing bounds it, or the bounds overflow.

    `images` is the image of each `poly` node on its interval; the caller has to ensure that the operand lies in that
    interval. Sums are widened by 1e-12 of their size against rounding.
    """
    if node in images:
        image = images[node]
        return np.full(size_of(node), image.low), np.full(size_of(node), image.high)
    known = [operand for operand in operands if operand is not None]
    bounds = OPS[node.op].bounds
    return None if bounds is None or len(known) < len(operands) else bounds(node, known, context)


def _bounded(program: Program, images: Mapping[Node, Interval]) -> Iterator[tuple[Node, Bounds]]:
    """Each node that has finite proved bounds, element by element; bounds are dropped after their last use."""
    context = Context(program.constants)
    bounds: dict[Node, Bounds | None] = {}
    for node, freed in zip(program.nodes, last_use_table(program.nodes, program.outputs), strict=True):
        bound = transfer(node, [bounds[operand] for operand in node.inputs], context, images)
        bounds[node] = bound
        if bound is not None and math.isfinite(bound[0].min()) and math.isfinite(bound[1].max()):
            yield node, bound
        for place in freed:
            del bounds[program.nodes[place]]


def program_bounds(program: Program, images: Mapping[Node, Interval]) -> dict[Node, Bounds]:
    """The proved bounds of each node that has finite ones, element by element."""
    return dict(_bounded(program, images))


def program_intervals(program: Program, images: Mapping[Node, Interval]) -> dict[Node, Interval]:
    """The proved interval of each node that has one."""
    return {node: hull(bound) for node, bound in _bounded(program, images)}
