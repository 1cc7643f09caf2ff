"""Intervals that hold every element of a value, whatever the input in its declared range: proved, not observed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from heliograph.ir import Array, Node, Program, shape_of, size_of
from heliograph.ir.ops.rows import ROW_OPS
from heliograph.ir.ops.slots.rules import WIDEN, product_bounds, square_bounds, widened
from heliograph.ir.ops.table import OPS, Bounds, Context


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float

    @property
    def magnitude(self) -> float:
        return max(abs(self.low), abs(self.high))


def hull(bounds: Bounds) -> Interval:
    """The smallest interval around all elements."""
    return Interval(float(bounds[0].min()), float(bounds[1].max()))


def transfer(
    node: Node, operands: list[Bounds | None], context: Context, images: Mapping[Node, Interval]
) -> Bounds | None:
    """Bounds of a node's value from those of its operands; None where nothing bounds it.

    Bounds that grow beyond all numbers are none. `images` gives the image of each `poly` node on its interval; its operand
    is taken to lie in that interval, which is for the caller to make sure of. Sums are widened by 1e-12 of their size
    against rounding.
    """
    size = size_of(node)
    if node.op == "input":
        low, high = node.attrs.get("low"), node.attrs.get("high")
        return None if low is None or high is None else (np.full(size, low), np.full(size, high))
    if node.op == "constant":
        value = context.array(node.attrs["value"]).astype(np.float64).ravel()
        return value, value
    if node in images:
        image = images[node]
        return np.full(size, image.low), np.full(size, image.high)
    known = [operand for operand in operands if operand is not None]
    if len(known) < len(operands):
        return None
    if node.op == "reshape":
        return known[0]
    if node.op in ROW_OPS:
        # Moves, copies, and sums with weights of one: bounds propagate the same way as the values.
        low, high = (
            np.asarray(OPS[node.op].evaluate([end.reshape(1, *shape_of(node.inputs[0]))], node.attrs, context)).ravel()
            for end in known[0]
        )
        return widened(low, high)
    if node.op in ("add", "sub"):
        (a, b), (c, d) = (_broadcast(bound, operand, node) for bound, operand in zip(known, node.inputs, strict=True))
        return (a + c, b + d) if node.op == "add" else (a - d, b - c)
    if node.op == "mul":
        (a, b), (c, d) = (_broadcast(bound, operand, node) for bound, operand in zip(known, node.inputs, strict=True))
        made = square_bounds((a, b)) if node.inputs[0] is node.inputs[1] else product_bounds((a, b), (c, d))
        return made if all(np.isfinite(end).all() for end in made) else None
    if node.op == "matrix_product":
        # Products of intervals, term by term, in centre-radius form.
        (x, dx), (y, dy) = (
            ((low + high).reshape(shape_of(o)) / 2, (high - low).reshape(shape_of(o)) / 2)
            for (low, high), o in zip(known, node.inputs, strict=True)
        )

        def of(left: Array, right: Array) -> Array:
            made = OPS[node.op].evaluate([left[np.newaxis], right[np.newaxis]], node.attrs, context)
            return np.asarray(made).ravel()

        centre = of(x, y)
        reach = np.abs(of(np.abs(x), dy)) + np.abs(of(dx, np.abs(y) + dy))
        return widened(centre - reach, centre + reach)
    spec = OPS[node.op]
    if spec.activation is not None and spec.activation.of(node.attrs).increasing:
        low, high = (spec.activation(end, node.attrs) for end in known[0])
        return widened(low, high)
    if node.op == "affine":
        middle: Array = np.zeros(size)
        radius: Array = np.zeros(size)
        for (low, high), name in zip(known, node.attrs["matrices"], strict=True):
            matrix = context.linear_map(name)
            middle += matrix.apply((low + high)[np.newaxis] / 2)[0]
            radius += matrix.absolute().apply((high - low)[np.newaxis] / 2)[0]
        if "bias" in node.attrs:
            middle = middle + context.array(node.attrs["bias"])
        radius = radius + WIDEN * (np.abs(middle) + radius)
        return middle - radius, middle + radius
    return None


def _broadcast(bounds: Bounds, operand: Node, node: Node) -> Bounds:
    if shape_of(operand) == shape_of(node):
        return bounds
    low, high = (np.broadcast_to(b.reshape(shape_of(operand)), shape_of(node)).ravel() for b in bounds)
    return low, high


def program_intervals(program: Program, images: Mapping[Node, Interval]) -> dict[Node, Interval]:
    """The proved interval of each node that has one."""
    context = Context(program.constants)
    bounds: dict[Node, Bounds | None] = {}
    for node in program.nodes:
        bounds[node] = transfer(node, [bounds[operand] for operand in node.inputs], context, images)
    return {
        node: hull(bound)
        for node, bound in bounds.items()
        if bound is not None and math.isfinite(bound[0].min()) and math.isfinite(bound[1].max())
    }
