"""Rules for functions that are not polynomials: roots, exponentials, clamping, softmax, layer norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from heliograph.frontends.torch_values import Call, Refused, Value, elementwise, rule, scalar

_FUNCTIONS = {
    "aten.sign": "sign",
    "aten.sgn": "sign",
    "aten.abs": "abs",
    "aten.absolute": "abs",
    "aten.exp": "exp",
    "aten.reciprocal": "reciprocal",
    "aten.sqrt": "sqrt",
    "aten.rsqrt": "rsqrt",
    "aten.relu6": "relu6",
    "aten.erf": "erf",
    "aten.special_erf": "erf",
    "aten.log": "log",
    "aten.sin": "sin",
    "aten.cos": "cos",
}


@rule(*_FUNCTIONS)
def function(call: Call, x: Any) -> Value:
    return Value(call.emit(_FUNCTIONS[call.op], x.node), x.batch)


# ---------------------------------------------------------------------------------------------- bounds


def _clamped(call: Call, x: Value, low: float, high: float) -> Value:
    """min(max(x, low), high), where either bound may be infinite."""
    if (low, high) == (-math.inf, math.inf):
        return Value(x.node, x.batch)
    if (low, high) == (0.0, math.inf):
        return Value(call.emit("relu", x.node), x.batch)
    if (low, high) == (0.0, 6.0):
        return Value(call.emit("relu6", x.node), x.batch)
    bounds = {"min": low, "max": high}
    finite = {name: bound for name, bound in bounds.items() if math.isfinite(bound)}
    return Value(call.emit("clamp", x.node, **finite), x.batch)


@rule("aten.clamp", "aten.clip")
def clamp(call: Call, x: Any, min: Any = None, max: Any = None) -> Value:
    return _clipped(call, x, min, max)


def _clipped(call: Call, x: Any, min: Any, max: Any) -> Value:
    low = -math.inf if min is None else scalar(min)
    high = math.inf if max is None else scalar(max)
    if isinstance(x, Value) and low is not None and high is not None:
        return _clamped(call, x, low, high)
    # A bound for each element.
    for bound, op, known in ((min, "maximum", torch.maximum), (max, "minimum", torch.minimum)):
        if isinstance(x, Value) or isinstance(bound, Value):
            x = x if bound is None else elementwise(call, op, x, bound)
        elif bound is not None:
            x = known(x, bound)
    return Value(x.node, x.batch)


@rule("aten.clamp_min")
def clamp_min(call: Call, x: Any, min: Any) -> Value:
    return _clipped(call, x, min, None)


@rule("aten.clamp_max")
def clamp_max(call: Call, x: Any, max: Any) -> Value:
    return _clipped(call, x, None, max)


@rule("aten.hardtanh")
def hardtanh(call: Call, x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Value:
    if (min_val, max_val) == (-1, 1):
        return Value(call.emit("hardtanh", x.node), x.batch)
    return _clamped(call, x, float(min_val), float(max_val))


# ---------------------------------------------------------------------------------------------- over an axis


@rule("aten.softmax", "aten._softmax", "aten.special_softmax")
def softmax(call: Call, x: Any, dim: int, dtype: Any = None) -> Value:
    axis = x.axis(dim)
    if axis < 0:
        raise call.mixes(
            f"the softmax runs over axis {x.batch} of {call.torch_shape(x)}, the batch axis",
            "name another axis, for example torch.softmax(x, dim=-1)",
        )
    return Value(call.emit("softmax", x.node, axis=axis), x.batch)


@rule("aten.log_softmax", "aten._log_softmax", "aten.special_log_softmax")
def log_softmax(call: Call, *args: Any, **kwargs: Any) -> Value:
    raise call.refuse(
        "the logarithm of a probability near zero has no polynomial of a degree that could be computed",
        "return torch.softmax(x, dim), or the scores (their largest is at the same place), and take the logarithm on "
        "the client after decryption",
    )


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
    if x.from_right <= rank:
        raise call.mixes(f"the layer would normalize over axis {x.batch} of {call.torch_shape(x)}, the batch axis")
    attrs = {name: call.constant(tensor) for name, tensor in (("weight", weight), ("bias", bias)) if tensor is not None}
    return Value(call.emit("layer_norm", x.node, rank=rank, eps=float(eps), **attrs), x.batch)


@rule("aten.native_layer_norm")
def native_layer_norm(call: Call, *args: Any, **kwargs: Any) -> list[Any]:
    unused = Refused(call.refuse("its mean and deviation are read", "compute them with x.mean(dim, keepdim=True)"))
    return [layer_norm(call, *args, **kwargs), unused, unused]
