"""Interpolation in the Chebyshev basis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


def interpolate(function: Callable[[Vector], Vector], low: float, high: float, degree: int) -> Vector:
    """The Chebyshev coefficients on [low, high] of the interpolant at the Chebyshev points of the first kind."""
    half, middle = (high - low) / 2, (high + low) / 2
    chebinterpolate: Any = np.polynomial.chebyshev.chebinterpolate
    return np.asarray(chebinterpolate(lambda t: function(middle + half * np.asarray(t)), degree))


def points(count: int) -> Vector:
    """The extrema of T_(count - 1), ascending: the points at which errors on [-1, 1] are measured."""
    return np.asarray(np.cos(np.linspace(np.pi, 0.0, count)))
