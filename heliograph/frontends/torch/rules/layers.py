"""Rules for layers: linear, convolution, batch norm, activations, and layers that do nothing at inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from heliograph.frontends.torch.values import Call, Value, changes_in, elementwise, rule, scalar, transposed_name
from heliograph.frontends.torch.ways.linear import moved
from heliograph.ir import Node

# ---------------------------------------------------------------------------------------------- linear


def matrix_times(call: Call, node: Node, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Node:
    """`node @ weight.T + bias` on the last axis."""
    attrs = {"weight": call.constant(weight)}
    if bias is not None:
        attrs["bias"] = call.constant(bias)
    return call.emit("linear", node, **attrs)


def transposed(call: Call, matrix: torch.Tensor) -> torch.Tensor:
    """The transposed matrix, named after the one that the user knows."""
    result = matrix.t().contiguous()
    call.names.set(result, transposed_name(call.names.get(matrix, f"{call.loc.layer}.weight")))
    return result


@rule("aten.linear")
def linear(call: Call, x: Any, weight: Any, bias: Any = None) -> Value:
    if not isinstance(x, Value) or isinstance(weight, Value) or isinstance(bias, Value):
        raise call.refuse("its weights depend on an input", "use weights that are parameters or constants of the model")
    matrix = weight.reshape(-1, weight.shape[-1])
    if bias is not None and tuple(bias.shape) != (matrix.shape[0],):
        # One number for all outputs.
        whole = bias.expand(matrix.shape[0])
        call.names.set(whole, call.names.get(bias, f"{call.loc.layer}.bias"))
        bias = whole
    if matrix is not weight:
        call.names.set(matrix, call.names.get(weight, f"{call.loc.layer}.weight"))
    made = matrix_times(call, x.node, matrix, bias)
    if weight.ndim == 1:
        made = call.emit("reshape", made, shape=x.shape[:-1])
    return Value(made)


# ---------------------------------------------------------------------------------------------- convolution


def per_axis(value: Any, rank: int) -> tuple[int, ...]:
    """One number per spatial axis; torch allows one number for all, alone or in a list."""
    items = [int(item) for item in value] if isinstance(value, list | tuple) else [int(value)]
    return tuple(items * rank) if len(items) == 1 else tuple(items)


def by_image(call: Call, x: Value, rank: int, change: Callable[[Node], Node]) -> Value:
    """The result of `change` on (channels, *spatial), for each entry of a leading axis if there is one."""
    return Value(change(x.node)) if x.rank == rank + 1 else call.by_entry(x, change)


def _conv(
    call: Call,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Value:
    if not isinstance(x, Value) or isinstance(weight, Value) or isinstance(bias, Value):
        raise call.refuse(
            "its weights depend on an input",
            "use weights that are parameters or constants of the model; a filter that is an input is multiplied with "
            "torch.nn.functional.unfold(x, kernel_size), which lists what it meets",
        )
    rank = weight.ndim - 2
    steps = per_axis(dilation, rank)
    behind: tuple[int, ...] = ()
    if isinstance(padding, str):
        spans = [d * (k - 1) if padding == "same" else 0 for k, d in zip(weight.shape[2:], steps, strict=True)]
        before = tuple(span // 2 for span in spans)
        if any(span % 2 for span in spans):
            # The odd element of padding of an even kernel goes at the end, as in torch; the op itself pads both sides alike.
            behind = tuple(span - pad for span, pad in zip(spans, before, strict=True))
    else:
        before = per_axis(padding, rank)
    attrs = {"bias": call.constant(bias)} if bias is not None else {}
    attrs["weight"] = call.constant(weight)

    def convolved(node: Node) -> Node:
        pads = before
        if behind:
            node = call.emit("pad", node, before=(0, *before), after=(0, *behind))
            pads = (0,) * rank
        return call.emit(
            "conv", node, stride=per_axis(stride, rank), padding=pads, dilation=steps, groups=int(groups), **attrs
        )

    return by_image(call, x, rank, convolved)


@rule("aten.conv1d", "aten.conv2d", "aten.conv3d")
def conv(call: Call, *args: Any, **kwargs: Any) -> Value:
    return _conv(call, *args, **kwargs)


@rule("aten.convolution")
def convolution(
    call: Call,
    x: Any,
    weight: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Value:
    if transposed:
        return conv_transpose(call, x, weight, bias, stride, padding, output_padding, groups, dilation)  # type: ignore[no-any-return]
    return _conv(call, x, weight, bias, stride, padding, dilation, groups)


@rule("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
def conv_transpose(
    call: Call,
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Value:
    """The input spread out by the stride, convolved with the flipped kernel: two maps that are multiplied together."""
    if not isinstance(x, Value) or isinstance(weight, Value) or isinstance(bias, Value):
        raise call.refuse("its weights depend on an input", "use weights that are parameters or constants of the model")
    rank = weight.ndim - 2
    channels, *sizes = x.shape[-1 - rank :]
    steps, pads, extra, spread = (per_axis(v, rank) for v in (stride, padding, output_padding, dilation))
    index = np.arange(channels).reshape(-1, *(1 for _ in range(rank)))
    for axis, (size, k) in enumerate(zip(sizes, weight.shape[2:], strict=True)):
        reach = spread[axis] * (k - 1)
        out = (size - 1) * steps[axis] - 2 * pads[axis] + reach + extra[axis] + 1
        place = np.arange(out + reach) - (reach - pads[axis])
        inside = (place % steps[axis] == 0) & (place >= 0) & (place < size * steps[axis])
        place = np.where(inside, place // steps[axis], -1).reshape([-1 if a == axis else 1 for a in range(rank)])
        index = np.where((place < 0) | (index < 0), -1, index * size + place)
    own = weight.shape[0] // groups
    turned = weight.detach().reshape(groups, own, *weight.shape[1:]).transpose(1, 2)
    turned = turned.reshape(groups * weight.shape[1], own, *weight.shape[2:]).flip(tuple(range(2, 2 + rank)))
    call.names.set(turned, f"{call.names.get(weight, f'{call.loc.layer}.weight')}.turned")
    attrs = {"bias": call.constant(bias)} if bias is not None else {}
    attrs["weight"] = call.constant(turned)

    def convolved(node: Node) -> Node:
        return call.emit(
            "conv",
            moved(call, node, index, index.shape),
            stride=(1,) * rank,
            padding=(0,) * rank,
            dilation=spread,
            groups=int(groups),
            **attrs,
        )

    return by_image(call, x, rank, convolved)


# ---------------------------------------------------------------------------------------------- batch norm


def training_batch_norm(call: Call) -> Exception:
    """The error for batch norm that would take its statistics from the batch."""
    return call.refuse(
        "this batch norm is in training mode (or keeps no running statistics): it would normalize by the statistics "
        "of the batch, and a program sees one sample",
        "call model.eval() before trace; construct the layer with track_running_stats=True",
    )


def batch_norm_of(call: Call, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, eps: float) -> Value:
    """Normalization of each channel by known statistics."""
    if not isinstance(x, Value) or any(isinstance(value, Value) for value in (weight, bias, mean, variance)):
        raise call.refuse("its parameters depend on an input", "use stored statistics")
    attrs = {
        name: call.constant(tensor)
        for name, tensor in (("weight", weight), ("bias", bias), ("mean", mean), ("variance", variance))
        if tensor is not None
    }
    return call.by_entry(x, lambda node: call.emit("batch_norm", node, eps=float(eps), **attrs))


@rule("aten.batch_norm")
def batch_norm(
    call: Call,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool = False,
) -> Value:
    if training or mean is None or variance is None:
        raise training_batch_norm(call)
    return batch_norm_of(call, x, weight, bias, mean, variance, eps)


@rule("aten._native_batch_norm_legit_no_training")
def batch_norm_no_training(
    call: Call, x: Any, weight: Any, bias: Any, mean: Any, variance: Any, momentum: float, eps: float
) -> list[Any]:
    return [batch_norm_of(call, x, weight, bias, mean, variance, eps), None, None]


@rule("aten._native_batch_norm_legit", "aten._native_batch_norm_legit_functional")
def batch_norm_training(call: Call, *args: Any, **kwargs: Any) -> Value:
    raise training_batch_norm(call)


@rule("aten.native_batch_norm", "aten.cudnn_batch_norm")
def native_batch_norm(
    call: Call,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> list[Any]:
    return [batch_norm(call, x, weight, bias, mean, variance, training, momentum, eps), None, None]


# ---------------------------------------------------------------------------------------------- activations


@rule("aten.leaky_relu")
def leaky_relu(call: Call, x: Any, negative_slope: float = 0.01) -> Value:
    return Value(call.emit("leaky_relu", x.node, negative_slope=float(negative_slope)))


@rule("aten.prelu", "aten._prelu_kernel")
def prelu(call: Call, x: Any, weight: Any) -> Value:
    if not isinstance(x, Value) or isinstance(weight, Value):
        raise call.refuse("its slopes depend on an input", "use slopes that are parameters of the model")
    slope = scalar(weight)
    if slope is not None:
        return Value(call.emit("leaky_relu", x.node, negative_slope=slope))
    # Per channel it is slope x + (1 - slope) relu(x). torch's kernel aligns the slopes with x's axes; the layer has a list.
    slopes = weight.detach().double()
    slopes = slopes.reshape([-1 if axis == 1 else 1 for axis in range(x.rank)]) if slopes.ndim == 1 else slopes
    rest = 1.0 - slopes
    for tensor, name in ((slopes, "slopes"), (rest, "rest")):
        call.names.set(tensor, f"{call.names.get(weight, f'{call.loc.layer}.weight')}.{name}")
    rectified = elementwise(call, "mul", Value(call.emit("relu", x.node)), rest)
    return elementwise(call, "add", elementwise(call, "mul", x, slopes), rectified)


@rule("aten.gelu")
def gelu(call: Call, x: Any, approximate: str = "none") -> Value:
    return Value(call.emit("gelu", x.node, approximate=approximate))


@rule("aten.softplus")
def softplus(call: Call, x: Any, beta: float = 1.0, threshold: float = 20.0) -> Value:
    return Value(call.emit("softplus", x.node, beta=float(beta), threshold=float(threshold)))


# ---------------------------------------------------------------------------------------------- nothing to do


@rule(
    "aten.clone",
    "aten.contiguous",
    "aten.detach",
    "aten.alias",
    "aten.lift_fresh",
    "aten.lift_fresh_copy",
    "aten.positive",
    "aten.resolve_conj",
    "aten.resolve_neg",
    "aten.requires_grad",
    "aten.nan_to_num",
)
def same(call: Call, x: Any, *args: Any, **kwargs: Any) -> Value:
    return Value(x.node)


@rule("aten.to", "aten._to_copy", "aten.type_as")
def convert(call: Call, x: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(x, Value):
        return x
    if changes_in(call.result.dtype, x) and not x.exact_flag:
        raise call.refuse(
            f"it turns {x.dtype} into {call.result.dtype}, which rounds, compares or wraps an encrypted value around",
            "give a mask of zeros and ones as whole numbers or truth values (torch.int64, torch.bool); compare other "
            "values: x > threshold"
            if call.result.dtype == torch.bool
            else "keep the values floating point; compare with x > threshold, and round on the client after decryption; "
            "columns that are ids are given as an input of whole numbers of their own",
        )
    return Value(x.node)


@rule("aten._assert_tensor_metadata", "aten._assert_scalar", "aten._assert_async")
def checked_at_export(call: Call, *args: Any, **kwargs: Any) -> None:
    return None


@rule("aten.dropout", "aten.feature_dropout", "aten.alpha_dropout", "aten.feature_alpha_dropout")
def dropout(call: Call, x: Any, p: float, train: bool) -> Value:
    return Value(x.node)  # a layer that drops values is refused earlier (torch/graph.py)


@rule("aten.native_dropout")
def native_dropout(call: Call, x: Any, p: float, train: bool | None) -> Sequence[Any]:
    return [Value(x.node), None]


def training(call: Call) -> Exception:
    """The error for a layer that would draw random numbers or renew statistics."""
    return call.refuse(
        "it is in training mode, in which it draws random numbers or takes statistics of the batch; a program is for "
        "evaluation, and gives the same answer each time",
        "call model.eval() before trace (in a functional call, F.dropout(x, p, training=self.training))",
    )
