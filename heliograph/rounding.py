"""Rounding that makes results of BLAS, LAPACK or SIMD code independent of the processor before they are stored.

Two processors sum in different orders and differ in the last bits of a float64. A number that enters a program is
rounded to far fewer bits, so that both get the same result, except in the rare case that a rounding boundary lies
between them. Intervals are rounded outward, so that they still contain all their values.
"""

from __future__ import annotations

import decimal
import math

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]

# Bits that are kept of an interval's larger end.
INTERVAL_BITS = 40
# Bits that are kept of an error or another figure that is meant for reading.
FIGURE_BITS = 20
# Bits that are kept of a difference between two computations, which processors affect more.
SEEN_BITS = 12


def power_of_two(size: float) -> float:
    """The largest power of two not above `size`, or just above it: a size on either side of a power gives the same."""
    if not (size > 0 and math.isfinite(size)):
        return 0.0
    return math.ldexp(0.5, math.frexp(size * (1.0 + 2.0**-20))[1])


def power_above(size: float) -> float:
    """The smallest power of two not below `size`; `size` itself if it is not a positive number."""
    if not (size > 0 and math.isfinite(size)):
        return size
    share, exponent = math.frexp(size)
    return math.ldexp(0.5 if share == 0.5 else 1.0, exponent)


def to_multiples(values: Vector, step: float) -> Vector:
    """The nearest multiples of `step`, a power of two; the values themselves if it is zero."""
    return np.asarray(np.round(values / step) * step + 0.0) if step > 0 else values


def outward(low: float, high: float) -> tuple[float, float]:
    """The interval rounded outward to ends of `INTERVAL_BITS` bits; symmetric if the given interval is."""
    step = power_of_two(max(abs(low), abs(high))) * 2.0**-INTERVAL_BITS
    if not step > 0 or not step * 2.0**INTERVAL_BITS < 2.0**900:
        return low, high
    return math.floor(low / step) * step, math.ceil(high / step) * step


def upward(value: float, bits: int = INTERVAL_BITS) -> float:
    """A positive number rounded up to `bits` bits."""
    step = power_of_two(value) * 2.0**-bits
    return math.ceil(value / step) * step if step > 0 else value


def nearest(value: float, bits: int = FIGURE_BITS) -> float:
    """The nearest number of `bits` bits."""
    step = power_of_two(abs(value)) * 2.0**-bits
    return round(value / step) * step if step > 0 else value


def upward_all(values: Vector, bits: int = INTERVAL_BITS) -> Vector:
    """`upward` of every element of an array of nonnegative numbers."""
    _, exponents = np.frexp(np.asarray(values) * (1.0 + 2.0**-20))
    return np.asarray(np.ldexp(np.ceil(np.ldexp(values, bits + 1 - exponents)), exponents - bits - 1))


def upward_text(value: float, digits: int = 3) -> str:
    """A bound as a text with this many significant digits, rounded up."""
    if not (value > 0 and math.isfinite(value)):
        return f"{value:.{digits}g}"
    with decimal.localcontext() as context:
        context.prec, context.rounding = digits, decimal.ROUND_CEILING
        return f"{float(+decimal.Decimal(value)):.{digits}g}"
