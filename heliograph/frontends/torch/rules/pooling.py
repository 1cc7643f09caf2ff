"""Rules for pooling: means and maxima over windows."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from heliograph.frontends.torch.rules.layers import by_image, per_axis
from heliograph.frontends.torch.values import Call, Refused, Value, rule
from heliograph.frontends.torch.ways.linear import by_matrix, moved
from heliograph.ir import Node


def _partial(shape: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any) -> bool:
    """Whether ceil_mode adds a window that ends beyond the padding."""
    return any(
        (size + 2 * p - d * (k - 1) - 1) % s
        for size, k, s, p, d in zip(shape, kernel, stride, padding, dilation, strict=True)
    )


# ---------------------------------------------------------------------------------------------- means


@rule("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d")
def avg_pool(
    call: Call,
    x: Any,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    rank = int(call.op[-2])
    kernel = per_axis(kernel_size, rank)
    steps = per_axis(stride, rank) if stride else kernel
    pads = per_axis(padding, rank)
    if ceil_mode and _partial(x.shape[-rank:], kernel, steps, pads, (1,) * rank):
        # Only the default layout of arguments counts the padding of such windows as torch does: torch does it.
        asked = (x, list(kernel), list(steps), list(pads), True, count_include_pad)
        return by_matrix(call, asked if rank == 1 else (*asked, divisor_override), {})
    attrs = {"kernel": kernel, "stride": steps, "padding": pads}
    if not divisor_override:
        return by_image(
            call, x, rank, lambda node: call.emit("avg_pool", node, count_include_pad=bool(count_include_pad), **attrs)
        )
    factor = call.constant_node(math.prod(kernel) / divisor_override)
    out = by_image(call, x, rank, lambda node: call.emit("avg_pool", node, count_include_pad=True, **attrs))
    return Value(call.emit("mul", out.node, factor))


@rule("aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d", "aten.adaptive_avg_pool3d", "aten._adaptive_avg_pool2d")
def adaptive_avg_pool(call: Call, x: Any, output_size: Any) -> Value:
    rank = int(call.op[-2])
    size = per_axis(output_size, rank)
    return by_image(call, x, rank, lambda node: call.emit("adaptive_avg_pool", node, output_size=size))


# ---------------------------------------------------------------------------------------------- maxima


def _rank(call: Call) -> int:
    """The spatial rank of a pooling op: 2 for `aten.max_pool2d_with_indices`."""
    found = re.search(r"pool(\d)d", call.op)
    assert found is not None
    return int(found[1])


@rule("aten.max_pool1d", "aten.max_pool2d", "aten.max_pool3d")
def max_pool(
    call: Call,
    x: Any,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Value:
    rank = _rank(call)
    kernel, pads, spread = (per_axis(value, rank) for value in (kernel_size, padding, dilation))
    steps = per_axis(stride, rank) if stride else kernel
    if ceil_mode and _partial(x.shape[-rank:], kernel, steps, pads, spread):
        axes = []
        for size, out, k, s, p, d in zip(x.shape[-rank:], call.shape[-rank:], kernel, steps, pads, spread, strict=True):
            found = [[i * s - p + j * d for j in range(k)] for i in range(out)]
            axes.append([[place for place in window if 0 <= place < size] for window in found])
        return by_image(call, x, rank, lambda node: _max_of_windows(call, node, axes))
    attrs = {"kernel": kernel, "stride": steps, "padding": pads, "dilation": spread}
    return by_image(call, x, rank, lambda node: call.emit("max_pool", node, **attrs))


def _max_of_windows(call: Call, node: Node, axes: Sequence[Sequence[Sequence[int]]]) -> Node:
    """The maximum over windows of (channels, *spatial): for each axis, the indices of each window along it."""
    shape: tuple[int, ...] = node.type.shape  # type: ignore[union-attr]
    # A window that has fewer places repeats its first one.
    widths = [max(map(len, windows)) for windows in axes]
    padded = [
        np.array([[*window, *[window[0]] * (width - len(window))] for window in windows])
        for windows, width in zip(axes, widths, strict=True)
    ]
    index = np.arange(shape[0]).reshape(-1, *(1 for _ in range(2 * len(axes))))
    rank = len(axes)
    for axis, places in enumerate(padded):
        view = [1] * (1 + 2 * rank)
        view[1 + axis], view[1 + rank + axis] = places.shape
        index = index * shape[1 + axis] + places.reshape(view)
    outer = tuple(len(windows) for windows in axes)
    taken = moved(call, node, index, (shape[0], *outer, math.prod(widths)))
    return call.emit("max", taken, axis=1 + rank)


def _no_places(call: Call) -> Refused:
    return Refused(
        call.refuse(
            "return_indices=True asks for the place of each maximum in the image, which has no rule",
            "use return_indices=False; where unpooling needs them, upsample with expand and reshape",
        )
    )


@rule("aten.max_pool1d_with_indices", "aten.max_pool2d_with_indices", "aten.max_pool3d_with_indices")
def max_pool_with_indices(call: Call, *args: Any, **kwargs: Any) -> list[Any]:
    return [max_pool(call, *args, **kwargs), _no_places(call)]


@rule("aten.adaptive_max_pool1d", "aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d")
def adaptive_max_pool(call: Call, x: Any, output_size: Any) -> list[Any]:
    rank = _rank(call)
    axes = [
        [list(range((i * size) // count, -(-(i + 1) * size // count))) for i in range(count)]
        for size, count in zip(x.shape[-rank:], per_axis(output_size, rank), strict=True)
    ]
    steps = [{later[0] - first[0] for first, later in itertools.pairwise(windows)} or {1} for windows in axes]
    if any(len(some) > 1 or len({len(w) for w in windows}) > 1 for some, windows in zip(steps, axes, strict=True)):
        return [by_image(call, x, rank, lambda node: _max_of_windows(call, node, axes)), _no_places(call)]
    kernel, stride = tuple(len(windows[0]) for windows in axes), tuple(some.pop() for some in steps)
    attrs = {"kernel": kernel, "stride": stride, "padding": (0,) * rank, "dilation": (1,) * rank}
    return [by_image(call, x, rank, lambda node: call.emit("max_pool", node, **attrs)), _no_places(call)]
