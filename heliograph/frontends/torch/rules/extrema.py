"""Rules for the largest and smallest along axes: their values, and their places as numbers or one-hot."""

from __future__ import annotations

import math
from typing import Any

import torch

from heliograph.frontends.torch.rules.decisions import maximum, minimum
from heliograph.frontends.torch.values import Call, Value, axes_of, rule


def _extremum(call: Call, op: str, x: Value, dims: Any, keepdim: bool) -> Value:
    """`max` or `min` over the axes that torch calls `dims`; none of them means all."""
    axes = axes_of(x, dims)
    if len(axes) == 1:
        return Value(call.emit(op, x.node, axis=axes[0], keepdims=True if keepdim else None))
    # The op takes one axis: the reduced axes are merged into the last one.
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    order = (*kept, *axes)
    node = x.node if order == tuple(range(len(order))) else call.emit("permute", x.node, axes=order)
    outer = tuple(x.shape[axis] for axis in kept)
    node = call.emit("reshape", node, shape=(*outer, math.prod(x.shape[axis] for axis in axes)))
    node = call.emit(op, node, axis=len(kept))
    if keepdim:
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
        node = call.emit("reshape", node, shape=shape)
    return Value(node)


def _place(call: Call, x: Value, dim: int, keepdim: bool, largest: bool) -> Value | torch.Tensor:
    """The index of the first largest (smallest) element along one axis."""
    (axis,) = axes_of(x, dim)
    shape = [*x.shape[:axis], *([1] if keepdim else []), *x.shape[axis + 1 :]]
    if x.shape[axis] == 1:
        return torch.zeros(shape, dtype=torch.int64)
    node = x.node if largest else call.emit("neg", x.node)
    node = call.emit("argmax", node, axis=axis, index=True)
    return Value(call.emit("reshape", node, shape=tuple(shape)) if keepdim else node)


@rule("aten.max", "aten.min")
def extremum(call: Call, x: Any, dim: Any = None, keepdim: bool = False, other: Any = None) -> Any:
    largest = call.op == "aten.max"
    second = dim if isinstance(dim, Value | torch.Tensor) else other
    if second is not None:
        return maximum(call, x, second) if largest else minimum(call, x, second)
    value = _extremum(call, "max" if largest else "min", x, dim, keepdim)
    if dim is None:
        return value
    # If one of the two is not read, it is removed when the program is finished.
    return [value, _place(call, x, dim, keepdim, largest)]


@rule("aten.amax", "aten.amin")
def extremum_over_axes(call: Call, x: Any, dim: Any = (), keepdim: bool = False) -> Value:
    return _extremum(call, call.op.removeprefix("aten.a"), x, dim, keepdim)


@rule("aten.any", "aten.all")
def of_flags(call: Call, x: Any, dim: Any = None, keepdim: bool = False) -> Value:
    if x.dtype != torch.bool:
        raise call.refuse(f"it takes {x.dtype} values as true or false", "compare first, for example x > threshold")
    return _extremum(call, "max" if call.op == "aten.any" else "min", x, dim, keepdim)


@rule("aten.aminmax")
def both_extrema(call: Call, x: Any, dim: Any = None, keepdim: bool = False) -> list[Value]:
    return [_extremum(call, op, x, dim, keepdim) for op in ("min", "max")]


@rule("aten.argmax", "aten.argmin")
def place(call: Call, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None:
        x, dim = Value(call.reshaped(x.node, (math.prod(x.shape),))), 0
    return _place(call, x, dim, keepdim, call.op == "aten.argmax")


@rule("aten.topk")
def topk(call: Call, x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> list[Any]:
    if k != 1:
        raise call.refuse(
            f"it gives {k} elements in order, and only the first has a rule",
            "use k=1, or return the scores and sort them on the client after decryption",
        )
    return [_extremum(call, "max" if largest else "min", x, dim, True), _place(call, x, dim, True, largest)]


@rule("aten.one_hot")
def one_hot(call: Call, x: Any, num_classes: int = -1) -> Value:
    number = x.node.inputs[0] if x.node.op == "reshape" else x.node
    if number.op != "argmax" or not number.attrs.get("index"):
        raise call.refuse(
            "it encodes numbers that are not the result of an argmax",
            "encode on the client and give the one-hot vector as the input, or encode x.argmax(dim) itself",
        )
    scores = number.inputs[0]
    rank = len(scores.type.shape)
    axis = number.attrs["axis"]
    size = scores.type.shape[axis]
    if num_classes < size:
        raise call.refuse(
            f"it has {num_classes} classes, and the argmax runs over {size} elements", f"use num_classes={size}"
        )
    node = call.emit("argmax", scores, axis=axis)
    if axis != rank - 1:
        node = call.emit("permute", node, axes=(*(i for i in range(rank) if i != axis), axis))
    if x.node is not number:
        node = call.emit("reshape", node, shape=(*x.shape, size))
    if num_classes > size:
        widths = (0,) * len(x.shape)
        node = call.emit("pad", node, before=(*widths, 0), after=(*widths, num_classes - size))
    return Value(node)
