"""Comparisons of values that are equal on samples: thresholds between the steps of whole numbers and other grids.

`>` and `>=` differ where both sides are equal only, and there no polynomial decides. Where samples hold equal values, and
the next larger difference on the side that counts is d, the threshold is moved by d/2 to the other side of the equal ones:
the comparison is then the same on all samples, and has d/2 of room on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from heliograph.interpret import run_nodes
from heliograph.ir import Array, Node, Program
from heliograph.ir.function_ops import COMPARISONS
from heliograph.ir.tensor_ops import align

_CHUNK = 64
# Values are equal if they differ by no more than this share of their size: they may be sums of float32 numbers.
_EQUAL = 2e-7
# Of a hundred differences one may be smaller than that which counts as the next; of each chunk twice as many are kept.
_RARE, _KEPT = 0.01, 0.02


def moves(program: Program) -> Mapping[Node, float]:
    """By how much the larger side of each encrypted comparison is raised (lowered where it is negative), if by anything."""
    compared = {node: _Distances(node) for node in program.nodes if node.op in COMPARISONS and node.type.secret}
    if not compared or not program.calibration:
        return {}
    operands = {operand for node in compared for operand in node.inputs}
    values: dict[Node, Array] = {}

    def observe(node: Node, value: Array) -> None:
        if node in operands:
            values[node] = value
        if node in compared:
            compared[node].add(*(values[operand] for operand in node.inputs))

    for start in range(0, len(program.calibration[0]), _CHUNK):
        chunk = [samples[start : start + _CHUNK] for samples in program.calibration]
        run_nodes(program, dict(zip(program.inputs, chunk, strict=True)), observe)
        values.clear()
    found = {node: distances.move() for node, distances in compared.items()}
    return {node: move for node, move in found.items() if move is not None}


class _Distances:
    """How far the two sides of one comparison lie apart on the samples."""

    def __init__(self, node: Node) -> None:
        self.swapped, self.equal_holds = COMPARISONS[node.op]
        self.equal = False
        # Whether all values are whole numbers.
        self.whole = True
        # The smallest distances on either side, and how many there are.
        self.kept: dict[bool, list[Array]] = {True: [], False: []}
        self.count = {True: 0, False: 0}

    def add(self, left: Array, right: Array) -> None:
        left, right = align([left, right])
        self.whole = self.whole and all(bool((side == np.round(side)).all()) for side in (left, right))
        size = np.maximum(np.abs(left), np.abs(right))
        difference = (right - left if self.swapped else left - right).ravel()
        near = np.broadcast_to(size, np.broadcast_shapes(left.shape, right.shape)).ravel() * _EQUAL
        self.equal = self.equal or bool((np.abs(difference) <= near).any())
        for above in (True, False):
            side = difference[difference > near] if above else -difference[difference < -near]
            if side.size:
                few = min(side.size, math.ceil(_KEPT * side.size) + 1)
                self.kept[above].append(np.partition(side, few - 1)[:few])
                self.count[above] += side.size

    def move(self) -> float | None:
        """Half of the next distance beyond those that are equal, below zero where equal values hold; None without any."""
        side = not self.equal_holds
        if not self.count[side]:
            side = not side
        if self.count[side]:
            ordered = np.sort(np.concatenate(self.kept[side]))
            step = float(ordered[min(int(_RARE * self.count[side]), ordered.size - 1)])
        else:
            # Flags that no sample has set, say.
            step = 1.0 if self.whole else 0.0
        if not self.equal or not step:
            return None
        return -step / 2 if self.equal_holds else step / 2
