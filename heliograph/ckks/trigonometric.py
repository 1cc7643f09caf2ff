"""Trigonometric series that a bootstrap computes in place of returning its value, in numbers.

The modular reduction turns t into exp(i pi t / T), one step before it extracts the angle again. A polynomial in this
exponential is a Fourier series in t with period 2 T. Its evaluation replaces that last step and a polynomial after the
bootstrap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# The degrees in use: each is the largest for its number of levels.
DEGREES = (3, 7, 15, 31)
# The largest half period T for values in [-1, 1]: values up to T in size can be distinguished.
MOST_HALF_PERIOD = 4.0


@dataclass(frozen=True, slots=True)
class Series:
    """sum over k of a_k cos(k pi t / T) + b_k sin(k pi t / T), for t in [-1, 1].

    `coefficients`: two rows, a and b, of degree + 1 numbers each.
    `half_period`: T.
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
    # Horner's rule on the terms of non-negative frequency; the value is the real part of their sum.
    total = np.zeros_like(turned)
    for c in (a - 1j * b)[::-1]:
        total = total * turned + c
    return np.asarray(total.real)


def series_levels(degree: int) -> int:
    """The levels of a polynomial of that degree in the exponential."""
    return (degree + 1).bit_length() - 1


def levels_deeper(degree: int) -> int:
    """The levels by which a bootstrap with a series of that degree returns lower than one without, whose last step
    takes one level; 0 for degree 0, which means no series.
    """
    return series_levels(degree) - 1 if degree else 0
