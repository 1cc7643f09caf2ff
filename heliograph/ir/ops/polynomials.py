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
from heliograph.ir.ops.chebyshev import evaluate_chebyshev
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
