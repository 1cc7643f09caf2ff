"""Polynomials of degree 2 as one square: a whole number times y^2, plus a constant, which takes one level instead of two.

c2 x^2 + c1 x + c0 = c2 (x - v)^2 + p(v) with v = -c1 / (2 c2). The maps before and after absorb v and a factor
(fold_scaling.py), so that y = (x - v) / r with r such that c2 r^2, divided by the factor of what comes out, is whole.
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
    """factor * y^2 + constant, in units of the factor that the result is divided by: y is the argument in the interval
    [low, high], which holds the polynomial's own, brought to [-1, 1].

    `frame` is (centre, radius): the argument in the polynomial's own interval, brought to [-1, 1], is centre + radius * y.
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
    """The polynomial of degree 2 with these Chebyshev coefficients on [low, high], its value divided by `divided`, as a
    square; None where the interval would have to be too wide, as for what is nearly a line.
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
    """Whether some factor of its result makes a polynomial a square."""
    return (
        square(coefficients, -1.0, 1.0, 2 * abs(float(coefficients[2])) if len(coefficients) == 3 else 1.0) is not None
    )
