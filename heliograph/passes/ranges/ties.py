"""Comparisons of values on a grid, such as whole numbers: thresholds halfway between two steps.

`>` and `>=` differ only where both sides are equal, and there no polynomial decides. Where the differences of the two
sides are multiples of a step, the threshold moves by half a step beyond equal values. The comparison is then the same
for all values on the grid, observed or not, and each keeps half a step from the threshold. The step is 1 if all values
are whole numbers; other steps are found from the samples. Equal values off any grid (zeros of a ReLU) are separated
from the next larger difference in the samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from heliograph.interpret import calibration_chunks, run_nodes
from heliograph.ir import Array, Node, Program
from heliograph.ir.ops.functions import COMPARISONS, equal_within
from heliograph.ir.ops.tensors import align

# Without a grid, one difference in a hundred may be smaller than the next larger difference.
_RARE = 0.01
# The differences nearest to zero are kept: of each chunk twice this many or this share, of all this many on either
# side.
_KEPT, _KEPT_SHARE = 2048, 0.02
# The number of distinct differences that establish a grid; or fewer, with this many occurrences of each on average.
# Without a grid, a value is within the tolerance of a multiple by a chance of one in ten, and hardly ever repeats.
_ENOUGH, _FEW, _OFTEN = 12, 3, 3
# A step is at least this many times the tolerance for multiples of it.
_COARSE = 20.0
# The smallest observed distance is at most this many steps.
_MOST_STEPS = 16


@dataclass(frozen=True, slots=True)
class Threshold:
    """The threshold of a comparison.

    `moved`: the amount by which the threshold is raised; negative if it is lowered.
    `room`: the distance from the threshold to the nearest possible values.
    """

    moved: float
    room: float


def thresholds(program: Program) -> Mapping[Node, Threshold]:
    """The thresholds of encrypted comparisons of values that lie on a grid or are equal on samples."""
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

    for chunk in calibration_chunks(program):
        run_nodes(program, chunk, observe)
        values.clear()
    found = {node: differences.threshold() for node, differences in compared.items()}
    return {node: threshold for node, threshold in found.items() if threshold is not None}


class _Differences:
    """The distinct differences near zero between the two sides of one comparison on the samples."""

    def __init__(self, node: Node) -> None:
        self.swapped, self.equal_holds = COMPARISONS[node.op]
        self.equal = False
        self.whole = True
        # The largest difference between values that count as equal.
        self.tolerance = 0.0
        # The kept unequal differences with their counts, and the number of all unequal ones below and above zero.
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
        """The threshold: on a grid, halfway between two steps, or unmoved if the grid has no value there; None for
        none.
        """
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
        """The step of the values' grid; None if they establish none."""
        values = np.union1d(self.values, [0.0]) if self.equal else self.values
        # Merge values that differ only by rounding.
        values = values[np.diff(values, prepend=-math.inf) > self.tolerance]
        enough = values.size >= _FEW and self.counts.sum() >= _OFTEN * values.size
        return _step(values, self.tolerance) if enough or values.size >= _ENOUGH else None

    def _next(self) -> float | None:
        """The next difference beyond equal values, on the deciding side, or on the other side if that one has none."""
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
    """The step of the grid of sorted values, within the tolerance; None if they lie on no grid."""
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
    """The step, fitted to rising distances that are multiples of it; None if one is not.

    It is fitted to the smaller distances first, so that the multiples of the larger ones are unambiguous.
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
