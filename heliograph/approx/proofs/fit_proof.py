"""The proved largest error of a polynomial against a function on an interval.

Between kinks, a piecewise polynomial minus p is a polynomial, and the inequality of `proof` bounds it. An analytic
function is first replaced, on short pieces, by its Chebyshev interpolant of high degree. If |f| <= M in the ellipse
with foci at the piece's ends and semi-axes that sum to rho (in half-lengths), the interpolant of degree n is off by at
most 4 M rho^-n / (rho - 1) (Trefethen, Approximation Theory and Approximation Practice, theorem 8.2). The interpolant
is never computed: at the points of the inequality, it equals f up to this error.

Values are first computed in float64, with a bound on their rounding (for f: 64 units in the last place of the piece's
largest value, where libraries promise a few); this takes milliseconds. A piece with rounding that is not small beside
the error is computed again in fixed point, with f by mpmath.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np

from heliograph.approx.proofs import proof
from heliograph.functions import Analytic, Function, Polynomials, Vector, checked_values

_DEGREE = 44
_POINTS = 12
_GRID = 200_001
# In float64: the degree of an analytic piece's interpolant, the points per degree, and the largest share of rounding in
# a bound.
_FLOAT_DEGREE = 32
_FLOAT_POINTS = 16
_FLOAT_SHARE = 0.01
_FLOAT_UNIT = 2.0**-52
_FUNCTION_UNIT = 2.0**-46
_AT_ONCE = 1 << 20
_MOST_PIECES = 20_000
# For bounds from a slope: the excess of a bound over the largest error found, and the numbers of cells and points.
_SLOPE_SHARE = 0.01
_SLOPE_CELLS = 4096
_SLOPE_POINTS = 1_000_000
# Next to zero, an increasing function is bounded by its values at the ends.
_NEAR_ZERO = 2.0**-44


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of an interval.

    `degree`: the degree of the polynomial that replaces f there.
    `rest`: the error of that polynomial.
    `line`: the monomial coefficients of f if it is a line, else None.
    """

    low: float
    high: float
    degree: int
    rest: float
    line: tuple[float, ...] | None = None


def largest_error(
    coefficients: Sequence[float], low: float, high: float, of: Function, negligible: float = 0.0
) -> tuple[float, bool]:
    """(a bound on |p - f| on [low, high], whether it is proved); p by Chebyshev coefficients on [low, high].

    A proved bound is within two per cent of the true error; a bound up to `negligible` may be looser, for speed. The
    error is only measured for functions registered without a slope, and outside the range for which their slope is
    given.
    """
    if of.odd and of.positive and high < 0:
        coefficients = [c if i % 2 else -c for i, c in enumerate(coefficients)]
        low, high = -high, -low
    near, start = 0.0, low
    if of.positive and low == 0 and of.increasing and math.isfinite(float(of.evaluate(np.zeros(1))[0])):
        start = _NEAR_ZERO * high
        near = _between_ends(coefficients, low, high, start, of)
    pieces = _pieces(of, start, high)
    kinks = np.array([k for k in of.kinks if low <= k <= high])
    if pieces is not None and kinks.size:
        # Where f jumps, as a sign does, its value at the jump is on neither piece.
        there = np.abs(_values(coefficients, low, high, kinks) - of.evaluate(kinks))
        near = max(near, float(there.max()) + _slip(coefficients, low, high))
    if pieces is not None:
        found = max(near, _over_pieces(coefficients, low, high, of, pieces, negligible))
        if math.isfinite(found):
            return found, True
    x = np.unique(np.concatenate((np.linspace(low, high, _GRID), [k for k in of.kinks if low < k < high])))
    seen = float(np.abs(_values(coefficients, low, high, x) - checked_values(of, x)).max())
    inside = of.low is None or of.high is None or (of.low <= low and high <= of.high)
    if of.slope is None or not inside:
        return seen, False
    return _by_slope(coefficients, low, high, of, of.slope, seen), True


def _pieces(of: Function, low: float, high: float) -> list[_Piece] | None:
    """The interval in pieces on which f is a polynomial or nearly one; None if nothing is known about f."""
    if isinstance(of.proof, Polynomials):
        return [_line_piece(a, b, line) for a, b, line in _lines(of.proof, low, high)]
    if of.proof is None or (of.proof.positive and not low > 0):
        return None
    made = []
    for a, b in _short_pieces(of.proof, low, min(high, of.proof.beyond)):
        rho, most = _ellipse(of.proof, a, b)
        made.append(_Piece(a, b, _FLOAT_DEGREE, 4 * most * rho**-_FLOAT_DEGREE / (rho - 1)))
        if len(made) > _MOST_PIECES:
            return None
    if high > of.proof.beyond:
        made.append(_line_piece(max(low, of.proof.beyond), high, of.proof.after))
    return made


def _line_piece(a: float, b: float, line: tuple[float, ...]) -> _Piece:
    return _Piece(a, b, max(1, len(line) - 1), 0.0, line)


def _over_pieces(
    coefficients: Sequence[float], low: float, high: float, of: Function, pieces: list[_Piece], negligible: float
) -> float:
    """The bound over all pieces: in float64, and again in fixed point where float64 adds too much."""
    bounds, seen = _in_floats(coefficients, low, high, of, pieces)
    enough = max(negligible, seen * (1.0 + 2 * _FLOAT_SHARE) / math.cos(math.pi / (2 * _FLOAT_POINTS)))
    for place, piece in enumerate(pieces):
        if bounds[place] > enough:
            bounds[place] = min(float(bounds[place]), _in_fixed_point(coefficients, low, high, of, piece))
    return float(bounds.max())


def _in_floats(
    coefficients: Sequence[float], low: float, high: float, of: Function, pieces: list[_Piece]
) -> tuple[Vector, float]:
    """(a bound on |p - f| for each piece, the largest difference found)."""
    degree = len(coefficients) - 1
    width = max(degree, *(piece.degree for piece in pieces))
    t = np.cos(np.linspace(math.pi, 0.0, _FLOAT_POINTS * width + 1))
    slip = _slip(coefficients, low, high)
    # Points are rounded too: they are off by at most a twentieth of their distance, in pieces that are not too narrow.
    near = 1.0 / math.cos(1.05 * math.pi / (2 * _FLOAT_POINTS))
    bounds, seen = np.full(len(pieces), math.inf), 0.0
    rows = max(1, _AT_ONCE // t.size)
    for first in range(0, len(pieces), rows):
        some = pieces[first : first + rows]
        a, b = np.array([p.low for p in some]), np.array([p.high for p in some])
        x = np.clip((a + b)[:, None] / 2 + (b - a)[:, None] / 2 * t, a[:, None], b[:, None])
        x[:, 0], x[:, -1] = a, b
        # At an end, f takes the value it has on this piece.
        smooth = of.proof.values if isinstance(of.proof, Analytic) and of.proof.values is not None else of.evaluate
        exact = np.empty_like(x)
        curved = np.array([p.line is None for p in some])
        exact[curved] = smooth(x[curved])
        for row in np.flatnonzero(~curved):
            exact[row] = _on_line(some[row].line or (), x[row])
        error = np.abs(_values(coefficients, low, high, x) - exact).max(axis=1)
        seen = max(seen, float(error.max()))
        rest = np.array([p.rest for p in some])
        # The size of f, plus that of x, which is a factor of some functions.
        size = np.abs(exact).max(axis=1) + np.maximum(np.abs(a), np.abs(b))
        wide = b - a >= 2e-6 * np.maximum(np.abs(a), np.abs(b))
        made = (error + slip + _FUNCTION_UNIT * size + rest) * near + rest
        bounds[first : first + rows] = np.where(wide & np.isfinite(made), made * (1 + 1e-12), math.inf)
    return bounds, seen


def _in_fixed_point(coefficients: Sequence[float], low: float, high: float, of: Function, piece: _Piece) -> float:
    if piece.line is not None:
        other, rest = _shifted(piece.line, piece.low, piece.high), 0.0
    else:
        assert isinstance(of.proof, Analytic)
        other, rest = _interpolant(of.proof, piece.low, piece.high)
    return _difference_bound(coefficients, low, high, piece.low, piece.high, other, rest)


def _between_ends(coefficients: Sequence[float], low: float, high: float, end: float, of: Function) -> float:
    """A bound on |p - f| on [low, end], where f is nondecreasing."""
    bottom, top = proof.image(
        tuple(coefficients), -1.0, min(1.0, math.nextafter((2 * end - low - high) / (high - low), 2))
    )
    first, last = (float(v) for v in of.evaluate(np.array([low, end])))
    return max(top - first, last - bottom) * (1 + 1e-12)


def _by_slope(coefficients: Sequence[float], low: float, high: float, of: Function, slope: float, seen: float) -> float:
    """A bound on |p - f| from its values and its slope: cells are cut where the slope allows too much."""
    derivative = np.polynomial.chebyshev.chebder(np.array(coefficients)) * 2 / (high - low)
    bottom, top = proof.image(tuple(derivative), tolerance=0.02, small_ends=False)
    steep = slope + max(abs(bottom), abs(top))
    half = (high - low) / (2 * _SLOPE_CELLS)
    middles: Vector = np.asarray(low + half * (2.0 * np.arange(_SLOPE_CELLS) + 1.0), dtype=np.float64)
    looked = 0
    while True:
        error = np.abs(_values(coefficients, low, high, middles) - checked_values(of, middles))
        looked += error.size
        seen = max(seen, float(error.max()))
        upper = error + half * (1 + 1e-6) * steep
        middles = middles[upper > seen * (1 + _SLOPE_SHARE)]
        if not middles.size or looked + 4 * middles.size > _SLOPE_POINTS:
            break
        half /= 4
        middles = np.clip((middles[:, None] + half * np.array([-3.0, -1.0, 1.0, 3.0])).ravel(), low, high)
    bound = seen * (1 + _SLOPE_SHARE) if not middles.size else float(upper.max())
    size = float(np.abs(checked_values(of, np.linspace(low, high, _SLOPE_CELLS, dtype=np.float64))).max())
    return bound + _slip(coefficients, low, high) + _FUNCTION_UNIT * (size + slope * (high - low))


def _values(coefficients: Sequence[float], low: float, high: float, x: Vector) -> Vector:
    return np.asarray(np.polynomial.chebyshev.chebval((2 * x - low - high) / (high - low), np.array(coefficients)))


def _slip(coefficients: Sequence[float], low: float, high: float) -> float:
    """A bound on the rounding of p in float64: through the recurrence, and through t by p' <= degree^2 sum |c|."""
    share = 4.0 + 16.0 * max(abs(low), abs(high)) / (high - low)
    return _FLOAT_UNIT * sum(map(abs, coefficients)) * (len(coefficients) + 1) ** 2 * share


def _on_line(line: tuple[float, ...], x: Any) -> Any:
    c0, c1 = (*line, 0.0)[:2]
    return c0 + c1 * x


def _lines(of: Polynomials, low: float, high: float) -> list[tuple[float, float, tuple[float, ...]]]:
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


def _short_pieces(of: Analytic, low: float, high: float) -> Iterator[tuple[float, float]]:
    """Pieces of [low, high] such that f is analytic in a large enough ellipse around each."""
    a = low
    while a < high:
        if of.positive:
            b = 2 * a
        else:
            # If the strip narrows with |x|, its width at the piece's far end counts.
            length = 1.3 * of.strip(abs(a))
            b = a + 1.3 * of.strip(max(abs(a), abs(a + length)))
        # A small remainder would become a narrow piece of its own.
        b = high if b >= high or (high - b) < 1e-3 * (b - a) else b
        yield a, b
        a = b


def _ellipse(of: Analytic, a: float, b: float) -> tuple[float, float]:
    """(rho of an ellipse around [a, b] in which f is analytic, a bound on |f| there)."""
    half = (b - a) / 2
    if of.positive:
        # b <= 2 a, or slightly more: with rho = 5 the ellipse stays right of 0.19 a.
        rho = 5.0
    else:
        far = max(abs(a), abs(b))
        y = 0.93 * of.strip(far + of.strip(far)) / half
        rho = y + math.sqrt(y * y + 1)
    rho = min(rho, 20.0)
    reach, height = half * (rho + 1 / rho) / 2, half * (rho - 1 / rho) / 2
    middle = (a + b) / 2
    return rho, of.bound(middle - reach, middle + reach, height)


def _interpolant(of: Analytic, a: float, b: float) -> tuple[list[Any], float]:
    """(fixed-point Chebyshev coefficients on [a, b] of the interpolant, a bound on its error)."""
    rho, most = _ellipse(of, a, b)
    rest = 4 * most * rho**-_DEGREE / (rho - 1)
    count = _DEGREE + 1
    with mpmath.workprec(proof.BITS + 32):
        left, right = mpmath.mpf(a), mpmath.mpf(b)
        nodes = [mpmath.cospi(mpmath.mpf(2 * j + 1) / (2 * count)) for j in range(count)]
        values = [of.exact(mpmath, (left + right) / 2 + (right - left) / 2 * t) for t in nodes]
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
    # The points of [a, b], in the coordinate t of [low, high].
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
