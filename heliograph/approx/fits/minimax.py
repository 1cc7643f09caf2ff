"""Polynomials of least largest error on one or several intervals, by Remez's exchange.

The error is measured on a grid of Chebyshev points of each interval, with the function's kinks, and its extrema are
refined between grid points by parabolas, so that the level of the reference is the least error to about six digits.
Proofs do not rest on it: `proof` bounds the error of the result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heliograph import rounding

Vector = npt.NDArray[np.float64]
Function = Callable[[Vector], Vector]
Interval = tuple[float, float]

# The rounding of coefficients: to a share of the error, or to this many bits of the largest coefficient; fine and
# coarse.
_SHARE_BITS = (20, 12)
_COEFFICIENT_BITS = (48, 40)
_PER_DEGREE = 32
_ROUNDS = 60


@dataclass(frozen=True, slots=True)
class Minimax:
    """A minimax polynomial.

    `coefficients`: Chebyshev coefficients on [-1, 1].
    `level`: the level of the last reference, slightly below the largest error.
    """

    coefficients: tuple[float, ...]
    level: float


def remez(
    function: Function,
    intervals: Sequence[Interval],
    degree: int,
    *,
    parity: int | None = None,
    kinks: Sequence[float] = (),
    weight: Function | None = None,
) -> Minimax:
    """The minimax polynomial for the function on a union of intervals of [-1, 1].

    `intervals`: disjoint and in order; an interval may be a single point.
    `parity`: 1 or 0 allows only odd or even polynomials; the intervals are then on one side of zero.
    `kinks`: points at which the function is not smooth.
    `weight`: a positive weight of the error.
    """
    orders = np.arange(degree + 1) if parity is None else np.arange(parity, degree + 1, 2)
    count = len(orders)
    grid, segment = _grid(intervals, degree, kinks)

    def scaled(at: Vector) -> tuple[Vector, Vector]:
        """The basis and the function at points, times the weight."""
        by = np.ones_like(at) if weight is None else np.asarray(weight(at))
        return _basis(at, orders) * by[:, None], np.asarray(function(at), dtype=np.float64) * by

    basis, target = scaled(grid)
    reference = _start(grid, segment, count + 1, degree)
    signs = (-1.0) ** np.arange(count + 1)
    best: tuple[float, Vector] | None = None
    level = 0.0
    rows, y = basis[reference], target[reference]
    for _ in range(_ROUNDS):
        solution = np.linalg.solve(np.column_stack((rows, signs)), y)
        c = np.asarray(solution[:-1], dtype=np.float64)
        level = abs(float(solution[-1]))
        error = basis @ c - target
        largest = float(np.abs(error).max())
        if best is None or largest < best[0]:
            best = (largest, c)
        if not math.isfinite(largest) or largest <= level * (1 + 1e-7) + 1e-15:
            break
        chosen = _alternation(error, count + 1)
        if chosen is None:
            break
        rows, y = scaled(_refine(scaled, c, grid, segment, chosen))
        if float(np.abs(rows @ c - y).max()) <= level * (1 + 1e-7) + 1e-15:
            break
    assert best is not None
    coefficients = np.zeros(degree + 1)
    heaviest = 1.0 if weight is None else float(np.asarray(weight(grid)).max())
    coefficients[orders] = rounded(best[1], level / heaviest)
    return Minimax(tuple(float(v) for v in coefficients), level)


def rounded(coefficients: Vector, error: float, coarse: bool = False) -> Vector:
    """The coefficients as multiples of a power of two, which moves the polynomial by at most a millionth of its error.

    Results of BLAS and LAPACK differ between processors in their last, meaningless bits; after the rounding, nearly all
    processors have the same polynomial. If the error itself is tiny, 48 bits of the largest coefficient stay. With
    `coarse` it is a four-thousandth and 40 bits, because weighted least squares differ in more than the last bits.
    """
    share, most = 2.0 ** -_SHARE_BITS[coarse], 2.0 ** -_COEFFICIENT_BITS[coarse]
    step = max(error * share / len(coefficients), float(np.abs(coefficients).max()) * most)
    return rounding.to_multiples(coefficients, rounding.power_of_two(step))


def _basis(x: Vector, orders: npt.NDArray[np.int_]) -> Vector:
    angle = np.arccos(np.clip(x, -1.0, 1.0))
    return np.asarray(np.cos(angle[:, None] * orders[None, :]))


def _grid(intervals: Sequence[Interval], degree: int, kinks: Sequence[float]) -> tuple[Vector, npt.NDArray[np.int_]]:
    """Points in ascending order, and the number of each point's interval (cut at kinks)."""
    pieces: list[Interval] = []
    for low, high in intervals:
        cuts = [low, *(k for k in sorted(kinks) if low < k < high), high]
        pieces += list(itertools.pairwise(cuts)) if low < high else [(low, high)]
    points: list[Vector] = []
    owner: list[npt.NDArray[np.int_]] = []
    for index, (low, high) in enumerate(pieces):
        # Oscillations are spread evenly in the angle, so an interval gets points in proportion to its share of the
        # angle.
        share = (math.acos(max(low, -1.0)) - math.acos(min(high, 1.0))) / math.pi
        count = 1 if low == high else max(40, math.ceil(_PER_DEGREE * (degree + 2) * (share + 0.15)))
        at = (high + low) / 2 + (high - low) / 2 * np.cos(np.linspace(math.pi, 0.0, count))
        at[0], at[-1] = low, high
        if points and points[-1][-1] == at[0]:
            at = at[1:]
        points.append(at)
        owner.append(np.full(len(at), index))
    return np.concatenate(points), np.concatenate(owner)


def _start(grid: Vector, segment: npt.NDArray[np.int_], count: int, degree: int) -> npt.NDArray[np.int_]:
    """The grid indices of a first reference, evenly spaced in the angle over the whole set."""
    angle = np.arccos(np.clip(grid, -1.0, 1.0))[::-1]
    gaps = np.diff(angle, prepend=angle[0])
    owner = segment[::-1]
    jump = np.concatenate(([True], owner[1:] != owner[:-1]))
    # Distances within the set: the gap between two intervals does not count.
    gaps[jump & (gaps > 3 * np.median(gaps))] = 0.0
    along = np.cumsum(gaps)
    chosen = np.searchsorted(along, np.linspace(0.0, along[-1], count))
    chosen = np.minimum(chosen, len(grid) - 1)
    for i in range(1, count):
        chosen[i] = max(chosen[i], chosen[i - 1] + 1)
    for i in range(count - 1, -1, -1):
        chosen[i] = min(chosen[i], len(grid) - count + i)
    return np.asarray(np.sort(len(grid) - 1 - chosen))


def _alternation(error: Vector, count: int) -> npt.NDArray[np.int_] | None:
    """The indices of `count` extrema of alternating sign, as large as possible; None if there are fewer."""
    starts = np.flatnonzero(np.diff(np.signbit(error))) + 1
    bounds = np.concatenate(([0], starts, [len(error)]))
    size = np.abs(error)
    peaks = [int(a + np.argmax(size[a:b])) for a, b in itertools.pairwise(bounds)]
    if len(peaks) < count:
        return None
    while len(peaks) > count:
        if len(peaks) - count == 1:
            peaks.pop(0 if size[peaks[0]] < size[peaks[-1]] else -1)
            continue
        # Dropping two neighbours keeps the signs alternating; an end may be dropped alone.
        pairs = [max(size[a], size[b]) for a, b in itertools.pairwise(peaks)]
        least = int(np.argmin(pairs))
        end = min(size[peaks[0]], size[peaks[-1]])
        if end <= pairs[least]:
            peaks.pop(0 if size[peaks[0]] <= size[peaks[-1]] else -1)
        else:
            del peaks[least : least + 2]
    return np.array(peaks)


def _refine(
    scaled: Callable[[Vector], tuple[Vector, Vector]],
    c: Vector,
    grid: Vector,
    segment: npt.NDArray[np.int_],
    chosen: npt.NDArray[np.int_],
) -> Vector:
    """The extrema between grid points: vertices of parabolas through three neighbours of one smooth piece."""
    x = grid[chosen].copy()
    left, right = np.maximum(chosen - 1, 0), np.minimum(chosen + 1, len(grid) - 1)
    inner = (left < chosen) & (chosen < right)
    inner &= (segment[left] == segment[chosen]) & (segment[right] == segment[chosen])
    if not inner.any():
        return x
    a, b, d = grid[left[inner]], grid[chosen[inner]], grid[right[inner]]
    rows, y = scaled(np.concatenate((a, b, d)))
    fa, fb, fd = np.split(np.abs(rows @ c - y), 3)
    under = (b - a) * (fb - fd) - (b - d) * (fb - fa)
    with np.errstate(divide="ignore", invalid="ignore"):
        vertex = b - 0.5 * ((b - a) ** 2 * (fb - fd) - (b - d) ** 2 * (fb - fa)) / under
    refined = x.copy()
    refined[inner] = np.where(np.isfinite(vertex) & (vertex > a) & (vertex < d), vertex, b)
    return x if (np.diff(refined) <= 0).any() else refined
