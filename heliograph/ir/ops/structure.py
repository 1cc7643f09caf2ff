"""Reductions of tensors, and operations that move, repeat, cut or join their elements. Part of `ir/ops/table.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from heliograph.errors import ProgramError
from heliograph.ir.maps.kronecker import KroneckerMatrix, gather_map, identity_places
from heliograph.ir.node import Array, SparseMatrix, Stage
from heliograph.ir.ops.spec import (
    ARITHMETIC,
    TENSOR,
    Attrs,
    Context,
    ElementBounds,
    OpSpec,
    Role,
    define,
    flat_indices,
)
from heliograph.ir.ops.tensors import align, any_secret
from heliograph.ir.types import TensorType, Type

# ---------------------------------------------------------------------------------------------- helpers


def _structural(
    name: str,
    attrs: dict[str, str],
    infer: Callable[[TensorType, Attrs], tuple[int, ...]],
    move: Callable[[Array, Attrs], Array],
    doc: str,
    stages: frozenset[Stage] = TENSOR,
    bounds: ElementBounds | None = None,
) -> None:
    """Define an op that only moves, repeats or drops elements; `move` works on values and on indices alike."""

    def infer_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
        return TensorType(infer(operands[0], a), operands[0].secret)

    def linear(operands: Sequence[TensorType], a: Attrs, context: Context) -> tuple[list[Any], None]:
        # Shifted by one, so that an element that `move` pads with zero becomes -1, "none".
        index = move(flat_indices(operands[0].shape) + 1, a)[0] - 1
        return [gather_map(index, operands[0].shape, index.shape)], None

    define(
        OpSpec(
            name,
            stages,
            (1, 1),
            attrs,
            infer_type,
            lambda values, a, context: move(values[0], a),
            doc,
            linear=linear,
            role=Role.MOVE,
            bounds=bounds,
        )
    )


def _axes(axes: Sequence[int], rank: int, op: str) -> tuple[int, ...]:
    """Axes as non-negative numbers, sorted."""
    out = []
    for axis in axes:
        if not -rank <= axis < rank:
            raise ProgramError(f"{op}: axis {axis} is out of range for a tensor of rank {rank}")
        out.append(axis % rank)
    if len(set(out)) != len(out):
        raise ProgramError(f"{op}: axes {tuple(axes)} name one axis twice")
    return tuple(sorted(out))


# ---------------------------------------------------------------------------------------------- reductions


def _reduced(shape: tuple[int, ...], a: Attrs, op: str) -> tuple[int, ...]:
    axes = _axes(a["axes"], len(shape), op)
    if a["keepdims"]:
        return tuple(1 if i in axes else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes)


def _define_reduction(name: str, mean: bool, doc: str) -> None:
    def infer(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
        return TensorType(_reduced(operands[0].shape, a, name), operands[0].secret)

    def factor(shape: tuple[int, ...], a: Attrs) -> float:
        return 1.0 / math.prod(shape[i] for i in _axes(a["axes"], len(shape), name)) if mean else 1.0

    def evaluate(values: Sequence[Array], a: Attrs, context: Context) -> Array:
        shape = values[0].shape[1:]
        axes = tuple(axis + 1 for axis in _axes(a["axes"], len(shape), name))
        return np.asarray(values[0].sum(axis=axes, keepdims=a["keepdims"]) * factor(shape, a))

    def linear(operands: Sequence[TensorType], a: Attrs, context: Context) -> tuple[list[Any], None]:
        shape = operands[0].shape
        kept = _reduced(shape, {**a, "keepdims": True}, name)
        if len(shape) > 1 and kept == (shape[0], *(1,) * (len(shape) - 1)):
            # Over all positions of each channel.
            row = SparseMatrix.of(np.full((1, math.prod(shape[1:])), factor(shape, a)))
            return [KroneckerMatrix.of(np.eye(shape[0])[np.newaxis], [row])], None
        if len(shape) > 1 and kept == (1, *shape[1:]):
            # Over all channels of each position.
            weights = np.full((1, 1, shape[0]), factor(shape, a))
            return [KroneckerMatrix.of(weights, [identity_places(math.prod(shape[1:]))])], None
        rows = np.broadcast_to(flat_indices(kept)[0], shape).ravel()
        data = np.full(rows.size, factor(shape, a))
        return [scipy.sparse.csr_array((data, (rows, np.arange(rows.size))), shape=(math.prod(kept), rows.size))], None

    attrs = {"axes": "ints", "keepdims": "bool"}
    define(OpSpec(name, TENSOR, (1, 1), attrs, infer, evaluate, doc, linear=linear, role=Role.MOVE))


_define_reduction("sum", False, "The sum over axes.")
_define_reduction("mean", True, "The mean over axes.")

# ---------------------------------------------------------------------------------------------- structure


def _reshape_shape(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    if min(a["shape"], default=1) < 1 or math.prod(a["shape"]) != operand.size:
        raise ProgramError(f"reshape: {operand.shape} has {operand.size} elements, {a['shape']} another number")
    return tuple(a["shape"])


def _permute_shape(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    if _axes(a["axes"], len(operand.shape), "permute") != tuple(range(len(operand.shape))):
        raise ProgramError(f"permute: axes {a['axes']} do not name each axis of {operand.shape} once")
    return tuple(operand.shape[axis] for axis in a["axes"])


def _slice_key(a: Attrs) -> tuple[slice, ...]:
    return (slice(None), *(slice(*bounds) for bounds in zip(a["starts"], a["stops"], a["steps"], strict=True)))


def _slice_shape(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    if not len(a["starts"]) == len(a["stops"]) == len(a["steps"]) == len(operand.shape):
        raise ProgramError(f"slice: one start, stop and step per axis of {operand.shape}")
    out = []
    for size, start, stop, step in zip(operand.shape, a["starts"], a["stops"], a["steps"], strict=True):
        if step < 1 or not 0 <= start < stop <= size:
            raise ProgramError(f"slice: {start}:{stop}:{step} is empty or outside an axis of {size}")
        out.append(-(-(stop - start) // step))
    return tuple(out)


def _broadcast_to_shape(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    try:
        if np.broadcast_shapes(operand.shape, a["shape"]) == tuple(a["shape"]):
            return tuple(a["shape"])
    except ValueError:
        pass
    raise ProgramError(f"broadcast: {operand.shape} cannot become {a['shape']}")


def _pad_shape(operand: TensorType, a: Attrs) -> tuple[int, ...]:
    if not len(a["before"]) == len(a["after"]) == len(operand.shape) or min((0, *a["before"], *a["after"])) < 0:
        raise ProgramError(f"pad: one non-negative width per side and axis of {operand.shape}")
    return tuple(s + b + e for s, b, e in zip(operand.shape, a["before"], a["after"], strict=True))


_structural(
    "reshape",
    {"shape": "ints"},
    _reshape_shape,
    lambda x, a: x.reshape((x.shape[0], *a["shape"])),
    "The same elements in row-major order under another shape.",
    ARITHMETIC,
    lambda node, operands, context: operands[0],
)
_structural(
    "permute",
    {"axes": "ints"},
    _permute_shape,
    lambda x, a: x.transpose((0, *(axis % (x.ndim - 1) + 1 for axis in a["axes"]))),
    "Axis i of the result is axis axes[i] of the operand.",
)
_structural(
    "slice",
    {"starts": "ints", "stops": "ints", "steps": "ints"},
    _slice_shape,
    lambda x, a: x[_slice_key(a)],
    "start:stop:step on every axis.",
)
_structural(
    "broadcast",
    {"shape": "ints"},
    _broadcast_to_shape,
    lambda x, a: np.broadcast_to(align([x, np.empty((1, *a["shape"]))])[0], (x.shape[0], *a["shape"])),
    "Axes of length 1, and new leading axes, repeated to the given shape.",
)
_structural(
    "pad",
    {"before": "ints", "after": "ints"},
    _pad_shape,
    lambda x, a: np.pad(x, [(0, 0), *zip(a["before"], a["after"], strict=True)]),
    "Zeros around the tensor.",
)


def _repeat_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    if a["count"] < 1:
        raise ProgramError(f"repeat: {a['count']} copies")
    return TensorType((*operands[0].shape, a["count"]), operands[0].secret)


define(
    OpSpec(
        "repeat",
        TENSOR,
        (1, 1),
        {"count": "int"},
        _repeat_type,
        lambda values, a, context: np.repeat(values[0][..., np.newaxis], a["count"], axis=-1),
        "Each element `count` times, on a new last axis. The maps before it are not multiplied into it, as they are into "
        "`broadcast`: they work once, not once for each copy.",
    )
)


def _concat_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    (axis,) = _axes((a["axis"],), len(operands[0].shape), "concat")
    rests = {operand.shape[:axis] + operand.shape[axis + 1 :] for operand in operands}
    if len(rests) > 1:
        raise ProgramError(
            f"concat: shapes {', '.join(str(o.shape) for o in operands)} differ in more than axis {axis}"
        )
    shape = list(operands[0].shape)
    shape[axis] = sum(operand.shape[axis] for operand in operands)
    return TensorType(tuple(shape), any_secret(operands))


def _concat(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    rank = values[0].ndim - 1
    samples = max(value.shape[0] for value in values)
    return np.concatenate(
        [np.broadcast_to(value, (samples, *value.shape[1:])) for value in values], axis=a["axis"] % rank + 1
    )


def _concat_map(operands: Sequence[TensorType], a: Attrs, context: Context) -> tuple[list[Any], None]:
    matrices = []
    for position, operand in enumerate(operands):
        index = [flat_indices(o.shape) if i == position else np.full((1, *o.shape), -1) for i, o in enumerate(operands)]
        joined = _concat(index, a, context)[0]
        matrices.append(gather_map(joined, operand.shape, joined.shape))
    return matrices, None


define(
    OpSpec(
        "concat",
        TENSOR,
        (1, None),
        {"axis": "int"},
        _concat_type,
        _concat,
        "Tensors joined along an axis.",
        linear=_concat_map,
        role=Role.MOVE,
    )
)
