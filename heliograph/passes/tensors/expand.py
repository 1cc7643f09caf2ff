"""Write functions of several values with functions of one, and functions along an axis with those along axis 0.

What is left is linear ops, products, functions of one variable, and `max_rows`, `argmax_rows`, `softmax_rows`. Values that
the server knows are left as they are: it computes them in the clear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from heliograph.ir import Builder, Node, Program, SparseMatrix, Stage, shape_of, size_of
from heliograph.ir.maps.gather import gather_matrix
from heliograph.ir.node import next_power_of_two
from heliograph.ir.ops.functions import COMPARISONS, JOINT, pool_index
from heliograph.passes.base import rule_for
from heliograph.passes.ranges.ties import Threshold, thresholds

_DECISION = ("gap", "bits", "low", "high")


@dataclass(frozen=True, slots=True)
class Expand:
    """Comparison, `where`, `maximum`, `div`, `max`, `argmax`, `softmax`, `max_pool`, `layer_norm` become simpler ops."""

    name: ClassVar[str] = "expand"
    needs: ClassVar[Stage] = Stage.TENSOR
    makes: ClassVar[Stage] = Stage.TENSOR

    def run(self, program: Program) -> Program:
        builder, found = Builder(program.name, Stage.TENSOR, program), thresholds(program)

        def emit(node: Node, operands: list[Node]) -> Node:
            if node.op in JOINT and node.type.secret:
                return rule_for(RULES, node, self.name)(_Writer(builder, node, found.get(node)), operands)
            return builder.copy(node, operands)

        return builder.rewrite(program, emit)


class _Writer:
    """Emits nodes in place of one node: at its line, in its layer. `threshold` is that of a comparison."""

    def __init__(self, builder: Builder, node: Node, threshold: Threshold | None) -> None:
        self.builder, self.node, self.threshold = builder, node, threshold

    @property
    def attrs(self) -> Mapping[str, Any]:
        return self.node.attrs

    def op(self, op: str, *operands: Node, **attrs: Any) -> Node:
        return self.builder.op(op, operands, self.node.loc, **attrs)

    def number(self, value: float) -> Node:
        return self.op("constant", value=self.builder.constant(np.array(value), "number"))

    def times(self, x: Node, factor: float) -> Node:
        return self.op("mul", x, self.number(factor))

    def decision(self, op: str, x: Node, *drop: str) -> Node:
        """A decision on x with the annotations of the node."""
        attrs = {key: self.attrs[key] for key in _DECISION if key in self.attrs and key not in drop}
        return self.op(op, x, **attrs)

    def gathered(self, x: Node, index: Any, shape: tuple[int, ...]) -> Node:
        """Element index[i] of the flattened x at place i."""
        flat = np.asarray(index).ravel()
        if shape == shape_of(x) and np.array_equal(flat, np.arange(size_of(x))):
            return x
        name = self.builder.constant(SparseMatrix.of(gather_matrix(flat, size_of(x))), "gather")
        return self.op("affine", x, matrices=(name,), shape=shape)


def _compare(w: _Writer, operands: list[Node]) -> Node:
    swapped, _ = COMPARISONS[w.node.op]
    x, y = reversed(operands) if swapped else operands
    difference = w.op("sub", x, y)
    attrs = {key: w.attrs[key] for key in _DECISION if key in w.attrs}
    if w.threshold is not None and w.threshold.moved:
        difference = w.op("sub", difference, w.number(w.threshold.moved))
        attrs |= {"moved": abs(w.threshold.moved), "room": w.threshold.room}
    elif w.threshold is not None and "gap" not in w.attrs:
        attrs["room"] = w.threshold.room
    return w.op("add", w.times(w.op("sign", difference, **attrs), 0.5), w.number(0.5))


def _extreme(sign: float) -> Callable[[_Writer, list[Node]], Node]:
    def rule(w: _Writer, operands: list[Node]) -> Node:
        x, y = operands
        distance = w.decision("abs", w.op("sub", x, y), "bits")
        return w.op("add", w.times(w.op("add", x, y), 0.5), w.times(distance, 0.5 * sign))

    return rule


def _where(w: _Writer, operands: list[Node]) -> Node:
    condition, x, y = operands
    return w.op("add", y, w.op("mul", condition, w.op("sub", x, y)))


def _div(w: _Writer, operands: list[Node]) -> Node:
    x, y = operands
    if y.op == "constant":
        inverse = 1.0 / w.builder.context.array(y.attrs["value"])
        return w.op("mul", x, w.op("constant", value=w.builder.constant(inverse, "inverse")))
    return w.op("mul", x, w.op("reciprocal", y, **w.attrs))


def _rows_first(w: _Writer, x: Node, axis: int) -> tuple[Node, Any]:
    """x as (length of the axis, everything else), and the flat places of x in that order."""
    places = np.moveaxis(np.arange(size_of(x)).reshape(shape_of(x)), axis, 0)
    rows = places.shape[0]
    return w.gathered(x, places, (rows, size_of(x) // rows)), places


def _largest(w: _Writer, operands: list[Node]) -> Node:
    return _max_along(w, operands[0], 1.0)


def _smallest(w: _Writer, operands: list[Node]) -> Node:
    return _max_along(w, operands[0], -1.0)


def _max_along(w: _Writer, x: Node, sign: float) -> Node:
    places = np.moveaxis(np.arange(size_of(x)).reshape(shape_of(x)), w.attrs["axis"], 0)
    return w.op("reshape", _max_of(w, x, places.reshape(places.shape[0], -1), sign), shape=shape_of(w.node))


def _max_of(w: _Writer, x: Node, index: Any, sign: float = 1.0) -> Node:
    """The maximum (of -x: the minimum) over the rows of places; a row stands in for those that a power of two lacks."""
    rows, columns = index.shape
    if rows == 1:
        return w.gathered(x, index, (columns,))
    padded = np.concatenate([index, np.repeat(index[:1], next_power_of_two(rows) - rows, axis=0)])
    low, high = w.attrs.get("low"), w.attrs.get("high")
    attrs = {key: w.attrs[key] for key in ("gap", "bits") if key in w.attrs}
    if low is not None and high is not None:
        attrs |= {"low": low, "high": high} if sign > 0 else {"low": -high, "high": -low}
    value = w.gathered(w.op("neg", x) if sign < 0 else x, padded, padded.shape)
    made = w.op("max_rows", value, **attrs)
    return w.op("neg", made) if sign < 0 else made


def _max_pool(w: _Writer, operands: list[Node]) -> Node:
    (x,) = operands
    return w.op("reshape", _max_of(w, x, pool_index(shape_of(x), w.attrs).T), shape=shape_of(w.node))


def _argmax(w: _Writer, operands: list[Node]) -> Node:
    x = operands[0]
    rows, places = _rows_first(w, x, w.attrs["axis"])
    attrs = {key: w.attrs[key] for key in (*_DECISION, "count", "method") if key in w.attrs}
    one_hot = w.op("argmax_rows", rows, **attrs)
    if w.attrs.get("index"):
        numbers = np.arange(places.shape[0], dtype=np.float64)
        weights = w.op("constant", value=w.builder.constant(numbers, "numbers"))
        return w.op("reshape", w.op("matmul", weights, one_hot), shape=shape_of(w.node))
    return w.gathered(one_hot, np.argsort(places.ravel()), shape_of(w.node))


def _softmax(w: _Writer, operands: list[Node]) -> Node:
    rows, places = _rows_first(w, operands[0], w.attrs["axis"])
    attrs = {key: value for key, value in w.attrs.items() if key != "axis"}
    return w.gathered(w.op("softmax_rows", rows, **attrs), np.argsort(places.ravel()), shape_of(w.node))


def _layer_norm(w: _Writer, operands: list[Node]) -> Node:
    (x,) = operands
    rank = len(shape_of(x))
    axes = tuple(range(rank - w.attrs["rank"], rank))
    centred = w.op("sub", x, w.op("mean", x, axes=axes, keepdims=True))
    variance = w.op("mean", w.op("mul", centred, centred), axes=axes, keepdims=True)
    bounds = {key: w.attrs[key] + w.attrs["eps"] for key in ("low", "high") if key in w.attrs}
    inverse = w.op("rsqrt", w.op("add", variance, w.number(w.attrs["eps"])), **bounds)
    if "weight" in w.attrs:
        # Applied before the product: there the weight joins the linear map of the centring.
        centred = w.op("mul", centred, w.op("constant", value=w.attrs["weight"]))
    made = w.op("mul", centred, inverse)
    if "bias" in w.attrs:
        made = w.op("add", made, w.op("constant", value=w.attrs["bias"]))
    return made


# How each op of `function_ops.JOINT` is expanded.
RULES: Mapping[str, Callable[[_Writer, list[Node]], Node]] = {
    **dict.fromkeys(COMPARISONS, _compare),
    "maximum": _extreme(1.0),
    "minimum": _extreme(-1.0),
    "where": _where,
    "div": _div,
    "max": _largest,
    "min": _smallest,
    "argmax": _argmax,
    "softmax": _softmax,
    "max_pool": _max_pool,
    "layer_norm": _layer_norm,
}
