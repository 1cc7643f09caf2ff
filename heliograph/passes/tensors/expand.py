"""Rewrite functions of several values by functions of one, and functions along any axis by functions along axis 0.

The result has linear ops, products, functions of one variable, and `max_rows`, `argmax_rows`, `softmax_rows`. Plain
values stay as they are: the server computes them in the clear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from heliograph.ir import Array, Builder, Node, Program, SparseMatrix, Stage, shape_of, size_of
from heliograph.ir.maps.gather import gather_matrix
from heliograph.ir.node import next_power_of_two
from heliograph.ir.ops.functions import COMPARISONS, pool_index
from heliograph.ir.ops.table import Role, role_of
from heliograph.ir.writer import Writer
from heliograph.passes.base import rule_for
from heliograph.passes.ranges.norm_rows import norm_rows
from heliograph.passes.ranges.ties import Threshold, thresholds
from heliograph.passes.tensors.trees import expand_trees, observed_splits

_DECISION = ("gap", "bits", "low", "high")


@dataclass(frozen=True, slots=True)
class Expand:
    """Rewrites comparisons, `where`, `maximum`, `div`, `max`, `argmax`, `softmax`, `max_pool`, `layer_norm` and
    `tree_ensemble` by simpler ops.

    `products`: trees become products along their paths (passes/tensors/tree_products.py).
    `kept`: says of a node whether it stays as it is.
    """

    products: bool = False
    kept: Callable[[Node], bool] | None = None

    name: ClassVar[str] = "expand"
    needs: ClassVar[Stage] = Stage.TENSOR
    makes: ClassVar[Stage] = Stage.TENSOR

    def run(self, program: Program) -> Program:
        builder, found = Builder(program.name, Stage.TENSOR, program), thresholds(program)
        splits, sizes = observed_splits(program), norm_rows(program)

        def emit(node: Node, operands: list[Node]) -> Node:
            writer = Writer(builder, node.loc)
            if self.kept is not None and self.kept(node):
                return builder.copy(node, operands)
            if node.op in COMPARISONS and node.type.secret:
                return _compare(writer, node, operands, found.get(node))
            if node.op == "tree_ensemble" and node.type.secret:
                return expand_trees(writer, node, operands[0], splits.get(node), self.products)
            if node.op == "layer_norm" and node.type.secret:
                return _layer_norm(writer, node, operands, sizes.get(node))
            if role_of(node) is Role.JOINT and node.type.secret:
                return rule_for(RULES, node, self.name)(writer, node, operands)
            return builder.copy(node, operands)

        return builder.rewrite(program, emit)


def _number(w: Writer, value: float) -> Node:
    return w.constant(value, "number")


def _times(w: Writer, x: Node, factor: float) -> Node:
    return w.op("mul", x, _number(w, factor))


def _gathered(w: Writer, x: Node, index: Any, shape: tuple[int, ...]) -> Node:
    """Element index[i] of the flattened x at place i."""
    flat = np.asarray(index).ravel()
    if shape == shape_of(x) and np.array_equal(flat, np.arange(size_of(x))):
        return x
    name = w.builder.constant(SparseMatrix.of(gather_matrix(flat, size_of(x))), "gather")
    return w.op("affine", x, matrices=(name,), shape=shape)


def _compare(w: Writer, node: Node, operands: list[Node], threshold: Threshold | None) -> Node:
    swapped, _ = COMPARISONS[node.op]
    x, y = reversed(operands) if swapped else operands
    difference = w.op("sub", x, y)
    attrs = {key: node.attrs[key] for key in _DECISION if key in node.attrs}
    if threshold is not None and threshold.moved:
        difference = w.op("sub", difference, _number(w, threshold.moved))
        attrs |= {"moved": abs(threshold.moved), "room": threshold.room}
    elif threshold is not None and "gap" not in node.attrs:
        attrs["room"] = threshold.room
    return w.op("add", _times(w, w.op("sign", difference, **attrs), 0.5), _number(w, 0.5))


def _extreme(sign: float) -> Callable[[Writer, Node, list[Node]], Node]:
    def rule(w: Writer, node: Node, operands: list[Node]) -> Node:
        x, y = operands
        attrs = {key: node.attrs[key] for key in _DECISION if key in node.attrs and key != "bits"}
        distance = w.op("abs", w.op("sub", x, y), **attrs)
        return w.op("add", _times(w, w.op("add", x, y), 0.5), _times(w, distance, 0.5 * sign))

    return rule


def _where(w: Writer, node: Node, operands: list[Node]) -> Node:
    condition, x, y = operands
    return w.op("add", y, w.op("mul", condition, w.op("sub", x, y)))


def _div(w: Writer, node: Node, operands: list[Node]) -> Node:
    x, y = operands
    if y.op == "constant":
        inverse = 1.0 / w.builder.context.array(y.attrs["value"])
        return w.op("mul", x, w.constant(inverse, "inverse"))
    return w.op("mul", x, w.op("reciprocal", y, **node.attrs))


def _rows_first(w: Writer, x: Node, axis: int) -> tuple[Node, Any]:
    """x as (length of the axis, everything else), and the flat places of x in that order."""
    places = np.moveaxis(np.arange(size_of(x)).reshape(shape_of(x)), axis, 0)
    rows = places.shape[0]
    return _gathered(w, x, places, (rows, size_of(x) // rows)), places


def _largest(w: Writer, node: Node, operands: list[Node]) -> Node:
    return _max_along(w, node, operands[0], 1.0)


def _smallest(w: Writer, node: Node, operands: list[Node]) -> Node:
    return _max_along(w, node, operands[0], -1.0)


def _max_along(w: Writer, node: Node, x: Node, sign: float) -> Node:
    places = np.moveaxis(np.arange(size_of(x)).reshape(shape_of(x)), node.attrs["axis"], 0)
    return w.op("reshape", _max_of(w, node, x, places.reshape(places.shape[0], -1), sign), shape=shape_of(node))


def _max_of(w: Writer, node: Node, x: Node, index: Any, sign: float = 1.0) -> Node:
    """The maximum (for sign -1, the minimum) over the rows of places; the first row pads their number to a power of
    two.
    """
    rows, columns = index.shape
    if rows == 1:
        return _gathered(w, x, index, (columns,))
    padded = np.concatenate([index, np.repeat(index[:1], next_power_of_two(rows) - rows, axis=0)])
    low, high = node.attrs.get("low"), node.attrs.get("high")
    attrs = {key: node.attrs[key] for key in ("gap", "bits") if key in node.attrs}
    if low is not None and high is not None:
        attrs |= {"low": low, "high": high} if sign > 0 else {"low": -high, "high": -low}
    value = _gathered(w, w.op("neg", x) if sign < 0 else x, padded, padded.shape)
    made = w.op("max_rows", value, **attrs)
    return w.op("neg", made) if sign < 0 else made


def _max_pool(w: Writer, node: Node, operands: list[Node]) -> Node:
    (x,) = operands
    return w.op("reshape", _max_of(w, node, x, pool_index(shape_of(x), node.attrs).T), shape=shape_of(node))


def _argmax(w: Writer, node: Node, operands: list[Node]) -> Node:
    x = operands[0]
    rows, places = _rows_first(w, x, node.attrs["axis"])
    attrs = {key: node.attrs[key] for key in (*_DECISION, "count", "method") if key in node.attrs}
    one_hot = w.op("argmax_rows", rows, **attrs)
    if node.attrs.get("index"):
        numbers = np.arange(places.shape[0], dtype=np.float64)
        weights = w.constant(numbers, "numbers")
        return w.op("reshape", w.op("matmul", weights, one_hot), shape=shape_of(node))
    return _gathered(w, one_hot, np.argsort(places.ravel()), shape_of(node))


def _softmax(w: Writer, node: Node, operands: list[Node]) -> Node:
    rows, places = _rows_first(w, operands[0], node.attrs["axis"])
    attrs = {key: value for key, value in node.attrs.items() if key != "axis"}
    return _gathered(w, w.op("softmax_rows", rows, **attrs), np.argsort(places.ravel()), shape_of(node))


def _layer_norm(w: Writer, node: Node, operands: list[Node], sizes: Array | None) -> Node:
    """(x - mean) / sqrt(variance + eps), times weight, plus bias; variances are divided by `sizes` before the inverse root.

    The numbers that this takes join the linear maps around the inverse root.
    """
    (x,) = operands
    rank = len(shape_of(x))
    axes = tuple(range(rank - node.attrs["rank"], rank))
    centred = w.op("sub", x, w.op("mean", x, axes=axes, keepdims=True))
    variance = w.op("mean", w.op("mul", centred, centred), axes=axes, keepdims=True)
    bounds = {key: node.attrs[key] + node.attrs["eps"] for key in ("low", "high") if key in node.attrs}
    variance = w.op("add", variance, _number(w, node.attrs["eps"]))
    if sizes is None or bounds:
        inverse = w.op("rsqrt", variance, **bounds)
    else:
        inverse = w.op("rsqrt", w.op("mul", variance, w.constant(1.0 / sizes, "sizes")))
        inverse = w.op("mul", inverse, w.constant(1.0 / np.sqrt(sizes), "sizes"))
    if "weight" in node.attrs:
        # Applied before the product: there the weight joins the linear map of the centring.
        centred = w.op("mul", centred, w.op("constant", value=node.attrs["weight"]))
    made = w.op("mul", centred, inverse)
    if "bias" in node.attrs:
        made = w.op("add", made, w.op("constant", value=node.attrs["bias"]))
    return made


# The expansion of each op with the role JOINT, except comparisons, ensembles of trees and layer norms, which depend on
# samples.
RULES: Mapping[str, Callable[[Writer, Node, list[Node]], Node]] = {
    "maximum": _extreme(1.0),
    "minimum": _extreme(-1.0),
    "where": _where,
    "div": _div,
    "max": _largest,
    "min": _smallest,
    "argmax": _argmax,
    "softmax": _softmax,
    "max_pool": _max_pool,
}
