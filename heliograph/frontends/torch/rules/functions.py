"""Rules for functions that are not polynomials: roots, exponentials, clamping, softmax, layer norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from heliograph.frontends.torch.inputs.masks import LOWEST, floored
from heliograph.frontends.torch.rules.layers import batch_norm_of
from heliograph.frontends.torch.values import Call, Refused, Value, elementwise, rule, scalar


@rule("aten.log1p", "aten.special_log1p")
def log1p(call: Call, x: Any) -> Value:
    return Value(call.emit("log", call.emit("add", x.node, call.constant_node(1.0))))


_BASES = {"aten.log2": 2.0, "aten.log10": 10.0}


@rule(*_BASES)
def log_of_base(call: Call, x: Any) -> Value:
    made = call.emit("log", x.node)
    return Value(call.emit("mul", made, call.constant_node(1.0 / math.log(_BASES[call.op]))))


# ---------------------------------------------------------------------------------------------- bounds


def _clamped(call: Call, x: Value, low: float, high: float) -> Value:
    """min(max(x, low), high), where either bound may be infinite."""
    if (low, high) == (-math.inf, math.inf):
        return Value(x.node)
    if (low, high) == (0.0, math.inf):
        return Value(call.emit("relu", x.node))
    if (low, high) == (0.0, 6.0):
        return Value(call.emit("relu6", x.node))
    bounds = {"min": low, "max": high}
    finite = {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
    return Value(call.emit("clamp", x.node, **finite))


@rule("aten.clamp", "aten.clip")
def clamp(call: Call, x: Any, min: Any = None, max: Any = None) -> Value:
    return _clipped(call, x, min, max)


def _clipped(call: Call, x: Any, min: Any, max: Any) -> Value:
    low = -math.inf if min is None else scalar(min)
    high = math.inf if max is None else scalar(max)
    if isinstance(x, Value) and x.hidden is not None and low is not None and low <= LOWEST and max is None:
        return floored(call, x, low)
    if isinstance(x, Value) and low is not None and high is not None:
        return _clamped(call, x, low, high)
    # Bounds that differ between elements.
    for bound, op, known in ((min, "maximum", torch.maximum), (max, "minimum", torch.minimum)):
        if isinstance(x, Value) or isinstance(bound, Value):
            x = x if bound is None else elementwise(call, op, x, bound)
        elif bound is not None:
            x = known(x, bound)
    return Value(x.node)


@rule("aten.clamp_min")
def clamp_min(call: Call, x: Any, min: Any) -> Value:
    return _clipped(call, x, min, None)


@rule("aten.clamp_max")
def clamp_max(call: Call, x: Any, max: Any) -> Value:
    return _clipped(call, x, None, max)


@rule("aten.hardtanh")
def hardtanh(call: Call, x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    if (min_val, max_val) == (-1, 1):
        return Value(call.emit("hardtanh", x.node))
    return _clamped(call, x, float(min_val), float(max_val))


# ---------------------------------------------------------------------------------------------- over an axis


@rule("aten.layer_norm")
def layer_norm(
    call: Call,
    x: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Value:
    if not isinstance(x, Value) or isinstance(weight, Value) or isinstance(bias, Value):
        raise call.refuse("its weights depend on an input", "use weights that are parameters or constants of the model")
    rank = len(normalized_shape)
    attrs = {name: call.constant(tensor) for name, tensor in (("weight", weight), ("bias", bias)) if tensor is not None}
    return Value(call.emit("layer_norm", x.node, rank=rank, eps=float(eps), **attrs))


@rule("aten.group_norm")
def group_norm(
    call: Call,
    x: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Value:
    return _by_group(call, x, num_groups, weight, bias, eps)


@rule("aten.instance_norm")
def instance_norm(
    call: Call,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Value:
    if not use_input_stats:
        return batch_norm_of(call, x, weight, bias, mean, variance, eps)
    return _by_group(call, x, int(x.shape[1]), weight, bias, eps)


def _by_group(call: Call, x: Any, groups: int, weight: Any, bias: Any, eps: float) -> Value:
    """Normalization over each group of channels: a layer norm of the groups, then a scale and a shift by channel."""
    if not isinstance(x, Value) or isinstance(weight, Value) or isinstance(bias, Value):
        raise call.refuse("its weights depend on an input", "use weights that are parameters or constants of the model")
    samples, channels, *places = x.shape
    grouped = call.emit("reshape", x.node, shape=(samples, groups, channels * math.prod(places) // groups))
    made = call.emit("layer_norm", grouped, rank=1, eps=float(eps))
    made = call.emit("reshape", made, shape=x.shape)
    for op, tensor in (("mul", weight), ("add", bias)):
        if tensor is not None:
            named = tensor.reshape(channels, *(1 for _ in places))
            call.names.set(named, call.names.get(tensor, f"{call.loc.layer}.constant"))
            made = call.emit(op, made, call.constant_node(named))
    return Value(made)


@rule("aten.native_layer_norm")
def native_layer_norm(call: Call, *args: Any, **kwargs: Any) -> list[Any]:
    unused = Refused(call.refuse("its mean and deviation are read", "compute them with x.mean(dim, keepdim=True)"))
    return [layer_norm(call, *args, **kwargs), unused, unused]
