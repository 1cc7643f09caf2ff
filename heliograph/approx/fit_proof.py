"""The proved largest error of a polynomial against a function on an interval.

Between kinks a piecewise polynomial less p is a polynomial, and `proof`'s inequality bounds it. An analytic function is
first replaced, on short pieces, by its Chebyshev interpolant of high degree: where |f| <= M in the ellipse of foci at the
piece's ends with semi-axes that sum to rho (in half-lengths), the interpolant of degree n is off by at most
4 M rho^-n / (rho - 1) (Trefethen, Approximation Theory and Approximation Practice, theorem 8.2). All values are taken in
fixed point.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import mpmath
import numpy as np

from heliograph.approx import proof
from heliograph.approx.functions import Analytic, Function, Polynomials, checked_values

_DEGREE = 44
_POINTS = 12
_GRID = 200_001


def largest_error(coefficients: Sequence[float], low: float, high: float, of: Function) -> tuple[float, bool]:
    """(a bound on |p - f| on [low, high], whether it is proved); p by Chebyshev coefficients on [low, high].

    What is proved is within about one per cent of the true error. Only functions registered without a slope are measured.
    """
    if isinstance(of.proof, Polynomials):
        return max(
            _difference_bound(coefficients, low, high, a, b, _shifted(piece, a, b), 0.0)
            for a, b, piece in _pieces(of.proof, low, high)
        ), True
    if isinstance(of.proof, Analytic):
        return max(
            _difference_bound(coefficients, low, high, a, b, *_interpolant(of.proof, a, b))
            for a, b in _short_pieces(of.proof, low, high)
        ), True
    x = np.unique(np.concatenate((np.linspace(low, high, _GRID), [k for k in of.kinks if low < k < high])))
    t = (2 * x - low - high) / (high - low)
    measured = float(np.abs(np.polynomial.chebyshev.chebval(t, np.array(coefficients)) - checked_values(of, x)).max())
    if of.slope is None:
        return measured, False
    # Half a grid step away, f moves by its slope and p by its derivative (bounded by its own image).
    derivative = np.polynomial.chebyshev.chebder(np.array(coefficients)) * 2 / (high - low)
    bottom, top = proof.image(tuple(derivative))
    step = float(np.diff(x).max()) / 2
    return measured * (1 + 1e-12) + step * (of.slope + max(abs(bottom), abs(top))) + 1e-14, True


def _pieces(of: Polynomials, low: float, high: float) -> list[tuple[float, float, tuple[float, ...]]]:
    edges = (-math.inf, *of.kinks, math.inf)
    cut = [
        (max(a, low), min(b, high), piece) for (a, b), piece in zip(itertools.pairwise(edges), of.pieces, strict=True)
    ]
    return [(a, b, piece) for a, b, piece in cut if a < b]


def _shifted(monomials: tuple[float, ...], a: float, b: float) -> list[Any]:
    """Fixed-point Chebyshev coefficients on [a, b] of a line c0 + c1 x (all the built-in pieces are lines)."""
    assert len(monomials) <= 2, "pieces are lines"
    c0, c1 = (*monomials, 0.0)[:2]
    ends = proof.fixed(a), proof.fixed(b)
    slope = proof.fixed(c1)
    middle = proof.fixed(c0) + ((slope * ((ends[0] + ends[1]) >> 1)) >> proof.BITS)
    return [middle, (slope * ((ends[1] - ends[0]) >> 1)) >> proof.BITS]


def _short_pieces(of: Analytic, low: float, high: float) -> list[tuple[float, float]]:
    if of.positive:
        cuts = [low]
        while cuts[-1] * 2 < high:
            cuts.append(cuts[-1] * 2)
        return list(itertools.pairwise([*cuts, high]))
    count = max(1, math.ceil((high - low) / (1.3 * of.strip)))
    return list(itertools.pairwise(float(x) for x in np.linspace(low, high, count + 1)))


def _interpolant(of: Analytic, a: float, b: float) -> tuple[list[Any], float]:
    """(fixed-point Chebyshev coefficients on [a, b] of the interpolant, a bound on its error)."""
    half = (b - a) / 2
    if of.positive:
        # b <= 2 a: with rho = 5 the ellipse stays right of 0.2 a.
        rho = 5.0
    else:
        y = 0.93 * of.strip / half
        rho = y + math.sqrt(y * y + 1)
    rho = min(rho, 20.0)
    reach, height = half * (rho + 1 / rho) / 2, half * (rho - 1 / rho) / 2
    middle = (a + b) / 2
    most = of.bound(middle - reach, middle + reach, height)
    rest = 4 * most * rho**-_DEGREE / (rho - 1)
    count = _DEGREE + 1
    with mpmath.workprec(proof.BITS + 32):
        left, right = mpmath.mpf(a), mpmath.mpf(b)
        nodes = [mpmath.cospi(mpmath.mpf(2 * j + 1) / (2 * count)) for j in range(count)]
        values = [of.exact((left + right) / 2 + (right - left) / 2 * t) for t in nodes]
        scale = mpmath.mpf(2) ** proof.BITS
        samples = np.array([int(mpmath.nint(scale * v)) for v in values], object)
    coefficients = [((row * samples).sum() * 2) // count >> proof.BITS for row in _cosine_rows(count)]
    coefficients[0] >>= 1
    return coefficients, rest + 2.0**-90 * (1 + most)


_rows: dict[int, list[Any]] = {}


def _cosine_rows(count: int) -> list[Any]:
    """Row k: round(2^BITS cos(k (2 j + 1) pi / (2 count))) for all j."""
    if count not in _rows:
        table = proof.cosines(2 * count)
        period = 4 * count
        rows = []
        for k in range(count):
            places = [(k * (2 * j + 1)) % period for j in range(count)]
            rows.append(np.array([table[p if p <= 2 * count else period - p] for p in places], object))
        _rows[count] = rows
    return _rows[count]


def _difference_bound(
    coefficients: Sequence[float], low: float, high: float, a: float, b: float, other: list[Any], rest: float
) -> float:
    """A bound on |p - q| on [a, b], q by fixed-point Chebyshev coefficients there, plus `rest`."""
    degree = max(len(coefficients), len(other)) - 1
    u = proof.cosines(_POINTS * degree)
    # t of [low, high] at the points of [a, b]
    with mpmath.workprec(proof.BITS + 64):
        scale = mpmath.mpf(2) ** proof.BITS
        width = mpmath.mpf(high) - mpmath.mpf(low)
        middle = int(mpmath.nint(scale * (mpmath.mpf(a) + mpmath.mpf(b) - mpmath.mpf(low) - mpmath.mpf(high)) / width))
        half = int(mpmath.nint(scale * (mpmath.mpf(b) - mpmath.mpf(a)) / width))
    t = middle + ((half * u) >> proof.BITS)
    difference = proof.clenshaw([proof.fixed(c) for c in coefficients], t) - proof.clenshaw(other, u)
    size = math.ceil(sum(abs(float(c)) for c in coefficients)) + 1 + sum(abs(c) for c in other) // 2**proof.BITS
    slip = 64 * (degree + 2) ** 2 * (size + 1)
    least, most = int(difference.min()) - slip, int(difference.max()) + slip
    slack = (most - least) * (12_338 * (_POINTS**2 + 3)) // (20_000 * _POINTS**4) + 1
    bottom, top = proof.outward(least - slack, most + slack)
    return (max(-bottom, top) + rest) * (1 + 1e-15)
