"""Inputs, constants, arithmetic and products of tensors. Part of `ir/ops/table.py`.

Shapes have no batch axis; a program works on one sample. `evaluate` sees arrays with a leading axis of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.maps.kronecker import gather_map
from heliograph.ir.node import Array, Matrix, Node, shape_of, size_of
from heliograph.ir.ops.bounds import product_bounds, square_bounds
from heliograph.ir.ops.spec import (
    ARITHMETIC,
    EVERYWHERE,
    TENSOR,
    Attrs,
    Bounds,
    Context,
    OpSpec,
    Role,
    define,
    flat_indices,
)
from heliograph.ir.types import CipherType, SlotsType, TensorType, Type

# ---------------------------------------------------------------------------------------------- helpers


def any_secret(operands: Sequence[TensorType]) -> bool:
    return any(operand.secret for operand in operands)


# ---------------------------------------------------------------------------------------------- inputs, constants

# Distributions from which the server may draw a plain input, anew for each run: independent numbers, normal with mean 0 and
# deviation 1, or uniform on [-1, 1].
DISTRIBUTIONS = ("normal", "uniform")


def _input_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    # An input of a packed program is one ciphertext of the named tensor; in a managed program it also has its level and
    # scale.
    secret = a.get("secret", True)
    if "level" in a:
        return CipherType(a["slots"], a["level"], a["log_scale"])
    if "slots" in a:
        return SlotsType(a["slots"], secret)
    if "shape" not in a:
        raise ProgramError(f"input {a['name']!r} has no shape")
    low, high = a.get("low"), a.get("high")
    for bound in (low, high):
        if bound is not None and not math.isfinite(bound):
            raise ProgramError(f"input {a['name']!r}: a range ends at {bound}", hint="leave the range out instead")
    if low is not None and high is not None and low > high:
        raise ProgramError(f"input {a['name']!r}: the range [{low:g}, {high:g}] is empty")
    if "drawn" in a and (secret or a["drawn"] not in DISTRIBUTIONS):
        raise ProgramError(
            f"input {a['name']!r} cannot be drawn: {a['drawn']!r}",
            why="the server draws plain inputs, " + " or ".join(DISTRIBUTIONS),
        )
    if a.get("classes", tuple(a["shape"])[-1:]) not in (tuple(a["shape"])[-1:], *a["shape"][-1:]):
        raise ProgramError(f"input {a['name']!r} of shape {tuple(a['shape'])} does not end in {a['classes']} classes")
    return TensorType(tuple(a["shape"]), secret)


def _no_value(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    raise ProgramError(f"input {a.get('name')!r} has no value")


def _input_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds | None:
    low, high = node.attrs.get("low"), node.attrs.get("high")
    return None if low is None or high is None else (np.full(size_of(node), low), np.full(size_of(node), high))


def _constant_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    value = context.array(node.attrs["value"]).astype(np.float64).ravel()
    return value, value


define(
    OpSpec(
        "input",
        EVERYWHERE,
        (0, 0),
        {
            "name": "str",
            "shape": "ints?",
            "slots": "int?",
            "low": "float?",
            "high": "float?",
            "secret": "bool?",
            "drawn": "str?",
            "classes": "int?",
            "chunk": "int?",
            "level": "int?",
            "log_scale": "float?",
        },
        _input_type,
        _no_value,
        "A value given at run time: a tensor in [low, high], or ciphertext `chunk` of a packed one. A plain one may be "
        "`drawn` by the server, from normal or uniform. One with `classes` is one-hot on its last axis.",
        bounds=_input_bounds,
    )
)
define(
    OpSpec(
        "constant",
        ARITHMETIC,
        (0, 0),
        {"value": "constant"},
        lambda operands, a, context: TensorType(context.shape(a["value"]), secret=False),
        lambda values, a, context: context.array(a["value"])[np.newaxis],
        "A tensor known at compile time.",
        bounds=_constant_bounds,
    )
)

# ---------------------------------------------------------------------------------------------- arithmetic


def broadcast_type(name: str) -> Callable[[Sequence[TensorType], Attrs, Context], Type]:
    def infer(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
        shapes = [operand.shape for operand in operands]
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError:
            raise ProgramError(
                f"{name}: shapes {' and '.join(map(str, shapes))} do not match",
                why="each axis must be equal or 1, counted from the last",
            ) from None
        return TensorType(tuple(shape), any_secret(operands))

    return infer


def align(values: Sequence[Array]) -> list[Array]:
    """Give all values one rank, new axes behind the axis of samples."""
    rank = max(value.ndim for value in values)
    return [value.reshape(value.shape[:1] + (1,) * (rank - value.ndim) + value.shape[1:]) for value in values]


def _broadcast_index(shape: tuple[int, ...], target: tuple[int, ...]) -> Array:
    return np.broadcast_to(flat_indices(shape)[0], target)


def _sum_linear(signs: Sequence[float]) -> Any:
    def linear(operands: Sequence[TensorType], a: Attrs, context: Context) -> tuple[list[Any], Array | None]:
        target = tuple(np.broadcast_shapes(*(operand.shape for operand in operands)))
        return [_spread(operand.shape, target, sign) for operand, sign in zip(operands, signs, strict=True)], None

    def _spread(shape: tuple[int, ...], target: tuple[int, ...], sign: float) -> Any:
        made = gather_map(_broadcast_index(shape, target), shape, target)
        return made.times(sign) if isinstance(made, Matrix) else made * sign

    return linear


def _broadcast(operands: Sequence[Bounds], node: Node) -> list[Bounds]:
    """The bounds of operands for each element of the result."""
    shape = shape_of(node)
    spread = []
    for (low, high), operand in zip(operands, node.inputs, strict=True):
        own = shape_of(operand)
        ends = (np.broadcast_to(end.reshape(own), shape).ravel() if own != shape else end for end in (low, high))
        spread.append((next(ends), next(ends)))
    return spread


def _add_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    (a, b), (c, d) = _broadcast(operands, node)
    return a + c, b + d


def _sub_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    (a, b), (c, d) = _broadcast(operands, node)
    return a - d, b - c


def _mul_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds | None:
    x, y = _broadcast(operands, node)
    made = square_bounds(x) if node.inputs[0] is node.inputs[1] else product_bounds(x, y)
    return made if all(np.isfinite(end).all() for end in made) else None


define(
    OpSpec(
        "add",
        ARITHMETIC,
        (2, 2),
        {},
        broadcast_type("add"),
        lambda values, a, context: np.add(*align(values)),
        "Elementwise sum, with broadcasting.",
        linear=_sum_linear((1.0, 1.0)),
        role=Role.SUM,
        bounds=_add_bounds,
    )
)
define(
    OpSpec(
        "sub",
        ARITHMETIC,
        (2, 2),
        {},
        broadcast_type("sub"),
        lambda values, a, context: np.subtract(*align(values)),
        "Elementwise difference, with broadcasting.",
        linear=_sum_linear((1.0, -1.0)),
        role=Role.SUM,
        bounds=_sub_bounds,
    )
)
define(
    OpSpec(
        "neg",
        TENSOR,
        (1, 1),
        {},
        lambda operands, a, context: operands[0],
        lambda values, a, context: -values[0],
        "The negative.",
        linear=_sum_linear((-1.0,)),
    )
)
define(
    OpSpec(
        "mul",
        ARITHMETIC,
        (2, 2),
        {},
        broadcast_type("mul"),
        lambda values, a, context: np.multiply(*align(values)),
        "Elementwise product, with broadcasting; of two secrets it is a ciphertext product.",
        depth=1,
        role=Role.PRODUCT,
        word="product",
        bounds=_mul_bounds,
    )
)


def _power_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    if a["exponent"] < 1:
        raise ProgramError(f"power: exponent {a['exponent']} is not a whole number of at least 1")
    return operands[0]


define(
    OpSpec(
        "power",
        TENSOR,
        (1, 1),
        {"exponent": "int"},
        _power_type,
        lambda values, a, context: values[0] ** a["exponent"],
        "A whole power, exponent at least 1.",
    )
)


def _matmul_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    left, right = operands
    if not left.shape or not right.shape:
        raise ProgramError("matmul: both operands need at least one axis")
    inner = right.shape[-2] if len(right.shape) > 1 else right.shape[0]
    if left.shape[-1] != inner:
        raise ProgramError(
            f"matmul: shapes {left.shape} and {right.shape} do not match",
            why=f"the last axis of the left ({left.shape[-1]}) must equal the rows of the right ({inner})",
        )
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise ProgramError(
            f"matmul: shapes {left.shape} and {right.shape} do not match",
            why="each axis before the last two must be equal or 1, counted from the last",
        ) from None
    rows = left.shape[-2:-1] if len(left.shape) > 1 else ()
    columns = right.shape[-1:] if len(right.shape) > 1 else ()
    return TensorType((*batch, *rows, *columns), any_secret(operands))


def _matmul(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    left, right = values
    # numpy reads a one-dimensional operand as a row or column; a sample axis must not change that reading.
    row, column = left.ndim == 2, right.ndim == 2
    left = left[:, np.newaxis, :] if row else left
    right = right[:, :, np.newaxis] if column else right
    left, right = align([left, right])
    out = np.matmul(left, right)
    if column:
        out = out[..., 0]
    if row:
        out = out[..., 0] if column else out[..., 0, :]
    return np.asarray(out)


define(
    OpSpec(
        "matmul",
        TENSOR,
        (2, 2),
        {},
        _matmul_type,
        _matmul,
        "Matrix product as numpy's `@`; one side must be known at compile time.",
        effort=lambda node, context: (
            sum(map(size_of, node.inputs)),
            size_of(node) * shape_of(node.inputs[0])[-1],
        ),
    )
)
