"""Trigonometric polynomials that a bootstrap computes in place of returning its value, in numbers.

The modular reduction makes exp(i pi t / T) of t, one step before it takes the angle back out of it. A polynomial in that is
a Fourier series of t with the period 2 T. Evaluating it takes the place of the step and of a polynomial afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# The degrees that are used: each takes as many levels as the lower ones after the one before.
DEGREES = (3, 7, 15, 31)
# The half period T of values in [-1, 1]: up to T they are told apart.
MOST_HALF_PERIOD = 4.0


@dataclass(frozen=True, slots=True)
class Series:
    """sum over k of a_k cos(k pi t / T) + b_k sin(k pi t / T), t in [-1, 1], T the `half_period`.

    `coefficients` has two rows, a and b, of degree + 1 numbers each.
    """

    coefficients: Array
    half_period: float

    @property
    def degree(self) -> int:
        return int(self.coefficients.shape[1]) - 1


def evaluate(coefficients: Array, half_period: float, t: Array) -> Array:
    """sum over k of a_k cos(k pi t / T) + b_k sin(k pi t / T), for real t of any shape; the rows are a and b."""
    turned = np.exp(1j * math.pi / half_period * np.real(t))
    a, b = coefficients
    # Horner's rule on the terms of non-negative frequency, of which the value is the real part.
    total = np.zeros_like(turned)
    for c in (a - 1j * b)[::-1]:
        total = total * turned + c
    return np.asarray(total.real)


def series_levels(degree: int) -> int:
    """The levels that a polynomial of that degree in the exponential takes."""
    return (degree + 1).bit_length() - 1


def levels_deeper(degree: int) -> int:
    """How much lower a bootstrap that computes such a series returns than one that returns its value, whose last step takes
    one level; not at all for the degree 0, which stands for none.
    """
    return series_levels(degree) - 1 if degree else 0
