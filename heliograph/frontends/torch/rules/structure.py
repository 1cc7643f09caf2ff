"""Rules for ops that move, repeat or drop elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from heliograph.frontends.torch.values import Call, Value, changes_in, rule
from heliograph.frontends.torch.ways.linear import MANY_PIECES, by_matrix, moved
from heliograph.ir import Node


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.type.shape)  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------------------- shapes


@rule(
    "aten.view",
    "aten.reshape",
    "aten._unsafe_view",
    "aten.flatten",
    "aten.unflatten",
    "aten.view_as",
    "aten.reshape_as",
    "aten.view_copy",
    "aten._reshape_alias",
)
def reshape(call: Call, x: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(x, Value):
        return x.reshape(call.shape)  # to the shape of an encrypted value
    # A truth value is the byte 0 or 1.
    bytes_alike = x.dtype == torch.bool and call.result.dtype in (torch.uint8, torch.int8)
    if x.dtype != call.result.dtype and not bytes_alike:
        raise call.refuse(
            f"it reads the bits of {x.dtype} values as {call.result.dtype}, and encrypted numbers have other bits",
            f"x.to({call.result.dtype}) converts the numbers"
            if call.result.dtype.is_floating_point
            else "do this on the client",
        )
    return Value(call.reshaped(x.node, call.shape))


@rule("aten.squeeze", "aten.squeeze_copy")
def squeeze(call: Call, x: Any, dim: Any = None) -> Value:
    return Value(call.reshaped(x.node, call.shape))


@rule("aten.unsqueeze", "aten.unsqueeze_copy")
def unsqueeze(call: Call, x: Any, dim: int) -> Value:
    return _grown(call, x, dim)


def _grown(call: Call, x: Value, dim: int) -> Value:
    """The value with a new axis of one at `dim`."""
    axis = dim % (x.rank + 1)
    return Value(call.emit("reshape", x.node, shape=(*x.shape[:axis], 1, *x.shape[axis:])))


def _permuted(call: Call, x: Value, dims: Sequence[int]) -> Value:
    axes = tuple(x.axis(dim) for dim in dims)
    return Value(x.node if axes == tuple(range(x.rank)) else call.emit("permute", x.node, axes=axes))


@rule("aten.permute", "aten.permute_copy")
def permute(call: Call, x: Any, dims: Sequence[int]) -> Value:
    return _permuted(call, x, dims)


@rule("aten.transpose", "aten.swapaxes", "aten.swapdims", "aten.transpose_copy")
def transpose(call: Call, x: Any, first: int, second: int) -> Value:
    order = list(range(x.rank))
    order[first], order[second] = order[second], order[first]
    return _permuted(call, x, order)


@rule("aten.t", "aten.numpy_T", "aten.t_copy")
def reversed_axes(call: Call, x: Any) -> Value:
    return _permuted(call, x, list(reversed(range(x.rank))))


@rule("aten.mT", "aten.matrix_H", "aten.adjoint")
def matrix_transpose(call: Call, x: Any) -> Value:
    order = list(range(x.rank))
    return _permuted(call, x, [*order[:-2], order[-1], order[-2]])


@rule("aten.movedim", "aten.moveaxis")
def movedim(call: Call, x: Any, source: Any, destination: Any) -> Value:
    sources = [dim % x.rank for dim in ([source] if isinstance(source, int) else source)]
    targets = [dim % x.rank for dim in ([destination] if isinstance(destination, int) else destination)]
    rest = iter([dim for dim in range(x.rank) if dim not in sources])
    place = dict(zip(targets, sources, strict=True))
    return _permuted(call, x, [place[axis] if axis in place else next(rest) for axis in range(x.rank)])


@rule("aten.expand", "aten.expand_as", "aten.broadcast_to", "aten.expand_copy")
def expand(call: Call, x: Any, *args: Any, **kwargs: Any) -> Any:
    # A tensor expanded to the shape of an encrypted value may be known.
    return _expanded(call, x) if isinstance(x, Value) else _filled(call, x)


def _expanded(call: Call, x: Value) -> Value:
    """The value repeated to the shape that torch recorded."""
    return Value(x.node if call.shape == x.shape else call.emit("broadcast", x.node, shape=call.shape))


@rule("aten.repeat", "aten.tile")
def repeat(call: Call, x: Any, repeats: Sequence[int]) -> Value:
    counts = [1] * (x.rank - len(repeats)) + [int(count) for count in repeats]
    for _ in range(len(counts) - x.rank):
        x = _grown(call, x, 0)
    node = x.node
    for dim, count in enumerate(counts):
        if count == 0:
            raise call.refuse("the result is empty", "repeat at least once")
        if count > 1:
            node = call.emit("concat", *([node] * count), axis=x.axis(dim))
    return Value(node)


# ---------------------------------------------------------------------------------------------- parts


def _part(call: Call, node: Node, axis: int, start: int, stop: int, step: int = 1) -> Node:
    """start:stop:step of one axis of the node; the node itself if that is the whole axis."""
    shape = _shape(node)
    if (start, stop, step) == (0, shape[axis], 1):
        return node
    if start >= stop:
        raise call.refuse("the result is empty", "take at least one element")
    starts, stops, steps = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return call.emit("slice", node, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def _bounds(size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Python's reading of start:end on an axis, clamped to it."""
    first, last, _ = slice(start, end).indices(size)
    return first, last


def _sliced(call: Call, x: Value, dim: int, start: Any, end: Any, step: int = 1) -> Value:
    axis = x.axis(dim)
    first, last = _bounds(x.shape[axis], start, end)
    return Value(_part(call, x.node, axis, first, last, int(step)))


@rule("aten.slice", "aten.slice_copy")
def slice_(call: Call, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    return _sliced(call, x, dim, start, end, step)


@rule("aten.narrow", "aten.narrow_copy")
def narrow(call: Call, x: Any, dim: int, start: int, length: int) -> Value:
    size = x.shape[dim]
    first = start % size if start < 0 else start
    return _sliced(call, x, dim, first, first + length)


def _dropped(call: Call, x: Value, dim: int, index: int) -> Value:
    """Element `index` of one axis, with the axis removed."""
    axis = x.axis(dim)
    index %= x.shape[axis]
    node = _part(call, x.node, axis, index, index + 1)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    return Value(call.emit("reshape", node, shape=shape))


@rule("aten.select", "aten.select_copy")
def select(call: Call, x: Any, dim: int, index: int) -> Value:
    return _dropped(call, x, dim, index)


@rule("aten.unbind", "aten.unbind_copy")
def unbind(call: Call, x: Any, dim: int = 0) -> list[Value]:
    size = x.shape[dim]
    return [_dropped(call, x, dim, index) for index in range(size)]


def _pieces(call: Call, x: Value, dim: int, sizes: Sequence[int]) -> list[Value]:
    axis = x.axis(dim)
    ends = list(itertools.accumulate(sizes))
    return [Value(_part(call, x.node, axis, end - size, end)) for size, end in zip(sizes, ends, strict=True)]


@rule("aten.split", "aten.split_with_sizes", "aten.chunk", "aten.tensor_split", "aten.split_copy")
def split(call: Call, x: Any, amount: Any, dim: int = 0) -> list[Value]:
    # In every form of the call, torch recorded the shape of each piece.
    return _pieces(call, x, dim, [int(piece.shape[dim]) for piece in call.result])


def take(call: Call, x: Value, dim: int, indices: Sequence[int]) -> Value:
    """These elements of one axis in this order: slices of ascending neighbours, joined."""
    axis = x.axis(dim)
    size = x.shape[axis]
    outside = [index for index in indices if not -size <= index < size]
    if outside:
        raise call.refuse(f"index {outside[0]} is out of bounds for an axis of {size}", "use an index within the axis")
    places = [index % size for index in indices]
    if not places:
        raise call.refuse("the result is empty", "take at least one element")
    parts: list[tuple[int, int]] = []
    for place in places:
        if parts and parts[-1][1] == place:
            parts[-1] = (parts[-1][0], place + 1)
        else:
            parts.append((place, place + 1))
    if len(parts) > MANY_PIECES:
        index = np.take(np.arange(math.prod(x.shape)).reshape(x.shape), places, axis=axis)
        return Value(moved(call, x.node, index, index.shape))
    nodes = [_part(call, x.node, axis, start, stop) for start, stop in parts]
    return Value(nodes[0] if len(nodes) == 1 else call.emit("concat", *nodes, axis=axis))


@rule("aten.flip")
def flip(call: Call, x: Any, dims: Sequence[int]) -> Value:
    for dim in dims:
        x = take(call, x, dim, list(reversed(range(x.shape[dim]))))
    return Value(x.node)


@rule("aten.roll")
def roll(call: Call, x: Any, shifts: Any, dims: Any = ()) -> Value:
    moves = [shifts] if isinstance(shifts, int) else list(shifts)
    axes = [dims] if isinstance(dims, int) else list(dims)
    shape = x.shape
    if not axes:
        x, axes = Value(call.reshaped(x.node, (math.prod(shape),))), [0]
    for shift, dim in zip(moves, axes, strict=True):
        size = x.shape[dim]
        x = take(call, x, dim, [(index - shift) % size for index in range(size)])
    return Value(call.reshaped(x.node, shape))


@rule("aten.index_select")
def index_select(call: Call, x: Any, dim: int, index: Any) -> Value:
    if isinstance(index, Value):
        raise call.refuse("the index depends on an input", "use a fixed index, or look up on the client")
    return take(call, x, dim, [int(i) for i in index.reshape(-1)])


_BY_PLACE = "use a fixed index; at the place of a largest element, write F.one_hot(x.argmax(dim), n).float() @ table"


@rule("aten.index")
def index(call: Call, x: Any, indices: Sequence[Any]) -> Any:
    used = [(dim, place) for dim, place in enumerate(indices) if place is not None]
    if any(isinstance(place, Value) for _, place in used) or not isinstance(x, Value):
        raise call.refuse("the index or mask depends on an input", _BY_PLACE)
    if len(used) != 1 or used[0][1].ndim != 1:
        if not x.dtype.is_floating_point:
            # A choice of elements, whatever their type.
            order = torch.arange(math.prod(x.shape)).reshape(x.shape)
            places = call.target(order, indices).numpy()
            return Value(moved(call, x.node, places, places.shape))
        return by_matrix(call, (x, indices), {})
    dim, place = used[0]
    if place.dtype == torch.bool:
        place = place.nonzero().reshape(-1)
    return take(call, x, dim, [int(i) for i in place])


# ---------------------------------------------------------------------------------------------- joining


@rule("aten.cat", "aten.concat", "aten.concatenate")
def cat(call: Call, tensors: Sequence[Any], dim: int = 0) -> Value:
    # torch allows an empty one-dimensional tensor among the parts.
    parts = [part for part in tensors if isinstance(part, Value) or part.numel()]
    first = next(part for part in parts if isinstance(part, Value))
    return Value(call.emit("concat", *call.nodes(*parts), axis=first.axis(dim)))


@rule("aten.stack")
def stack(call: Call, tensors: Sequence[Any], dim: int = 0) -> Value:
    nodes = call.nodes(*tensors)
    axis = dim % (len(_shape(nodes[0])) + 1)
    grown = [call.emit("reshape", node, shape=(*_shape(node)[:axis], 1, *_shape(node)[axis:])) for node in nodes]
    return Value(call.emit("concat", *grown, axis=axis))


@rule("aten.pad", "aten.constant_pad_nd")
def pad(call: Call, x: Any, widths: Sequence[int], mode: Any = "constant", value: Any = None) -> Any:
    if not isinstance(mode, str):
        mode, value = "constant", mode
    if mode != "constant" or value:
        return by_matrix(call, (x, widths, mode, value) if call.op == "aten.pad" else (x, widths, value), {})
    before, after = [0] * len(x.shape), [0] * len(x.shape)
    node = x.node
    for i in range(len(widths) // 2):
        left, right = int(widths[2 * i]), int(widths[2 * i + 1])
        axis = x.rank - 1 - i
        # Negative widths crop.
        size = x.shape[axis]
        node = _part(call, node, axis, max(0, -left), size - max(0, -right))
        before[axis], after[axis] = max(0, left), max(0, right)
    if any(before) or any(after):
        node = call.emit("pad", node, before=tuple(before), after=tuple(after))
    return Value(node)


def _written(call: Call, x: Any, source: Any, dim: int, start: int, stop: int, step: int) -> Value:
    """x with start:stop:step of one axis replaced by the source, which has x's axes."""
    nodes = call.nodes(x, source)
    axis = dim % len(_shape(nodes[0]))
    size = _shape(nodes[0])[axis]
    parts, position = [], 0
    for count, place in enumerate(range(start, stop, step)):
        if place > position:
            parts.append(_part(call, nodes[0], axis, position, place))
        if step == 1:
            parts.append(nodes[1])
            position = stop
            break
        parts.append(_part(call, nodes[1], axis, count, count + 1))
        position = place + 1
    if position < size:
        parts.append(_part(call, nodes[0], axis, position, size))
    return Value(parts[0] if len(parts) == 1 else call.emit("concat", *parts, axis=axis))


@rule("aten.slice_scatter")
def slice_scatter(
    call: Call, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Value:
    size = int(call.shape[dim])
    first, last = _bounds(size, start, end)
    whole = (first, last, step) == (0, size, 1)
    if whole:
        return source if isinstance(source, Value) else _filled(call, source)
    return _written(call, x, source, dim, first, last, int(step))


@rule("aten.select_scatter")
def select_scatter(call: Call, x: Any, source: Any, dim: int, index: int) -> Value:
    place = int(index) % int(call.shape[dim])
    grown = _grown(call, source, dim) if isinstance(source, Value) else source.unsqueeze(dim)
    return _written(call, x, grown, dim, place, place + 1, 1)


def _filled(call: Call, source: torch.Tensor) -> Any:
    return source.expand(call.shape)


@rule("aten.copy")
def copy(call: Call, x: Any, source: Any, non_blocking: bool = False) -> Any:
    if not isinstance(source, Value):
        return _filled(call, source)
    if changes_in(call.result.dtype, source):
        raise call.refuse(
            f"it writes {source.dtype} values into a tensor of {call.result.dtype}, which rounds or compares them",
            "make the tensor floating point first, with .float()",
        )
    return _expanded(call, source)


# ---------------------------------------------------------------------------------------------- constants by shape


@rule("aten.zeros_like", "aten.new_zeros")
def zeros_like(call: Call, x: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.zeros(call.shape, dtype=call.result.dtype)


@rule("aten.ones_like", "aten.new_ones")
def ones_like(call: Call, x: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.ones(call.shape, dtype=call.result.dtype)


@rule("aten.full_like")
def full_like(call: Call, x: Any, value: Any, **kwargs: Any) -> torch.Tensor:
    return torch.full(call.shape, value, dtype=call.result.dtype)


@rule("aten.new_full")
def new_full(call: Call, x: Any, size: Any, value: Any, **kwargs: Any) -> torch.Tensor:
    return torch.full(call.shape, value, dtype=call.result.dtype)


@rule("aten.fill", "aten.zero")
def fill(call: Call, x: Any, value: Any = 0.0) -> Any:
    return torch.full(call.shape, float(value), dtype=call.result.dtype)


@rule("aten.pixel_shuffle")
def pixel_shuffle(call: Call, x: Any, factor: int) -> Value:
    *lead, channels, height, width = x.shape
    small, first = channels // factor**2, len(lead)
    node = call.emit("reshape", x.node, shape=(*lead, small, factor, factor, height, width))
    node = call.emit("permute", node, axes=(*range(first), *(first + axis for axis in (0, 3, 1, 4, 2))))
    return Value(call.emit("reshape", node, shape=(*lead, small, height * factor, width * factor)))
