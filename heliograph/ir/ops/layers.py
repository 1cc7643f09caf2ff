"""Linear layers: fully connected, convolution, normalization, pooling. Part of `ir/ops/table.py`.

Shapes have no batch axis; `evaluate` sees arrays with a leading axis of samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from heliograph.errors import ProgramError
from heliograph.ir.maps.gather import gather_matrix
from heliograph.ir.maps.kronecker import KroneckerMatrix, identity_places
from heliograph.ir.node import Array, Matrix, Node, SparseMatrix, shape_of, size_of
from heliograph.ir.ops.spec import (
    FEW_ARRAYS,
    NUMPY_CALL,
    TENSOR,
    Attrs,
    Context,
    OpSpec,
    check_constant,
    define,
    flat_indices,
)
from heliograph.ir.types import TensorType, Type


def _linear_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    shape, weight = operands[0].shape, context.shape(a["weight"])
    if len(weight) != 2:
        raise ProgramError(f"linear: weight @{a['weight']} has shape {weight}, not (out, in)")
    rows, cols = weight
    check_constant("linear", a, context, "bias", (rows,))
    if not shape or shape[-1] != cols:
        raise ProgramError(f"linear: input {shape} does not end in {cols}, the columns of weight ({rows}, {cols})")
    return TensorType((*shape[:-1], rows), operands[0].secret)


def _linear(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    # One product for all tokens: numpy multiplies stacks of matrices one by one.
    weight, x = context.array(a["weight"]), values[0]
    out = (x.reshape(-1, x.shape[-1]) @ weight.T).reshape(*x.shape[:-1], weight.shape[0])
    return out + context.array(a["bias"]) if "bias" in a else out


def _linear_map(operands: Sequence[TensorType], a: Attrs, context: Context) -> tuple[list[Any], Array | None]:
    repeat = math.prod(operands[0].shape[:-1])
    weight = context.array(a["weight"]).astype(np.float64)
    matrix: Any
    if repeat == 1:
        matrix = KroneckerMatrix.of(weight[np.newaxis], [identity_places(1)])
    else:
        matrix = scipy.sparse.csr_array(scipy.sparse.kron(np.eye(repeat), scipy.sparse.csr_array(weight)))
    bias = np.tile(context.array(a["bias"]), repeat) if "bias" in a else None
    return [matrix], bias


define(
    OpSpec(
        "linear",
        TENSOR,
        (1, 1),
        {"weight": "constant", "bias": "constant?"},
        _linear_type,
        _linear,
        "x @ weight.T + bias on the last axis; weight is (out, in).",
        linear=_linear_map,
        effort=lambda node, context: (0, size_of(node) * shape_of(node.inputs[0])[-1]),
    )
)


# No axis is longer, so that window indices stay far below the limit of 64 bits.
_MAX_WINDOW = 2**31 - 1


def window_shape(
    op: str, spatial: Sequence[int], kernel: Sequence[int], a: Attrs, dilation: Sequence[int]
) -> tuple[int, ...]:
    for name, values, least in (
        ("kernel", kernel, 1),
        ("stride", a["stride"], 1),
        ("padding", a["padding"], 0),
        ("dilation", dilation, 1),
    ):
        if len(values) != len(spatial) or min(values, default=least) < least:
            raise ProgramError(f"{op}: {name} {tuple(values)} is not one number of at least {least} per spatial axis")
        if max(values, default=least) > _MAX_WINDOW:
            raise ProgramError(f"{op}: {name} {tuple(values)} is more than {_MAX_WINDOW}")
    out = []
    for size, k, stride, pad, dil in zip(spatial, kernel, a["stride"], a["padding"], dilation, strict=True):
        length = (size + 2 * pad - dil * (k - 1) - 1) // stride + 1
        if length < 1:
            raise ProgramError(f"{op}: a window of {k} (dilation {dil}, padding {pad}) does not fit an axis of {size}")
        out.append(length)
    return tuple(out)


def windows(x: Array, kernel: Sequence[int], a: Attrs, dilation: Sequence[int]) -> Array:
    """Sliding windows: (n, C, *spatial) -> (n, C, *out, *kernel), zero-padded."""
    rank = len(kernel)
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in a["padding"])])
    span = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    view: Array = np.lib.stride_tricks.sliding_window_view(x, span, axis=tuple(range(2, 2 + rank)))  # type: ignore[call-overload]
    steps = [slice(None), slice(None), *(slice(None, None, step) for step in (*a["stride"], *dilation))]
    return np.asarray(view[tuple(steps)])


def _conv_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    if len(context.shape(a["weight"])) < 3:
        raise ProgramError(
            f"conv: weight @{a['weight']} has shape {context.shape(a['weight'])}, not (out, in, *kernel)"
        )
    out_channels, per_group, *kernel = context.shape(a["weight"])
    shape = operands[0].shape
    if a["groups"] < 1:
        raise ProgramError(f"conv: {a['groups']} groups")
    check_constant("conv", a, context, "bias", (out_channels,))
    if len(shape) != len(kernel) + 1:
        raise ProgramError(f"conv: input {shape} must be (channels, {len(kernel)} spatial axes), without a batch axis")
    if shape[0] != per_group * a["groups"] or out_channels % a["groups"]:
        raise ProgramError(
            f"conv: input has {shape[0]} channels, weight {context.shape(a['weight'])} with {a['groups']} groups "
            f"takes {per_group * a['groups']}"
        )
    return TensorType((out_channels, *window_shape("conv", shape[1:], kernel, a, a["dilation"])), operands[0].secret)


# The number of windows' elements that are copied at a time: few enough for the cache.
_GATHERED = 1 << 18


def _conv(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    weight = context.array(a["weight"])
    out_channels, per_group, *kernel = weight.shape
    groups, rank = a["groups"], len(kernel)
    patches = windows(values[0], kernel, a, a["dilation"])
    n, channels, *spatial = patches.shape[: 2 + rank]
    # (n, C, *kernel, *spatial): for each sample and group, the weights times a matrix with a column for each place.
    patches = np.moveaxis(patches, range(2 + rank, 2 + 2 * rank), range(2, 2 + rank))
    taps, places = per_group * math.prod(kernel), math.prod(spatial)
    dtype = np.result_type(values[0], weight)
    matrices = weight.reshape(groups, out_channels // groups, taps).astype(dtype, copy=False)
    out = np.empty((n, out_channels, *spatial), dtype=dtype)
    step = max(1, _GATHERED // max(1, channels * math.prod(kernel) * places))
    for start in range(0, n, step):
        block = patches[start : start + step].reshape(-1, groups, taps, places)
        out[start : start + step] = np.matmul(matrices, block).reshape(-1, out_channels, *spatial)
    if "bias" in a:
        out += context.array(a["bias"]).reshape(-1, *([1] * rank))
    return out


def _conv_map(operands: Sequence[TensorType], a: Attrs, context: Context) -> tuple[list[Any], Array | None]:
    weight = context.array(a["weight"]).astype(np.float64)
    out_channels, per_group, *kernel = weight.shape
    groups, rank = a["groups"], len(kernel)
    index = windows(flat_indices((1, *operands[0].shape[1:])) + 1, kernel, a, a["dilation"])[0, 0] - 1
    places, columns = math.prod(index.shape[:rank]), math.prod(operands[0].shape[1:])
    index, weight = index.reshape(places, -1), weight.reshape(out_channels, per_group, -1)
    taps: Array = np.zeros((weight.shape[2], out_channels, per_group * groups))
    own = out_channels // groups
    for g in range(groups):
        here = slice(g * own, (g + 1) * own), slice(g * per_group, (g + 1) * per_group)
        taps[:, here[0], here[1]] = weight[here[0]].transpose(2, 0, 1)
    matrix = KroneckerMatrix.of(taps, [SparseMatrix.of(gather_matrix(tap, columns)) for tap in index.T])
    bias = np.repeat(context.array(a["bias"]), places) if "bias" in a else None
    return [matrix], bias


def _padded(node: Node) -> int:
    """The number of elements of the operand with its padding."""
    channels, *spatial = shape_of(node.inputs[0])
    return channels * math.prod(size + 2 * int(pad) for size, pad in zip(spatial, node.attrs["padding"], strict=True))


def _conv_effort(node: Node, context: Context) -> tuple[int, int]:
    weight = context.shape(node.attrs["weight"])
    places = size_of(node) // weight[0]
    held = _padded(node) + places * math.prod(weight[1:])
    return held, places * math.prod(weight) + node.attrs["groups"] * NUMPY_CALL


define(
    OpSpec(
        "conv",
        TENSOR,
        (1, 1),
        {
            "weight": "constant",
            "bias": "constant?",
            "stride": "ints",
            "padding": "ints",
            "dilation": "ints",
            "groups": "int",
        },
        _conv_type,
        _conv,
        "Cross-correlation of (channels, *spatial) with weight (out, in / groups, *kernel), zero padding.",
        linear=_conv_map,
        effort=_conv_effort,
    )
)


def _batch_norm_affine(a: Attrs, context: Context) -> tuple[Array, Array]:
    mean, var = context.array(a["mean"]), context.array(a["variance"])
    factor = 1.0 / np.sqrt(var.astype(np.float64) + a["eps"])
    if "weight" in a:
        factor = factor * context.array(a["weight"])
    offset = -mean * factor
    if "bias" in a:
        offset = offset + context.array(a["bias"])
    return factor, offset


def _batch_norm_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    if not operands[0].shape or context.shape(a["mean"]) != operands[0].shape[:1]:
        raise ProgramError(
            f"batch_norm: input {operands[0].shape} does not start with {context.shape(a['mean'])} channels"
        )
    for name in ("variance", "weight", "bias"):
        check_constant("batch_norm", a, context, name, operands[0].shape[:1])
    return operands[0]


def _batch_norm(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    factor, offset = _batch_norm_affine(a, context)
    tail = (1,) * (values[0].ndim - 2)
    return values[0] * factor.reshape(-1, *tail) + offset.reshape(-1, *tail)


def _batch_norm_map(operands: Sequence[TensorType], a: Attrs, context: Context) -> tuple[list[Any], Array | None]:
    factor, offset = _batch_norm_affine(a, context)
    repeat = operands[0].size // operands[0].shape[0]
    return [KroneckerMatrix.of(np.diag(factor)[np.newaxis], [identity_places(repeat)])], np.repeat(offset, repeat)


define(
    OpSpec(
        "batch_norm",
        TENSOR,
        (1, 1),
        {
            "mean": "constant",
            "variance": "constant",
            "weight": "constant?",
            "bias": "constant?",
            "eps": "float",
        },
        _batch_norm_type,
        _batch_norm,
        "Normalization by stored statistics on axis 0: (x - mean) / sqrt(variance + eps) * weight + bias.",
        linear=_batch_norm_map,
    )
)


def _pool_weights(shape: tuple[int, ...], a: Attrs) -> Array:
    """The divisor's inverse for each output place (padding counts only where asked)."""
    ones = np.ones((1, 1, *shape))
    inside = windows(ones, a["kernel"], a, (1,) * len(a["kernel"])).sum(axis=tuple(range(-len(a["kernel"]), 0)))[0, 0]
    return np.asarray(1.0 / (np.full_like(inside, math.prod(a["kernel"])) if a["count_include_pad"] else inside))


def _pool_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    shape, rank = operands[0].shape, len(a["kernel"])
    if len(shape) != rank + 1:
        raise ProgramError(f"avg_pool: input {shape} must be (channels, {rank} spatial axes), without a batch axis")
    if len(a["padding"]) == rank and any(2 * pad > k for pad, k in zip(a["padding"], a["kernel"], strict=True)):
        raise ProgramError(f"avg_pool: padding {a['padding']} is more than half of the kernel {a['kernel']}")
    return TensorType((shape[0], *window_shape("avg_pool", shape[1:], a["kernel"], a, (1,) * rank)), operands[0].secret)


def _pool(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    rank = len(a["kernel"])
    patches = windows(values[0], a["kernel"], a, (1,) * rank)
    return np.asarray(patches.sum(axis=tuple(range(-rank, 0))) * _pool_weights(values[0].shape[2:], a))


def _pool_map(operands: Sequence[TensorType], a: Attrs, context: Context) -> tuple[list[Any], None]:
    shape, rank = operands[0].shape, len(a["kernel"])
    index = windows(flat_indices((1, *shape[1:])) + 1, a["kernel"], a, (1,) * rank)[0, 0] - 1
    places = math.prod(index.shape[:rank])
    columns = index.reshape(places, -1)
    weights = np.broadcast_to(_pool_weights(shape[1:], a).reshape(-1, 1), columns.shape)
    rows = np.broadcast_to(np.arange(places)[:, np.newaxis], columns.shape)
    keep = columns >= 0
    entries = (weights[keep], (rows[keep], columns[keep]))
    return [_of_each_channel(shape[0], scipy.sparse.csr_array(entries, shape=(places, math.prod(shape[1:]))))], None


def _of_each_channel(channels: int, matrix: Any) -> Matrix:
    """A map of places, applied to each channel."""
    return KroneckerMatrix.of(np.eye(channels)[np.newaxis], [SparseMatrix.of(matrix)])


def pool_effort(node: Node, context: Context) -> tuple[int, int]:
    """The effort of a mean over windows, which are a view."""
    return 2 * _padded(node), FEW_ARRAYS * size_of(node) * math.prod(node.attrs["kernel"])


define(
    OpSpec(
        "avg_pool",
        TENSOR,
        (1, 1),
        {"kernel": "ints", "stride": "ints", "padding": "ints", "count_include_pad": "bool"},
        _pool_type,
        _pool,
        "The mean over windows of (channels, *spatial).",
        linear=_pool_map,
        effort=pool_effort,
    )
)


def _adaptive_matrix(size: int, out: int) -> Array:
    """Row i averages elements floor(i*size/out) .. ceil((i+1)*size/out) - 1, as PyTorch does."""
    matrix = np.zeros((out, size))
    for i in range(out):
        start, stop = (i * size) // out, -(-(i + 1) * size // out)
        matrix[i, start:stop] = 1.0 / (stop - start)
    return matrix


def _adaptive_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    shape, out = operands[0].shape, a["output_size"]
    if len(shape) != len(out) + 1:
        raise ProgramError(f"adaptive_avg_pool: input {shape} must be (channels, {len(out)} spatial axes)")
    if min(out, default=1) < 1:
        raise ProgramError(f"adaptive_avg_pool: an output of size {out} is empty")
    return TensorType((shape[0], *out), operands[0].secret)


def _adaptive(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    x = values[0]
    for axis, out in enumerate(a["output_size"], start=2):
        x = np.moveaxis(np.tensordot(x, _adaptive_matrix(x.shape[axis], out), axes=(axis, 1)), -1, axis)
    return x


def _adaptive_map(operands: Sequence[TensorType], a: Attrs, context: Context) -> tuple[list[Any], None]:
    shape = operands[0].shape
    matrix = scipy.sparse.eye_array(1, format="csr")
    for size, out in zip(shape[1:], a["output_size"], strict=True):
        matrix = scipy.sparse.kron(matrix, _adaptive_matrix(size, out), format="csr")
    return [_of_each_channel(shape[0], matrix)], None


def _adaptive_effort(node: Node, context: Context) -> tuple[int, int]:
    """The effort of one axis after the other, each by a dense matrix."""
    shape = list(shape_of(node.inputs[0]))
    held = operations = 0
    for axis, out in enumerate(node.attrs["output_size"], start=1):
        matrix, size = shape[axis] * out, math.prod(shape)
        shape[axis] = out
        held = max(held, matrix + 2 * math.prod(shape) + size)
        operations += size * out + matrix
    return held, operations


define(
    OpSpec(
        "adaptive_avg_pool",
        TENSOR,
        (1, 1),
        {"output_size": "ints"},
        _adaptive_type,
        _adaptive,
        "The mean over windows chosen so that the result has the given spatial size.",
        linear=_adaptive_map,
        effort=_adaptive_effort,
    )
)
