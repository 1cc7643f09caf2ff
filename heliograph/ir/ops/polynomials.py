"""Linear maps and polynomials, of which programs of the polynomial stage consist. Part of `ir/ops/table.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.bootstraps.series import check_series
from heliograph.ir.node import Array, Node, Stage, size_of
from heliograph.ir.ops.bounds import WIDEN
from heliograph.ir.ops.slots.rules import slotwise
from heliograph.ir.ops.spec import (
    ARITHMETIC,
    Attrs,
    Bounds,
    Context,
    OpSpec,
    Role,
    check_constant,
    define,
)
from heliograph.ir.ops.tensors import any_secret
from heliograph.ir.types import TensorType, Type
from heliograph.machine import in_threads


def _affine_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    size = math.prod(a["shape"])
    if len(a["matrices"]) != len(operands):
        raise ProgramError(f"affine: {len(operands)} operands, {len(a['matrices'])} matrices")
    check_constant("affine", a, context, "bias", (size,))
    for operand, name in zip(operands, a["matrices"], strict=True):
        if context.shape(name) != (size, operand.size):
            raise ProgramError(f"affine: matrix @{name} is {context.shape(name)}, not ({size}, {operand.size})")
    return TensorType(tuple(a["shape"]), any_secret(operands))


def _affine(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    total: Any = context.array(a["bias"])[np.newaxis] if "bias" in a else 0.0
    for value, name in zip(values, a["matrices"], strict=True):
        total = total + context.linear_map(name).apply(value.reshape(value.shape[0], -1))
    return np.asarray(total).reshape(-1, *a["shape"])


def _affine_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    middle: Array = np.zeros(size_of(node))
    radius: Array = np.zeros(size_of(node))
    for (low, high), name in zip(operands, node.attrs["matrices"], strict=True):
        matrix = context.linear_map(name)
        middle += matrix.apply((low + high)[np.newaxis] / 2)[0]
        radius += matrix.absolute().apply((high - low)[np.newaxis] / 2)[0]
    if "bias" in node.attrs:
        middle = middle + context.array(node.attrs["bias"])
    radius = radius + WIDEN * (np.abs(middle) + radius)
    return middle - radius, middle + radius


def _affine_effort(node: Node, context: Context) -> tuple[int, int]:
    maps = [context.linear_map(name).effort for name in node.attrs["matrices"]]
    return max(held for held, _ in maps), sum(operations for _, operations in maps)


define(
    OpSpec(
        "affine",
        ARITHMETIC,
        (1, None),
        {"matrices": "constants", "bias": "constant?", "shape": "ints"},
        _affine_type,
        _affine,
        "Sparse linear maps of the flattened operands, summed, plus a bias.",
        depth=1,
        linear=lambda operands, a, context: (
            [context.linear_map(name) for name in a["matrices"]],
            context.array(a["bias"]) if "bias" in a else None,
        ),
        word="linear map",
        bounds=_affine_bounds,
        effort=_affine_effort,
    )
)


def _poly_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    check_series("poly", a, context)
    shape = context.shape(a["coefficients"])
    if len(shape) != 1 or not shape[0]:
        raise ProgramError(f"poly: coefficients @{a['coefficients']} have shape {shape}, not (degree + 1,)")
    if not (math.isfinite(a["low"]) and math.isfinite(a["high"]) and a["low"] < a["high"]):
        raise ProgramError(f"poly: [{a['low']}, {a['high']}] is not an interval with low < high")
    result: Type = operands[0]
    return result


# The number of values on which a polynomial is evaluated at a time, and in one thread.
_TOGETHER, _EACH = 1 << 14, 1 << 18


def evaluate_chebyshev(x: Array, coefficients: Array, low: float, high: float) -> Array:
    """The Chebyshev series on [low, high], by Clenshaw's recurrence, in blocks of values small enough for the cache.

    A series that is even or odd, up to a line or a constant, is one in steps of T_2: T_(k+2) = 2 T_2 T_k - T_(k-2). It
    takes half the work.
    """
    flat = np.ascontiguousarray(x).reshape(-1)
    found = np.empty(flat.shape, dtype=np.result_type(x, np.float64))
    odd = bool(np.any(coefficients[3::2]))
    halved = odd != bool(np.any(coefficients[2::2]))
    own = [float(value) for value in (coefficients[int(odd) :: 2] if halved else coefficients)]

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

    in_threads(evaluate, -(-flat.size // _EACH), _EACH)
    return found.reshape(np.shape(x))


define(
    OpSpec(
        "poly",
        ARITHMETIC | {Stage.PACKED},
        (1, 1),
        {
            "coefficients": "constant",
            "low": "float",
            "high": "float",
            "range": "int?",
            "chunk": "int?",
            "series": "constant?",
            "half_period": "float?",
            "merged": "int?",
        },
        _poly_type,
        lambda values, a, context: evaluate_chebyshev(values[0], context.array(a["coefficients"]), a["low"], a["high"]),
        "A polynomial on [low, high], by its Chebyshev coefficients there; `range` is its entry in the program's `ranges` "
        "and `chunk`, on slots, the ciphertext of a value of several. `series` and `half_period` are a trigonometric "
        "polynomial (ckks/trigonometric.py) that a bootstrap of the operand may compute in its place; where it is `merged`, "
        "one does, and the coefficients are those of the same function.",
        role=Role.POLYNOMIAL,
        rules=slotwise(None),
        effort=lambda node, context: (0, size_of(node) * math.prod(context.shape(node.attrs["coefficients"]))),
    )
)
