"""Rules for pooling: means and maxima over windows."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from heliograph.frontends.torch_layers import per_axis, spatial_input
from heliograph.frontends.torch_values import Call, Refused, Value, rule


def _no_partial_window(
    call: Call,
    x: Value,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> None:
    """Refuse ceil_mode where it makes a difference."""
    for size, k, s, p, d in zip(x.shape[1:], kernel, stride, padding, dilation, strict=True):
        if (size + 2 * p - d * (k - 1) - 1) % s:
            raise call.refuse(
                f"ceil_mode=True makes a partial window at the end of an axis of {size} (kernel {k}, stride {s})",
                "use ceil_mode=False, or pad the input so that the windows fit",
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
) -> Value:
    rank = int(call.op[-2])
    node = spatial_input(call, x, rank)
    kernel = per_axis(kernel_size, rank)
    steps = per_axis(stride, rank) if stride else kernel
    pads = per_axis(padding, rank)
    if ceil_mode:
        _no_partial_window(call, x, kernel, steps, pads, (1,) * rank)
    if divisor_override:
        out = call.emit("avg_pool", node, kernel=kernel, stride=steps, padding=pads, count_include_pad=True)
        factor = call.constant_node(math.prod(kernel) / divisor_override)
        return Value(call.emit("mul", out, factor), 0)
    attrs = {"kernel": kernel, "stride": steps, "padding": pads, "count_include_pad": bool(count_include_pad)}
    return Value(call.emit("avg_pool", node, **attrs), 0)


@rule("aten.adaptive_avg_pool1d", "aten.adaptive_avg_pool2d", "aten.adaptive_avg_pool3d", "aten._adaptive_avg_pool2d")
def adaptive_avg_pool(call: Call, x: Any, output_size: Any) -> Value:
    rank = int(call.op[-2])
    node = spatial_input(call, x, rank)
    return Value(call.emit("adaptive_avg_pool", node, output_size=per_axis(output_size, rank)), 0)


# ---------------------------------------------------------------------------------------------- maxima


def _rank(call: Call) -> int:
    """Of `aten.max_pool2d_with_indices`: 2."""
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
    node = spatial_input(call, x, rank)
    kernel, pads, spread = (per_axis(value, rank) for value in (kernel_size, padding, dilation))
    steps = per_axis(stride, rank) if stride else kernel
    if ceil_mode:
        _no_partial_window(call, x, kernel, steps, pads, spread)
    return Value(call.emit("max_pool", node, kernel=kernel, stride=steps, padding=pads, dilation=spread), 0)


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
    node = spatial_input(call, x, rank)
    windows = []
    for size, count in zip(x.shape[1:], per_axis(output_size, rank), strict=True):
        bounds = [((i * size) // count, -(-(i + 1) * size // count)) for i in range(count)]
        widths = {stop - start for start, stop in bounds}
        steps = {later[0] - first[0] for first, later in itertools.pairwise(bounds)} or {1}
        if len(widths) > 1 or len(steps) > 1:
            raise call.refuse(
                f"its windows on an axis of {size} with {count} results are not all equal",
                f"choose an output size that divides {size}, or use nn.MaxPool with a kernel and a stride",
            )
        windows.append((widths.pop(), steps.pop()))
    kernel, stride = (tuple(numbers) for numbers in zip(*windows, strict=True))
    out = call.emit("max_pool", node, kernel=kernel, stride=stride, padding=(0,) * rank, dilation=(1,) * rank)
    return [Value(out, 0), _no_places(call)]
