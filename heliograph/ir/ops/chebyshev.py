"""Chebyshev series of many values in the clear."""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable

import numpy as np

from heliograph.ir.node import Array
from heliograph.machine import in_threads

# The number of values on which numpy evaluates a series at a time, and on which one thread does.
_TOGETHER, _EACH = 1 << 14, 1 << 18
# numpy takes as long for so many products as numba takes to load.
_LOADED_AFTER = 3e8
# The products that numpy was given.
_given = 0.0


def _compiled(products: float) -> Callable[..., None] | None:
    """The recurrence compiled: the same bits in a fifth of numpy's time. None while it is not worth loading."""
    global _given
    if "numba" not in sys.modules and _given < _LOADED_AFTER:
        _given += products
        return None
    return _kernel()


@functools.cache
def _kernel() -> Callable[..., None] | None:
    """The compiled recurrence. None if numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    from heliograph.ir.ops.clenshaw import clenshaw

    kernel: Callable[..., None] = clenshaw
    return kernel


def evaluate_chebyshev(x: Array, coefficients: Array, low: float, high: float) -> Array:
    """The Chebyshev series on [low, high], by Clenshaw's recurrence, in blocks of values small enough for the cache.

    A series that is even or odd, up to a line or a constant, is one in steps of T_2: T_(k+2) = 2 T_2 T_k - T_(k-2). It
    takes half the work.
    """
    dtype = np.result_type(x, np.float64)
    flat = np.ascontiguousarray(x, dtype=dtype).reshape(-1)
    found = np.empty(flat.shape, dtype=dtype)
    odd = bool(np.any(coefficients[3::2]))
    halved = odd != bool(np.any(coefficients[2::2]))
    own = [float(value) for value in (coefficients[int(odd) :: 2] if halved else coefficients)]
    few = flat.size < _EACH or dtype != np.float64
    kernel = None if few else _compiled(float(flat.size) * len(own))
    line = float(coefficients[1]) if len(coefficients) > 1 else 0.0
    given = np.array(own), float(low), float(high), halved, odd, float(coefficients[0]), line

    def compiled(number: int) -> None:
        part = slice(number * _EACH, (number + 1) * _EACH)
        assert kernel is not None
        kernel(flat[part], found[part], *given)

    def evaluate(number: int) -> None:
        work = np.empty((5, min(_TOGETHER, flat.size)), dtype=found.dtype)
        for start in range(number * _EACH, min((number + 1) * _EACH, flat.size), _TOGETHER):
            block(flat[start : start + _TOGETHER], found[start : start + _TOGETHER], work)

    def block(values: Array, result: Array, work: Array) -> None:
        t, twice, next_one, one, two = (row[: result.size] for row in work)
        np.multiply(values, 2.0, out=t)
        t -= high + low
        t /= high - low
        if halved:
            # 2 T_2 = 4 t^2 - 2
            np.multiply(t, t, out=twice)
            twice *= 4.0
            twice -= 2.0
        else:
            np.multiply(t, 2.0, out=twice)
        one.fill(own[-1] if len(own) > 1 else 0.0)
        two.fill(0.0)
        for value in own[-2:0:-1]:
            np.multiply(twice, one, out=next_one)
            next_one -= two
            next_one += value
            next_one, one, two = two, next_one, one
        # The sum is b_0 F_0 - b_1 F_(-1), with F_0 the first of the functions and F_(-1) the one before.
        np.multiply(twice, one, out=result)
        if halved and odd:
            # F_0 = F_(-1) = t
            result -= two
            result -= one
            result += own[0]
            result *= t
            result += float(coefficients[0])
            return
        # F_0 = 1, and F_(-1) is half of `twice`.
        result *= 0.5
        result -= two
        result += own[0]
        if halved and len(coefficients) > 1 and coefficients[1]:
            t *= float(coefficients[1])
            result += t

    in_threads(evaluate if kernel is None else compiled, -(-flat.size // _EACH), _EACH)
    return found.reshape(np.shape(x))
