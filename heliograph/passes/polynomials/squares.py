"""Polynomials of degree 2 as one square: a whole number times y^2 plus a constant, which takes one level instead of
two.

c2 x^2 + c1 x + c0 = c2 (x - v)^2 + p(v) with v = -c1 / (2 c2). The maps before and after absorb v and a factor
(fold_scaling.py): y = (x - v) / r, with r such that c2 r^2, divided by the factor of the result, is a whole number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.ir import Array
from heliograph.ir.analysis.depth import MOST_WHOLE

# The new interval is at most this many times as wide as the polynomial's own, which limits the loss of precision.
_WIDEST = 16.0


@dataclass(frozen=True, slots=True)
class Square:
    """A polynomial as factor * y^2 + constant, in units of the factor by which the result is divided.

    `low`, `high`: an interval that contains the polynomial's own; y is the argument mapped from it to [-1, 1].
    `frame`: (centre, radius); the argument, mapped from the polynomial's own interval to [-1, 1], is centre + radius *
    y.
    """

    low: float
    high: float
    factor: int
    constant: float
    frame: tuple[float, float]

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    @property
    def coefficients(self) -> Array:
        """The Chebyshev series in y."""
        return np.array([self.factor / 2 + self.constant, 0.0, self.factor / 2])


def square(coefficients: Sequence[float] | Array, low: float, high: float, divided: float = 1.0) -> Square | None:
    """The square for the polynomial with these Chebyshev coefficients on [low, high], its value divided by `divided`.

    None if the degree is not 2, or if the interval would be too wide, as for a polynomial that is nearly a line.
    """
    if len(coefficients) != 3 or not coefficients[2]:
        return None
    constant, slope, bend = (float(each) for each in coefficients)
    leading = 2 * bend / divided
    centre = -slope / (4 * bend)
    least = 1.0 + abs(centre)
    # A value that exceeds a whole number only by rounding counts as that number.
    whole = abs(leading) * least * least * (1 - 1e-12)
    if not least <= _WIDEST or not whole <= MOST_WHOLE:
        return None
    factor = max(1, math.ceil(whole))
    radius = math.sqrt(factor / abs(leading))
    if radius > _WIDEST:
        return None
    middle, half = (high + low) / 2, (high - low) / 2
    x = middle + half * centre
    at_centre = (constant - bend + centre * (slope + 2 * bend * centre)) / divided
    factor = factor if leading > 0 else -factor
    return Square(x - half * radius, x + half * radius, factor, at_centre, (centre, radius))


def fits_a_square(coefficients: Sequence[float] | Array) -> bool:
    """Whether a polynomial becomes a square for some factor of its result."""
    return (
        square(coefficients, -1.0, 1.0, 2 * abs(float(coefficients[2])) if len(coefficients) == 3 else 1.0) is not None
    )
