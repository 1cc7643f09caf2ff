"""The degree of a polynomial on an interval that is wider than the samples.

A wider interval makes a polynomial worse inside it. So the degree is the smallest of `DEGREES` with an error, under the
distribution of the samples, that is no larger than the error of the usual degree on an interval a tenth wider than the
samples, and no large part of the function's variation. For a smooth function that may be a thousand times less than the
encryption's error, so such a function takes the first degree with a `negligible` error, also from `LOW_DEGREES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from heliograph.approx.fits.fit import Fit
from heliograph.functions import Function
from heliograph.ir import Node, Program
from heliograph.passes.polynomials.approximation import Activation
from heliograph.passes.ranges.calibrate import Observed
from heliograph.passes.ranges.margins import Normals
from heliograph.passes.ranges.units import UnitGroup, unit_groups

# The reference for a degree's error: this margin, at the first of the degrees. Each degree uses up its levels.
USUAL_MARGIN = 0.1
DEGREES = (15, 31, 63)
# Further degrees for smooth functions, used if their error is negligible: each uses up its levels.
LOW_DEGREES = (3, 7)
DEFAULT_DEGREE = 15
# The degrees for a maximum over rows, the same for all rounds: the first with a root mean square error of at most this
# share of the values' standard deviation.
MAX_DEGREES = (31, 63, 127)
_MAXIMUM = 0.08
# A largest error is negligible if it is below this share of the error that encryption may add to a result of the same
# size.
_BELOW_ENCRYPTION = 1 / 16
# A degree is kept if its error is larger by no more than this factor: less error is not worth a level.
_SLACK = 1.08
# The usual degree is too low if its error exceeds this share of the standard deviation of the function's values.
_WORST = 0.15
# The number of points at which a function's size is measured.
_SIZED = 257


def degrees_of(of: Function) -> tuple[int, ...]:
    """The degrees that a function may take, the smallest first; with a kink, a low one is never good enough."""
    return DEGREES if of.kinks else (*LOW_DEGREES, *DEGREES)


def degree_of_maximum(seen: Observed, errors: Mapping[int, float], closeness: float = 1.0) -> int:
    """The smallest degree of a maximum over rows with a small enough error, or the largest if there is none.

    `errors` is the root mean square error of each degree, `closeness` the allowed share of the usual error.
    """
    return next((d for d, error in errors.items() if error <= _MAXIMUM * closeness * seen.std), max(errors))


def negligible(precision: float, size: float) -> float:
    """The largest error that encryption hides in values of that size; `precision` is encryption's error as a share of
    it.
    """
    return _BELOW_ENCRYPTION * precision * size


def usual_polynomial(activation: Activation, precision: float) -> Fit:
    """The polynomial of the usual degree, or of a smaller one with a negligible error."""
    for degree in degrees_of(activation.of):
        made = activation.fit(degree)
        size = float(np.ptp(made(np.linspace(made.low, made.high, _SIZED, dtype=np.float64)))) / 2
        if degree == DEFAULT_DEGREE or made.max_error <= negligible(precision, size):
            break
    return made


@dataclass(frozen=True, slots=True)
class Chooser:
    """The choice of degrees for intervals that are wider than the samples.

    `observed`: the samples' statistics.
    `usual`: the unit groups with the usual margin.
    `precision`: the error that encryption may add to a result, as a share of its size.
    `closeness`: the allowed share of the usual error.
    """

    observed: Mapping[Node, Observed]
    usual: Mapping[Node, UnitGroup]
    precision: float = 0.0
    closeness: float = 1.0

    @classmethod
    def of(cls, program: Program, observed: Mapping[Node, Observed], precision: float, closeness: float) -> Chooser:
        return cls(observed, unit_groups(program, observed, USUAL_MARGIN), precision, closeness)

    def polynomial(self, activation: Activation) -> Fit:
        """The polynomial of the smallest degree that is good enough, with an error as small as usual, or negligible."""
        function = activation.of.evaluate
        deviation = activation.inputs.deviation(function, activation.low, activation.high)
        usual = self._usual_error(activation)
        allowed = self.closeness * min(_SLACK * usual, _WORST * deviation * activation.size)
        for tried in degrees_of(activation.of):
            made = activation.fit(tried)
            if made.max_error <= negligible(self.precision, deviation):
                break
            if tried in DEGREES and activation.inputs.error(made, function) * activation.size <= allowed:
                break
        return made

    def _usual_error(self, activation: Activation) -> float:
        """The error of the first degree, under the distribution of the samples, on a range a tenth wider than theirs.

        Where the function has no value a tenth outside, the range ends at those of the actual interval.
        """
        node, function = activation.node, activation.of.evaluate
        seen = self.observed[node.inputs[0]]
        assert seen.tails is not None
        if node in self.usual:
            group = self.usual[node]
            sizes = group.settle(node, None)
            size, reach = float(np.sqrt(np.mean(sizes**2))), group.reach[node]
            mean, std = seen.mean / size, max(seen.std / size, 1e-3 * reach)
            plain = replace(activation, low=-reach, high=reach, mean=mean, std=std, shares=None).fit(DEGREES[0])
            return Normals.of(seen.tails, sizes).error(plain, function) * size
        width = USUAL_MARGIN * max(seen.high - seen.low, 1e-6 * max(abs(seen.high), abs(seen.low), 1e-6))
        ends = np.array((seen.low - width, seen.high + width))
        with np.errstate(all="ignore"):
            low, high = np.where(np.isfinite(function(ends)), ends, (activation.low, activation.high))
        one = replace(activation, low=float(low), high=float(high), mean=seen.mean, std=seen.std, shares=None)
        return Normals.of(seen.tails, None).error(one.fit(DEGREES[0]), function)
