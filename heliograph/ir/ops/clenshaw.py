"""Clenshaw's recurrence, compiled by numba: the operations of chebyshev.py on each value, in its order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from heliograph.ir.node import Array

# Values that stay in the first cache from the first term to the last.
_TOGETHER = 256


def _compiled(function: Callable[..., None]) -> Any:
    """The function compiled, and kept on the disk where a folder can be written to. Products and sums are not fused."""
    try:
        return numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:
        return numba.njit(nogil=True, error_model="numpy")(function)


@_compiled
def clenshaw(
    values: Array,
    result: Array,
    own: Array,
    low: float,
    high: float,
    halved: bool,
    odd: bool,
    constant: float,
    line: float,
) -> None:
    """Write the series of `values`, (n,) float64, to `result`.

    `own`: the coefficients of the recurrence, those of even or of odd terms alone if it is `halved`.
    `constant`, `line`: the first two coefficients of the series.
    """
    # Loops without conditions, of which the compiler makes vectors.
    first, last = own[0], own[-1] if own.size > 1 else 0.0
    t, twice, one, two = np.empty(_TOGETHER), np.empty(_TOGETHER), np.empty(_TOGETHER), np.empty(_TOGETHER)
    for start in range(0, values.size, _TOGETHER):
        count = min(_TOGETHER, values.size - start)
        for i in range(count):
            t[i] = (values[start + i] * 2.0 - (high + low)) / (high - low)
            one[i] = last
            two[i] = 0.0
        if halved:
            for i in range(count):
                twice[i] = t[i] * t[i] * 4.0 - 2.0
        else:
            for i in range(count):
                twice[i] = t[i] * 2.0
        for k in range(own.size - 2, 0, -1):
            added = own[k]
            for i in range(count):
                following = twice[i] * one[i] - two[i] + added
                two[i] = one[i]
                one[i] = following
        if halved and odd:
            for i in range(count):
                result[start + i] = (twice[i] * one[i] - two[i] - one[i] + first) * t[i] + constant
        else:
            for i in range(count):
                result[start + i] = twice[i] * one[i] * 0.5 - two[i] + first
            if halved and line != 0.0:
                for i in range(count):
                    result[start + i] += t[i] * line
