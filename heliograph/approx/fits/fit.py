"""Polynomials for a function on an interval, in the Chebyshev basis of the interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from heliograph import rounding
from heliograph.approx.fits.chebyshev import interpolate, points
from heliograph.approx.fits.minimax import remez, rounded
from heliograph.errors import ProgramError, said
from heliograph.functions import METHODS as METHODS

Function = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]

_DENSE = 20_001  # points at which an error is measured


@dataclass(frozen=True, slots=True)
class Fit:
    """A polynomial on [low, high].

    `coefficients`: in the Chebyshev basis of the interval, rounded (`minimax.rounded`).
    `method`: the method of the fit.
    `max_error`: the largest absolute error on a grid of 20,001 Chebyshev points and the kinks; measured, not proved
    (`fit_proof.largest_error` proves it).
    `rms_error`: the root mean square error under the distribution of the fit (uniform without one).
    """

    low: float
    high: float
    coefficients: tuple[float, ...]
    method: str
    max_error: float
    rms_error: float

    @property
    def degree(self) -> int:
        return len(self.coefficients) - 1

    def __call__(self, x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        t = (2.0 * np.asarray(x) - (self.high + self.low)) / (self.high - self.low)
        return np.asarray(np.polynomial.chebyshev.chebval(t, np.array(self.coefficients)))

    def image(self) -> tuple[float, float]:
        """An interval that holds all values on [low, high]: sampled, widened by the grid's spacing times the slope.

        Between neighbouring Chebyshev points of a grid of n, a polynomial of degree d moves by at most
        d * pi / (2 n) times its largest absolute value (Bernstein's inequality in the angle).
        """
        t = np.cos(np.linspace(0.0, math.pi, _DENSE))
        values = np.polynomial.chebyshev.chebval(t, np.array(self.coefficients))
        slack = self.degree * math.pi / (2 * (_DENSE - 1)) * float(np.abs(values).max()) * 1.01
        return rounding.outward(float(values.min()) - slack, float(values.max()) + slack)


def _with_kinks(t: npt.NDArray[np.float64], low: float, high: float, kinks: Sequence[float]) -> npt.NDArray[np.float64]:
    """The points and the kinks, at which errors peak."""
    inside = [(2 * k - low - high) / (high - low) for k in kinks if low < k < high]
    return np.asarray(np.unique(np.append(t, inside)))


def minimax(
    function: Function, low: float, high: float, degree: int, kinks: Sequence[float] = (0.0,)
) -> npt.NDArray[np.float64]:
    """Chebyshev coefficients of least largest error, by Remez's exchange, or by linear programming if that does not
    converge.

    A function that is even or odd up to a line is fitted as such, on half of a symmetric interval.
    """
    half, middle = (high - low) / 2, (high + low) / 2

    def scaled(t: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray(function(middle + half * t), dtype=np.float64)

    corners = [(k - middle) / half for k in kinks if low < k < high]
    start = interpolate(function, low, high, degree)
    size = float(np.abs(np.polynomial.chebyshev.chebval(points(1000), start) - scaled(points(1000))).max())
    if not size > 0 or not math.isfinite(size):
        return start
    parity, line = symmetry(scaled) if low == -high else (None, np.zeros(2))
    try:
        if parity is None:
            made = remez(scaled, [(-1.0, 1.0)], degree, kinks=corners)
        else:
            # A polynomial of one parity ends at the next lower degree if the degree has the other parity.
            top = degree if degree % 2 == parity else degree - 1
            bent = partial(_less_line, scaled, line)
            corners = sorted({abs(k) for k in corners} - {0.0})
            made = remez(bent, [(0.0, 1.0)], max(top, parity), parity=parity, kinks=corners)
    except np.linalg.LinAlgError:
        return _linear_program(scaled, start, degree, corners)
    out = np.zeros(degree + 1)
    out[: len(made.coefficients)] = made.coefficients[: degree + 1]
    out[: min(2, degree + 1)] += line[: min(2, degree + 1)]
    t = np.unique(np.concatenate((points(max(2000, 40 * degree)), corners)))
    error = float(np.abs(np.polynomial.chebyshev.chebval(t, out) - scaled(t)).max())
    if error > 1.01 * made.level + 1e-14 * float(np.abs(scaled(t)).max()):
        return _linear_program(scaled, start, degree, corners)
    return out if error <= size else start


def _less_line(
    function: Function, line: npt.NDArray[np.float64], t: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    return np.asarray(function(t) - line[0] - line[1] * t)


def symmetry(function: Function) -> tuple[int | None, npt.NDArray[np.float64]]:
    """(0 or 1 if the function on [-1, 1] minus a line is even or odd, else None; the line's two coefficients)."""
    t: npt.NDArray[np.float64] = np.linspace(0.0, 1.0, 257, dtype=np.float64)
    plus, minus = function(t), function(-t)
    scale = max(float(np.abs(plus).max()), float(np.abs(minus).max()), 1e-300)
    slope = (plus - minus) / 2
    if np.abs(slope - slope[-1] * t).max() < 1e-12 * scale:
        return 0, np.array([0.0, slope[-1]])
    if np.abs(plus + minus - 2 * plus[0]).max() < 1e-12 * scale:
        return 1, np.array([plus[0], 0.0])
    return None, np.zeros(2)


def _linear_program(
    function: Function, start: npt.NDArray[np.float64], degree: int, kinks: Sequence[float]
) -> npt.NDArray[np.float64]:
    """Chebyshev coefficients that minimise the largest error over a fine grid of [-1, 1].

    The program is solved for the error of the interpolant `start`, scaled to one: the solver's tolerance (1e-7) is then
    relative to the error, not to the function.
    """
    import scipy.optimize

    t = np.unique(np.concatenate((points(max(1000, 40 * degree)), kinks)))
    basis = np.polynomial.chebyshev.chebvander(t, degree)
    target = function(t) - basis @ start
    size = float(np.abs(target).max())
    ones = np.ones((t.size, 1))
    result = scipy.optimize.linprog(
        np.append(np.zeros(degree + 1), 1.0),
        A_ub=np.block([[basis, -ones], [-basis, -ones]]),
        b_ub=np.concatenate([target, -target]) / size,
        bounds=[(None, None)] * (degree + 1) + [(0, None)],
        method="highs",
    )
    if result.status != 0 or np.abs(basis @ (result.x[:-1] * size) - target).max() > size:
        return start
    return np.asarray(start + result.x[:-1] * size)


# The mean or deviation of one normal, or of each normal in a mixture.
Moments = float | npt.NDArray[np.float64]
# The weight of least squares far from the samples, as a share of the density's peak. It is fixed for one normal, which
# does not have the samples' tails. A mixture does have them: it takes the first weight that keeps the error below this
# share of the function's range, so that values far out are inaccurate but not lost.
FLOOR, _FLOORS_OF_MIXTURES, _MOST_ERROR = 1e-3, (1e-4, 1e-3, 1e-2), 0.1
# The smallest width of a normal in a mixture, as a share of the interval: least squares cannot use a peak at a single
# point.
NARROWEST = 5e-3


def density(
    x: npt.NDArray[np.float64], mean: Moments, std: Moments, shares: npt.NDArray[np.float64] | None = None
) -> npt.NDArray[np.float64]:
    """The density of a normal distribution, or of a mixture of several by their shares, up to a factor."""
    if shares is None:
        return np.asarray(np.exp(-0.5 * ((x - mean) / std) ** 2))
    parts = (x[:, None] - mean) / std
    parts *= parts
    parts *= -0.5
    heights = np.exp(parts, out=parts) @ (shares / std)
    return np.asarray(heights / heights.max())


def gaussian(
    function: Function,
    low: float,
    high: float,
    degree: int,
    mean: Moments,
    std: Moments,
    spread: float = 1.0,
    shares: npt.NDArray[np.float64] | None = None,
) -> npt.NDArray[np.float64]:
    """Chebyshev coefficients of weighted least squares: the weight is the density of N(mean, (spread * std)^2) plus a
    floor.

    The floor (0.1 % of the peak, uniform on [low, high]) keeps the polynomial close to the function in the tails, where
    least squares under the density alone lets it blow up. OLA (section 4) has no floor and no interval; instead it
    widens the density by `spread`, its r. With `shares`, the density is a mixture of normals, and the floor is lower
    where that is harmless.
    """
    half, middle = (high - low) / 2, (high + low) / 2
    t = points(max(2000, 60 * degree))
    x = middle + half * t
    width = np.maximum(spread * std, (high - low) * (1e-3 if shares is None else NARROWEST))
    likely = density(x, mean, width, shares)
    # A function that is even or odd up to a line is fitted as such: the weight is not even, so coefficients dropped
    # only after the fit would be missed.
    parity, line = symmetry(lambda t: np.asarray(function(middle + half * t))) if low == -high else (None, np.zeros(2))
    kept = np.arange(degree + 1) if parity is None else np.arange(parity, degree + 1, 2)
    target = function(x) if parity is None else _less_line(lambda t: np.asarray(function(middle + half * t)), line, t)
    basis = np.polynomial.chebyshev.chebvander(t, degree)[:, kept]
    made = np.zeros(degree + 1)
    for floor in (FLOOR,) if shares is None else _FLOORS_OF_MIXTURES:
        # The points crowd at the ends of the interval; dx turns the sum into an integral over x.
        weight = np.sqrt((likely + floor) * np.gradient(x))
        made[kept] = np.linalg.lstsq(basis * weight[:, None], target * weight, rcond=None)[0]
        if shares is None or np.abs(basis @ made[kept] - target).max() <= _MOST_ERROR * float(np.ptp(function(x))):
            break
    made[: min(2, degree + 1)] += line[: min(2, degree + 1)]
    return made


def fit(
    function: Function,
    low: float,
    high: float,
    degree: int,
    method: str = "minimax",
    mean: Moments | None = None,
    std: Moments | None = None,
    kinks: Sequence[float] = (0.0,),
    spread: float = 1.0,
    shares: npt.NDArray[np.float64] | None = None,
    coarse: bool = False,
) -> Fit:
    """The polynomial of that degree for the function on [low, high].

    `method`: minimax (least largest error), gaussian (least squares weighted by the normal density of `mean` and
    `spread` times `std`, or by a mixture with `shares`), or interpolation. `rms_error` is under the density of `mean`
    and `std` itself.
    `kinks`: the points at which the function's slope may jump.
    `coarse`: rounds coefficients more coarsely; they keep as many bits as the error requires (`minimax.rounded`).

    On an interval symmetric about zero, coefficients that vanish for a function that is even or odd up to a linear term
    (ReLU, GELU, SiLU) are set to exactly zero: evaluation is cheaper without them.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ProgramError(f"a polynomial needs an interval with low < high, not [{low}, {high}]")
    if degree < 1 or degree > 511:
        raise ProgramError(f"degree {degree} is not between 1 and 511")
    if method == "minimax":
        coefficients = minimax(function, low, high, degree, kinks)
    elif method == "gaussian":
        if mean is None or std is None:
            raise ProgramError("method gaussian needs a mean and a standard deviation", hint="give calibration samples")
        coefficients = gaussian(function, low, high, degree, mean, std, spread, shares)
    elif method == "interpolation":
        coefficients = interpolate(function, low, high, degree)
    else:
        raise ProgramError(f"there is no method {method!r}", hint="one of " + ", ".join(METHODS))
    t = _with_kinks(points(_DENSE), low, high, kinks)
    x = (high + low) / 2 + (high - low) / 2 * t
    exact = function(x)
    if not np.isfinite(exact).all():
        raise ProgramError(f"the function is not finite on [{low}, {high}]")
    if method != "minimax":
        coefficients = _symmetrize(function, low, high, coefficients)
    error = np.polynomial.chebyshev.chebval(t, coefficients) - exact
    coefficients = rounded(coefficients, float(np.abs(error).max()), coarse)
    error = np.polynomial.chebyshev.chebval(t, coefficients) - exact
    if mean is not None and std is not None:
        width = np.maximum(std, (high - low) * (1e-3 if shares is None else NARROWEST))
        weight = density(x, mean, width, shares) * np.gradient(x)
    else:
        weight = np.gradient(x)
    rms = math.sqrt(float((weight * error**2).sum() / weight.sum()))
    return Fit(low, high, tuple(float(c) for c in coefficients), method, float(np.abs(error).max()), rms)


def _symmetrize(
    function: Function, low: float, high: float, coefficients: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Drop the odd (or even) coefficients if the function, up to its linear part, is even (or odd)."""
    if low != -high:
        return coefficients
    parity, line = symmetry(lambda t: np.asarray(function(high * t)))
    if parity is None:
        return coefficients
    out = coefficients.copy()
    # The part of the other parity is the line, which is known exactly.
    out[1 - parity :: 2] = 0.0
    if len(out) > 1 - parity:
        out[1 - parity] = line[1 - parity]
    return out


def _unreachable(low: float, high: float, target_error: float, max_degree: int, best: Fit) -> ProgramError:
    return ProgramError(
        f"no polynomial of degree up to {max_degree} reaches error {target_error:g} on [{low:g}, {high:g}]",
        why=f"degree {best.degree} has error {best.max_error:.3g}",
        hint=said("allow a larger {target_error}, or narrow the range by {calibration}"),
    )


def smallest_degree(
    function: Function,
    low: float,
    high: float,
    target_error: float,
    method: str,
    mean: float | None,
    std: float | None,
    max_degree: int = 255,
    spread: float = 1.0,
    kinks: Sequence[float] = (0.0,),
    bound: Callable[[Fit], float] | None = None,
    coarse: bool = False,
) -> Fit:
    """The polynomial of the smallest degree with an error of at most `target_error`.

    The error is `max_error` and, if `bound` is given, also its proved bound. The largest error of a minimax polynomial
    falls with the degree, so bisection finds it; with the other methods it need not fall, and every degree is tried.
    """

    def made(degree: int) -> Fit:
        return fit(function, low, high, degree, method, mean, std, kinks, spread, coarse=coarse)

    def meets(one: Fit) -> bool:
        return one.max_error <= target_error and (bound is None or bound(one) <= target_error)

    if method != "minimax":
        for degree in range(1, max_degree + 1):
            best = made(degree)
            if meets(best):
                return best
        raise _unreachable(low, high, target_error, max_degree, best)
    previous, degree = 0, 1
    best = made(degree)
    while not meets(best):
        if degree >= max_degree:
            raise _unreachable(low, high, target_error, max_degree, best)
        previous, degree = degree, min(2 * degree + 1, max_degree)
        best = made(degree)
    while degree - previous > 1:
        middle = (degree + previous) // 2
        candidate = made(middle)
        if meets(candidate):
            degree, best = middle, candidate
        else:
            previous = middle
    return best
