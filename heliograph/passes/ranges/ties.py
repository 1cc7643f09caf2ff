"""Comparisons of values on a grid, as whole numbers are: thresholds that lie halfway between two steps.

`>` and `>=` differ where both sides are equal only, and there no polynomial decides. Where differences of the two sides are
multiples of a step, the threshold is moved by half a step to the other side of equal values: the comparison is the same for
all values on the grid, seen on samples or not, and each keeps half a step from the threshold. Steps are 1 where all values
are whole numbers; others are found from samples. Equal values that are on no grid (zeros of a ReLU) are kept apart from the
next larger difference that samples hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from heliograph.interpret import run_nodes
from heliograph.ir import Array, Node, Program
from heliograph.ir.ops.functions import COMPARISONS, equal_within
from heliograph.ir.ops.tensors import align

_CHUNK = 64
# Of a hundred differences one may be smaller than that which counts as the next, where there is no grid.
_RARE = 0.01
# Of the differences those nearest to zero are kept: of each chunk so many or this share, of all so many on either side.
_KEPT, _KEPT_SHARE = 2048, 0.02
# So many different ones show a grid, or fewer that come so often each: where there is none, a value is within the tolerance
# of a multiple by a chance of one in ten, and hardly ever comes again.
_ENOUGH, _FEW, _OFTEN = 12, 3, 3
# A step is at least so many times the tolerance by which a multiple of it is recognised.
_COARSE = 20.0
# The smallest difference that was seen is up to so many steps.
_MOST_STEPS = 16


@dataclass(frozen=True, slots=True)
class Threshold:
    """Where a comparison decides.

    `moved` is by how much the larger side is raised (lowered where it is negative); `room` is how far from there the
    nearest values are that can occur.
    """

    moved: float
    room: float


def thresholds(program: Program) -> Mapping[Node, Threshold]:
    """Those of encrypted comparisons whose values are on a grid, or equal on samples."""
    compared = {node: _Differences(node) for node in program.nodes if node.op in COMPARISONS and node.type.secret}
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
    found = {node: differences.threshold() for node, differences in compared.items()}
    return {node: threshold for node, threshold in found.items() if threshold is not None}


class _Differences:
    """The differences of the two sides of one comparison on the samples: those near zero, each once."""

    def __init__(self, node: Node) -> None:
        self.swapped, self.equal_holds = COMPARISONS[node.op]
        self.equal = False
        self.whole = True
        # By how much equal values may differ.
        self.tolerance = 0.0
        # Those that are not equal: each kept one, how often it came, and how many there are below and above zero.
        self.values: Array = np.zeros(0)
        self.counts: Array = np.zeros(0, dtype=np.int64)
        self.below, self.above = 0, 0

    def add(self, left: Array, right: Array) -> None:
        left, right = align([left, right])
        self.whole = self.whole and all(bool((side == np.round(side)).all()) for side in (left, right))
        difference = np.asarray(right - left if self.swapped else left - right)
        near = equal_within(left, right)
        equal = np.abs(difference) <= near
        self.equal = self.equal or bool(equal.any())
        self.tolerance = max(self.tolerance, float(np.max(near, initial=0.0)))
        unequal = difference[~equal]
        self.below, self.above = self.below + int((unequal < 0).sum()), self.above + int((unequal > 0).sum())
        most = max(2 * _KEPT, math.ceil(_KEPT_SHARE * unequal.size))
        if most < unequal.size:
            unequal = unequal[np.argpartition(np.abs(unequal), most)[:most]]
        values, counts = np.unique(unequal, return_counts=True)
        values, counts = np.concatenate([self.values, values]), np.concatenate([self.counts, counts])
        self.values, place = np.unique(values, return_inverse=True)
        self.counts = np.bincount(place.ravel(), counts, self.values.size).astype(np.int64)
        middle = int(np.searchsorted(self.values, 0.0))
        kept = slice(max(middle - _KEPT, 0), middle + _KEPT)
        self.values, self.counts = self.values[kept], self.counts[kept]

    def threshold(self) -> Threshold | None:
        """On a grid halfway between two steps, or where it is if no value of the grid is there."""
        step = 1.0 if self.whole else self._step()
        if step is not None:
            beyond = 0.0 if self.whole or not self.values.size else self._nearest() % step
            beyond = min(beyond, step - beyond)
            if beyond > self.tolerance:
                return Threshold(0.0, beyond)
        elif self.equal:
            step = self._next()
        if not step:
            return None
        return Threshold(-step / 2 if self.equal_holds else step / 2, step / 2)

    def _nearest(self) -> float:
        return float(self.values[np.abs(self.values).argmin()])

    def _step(self) -> float | None:
        """The step of the grid that the values are on, if they show one."""
        values = np.union1d(self.values, [0.0]) if self.equal else self.values
        # Once those that differ by no more than rounding.
        values = values[np.diff(values, prepend=-math.inf) > self.tolerance]
        enough = values.size >= _FEW and self.counts.sum() >= _OFTEN * values.size
        return _step(values, self.tolerance) if enough or values.size >= _ENOUGH else None

    def _next(self) -> float | None:
        """The distance beyond equal values on the side that counts, of the other one where that has none."""
        if not self.values.size:
            return None
        upper = bool(self.above) if not self.equal_holds else not self.below
        side = self.values > 0 if upper else self.values < 0
        distances, counts = np.abs(self.values[side]), self.counts[side]
        order = np.argsort(distances)
        rare = _RARE * (self.above if upper else self.below)
        place = int(np.searchsorted(np.cumsum(counts[order]), rare, side="right"))
        return float(distances[order][min(place, order.size - 1)])


def _step(values: Array, tolerance: float) -> float | None:
    """The step of the grid that sorted values lie on within the tolerance; None where they are on none."""
    distances = values - values[np.abs(values).argmin()]
    distances = np.abs(distances)[np.argsort(np.abs(distances))][1:]
    smallest = float(np.diff(values).min())
    for steps in range(1, _MOST_STEPS + 1):
        step = smallest / steps
        if step < _COARSE * tolerance:
            return None
        refined = _fitted(distances, step, tolerance)
        if refined is not None:
            return refined
    return None


def _fitted(distances: Array, step: float, tolerance: float) -> float | None:
    """The step, fitted to rising distances that are multiples of it; None where one is not.

    It is fitted to the smaller ones first, so that the multiple that a larger one is cannot be mistaken.
    """
    known = 0
    while known < distances.size:
        reach = max(2.0 * distances[known - 1] if known else 0.0, distances[known])
        known = int(np.searchsorted(distances, reach, side="right"))
        multiples = np.round(distances[:known] / step)
        if (np.abs(distances[:known] - multiples * step) > 0.25 * step).any() or not multiples.all():
            return None
        step = float(distances[:known] @ multiples / (multiples @ multiples))
    multiples = np.round(distances / step)
    return step if (np.abs(distances - multiples * step) <= 2.0 * tolerance).all() else None
