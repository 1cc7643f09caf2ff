"""Functions of several values that are not polynomials: comparison, maxima, softmax, division. Part of `ir/ops/table.py`.

`passes/tensors/expand.py` writes functions of several operands with functions of one;
`passes/polynomials/approximate.py` replaces these by polynomials and compositions of polynomials. `gap` is the smallest
difference that must be resolved: for smaller ones, the result is a soft value between the two. `bits` is the required
closeness of a decision to its limit: 2**-bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.node import Array, Node
from heliograph.ir.ops.activations import ACTIVATION_ATTRS
from heliograph.ir.ops.layers import pool_effort, window_shape, windows
from heliograph.ir.ops.spec import OPS, TENSOR, Attrs, Context, OpSpec, Role, check_constant, define, flat_indices
from heliograph.ir.ops.tensors import align, broadcast_type
from heliograph.ir.types import TensorType, Type

# Comparisons: whether the second operand is the larger one, and whether equal operands compare as true.
COMPARISONS = {"gt": (False, False), "ge": (False, True), "lt": (True, False), "le": (True, True)}
# Values are equal if they differ by no more than this share of their size.
_EQUAL = 2e-7
# Attributes that control how a decision is approximated. `low` and `high` bound the operand, or the difference of two
# operands.
DECISION_ATTRS = {"gap": "float?", "bits": "float?", "low": "float?", "high": "float?"}
_DECIDES = " `gap`, `bits`, `low`, `high` fix how it is approximated."


# ---------------------------------------------------------------------------------------------- of two or three operands


def _define_pairwise(name: str, function: Callable[[Array, Array], Array], doc: str, attrs: dict[str, str]) -> None:
    define(
        OpSpec(
            name,
            TENSOR,
            (2, 2),
            attrs,
            broadcast_type(name),
            lambda values, a, context: np.asarray(function(*align(values)), dtype=np.float64),
            doc,
            role=Role.JOINT,
            steps=name in COMPARISONS,
        )
    )


def _divided(x: Array, y: Array) -> Array:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(x / y)


def equal_within(x: Array, y: Array) -> Array:
    """The largest difference of two values that count as equal: they may be sums of float32 numbers."""
    return np.asarray(_EQUAL * np.maximum(np.abs(x), np.abs(y)))


def _comparison(name: str) -> Callable[[Array, Array], Array]:
    swapped, equal_holds = COMPARISONS[name]

    def compare(x: Array, y: Array) -> Array:
        larger = y - x if swapped else x - y
        near = equal_within(x, y)
        return np.asarray(larger >= -near if equal_holds else larger > near)

    return compare


for _name, _sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
    _define_pairwise(
        _name,
        _comparison(_name),
        f"1 where x {_sign} y, else 0; values that differ by 2e-7 of their size are equal." + _DECIDES,
        DECISION_ATTRS,
    )
_define_pairwise("maximum", np.maximum, "The larger of two values, by |x - y|." + _DECIDES, DECISION_ATTRS)
_define_pairwise("minimum", np.minimum, "The smaller of two values, by |x - y|." + _DECIDES, DECISION_ATTRS)
_define_pairwise("div", _divided, "x / y; the range of y must not hold zero.", ACTIVATION_ATTRS)


def _where(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    condition, x, y = align(values)
    with np.errstate(invalid="ignore"):
        between = y + condition * (x - y)
    # The value that is not chosen may be infinite, or NaN.
    return np.where(condition == 1.0, x, np.where(condition == 0.0, y, between))


define(
    OpSpec(
        "where",
        TENSOR,
        (3, 3),
        {},
        broadcast_type("where"),
        _where,
        "x where the condition is 1, y where it is 0; between them for a soft condition.",
        role=Role.JOINT,
    )
)

# ---------------------------------------------------------------------------------------------- along an axis


def _axis(a: Attrs, rank: int, op: str) -> int:
    if not -rank <= a["axis"] < rank:
        raise ProgramError(f"{op}: axis {a['axis']} is out of range for a tensor of rank {rank}")
    return int(a["axis"]) % rank


def _along(name: str, a: Attrs, shape: tuple[int, ...], keep: bool) -> tuple[int, ...]:
    axis = _axis(a, len(shape), name)
    return shape[:axis] + ((1,) if keep else ()) + shape[axis + 1 :]


def _define_extremum(name: str, function: Callable[..., Array], doc: str) -> None:
    def infer(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
        return TensorType(_along(name, a, operands[0].shape, a.get("keepdims", False)), operands[0].secret)

    def evaluate(values: Sequence[Array], a: Attrs, context: Context) -> Array:
        axis = _axis(a, values[0].ndim - 1, name) + 1
        return np.asarray(function(values[0], axis=axis, keepdims=a.get("keepdims", False)))

    attrs = {"axis": "int", "keepdims": "bool?", **DECISION_ATTRS}
    define(OpSpec(name, TENSOR, (1, 1), attrs, infer, evaluate, doc, role=Role.JOINT))


_define_extremum("max", np.max, "The largest element along an axis." + _DECIDES)
_define_extremum("min", np.min, "The smallest element along an axis." + _DECIDES)


def _one_hot(x: Array, axis: int) -> Array:
    """1 at the first largest element along the axis, 0 elsewhere."""
    winners = np.expand_dims(x.argmax(axis=axis), axis)
    places = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return np.asarray(winners == places, dtype=np.float64)


def _argmax_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    shape = operands[0].shape
    if shape[_axis(a, len(shape), "argmax")] < 2:
        raise ProgramError(f"argmax: axis {a['axis']} of {shape} has one element")
    return TensorType(_along("argmax", a, shape, False) if a.get("index") else shape, operands[0].secret)


def _argmax(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    axis = _axis(a, values[0].ndim - 1, "argmax") + 1
    if a.get("index"):
        return np.asarray(values[0].argmax(axis=axis), dtype=np.float64)
    return _one_hot(values[0], axis)


define(
    OpSpec(
        "argmax",
        TENSOR,
        (1, 1),
        {"axis": "int", "index": "bool?", "count": "int?", "method": "str?", **DECISION_ATTRS},
        _argmax_type,
        _argmax,
        "The place of the largest element along an axis: one-hot, or its number with `index`. `count`: how many results may "
        "be summed and still round right; `method`: best, or Phoenix's iterated." + _DECIDES,
        role=Role.JOINT,
        steps=True,
    )
)


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def _softmax_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    _axis(a, len(operands[0].shape), "softmax")
    return operands[0]


define(
    OpSpec(
        "softmax",
        TENSOR,
        (1, 1),
        {"axis": "int", "low": "float?", "high": "float?"},
        _softmax_type,
        lambda values, a, context: _softmax(values[0], _axis(a, values[0].ndim - 1, "softmax") + 1),
        "exp(x) divided by its sum along an axis. `low`, `high` bound the operand.",
        role=Role.JOINT,
    )
)

# The same along axis 0 of (rows, columns). The ops above are rewritten to these, so that each needs only one lowering.


def _rows_type(name: str, result: str) -> Callable[[Sequence[TensorType], Attrs, Context], Type]:
    def infer(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
        shape = operands[0].shape
        if len(shape) != 2:
            raise ProgramError(f"{name} takes a tensor (rows, columns), not {shape}")
        return TensorType(shape[1:] if result == "row" else shape, operands[0].secret)

    return infer


define(
    OpSpec(
        "max_rows",
        TENSOR,
        (1, 1),
        DECISION_ATTRS,
        _rows_type("max_rows", "row"),
        lambda values, a, context: np.asarray(values[0].max(axis=1)),
        "The largest element of each column of (rows, columns).",
        role=Role.ALONG_ROWS,
    )
)
define(
    OpSpec(
        "argmax_rows",
        TENSOR,
        (1, 1),
        {"count": "int?", "method": "str?", "spread": "float?", **DECISION_ATTRS},
        _rows_type("argmax_rows", "all"),
        lambda values, a, context: _one_hot(values[0], 1),
        "One-hot along axis 0 of (rows, columns). `spread` bounds how far two rows of a column are apart, in place of `low` "
        "and `high`.",
        role=Role.ALONG_ROWS,
        steps=True,
    )
)
define(
    OpSpec(
        "softmax_rows",
        TENSOR,
        (1, 1),
        {"low": "float?", "high": "float?"},
        _rows_type("softmax_rows", "all"),
        lambda values, a, context: _softmax(values[0], 1),
        "The softmax along axis 0 of (rows, columns).",
        role=Role.ALONG_ROWS,
    )
)

# ---------------------------------------------------------------------------------------------- layers


def _max_pool_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    shape, rank = operands[0].shape, len(a["kernel"])
    if len(shape) != rank + 1:
        raise ProgramError(f"max_pool: input {shape} must be (channels, {rank} spatial axes), without a batch axis")
    if len(a["padding"]) == rank and any(2 * pad > k for pad, k in zip(a["padding"], a["kernel"], strict=True)):
        raise ProgramError(f"max_pool: padding {a['padding']} is more than half of the kernel {a['kernel']}")
    dilation = a.get("dilation", (1,) * rank)
    spatial = window_shape("max_pool", shape[1:], a["kernel"], a, dilation)
    for size, out, k, stride, pad, spread in zip(
        shape[1:], spatial, a["kernel"], a["stride"], a["padding"], dilation, strict=True
    ):
        # Only a window that begins before the axis can miss it; its first element not before the axis decides.
        first = np.arange(min(out, -(-pad // stride))) * stride - pad
        inside = np.maximum(0, -(first // spread))
        if ((inside >= k) | (first + inside * spread >= size)).any():
            raise ProgramError(f"max_pool: a window on an axis of {size} (dilation {spread}) holds padding only")
    return TensorType((shape[0], *spatial), operands[0].secret)


def pool_index(shape: tuple[int, ...], a: Attrs) -> Array:
    """(places of the output, elements of a window): the flat index of each; beyond the edge, the largest inside."""
    rank = len(a["kernel"])
    index = windows(flat_indices(shape) + 1, a["kernel"], a, a.get("dilation", (1,) * rank))[0] - 1
    columns = index.reshape(math.prod(index.shape[: 1 + rank]), -1)
    return np.where(columns >= 0, columns, columns.max(axis=1, keepdims=True))


def _max_pool(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    operand = TensorType(tuple(values[0].shape[1:]))
    out = _max_pool_type([operand], a, context)
    assert isinstance(out, TensorType)
    flat = values[0].reshape(values[0].shape[0], -1)
    return np.asarray(flat[:, pool_index(operand.shape, a)].max(axis=-1).reshape(-1, *out.shape))


def _max_pool_effort(node: Node, context: Context) -> tuple[int, int]:
    """The effort of a table of all windows."""
    held, operations = pool_effort(node, context)
    return held + operations, operations


define(
    OpSpec(
        "max_pool",
        TENSOR,
        (1, 1),
        {"kernel": "ints", "stride": "ints", "padding": "ints", "dilation": "ints?", **DECISION_ATTRS},
        _max_pool_type,
        _max_pool,
        "The maximum over windows of (channels, *spatial)." + _DECIDES,
        effort=_max_pool_effort,
        role=Role.JOINT,
    )
)


def _layer_norm_type(operands: Sequence[TensorType], a: Attrs, context: Context) -> Type:
    shape = operands[0].shape
    if not 1 <= a["rank"] <= len(shape):
        raise ProgramError(f"layer_norm: {shape} does not have {a['rank']} axes to normalize over")
    for name in ("weight", "bias"):
        check_constant("layer_norm", a, context, name, shape[len(shape) - a["rank"] :])
    return operands[0]


def _layer_norm(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    x = values[0]
    axes = tuple(range(x.ndim - a["rank"], x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    out: Any = centred / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + a["eps"])
    if "weight" in a:
        out = out * context.array(a["weight"])
    if "bias" in a:
        out = out + context.array(a["bias"])
    return np.asarray(out)


define(
    OpSpec(
        "layer_norm",
        TENSOR,
        (1, 1),
        {"rank": "int", "weight": "constant?", "bias": "constant?", "eps": "float", "low": "float?", "high": "float?"},
        _layer_norm_type,
        _layer_norm,
        "Normalization over the last `rank` axes: (x - mean) / sqrt(variance + eps) * weight + bias. `low`, `high` bound "
        "the variance.",
        role=Role.JOINT,
    )
)

ALONG_ROWS = frozenset(name for name, spec in OPS.items() if spec.role is Role.ALONG_ROWS)
