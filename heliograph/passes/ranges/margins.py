"""The margin of an interval beyond the calibration samples, and the degree that the wider interval needs.

A sample's largest value at a layer is one draw from a tail; the interval has to hold the draws of unseen inputs. The
tail is assumed to be exponential within the largest tenth of the samples, and the interval ends where `RATE` of the
samples are beyond it. Ranges by unit are judged by held-out samples: with hundreds or thousands of units, new samples
exceed a single unit's largest value far more often than the whole layer's.

A wider interval makes a polynomial worse inside it. So margin and degree are chosen together: the degree is the
smallest of `DEGREES` with an error, under the distribution of the samples, that is no larger than the error of the
usual degree on an interval a tenth wider than the samples, and no large part of the function's variation. For a smooth
function that may be a thousand times less than the encryption's error, so such a function takes the first degree with a
`negligible` error, also from `LOW_DEGREES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from heliograph.approx.fits.fit import Fit, Moments, density
from heliograph.functions import Function
from heliograph.ir import Array, Node, Program, shape_of
from heliograph.passes.ranges.calibrate import Observed, Tails
from heliograph.passes.ranges.units import UnitGroup, unit_groups

# The share of samples from the calibration's distribution that a layer's interval may miss.
RATE = 1e-4
# The reference for a degree's error: this margin, at the first of the degrees. Each degree uses up its levels.
USUAL_MARGIN = 0.1
DEGREES = (15, 31, 63)
# Further degrees for smooth functions, used if their error is negligible: each uses up its levels.
LOW_DEGREES = (3, 7)
# The degrees for a maximum over rows, the same for all rounds: the first with a root mean square error of at most this
# share of the values' standard deviation.
MAX_DEGREES = (31, 63, 127)
_MAXIMUM = 0.08
# A largest error is negligible if it is below this share of the error that encryption may add to a result of the same
# size.
_BELOW_ENCRYPTION = 1 / 16
# A proved interval is used if it is wider by no more than this factor.
WORTH_A_PROOF = 1.2
# A degree is kept if its error is larger by no more than this factor: less error is not worth a level.
_SLACK = 1.08
# The usual degree is too low if its error exceeds this share of the standard deviation of the function's values.
_WORST = 0.15
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


def widened(observed: Mapping[Node, Observed]) -> dict[Node, Wide]:
    """The widened range of every observed operand of a polynomial."""
    watched = {node: seen for node, seen in observed.items() if seen.tails is not None}
    room = min(_ROOM + _ROOM_EACH * len(watched), _MOST_ROOM)
    return {node: _wide(seen, (1.0 + room) * seen.room, shape_of(node)) for node, seen in watched.items()}


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
    for blend in _BLENDS if peaks.shape[0] >= _ENOUGH_FOR_UNITS else (0.0,):
        sizes = _blended(peaks, blend)
        sizes = sizes * tail(_left_out(peaks, blend), 1.0)
        price = float(np.log(sizes).mean())
        if best is None or price < best[0]:
            best = price, sizes
    assert best is not None
    return best[1]


def _blended(peaks: Array, blend: float) -> Array:
    own = peaks.max(axis=0)
    largest = max(float(own.max()), _SMALLEST)
    return np.asarray(np.maximum(own, _SMALLEST * largest) ** blend * largest ** (1.0 - blend))


def _left_out(peaks: Array, blend: float) -> Array:
    """The largest unit of each held-out sample, relative to sizes from the other folds."""
    count = peaks.shape[0]
    if count == 1:
        return np.ones(1)
    fold = np.arange(count) % min(_FOLDS, count)
    ratios = np.empty(count)
    for number in range(int(fold.max()) + 1):
        out = fold == number
        ratios[out] = (peaks[out] / _blended(peaks[~out], blend)).max(axis=1)
    return ratios


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


# A polynomial by (degree, low, high, mean, std, shares); least squares are weighted by one normal, or by several with
# shares.
Maker: TypeAlias = "Callable[[int, float, float, Moments, Moments, Array | None], Fit]"


def degrees_of(of: Function) -> tuple[int, ...]:
    """The degrees that a function may take, the smallest first; with a kink, a low one is never good enough."""
    return DEGREES if of.kinks else (*LOW_DEGREES, *DEGREES)


def degree_of_maximum(seen: Observed, errors: Mapping[int, float], closeness: float = 1.0) -> int:
    """The smallest degree of a maximum over rows with a small enough error, or the largest if there is none.

    `closeness` is the allowed share of the usual error.
    """
    if seen.degree is not None and seen.degree in errors:
        return seen.degree
    return next((d for d, error in errors.items() if error <= _MAXIMUM * closeness * seen.std), max(errors))


def negligible(precision: float, size: float) -> float:
    """The largest error that encryption hides in values of that size; `precision` is encryption's error as a share of
    it.
    """
    return _BELOW_ENCRYPTION * precision * size


@dataclass(slots=True)
class Chooser:
    """The choice of polynomials for intervals that are wider than the samples.

    `observed`: the samples' statistics.
    `wide`: the widened ranges.
    `usual`: the unit groups with the usual margin.
    `precision`: the error that encryption may add to a result, as a share of its size.
    `closeness`: the allowed share of the usual error.
    `degrees`: the chosen degrees, by operand.
    """

    observed: Mapping[Node, Observed]
    wide: Mapping[Node, Wide]
    usual: Mapping[Node, UnitGroup]
    precision: float = 0.0
    closeness: float = 1.0
    degrees: dict[Node, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, program: Program, observed: Mapping[Node, Observed], precision: float = 0.0, closeness: float = 1.0
    ) -> Chooser:
        usual = unit_groups(program, observed, USUAL_MARGIN)
        return cls(observed, widened(observed), usual, precision, closeness)

    def groups(self, program: Program) -> dict[Node, UnitGroup]:
        """The unit groups with the widened reach."""
        reaching = {
            node: replace(seen, reach=self.wide[node].reach if node in self.wide else seen.reach)
            for node, seen in self.observed.items()
        }
        return unit_groups(program, reaching, 0.0, WORTH_A_PROOF)

    def polynomial(
        self,
        node: Node,
        of: Function,
        make: Maker,
        low: float,
        high: float,
        degree: int | None,
        sizes: Array | None,
    ) -> Fit:
        """The polynomial of that degree, or of the smallest good enough one; `sizes` are the unit sizes.

        A degree is good enough if its error is as small as usual, or negligible.
        """
        operand = node.inputs[0]
        seen = self.observed[operand]
        assert seen.tails is not None
        normals = Normals.of(seen.tails, sizes)
        degree = degree or seen.degree
        size = 1.0 if sizes is None else float(np.sqrt(np.mean(sizes**2)))
        if degree:
            self.degrees[operand] = degree
            return make(degree, low, high, normals.mean, normals.std, normals.shares)
        deviation = normals.deviation(of.evaluate, low, high)
        usual = self._usual_error(node, of.evaluate, make, seen, low, high)
        allowed = self.closeness * min(_SLACK * usual, _WORST * deviation * size)
        for tried in degrees_of(of):
            made = make(tried, low, high, normals.mean, normals.std, normals.shares)
            if made.max_error <= negligible(self.precision, deviation):
                break
            if tried in DEGREES and normals.error(made, of.evaluate) * size <= allowed:
                break
        self.degrees[operand] = tried
        return made

    def maximum(self, operand: Node, errors: Mapping[int, float]) -> int:
        """The degree of a maximum over the operand's rows, given the error of each degree."""
        self.degrees[operand] = degree_of_maximum(self.observed[operand], errors, self.closeness)
        return self.degrees[operand]

    def _usual_error(
        self, node: Node, function: Callable[[Array], Array], make: Maker, seen: Observed, low: float, high: float
    ) -> float:
        """The error of the first degree, under the distribution of the samples, on a range a tenth wider than theirs.

        Where the function has no value a tenth outside, the range ends at `low` or `high`, the actual interval.
        """
        assert seen.tails is not None
        if node in self.usual:
            group = self.usual[node]
            sizes = group.settle(node, None)
            size, reach = float(np.sqrt(np.mean(sizes**2))), group.reach[node]
            plain = make(DEGREES[0], -reach, reach, seen.mean / size, max(seen.std / size, 1e-3 * reach), None)
            return Normals.of(seen.tails, sizes).error(plain, function) * size
        width = USUAL_MARGIN * max(seen.high - seen.low, 1e-6 * max(abs(seen.high), abs(seen.low), 1e-6))
        ends = np.array((seen.low - width, seen.high + width))
        with np.errstate(all="ignore"):
            ends = np.where(np.isfinite(function(ends)), ends, (low, high))
        plain = make(DEGREES[0], float(ends[0]), float(ends[1]), seen.mean, seen.std, None)
        return Normals.of(seen.tails, None).error(plain, function)
