"""Least squares under a normal distribution on the whole line, in normalised Hermite polynomials (OLA, section 4).

This is method `hermite` of `heliograph approx`. The compiler's `gaussian` (fit.py) differs: on an interval, with a
floor.

With z = (x - mu) / sigma and h_l orthonormal under N(0, 1), the best polynomial of degree d for E[(f - P)^2] is sum c_l
h_l(z), c_l = E[f(mu + sigma z) h_l(z)], with error E[d] = E[f^2] - sum c_l^2. The coefficients of a degree include
those of all lower degrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heliograph.approx.fits.chebyshev import interpolate
from heliograph.approx.result import Stage
from heliograph.errors import ProgramError

Vector = npt.NDArray[np.float64]

_PANEL = 0.125
_NODES = 16
SPREAD = 10.0  # half the interval of the Chebyshev form, in standard deviations


@dataclass(frozen=True)
class HermiteFit:
    """A least squares polynomial P under N(mu, sigma^2).

    `stage`: P in the Chebyshev basis of [mu - 10 sigma, mu + 10 sigma].
    `hermite`: the c_l, which are also valid beyond that interval.
    `mean_squared_error`: E[(f - P)^2] by quadrature (about ten digits).
    """

    stage: Stage
    hermite: tuple[float, ...]
    mean_squared_error: float


def hermite_values(z: Vector, degree: int) -> Vector:
    """h_0..h_degree at z, one row each: h_(l+1) = (z h_l - sqrt(l) h_(l-1)) / sqrt(l + 1)."""
    made = np.empty((degree + 1, *z.shape))
    made[0] = 1.0
    if degree:
        made[1] = z
    for l in range(1, degree):
        made[l + 1] = (z * made[l] - math.sqrt(l) * made[l - 1]) / math.sqrt(l + 1)
    return made


def least_squares(
    function: Callable[[Vector], Vector], mu: float, sigma: float, degree: int, kinks: Sequence[float] = ()
) -> HermiteFit:
    """The polynomial of that degree with the least mean square error under N(mu, sigma^2)."""
    if not (math.isfinite(mu) and math.isfinite(sigma) and sigma > 0):
        raise ProgramError(f"N({mu:g}, {sigma:g}^2) is not a normal distribution", hint="sigma must be above zero")
    if not 0 <= degree <= 255:
        raise ProgramError(f"degree {degree} is not between 0 and 255")
    z, weights = _quadrature([(k - mu) / sigma for k in kinks], degree)
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.asarray(function(mu + sigma * z), dtype=np.float64)
    if not np.isfinite(values).all():
        raise ProgramError(
            "the function is not finite wherever the normal distribution reaches", hint="a smaller sigma, or a range"
        )
    basis = hermite_values(z, degree)
    coefficients = basis @ (weights * values)
    error = float(np.sum(weights * (values - coefficients @ basis) ** 2))
    low, high = mu - SPREAD * sigma, mu + SPREAD * sigma
    chebyshev = interpolate(lambda x: coefficients @ hermite_values((x - mu) / sigma, degree), low, high, degree)
    # Coefficients of the size of rounding errors become zero, so a symmetric function keeps its cheaper evaluation.
    chebyshev[np.abs(chebyshev) < 2.0**-50 * np.abs(chebyshev).max()] = 0.0
    stage = Stage(tuple(float(c) for c in chebyshev), low, high)
    return HermiteFit(stage, tuple(float(c) for c in coefficients), error)


def errors(
    function: Callable[[Vector], Vector], mu: float, sigma: float, degree: int, kinks: Sequence[float] = ()
) -> Vector:
    """E[0], ..., E[degree]: the mean square error of the best polynomial of each degree (never increasing)."""
    z, weights = _quadrature([(k - mu) / sigma for k in kinks], degree)
    values = np.asarray(function(mu + sigma * z), dtype=np.float64)
    squares = (hermite_values(z, degree) @ (weights * values)) ** 2
    whole = float(np.sum(weights * values**2))
    return np.maximum(whole - np.cumsum(squares), 0.0)


def _quadrature(kinks: Sequence[float], degree: int) -> tuple[Vector, Vector]:
    """Gauss-Legendre nodes on panels cut at the kinks, with weights that include the normal density.

    h_l^2 times the density falls off beyond 2 sqrt(l).
    """
    reach = 2.0 * math.sqrt(degree) + 10.0
    edges = np.arange(-reach, reach + _PANEL / 2, _PANEL)
    edges = np.unique(np.concatenate((edges, [k for k in kinks if abs(k) < reach])))
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    half, middle = np.diff(edges) / 2, (edges[1:] + edges[:-1]) / 2
    z = (middle[:, None] + half[:, None] * nodes).ravel()
    density = np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi)
    return z, (half[:, None] * weights).ravel() * density
