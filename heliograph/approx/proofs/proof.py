"""Proofs: images of intervals under polynomials, and bounds on the rounding of their evaluation.

The image of [a, b] under p of degree d: with x = (a + b)/2 + (b - a)/2 cos(theta), p is a trigonometric polynomial of
degree d in theta. Around the point of its largest absolute value, such a polynomial q stays above |q|max cos(d (theta -
theta*)) (M. Riesz, 1914). So its values at points pi/n apart bound it everywhere: |q|max <= max |q(theta_i)| / cos(pi d
/ (2 n)). Applied to p minus the middle of its values, this gives the image within a small share of its own width. The
values are computed in doubles, or in fixed-point integers where doubles would add too much, with a bound on every
rounding, and ends are rounded outward. An interval is halved where the share is still too large relative to the end
that is bounded.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import numpy.typing as npt

from heliograph.approx.evaluate import PowerStep, plan_polynomial
from heliograph.errors import InternalError

Interval = tuple[float, float]

BITS = 160
_TOLERANCE = 5e-4
_PIECES = 200
_FINEST = 1e-13  # relative to an image's width: an end closer to zero counts as zero
_ROUNDOFF = 2.0**-53
_OF_SLACK = (
    64  # doubles are used if their rounding adds at most one part in this many of the slack of Riesz's inequality
)

# Six standard deviations, in a slot, of the rounding error of one rescale at N = 2^17 with a ternary secret:
# 6 sqrt(N (1 + 2 N / 3) / 24) = 2^17. Key switching adds less.
NOISE_BITS = 17


@lru_cache(maxsize=64)
def cosines(count: int) -> Any:
    """round(2^BITS cos(pi i / count)) for i = 0..count, as Python integers; each within 1."""
    with mpmath.workprec(BITS + 32):
        scale = mpmath.mpf(2) ** BITS
        return np.array(
            [int(mpmath.nint(scale * mpmath.cospi(mpmath.mpf(i) / count))) for i in range(count + 1)], object
        )


@lru_cache(maxsize=64)
def _cosines(count: int) -> npt.NDArray[np.float64]:
    """`cosines` as doubles, each within 2^-53."""
    made = np.array([float(c >> (BITS - 100)) for c in cosines(count)]) * 2.0**-100
    made.flags.writeable = False
    return made


def fixed(value: float) -> int:
    """2^BITS value, rounded down (exact unless the value is below 2^-100)."""
    numerator, denominator = float(value).as_integer_ratio()
    return (numerator << BITS) // denominator


def outward(low: int, high: int) -> Interval:
    """Fixed-point integers as floats, rounded outward."""
    return _float(low, -1), _float(high, 1)


def _float(value: int, direction: int) -> float:
    with mpmath.workprec(BITS + 64):
        exact = mpmath.mpf(value) / mpmath.mpf(2) ** BITS
        near = float(exact)
        if (direction < 0 and near > exact) or (direction > 0 and near < exact):
            near = math.nextafter(near, direction * math.inf)
    return near


def clenshaw(coefficients: Sequence[int], t: Any) -> Any:
    """sum c_i T_i(t) in fixed point; every step of the recurrence errs by less than 2 units of 2^-BITS."""
    upper: Any = 0 * t
    lower: Any = 0 * t
    for c in coefficients[:0:-1]:
        upper, lower = c + ((t * upper) >> (BITS - 1)) - lower, upper
    return coefficients[0] + ((t * upper) >> BITS) - lower


def _slack(points: int) -> tuple[int, int]:
    """The share of the values' width that Riesz's inequality adds at either end, for `points` values per degree, as a
    fraction.
    """
    # 1 / cos(x) - 1 <= x^2 / 2 (1 + x^2) for x = pi / (2 points) <= 1/2; pi^2 / 8 < 1.2338
    return 12_338 * (points * points + 3), 20_000 * points**4


def _piece(coefficients: Sequence[float], exact: Any, low: float, high: float, points: int) -> tuple[int, int, int]:
    """(lower, upper, slack) of p on [low, high] in fixed point, by `points` values per degree.

    `exact` are the coefficients in fixed point; `slack` is the width added at either end.
    """
    if low < high:
        least, most, slip = _rounded_values(np.array(coefficients), low, high, points)
        part, whole = _slack(points)
        slack = (most - least + 2 * slip) * (part / whole) * (1.0 + 1e-9)
        if slip * _OF_SLACK <= slack:
            return fixed(least - slip - slack) - 1, fixed(most + slip + slack) + 1, fixed(slack) + 1
    return _exact_piece(exact, math.ceil(sum(map(abs, coefficients))), low, high, points)


def _rounded_values(
    coefficients: npt.NDArray[np.float64], low: float, high: float, points: int
) -> tuple[float, float, float]:
    """The least and the largest value of p at the points, in doubles, and a bound on their errors."""
    degree = len(coefficients) - 1
    t = (low / 2 + high / 2) + (high / 2 - low / 2) * _cosines(points * degree)
    double = 2.0 * t
    upper, lower, largest = np.zeros(len(t)), np.zeros(len(t)), 0.0
    for c in coefficients[:0:-1]:
        upper, lower = c + double * upper - lower, upper
        largest = max(largest, float(upper.max()), -float(upper.min()))
    values = coefficients[0] + t * upper - lower
    # With L the largest |upper| and S = sum |c|: the three roundings of a step err by at most 2^-53 (2.2 L + (S + 2.2
    # L) + (S + 3.2 L)), amplified by U_k <= 2.2 (k + 1); all together by less than 9 (degree + 2)^2 (L + S) 2^-53. A
    # point errs by at most five roundings of numbers up to 1.1, amplified by p' <= 2.2 degree^2 S: less than 13
    # degree^2 S 2^-53.
    size = float(np.abs(coefficients).sum()) * (1.0 + 1e-9)
    slip = _ROUNDOFF * (20 * (degree + 2) ** 2 * (largest + size) + 20 * degree * degree * size)
    return float(values.min()), float(values.max()), slip


def _exact_piece(coefficients: Any, bound: int, low: float, high: float, points: int) -> tuple[int, int, int]:
    """`_piece` by values in fixed point."""
    degree = len(coefficients) - 1
    if low == high:
        t = np.array([fixed(low)], object)
    else:
        a, b = fixed(low), fixed(high)
        t = ((a + b) >> 1) + (((b - a) * cosines(points * max(1, degree))) >> (BITS + 1))
    values = clenshaw(coefficients, t)
    # Rounding: each step of the recurrence errs by at most 2 units, amplified by U_k <= k + 1; each coefficient by one
    # unit; a point by at most 3 units, amplified by p' <= degree^2 sum |c|. Up to 1 + 1 / degree^2, |T_k| <= 2.2 and
    # |U_k| <= 2.2 (k + 1).
    slip = 16 * (2 * (degree + 2) ** 2 + 3 * degree * degree * (bound + 1) + degree + 2)
    least, most = int(values.min()) - slip, int(values.max()) + slip
    part, whole = _slack(points)
    slack = (most - least) * part // whole + 1 if low < high else 0
    return least - slack, most + slack, slack


def image(
    coefficients: Sequence[float],
    low: float = -1.0,
    high: float = 1.0,
    tolerance: float = _TOLERANCE,
    *,
    small_ends: bool = True,
) -> Interval:
    """A proved interval that holds sum c_i T_i(t) for all t in [low, high], close to the true image.

    [low, high] may exceed [-1, 1] by rounding, at most by 1 / degree^2. Each end is within `tolerance` times the
    image's width of the true end and, with `small_ends`, within three times `tolerance` of its own size.
    """
    return _image(tuple(map(float, coefficients)), low, high, tolerance, small_ends)


# Variants of a program that are compiled for comparison have most of their polynomials in common.
@functools.lru_cache(maxsize=512)
def _image(coefficients: tuple[float, ...], low: float, high: float, tolerance: float, small_ends: bool) -> Interval:
    limit = 1.0 + 1.0 / max(1, len(coefficients) - 1) ** 2
    if not -limit <= low <= high <= limit:
        raise InternalError(f"[{low}, {high}] is not in [-1, 1]")
    exact = np.array([fixed(c) for c in coefficients], object)
    if len(exact) == 1:
        return outward(int(exact[0]) - 1, int(exact[0]) + 1)
    points = max(8, math.ceil(1.12 / math.sqrt(2.0 * tolerance)))
    pieces = [(low, high)]
    known: dict[Interval, tuple[int, int, int]] = {}
    while True:
        for piece in pieces:
            known[piece] = _piece(coefficients, exact, *piece, points)
        bottom = min(known, key=lambda piece: known[piece][0])
        top = max(known, key=lambda piece: known[piece][1])
        lower, upper = known[bottom][0], known[top][1]
        width = upper - lower
        pieces = []
        for piece, end in ((bottom, lower), (top, upper)):
            slack = known[piece][2]
            # The ends of an image around zero are about half its width: they need no more precision than the width.
            if small_ends and slack > 2.5 * tolerance * abs(end) + 2**20 and slack > _FINEST * width:
                pieces.append(piece)
        if not pieces or len(known) > _PIECES:
            return outward(lower, upper)
        halves = []
        for a, b in dict.fromkeys(pieces):
            middle = _middle(a, b)
            if not a < middle < b:
                return outward(lower, upper)
            del known[(a, b)]
            halves += [(a, middle), (middle, b)]
        pieces = halves


def _middle(a: float, b: float) -> float:
    """The point at which an interval is cut: its geometric mean if its ends differ by more than a factor of 4."""
    if a > 0 and b > 4 * a:
        return math.sqrt(a * b)
    if b < 0 and a < 4 * b:
        return -math.sqrt(a * b)
    if a < 0 < b:
        return 0.0
    return a / 2 + b / 2


def unit(scale_bits: int) -> float:
    """The error in a slot of one operation at a scale of 2^scale_bits: 2^(NOISE_BITS - scale_bits)."""
    return math.ldexp(1.0, NOISE_BITS - scale_bits)


def rounding_error(coefficients: Sequence[float], scale_bits: int) -> float:
    """A bound on the error of evaluating sum c_i T_i(t), t exact in [-1, 1], by its Paterson-Stockmeyer plan.

    Each power and each sum errs by one `unit` (rescale, encoding and key switch together), and errors of operands
    propagate through products by |xy - x'y'| <= |x| dy + |y| dx + dx dy.
    """
    step_error = unit(scale_bits)
    power = {1: 0.0}
    value: dict[int, tuple[float, float]] = {}
    result = 0.0
    for step in plan_polynomial(coefficients).steps:
        if isinstance(step, PowerStep):
            left, right = power[step.left], power[step.right]
            power[step.index] = 2.0 * (left + right + left * right) + step_error
        else:
            size, error = abs(step.constant), step_error
            for source, g in step.products:
                other_size, other_error = value[source]
                size += other_size
                error += other_error + (other_size + other_error) * power[g]
            for i, weight in step.weights:
                size += abs(weight)
                error += abs(weight) * power[i]
            value[step.target] = (size, error)
            result = error
    return result * (1 + 1e-9)
