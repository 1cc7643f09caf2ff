"""The product of two matrices, both unknown at compile time. Part of `ir/ops/table.py`.

It stays one op until values are packed: packing chooses by cost which slots meet, and by which rotations
(passes/packing/products/matrix_products.py). Transpositions of the operands are attributes, so that they cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.node import Array, Node, shape_of, size_of
from heliograph.ir.ops.bounds import widened
from heliograph.ir.ops.spec import ARITHMETIC, Attrs, Bounds, Context, OpSpec, Role, define
from heliograph.ir.types import TensorType, Type

# For each kind, whether the left and the right operand are transposed.
KINDS = {"ab": (False, False), "abt": (False, True), "atb": (True, False)}


def _type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    if a["kind"] not in KINDS:
        raise ProgramError(f"matrix_product: there is no kind {a['kind']!r}", hint="one of " + ", ".join(KINDS))
    shapes = [operand.shape for operand in operands]
    if any(len(shape) != 2 for shape in shapes):
        raise ProgramError(f"matrix_product takes matrices, not tensors of shapes {shapes[0]} and {shapes[1]}")
    left, right = (shape[::-1] if turned else shape for shape, turned in zip(shapes, KINDS[a["kind"]], strict=True))
    if left[1] != right[0]:
        raise ProgramError(f"matrix_product: shapes {shapes[0]} and {shapes[1]} do not match for kind {a['kind']}")
    return TensorType((left[0], right[1]), any(operand.secret for operand in operands))


def inner_size(left: Sequence[int], kind: str) -> int:
    """The number of elements in each sum of a product, from the shape of its left operand."""
    return left[0] if KINDS[kind][0] else left[1]


def _product(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    left, right = (
        np.swapaxes(value, -1, -2) if turned else value for value, turned in zip(values, KINDS[a["kind"]], strict=True)
    )
    return np.asarray(np.matmul(left, right) * a.get("scale", 1.0))


def _bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    """Products of intervals, term by term, in centre-radius form."""
    (x, dx), (y, dy) = (
        ((low + high).reshape(1, *shape_of(o)) / 2, (high - low).reshape(1, *shape_of(o)) / 2)
        for (low, high), o in zip(operands, node.inputs, strict=True)
    )

    def of(left: Array, right: Array) -> Array:
        return _product([left, right], node.attrs, context).ravel()

    centre = of(x, y)
    reach = np.abs(of(np.abs(x), dy)) + np.abs(of(dx, np.abs(y) + dy))
    return widened(centre - reach, centre + reach)


def _effort(node: Node, context: Context) -> tuple[int, int]:
    left = shape_of(node.inputs[0])
    return sum(map(size_of, node.inputs)), size_of(node) * inner_size(left, node.attrs["kind"])


define(
    OpSpec(
        "matrix_product",
        ARITHMETIC,
        (2, 2),
        {"kind": "str", "scale": "float?"},
        _type,
        _product,
        "A B, A Bᵀ (`abt`) or Aᵀ B (`atb`) of two matrices that are known at run time only, times `scale`.",
        # One to three, depending on how it is lowered: moves before and after the product take one level each.
        depth=3,
        role=Role.PRODUCT,
        word="matrix product",
        bounds=_bounds,
        effort=_effort,
    )
)
