"""Rules for softmax, its logarithm, and attention; places that a mask hides (inputs/masks.py) are left out."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from heliograph.frontends.torch.inputs.covers import opposite, plus, settled, under
from heliograph.frontends.torch.inputs.examples import Example
from heliograph.frontends.torch.inputs.masks import added, hidden_places, hiding, shown
from heliograph.frontends.torch.rules.products import matmul
from heliograph.frontends.torch.rules.statistics import log_of_exponentials
from heliograph.frontends.torch.values import Call, Value, elementwise, rule
from heliograph.frontends.torch.ways.linear import moved
from heliograph.ir import Array, Node

# The share of the visible places is known up to the softmax's error, for which this allows.
_ROOM = 0.9


@rule("aten.softmax", "aten._softmax", "aten.special_softmax")
def softmax(call: Call, x: Any, dim: int, dtype: Any = None) -> Value:
    axis = x.axis(dim)
    made = _softmax(call, x, axis, zeros=False)
    if x.hidden is None:
        call.finals[made] = ("softmax", x.node, axis)
    return Value(made)


def _softmax(call: Call, x: Value, axis: int, zeros: bool) -> Node:
    """The softmax over an axis of the node; lines of minus infinity become zeros, or are refused."""
    if x.hidden is None:
        return call.emit("softmax", x.node, axis=axis)
    seen = shown(call, x, axis, zeros)
    if not seen.known.any():
        return _over(call, seen.node, axis, seen.visible)
    weights = np.where(seen.known[..., np.newaxis], seen.weights, 0.0)
    fixed = _constant(call, np.moveaxis(weights, -1, axis))
    if seen.known.all():
        return fixed
    # The softmax runs over the other lines alone.
    places = np.moveaxis(np.arange(math.prod(x.shape)).reshape(x.shape), axis, -1)
    taken = places[~seen.known]
    made = _over(call, moved(call, seen.node, taken, taken.shape), 1, seen.visible[~seen.known])
    back = np.full(x.shape, -1)
    np.moveaxis(back, axis, -1)[~seen.known] = np.arange(taken.size).reshape(taken.shape)
    made = moved(call, made, back, x.shape)
    return call.emit("add", made, fixed) if weights.any() else made


def _over(call: Call, node: Node, axis: int, lines: Array) -> Node:
    """The softmax of the visible places of each line along an axis, zero in the others; `lines` has that axis last."""
    shape: tuple[int, ...] = node.type.shape  # type: ignore[union-attr]
    first = lines.reshape(-1, lines.shape[-1])[0]
    if (lines == first).all():
        return _of_some(call, node, axis, first)
    # Each hidden place takes a visible score of the same line, all of them equally often. Whatever the scores are, the
    # visible places then have a known share of the softmax, and its inverse is cheap.
    flat, taken = lines.reshape(-1, lines.shape[-1]), np.arange(math.prod(shape)).reshape(shape)
    order = np.moveaxis(taken, axis, -1).reshape(flat.shape).copy()
    most = 1
    for line, read in zip(flat, order, strict=True):
        visible, lacking = np.flatnonzero(line), np.flatnonzero(~line)
        read[lacking] = read[np.resize(visible, lacking.size)]
        most = max(most, 1 + -(-lacking.size // visible.size))
    index = np.moveaxis(order.reshape(lines.shape), -1, axis)
    shares = call.emit("softmax", moved(call, node, index, shape), axis=axis)
    kept = call.emit("mul", shares, _constant(call, np.moveaxis(lines, -1, axis)))
    total = call.emit("sum", kept, axes=(axis,), keepdims=True)
    inverse = call.emit("reciprocal", total, low=_ROOM / most, high=2.0 - _ROOM)
    return call.emit("mul", kept, inverse)


def _constant(call: Call, values: Array) -> Node:
    return call.constant_node(torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64)))


def _of_some(call: Call, node: Node, axis: int, visible: Array) -> Node:
    """The softmax over some places of an axis, zero in the others."""
    if visible.all():
        return call.emit("softmax", node, axis=axis)
    shape: tuple[int, ...] = node.type.shape  # type: ignore[union-attr]
    places = np.flatnonzero(visible)
    if places.size == 1:
        only = np.moveaxis(np.broadcast_to(visible, np.moveaxis(np.empty(shape), axis, -1).shape), -1, axis)
        return _constant(call, only)
    index = np.arange(math.prod(shape)).reshape(shape)
    taken = np.take(index, places, axis=axis)
    made = call.emit("softmax", moved(call, node, taken, taken.shape), axis=axis)
    back = np.full(shape, -1)
    where = [slice(None)] * len(shape)
    where[axis] = places  # type: ignore[call-overload]
    back[tuple(where)] = np.arange(taken.size).reshape(taken.shape)
    return moved(call, made, back, shape)


@rule("aten.scaled_dot_product_attention", "aten._scaled_dot_product_attention_math")
def attention(
    call: Call,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    if dropout_p:
        raise call.refuse(f"dropout_p={dropout_p:g} draws random numbers", "give dropout_p=0.0 in evaluation")
    if isinstance(attn_mask, Value) and attn_mask.dtype == torch.bool and not attn_mask.exact_flag:
        raise call.refuse(
            "its mask depends on an encrypted input",
            "use a mask that is the same for all inputs, or leave the masked places out of keys and values",
        )
    if enable_gqa:
        key, value = (_repeated_heads(call, x, query) for x in (key, value))
    dtype = torch.promote_types(query.dtype, torch.float32)  # torch adds masks in this, for halves too
    factor = 1.0 / math.sqrt(_width(query)) if scale is None else float(scale)
    # Apply the factor to the queries, where it merges into the linear map that computes them.
    if isinstance(query, Value):
        query = Value(call.emit("mul", query.node, call.constant_node(factor)))
    else:
        query = query * factor
    scores = _times(call, query, _turned(call, key))
    rows, columns = (scores.shape if isinstance(scores, Value) else tuple(scores.shape))[-2:]
    if is_causal:
        attn_mask = torch.ones(rows, columns, dtype=torch.bool).tril()
    scores = _masked(call, scores, attn_mask, dtype)
    if isinstance(scores, torch.Tensor):
        shares = torch.softmax(scores, -1)
        return _times(call, torch.where(shares.isnan(), 0.0, shares), value)  # type: ignore[no-any-return]
    axis = len(scores.shape) - 1
    weights = Value(_softmax(call, settled(call, scores, axis), axis, zeros=True))
    return _times(call, weights, value)  # type: ignore[no-any-return]


def _masked(call: Call, scores: Any, mask: Any, dtype: torch.dtype) -> Any:
    if mask is None:
        return scores
    if isinstance(mask, Value) and mask.exact_flag and mask.dtype == torch.bool:
        return under(call, scores, opposite(call, mask), -math.inf)
    if isinstance(mask, Value) and mask.cover is not None:
        return plus(call, scores, mask)
    if isinstance(scores, torch.Tensor):
        if isinstance(mask, Value):
            return elementwise(call, "add", scores, mask)
        return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if isinstance(mask, Value):
        return elementwise(call, "add", scores, mask)
    if mask.dtype == torch.bool:
        return scores if bool(mask.all()) else hiding(call, scores, ~mask, dtype)
    places = hidden_places(mask)
    return elementwise(call, "add", scores, mask) if places is None else added(call, scores, mask, places, dtype)


def _width(x: Any) -> int:
    return int(x.shape[-1])


def _turned(call: Call, x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.transpose(-1, -2)
    rank = len(x.shape)
    return Value(call.emit("permute", x.node, axes=(*range(rank - 2), rank - 1, rank - 2)))


def _times(call: Call, left: Any, right: Any) -> Any:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left @ right
    return matmul(call, left, right)


def _repeated_heads(call: Call, x: Any, query: Any) -> Any:
    """Each head of keys or values for as many heads of queries as share it."""

    count = int(query.shape[-3]) // int(x.shape[-3])
    if count == 1:
        return x
    if isinstance(x, torch.Tensor):
        return x.repeat_interleave(count, -3)
    axis = len(x.shape) - 3
    index = np.repeat(np.arange(math.prod(x.shape)).reshape(x.shape), count, axis=axis)
    return Value(moved(call, x.node, index, index.shape))


@rule("aten.log_softmax", "aten._log_softmax", "aten.special_log_softmax")
def log_softmax(call: Call, x: Any, dim: int, dtype: Any = None) -> Value:
    axis = x.axis(dim)
    # At the end of the model the client computes it.
    last = call.node is not None and all(user.op == "output" for user in call.node.users)
    made = call.emit("sub", x.node, log_of_exponentials(call, x.node, axis, dropped=last))
    call.finals[made] = ("log_softmax", x.node, axis)
    return Value(made)


def fast_path_hint(model: torch.nn.Module, examples: Example) -> str:
    """The hint where torch's fast path of transformer layers differs in value from the layers; empty where it does not.

    In evaluation without gradients nn.TransformerEncoder packs padded samples, and writes zeros at padded places; with
    gradients it does not. The fast kernel of a layer gives NaN where no place is visible, the layer itself zeros.
    The model is run on the example both ways.
    """
    packed = []
    kernel, fast = torch._nested_tensor_from_mask, torch.backends.mha.get_fastpath_enabled()

    def packing(*args: Any, **kwargs: Any) -> Any:
        packed.append(True)
        return kernel(*args, **kwargs)

    def outputs(enabled: bool) -> list[torch.Tensor]:
        torch.backends.mha.set_fastpath_enabled(enabled)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that nested tensors are a prototype
            leaves = pytree.tree_leaves(model(*examples.args, **examples.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    torch._nested_tensor_from_mask = packing
    try:
        pairs = list(zip(outputs(True), outputs(False), strict=True))
    finally:
        torch._nested_tensor_from_mask = kernel
        torch.backends.mha.set_fastpath_enabled(fast)
    if all(torch.allclose(left, right, rtol=1e-3, atol=1e-3, equal_nan=True) for left, right in pairs):
        return ""
    if packed:
        return (
            "without gradients torch.nn.TransformerEncoder writes zeros at padded places, and with gradients it does not; "
            "make it with enable_nested_tensor=False, or set encoder.use_nested_tensor = False: then both agree"
        )
    return (
        "without gradients torch's fast kernel of transformer layers gives other values here than the layers themselves; "
        "call torch.backends.mha.set_fastpath_enabled(False): then both agree"
    )
