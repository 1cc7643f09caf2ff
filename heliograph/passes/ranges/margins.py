"""The margin of an interval beyond the calibration samples.

A sample's largest value at a layer is one draw from a tail; the interval has to hold the draws of unseen inputs. The
tail is assumed to be exponential within the largest tenth of the samples, and the interval ends where `RATE` of the
samples are beyond it. Ranges by unit are judged by held-out samples: with hundreds or thousands of units, new samples
exceed a single unit's largest value far more often than the whole layer's.

The degree that the wider interval needs is chosen by passes/polynomials/choose_degree.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.approx.fits.fit import Fit, density
from heliograph.ir import Array, Node, shape_of
from heliograph.passes.ranges.calibrate import Observed, Tails

# The share of samples from the calibration's distribution that a layer's interval may miss.
RATE = 1e-4
# A proved interval is used if it is wider by no more than this factor.
WORTH_A_PROOF = 1.2
# Extra room, growing with each layer of the network. Polynomials move the inputs of the layers after them, and a sample
# leaves the network's ranges if it leaves any layer's; leaving the first one's ruins all that follow.
_ROOM, _ROOM_EACH, _MOST_ROOM = 0.05, 0.03, 0.3
# Few samples say little about a tail: its scale is at least this share of the largest value, and less with more
# samples.
_LEAST_SCALE = 0.7
# A tail is estimated from the largest tenth of the samples, with this many as the least and the most.
_LEAST_TOP, _MOST_TOP = 8, 64
_FOLDS = 4
# With fewer samples than this, no unit gets a size of its own.
_ENOUGH_FOR_UNITS = 8
# Exponents of sizes between a unit's own (1) and the layer's largest (0); and the smallest size, as a share of the
# largest.
_BLENDS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)
_SMALLEST = 1e-6
_MOST_NORMALS = 128
_GRID = 4001


def tail(values: Array, scale: float) -> float:
    """The value that `RATE` of the samples exceed, from the largest of each sample; `scale` is the size of values."""
    ordered = np.sort(values)[::-1]
    count = ordered.size
    top = max(1, min(max(count // 10, _LEAST_TOP), count - 1, _MOST_TOP))
    start = float(ordered[min(top, count - 1)])
    # The mean excess over this many samples has a relative deviation of one over their root; two deviations are added.
    excess = (float(ordered[:top].mean()) - start) * (1.0 + 2.0 / math.sqrt(top))
    excess = max(excess, _LEAST_SCALE / math.sqrt(count) * scale)
    return max(start + excess * math.log(max(top / (count * RATE), 1.0)), float(ordered[0]))


def positive_low(lows: Array) -> float:
    """The value below which `RATE` of the samples have an element; all are positive, and their logarithms have the
    tail.
    """
    logs = np.log(lows)
    return math.exp(-tail(-logs, max(float(np.ptp(logs)), 0.1)))


@dataclass(frozen=True, slots=True)
class Wide:
    """The widened range of a polynomial's operand.

    `low`, `high`: the interval.
    `reach`: the reach of each unit; None without units.
    `margin`: the margin as a share of the samples' width.
    `rounds`: for the operand of a maximum over rows, the reach of the differences that each round compares.
    """

    low: float
    high: float
    reach: Array | None
    margin: float
    rounds: tuple[float, ...] = ()


def widened(observed: Mapping[Node, Observed], room: Mapping[Node, float]) -> dict[Node, Wide]:
    """The widened range of every observed operand of a polynomial; `room` has the factors by which some need more."""
    watched = {node: seen for node, seen in observed.items() if seen.tails is not None}
    usual = 1.0 + min(_ROOM + _ROOM_EACH * len(watched), _MOST_ROOM)
    return {node: _wide(seen, usual * room.get(node, 1.0), shape_of(node)) for node, seen in watched.items()}


def _wide(seen: Observed, room: float, shape: tuple[int, ...]) -> Wide:
    tails = seen.tails
    assert tails is not None
    width = max(seen.high - seen.low, 1e-6 * max(abs(seen.high), abs(seen.low), 1e-6))
    # Relative to the middle, so that a shift of the distribution moves both ends alike.
    high, low = tail(tails.highs, width), -tail(-tails.lows, width)
    middle, half = (high + low) / 2, (high - low) / 2 * room
    low, high = min(middle - half, seen.low), max(middle + half, seen.high)
    margin = max(seen.low - low, high - seen.high) / width
    rounds = tuple(tail(each.peaks, float(each.peaks.max())) * room for each in seen.rounds)
    if seen.reach is None:
        return Wide(low, high, None, margin, rounds)
    reach = _unit_sizes(tails.peaks) * room
    return Wide(low, high, reach.reshape(np.shape(seen.reach)), margin, rounds)


def _unit_sizes(peaks: Array) -> Array:
    """The range of each unit: of several compromises between its own size and the layer's, the one with the least
    product.

    Each compromise is widened by the tail of held-out samples.
    """
    best: tuple[float, Array] | None = None
    whole, folds = peaks.max(axis=0), _folds(peaks)
    for blend in _BLENDS if peaks.shape[0] >= _ENOUGH_FOR_UNITS else (0.0,):
        sizes = _blended(whole, blend)
        sizes = sizes * tail(_left_out(folds, blend), 1.0)
        price = float(np.log(sizes).mean())
        if best is None or price < best[0]:
            best = price, sizes
    assert best is not None
    return best[1]


def _blended(own: Array, blend: float) -> Array:
    """A compromise between the units' own sizes and the largest of them."""
    largest = max(float(own.max()), _SMALLEST)
    return np.asarray(np.maximum(own, _SMALLEST * largest) ** blend * largest ** (1.0 - blend))


def _folds(peaks: Array) -> list[tuple[Array, Array]]:
    """For each fold of the samples: their units' sizes, and the units' own sizes on the other folds."""
    count = min(_FOLDS, peaks.shape[0])
    return [
        (
            peaks[number::count],
            np.max([peaks[other::count].max(axis=0) for other in range(count) if other != number], axis=0),
        )
        for number in range(count)
        if count > 1
    ]


def _left_out(folds: Sequence[tuple[Array, Array]], blend: float) -> Array:
    """The largest unit of each held-out sample, relative to sizes from the other folds; one without other samples."""
    if not folds:
        return np.ones(1)
    return np.concatenate([(held_out / _blended(own, blend)).max(axis=1) for held_out, own in folds])


@dataclass(frozen=True, slots=True)
class Normals:
    """The distribution of a polynomial's input: one normal for each unit, with its share."""

    mean: Array
    std: Array
    shares: Array

    @classmethod
    def of(cls, tails: Tails, sizes: Array | None) -> Normals:
        """The distribution of values divided by the sizes; shares grow with the squares of the sizes, as errors do."""
        units = tails.mean.size
        sizes = np.ones(units) if sizes is None else sizes.reshape(units, -1).mean(axis=1)
        mean, std, shares = tails.mean / sizes, tails.std / sizes, sizes**2
        # Of many units, a selection evenly spaced by deviation.
        chosen = np.argsort(std, kind="stable")[np.linspace(0, units - 1, min(units, _MOST_NORMALS)).astype(int)]
        return cls(mean[chosen], std[chosen], shares[chosen] / shares[chosen].sum())

    def error(self, polynomial: Fit, function: Callable[[Array], Array]) -> float:
        """The root mean square error of a polynomial on its interval."""
        x, weight = self._grid(polynomial.low, polynomial.high)
        return math.sqrt(float((weight * (polynomial(x) - function(x)) ** 2).sum()))

    def deviation(self, function: Callable[[Array], Array], low: float, high: float) -> float:
        """The standard deviation of a function's values on an interval."""
        x, weight = self._grid(low, high)
        values = function(x)
        return math.sqrt(float((weight * (values - (weight * values).sum()) ** 2).sum()))

    def _grid(self, low: float, high: float) -> tuple[Array, Array]:
        """Points of an interval with their shares."""
        x: Array = np.linspace(low, high, _GRID, dtype=np.float64)
        weight = density(x, self.mean, np.maximum(self.std, (high - low) * 1e-3), self.shares)
        return x, weight / weight.sum()
