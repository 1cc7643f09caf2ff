"""Rules for products of matrices: with a constant on either side, and of two that depend on an input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from heliograph.frontends.torch.rules.arithmetic import scaled, total
from heliograph.frontends.torch.rules.layers import matrix_times, transposed
from heliograph.frontends.torch.values import UNSEEN, Call, Value, rule
from heliograph.ir import Node


def _swap(call: Call, node: Node) -> Node:
    """The last two axes of the node exchanged."""
    rank = len(node.type.shape)  # type: ignore[union-attr]
    return call.emit("permute", node, axes=(*range(rank - 2), rank - 1, rank - 2))


def _reshape(call: Call, node: Node, shape: Sequence[int]) -> Node:
    if tuple(shape) == node.type.shape:  # type: ignore[union-attr]
        return node
    return call.emit("reshape", node, shape=tuple(shape))


def _plain_matrix(call: Call, x: Value, matrix: torch.Tensor, batched: bool) -> torch.Tensor:
    """The constant operand without the batch axis and without leading axes of one that broadcasting ignores."""
    if batched:
        matrix = call.unbatched(matrix, x.from_right)
    while 2 < matrix.ndim <= len(x.shape) + 1 and matrix.shape[0] == 1:
        name = call.names.get(matrix, f"{call.loc.layer}.constant")
        matrix = matrix[0]
        call.names.set(matrix, name)
    return matrix


def _times_plain(call: Call, x: Value, matrix: torch.Tensor) -> Value:
    """x @ matrix."""
    place, rank = x.from_right, max(x.rank, matrix.ndim)
    if place == 1:
        raise call.mixes(f"the product would sum over axis {x.batch}, the batch axis")
    matrix = _plain_matrix(call, x, matrix, place >= 3)
    if matrix.ndim == 1:
        row = matrix.unsqueeze(0)
        call.names.set(row, call.names.get(matrix, f"{call.loc.layer}.constant"))
        node = matrix_times(call, x.node, row)
        return Value(_reshape(call, node, x.shape[:-1]), x.batch)
    if matrix.ndim == 2:
        return Value(matrix_times(call, x.node, transposed(call, matrix)), rank - place)
    if place == 2:
        # In torch, the rows are the samples. Here, each sample is one row of its own.
        row_node = _reshape(call, x.node, (*x.shape[:-1], 1, x.shape[-1]))
        node = call.emit("matmul", row_node, call.constant_node(matrix))
        shape = node.type.shape  # type: ignore[union-attr]
        return Value(_reshape(call, node, (*shape[:-2], shape[-1])), rank - place)
    return Value(call.emit("matmul", x.node, call.constant_node(matrix)), rank - place)


def _plain_times(call: Call, matrix: torch.Tensor, x: Value) -> Value:
    """matrix @ x."""
    place, rank = x.from_right, max(x.rank, matrix.ndim)
    if place == 2 or x.rank == 1:
        raise call.mixes(f"the product would sum over axis {x.batch}, the batch axis")
    vector = matrix.ndim == 1
    matrix = _plain_matrix(call, x, matrix, place >= 3)
    if vector:
        row = matrix.unsqueeze(0)
        call.names.set(row, call.names.get(matrix, f"{call.loc.layer}.constant"))
        matrix = row
    if place == 1:
        # In torch, the columns are the samples. Here, the matrix sums over the last axis.
        if matrix.ndim == 2:
            node = matrix_times(call, x.node, matrix)
        else:
            column = _reshape(call, x.node, (*x.shape, 1))
            node = call.emit("matmul", call.constant_node(matrix), column)
            node = _reshape(call, node, node.type.shape[:-1])  # type: ignore[union-attr]
        if vector:
            return Value(_reshape(call, node, x.shape[:-1]), x.batch - 1)
        return Value(node, rank - place)
    if matrix.ndim == 2:
        node = _swap(call, matrix_times(call, _swap(call, x.node), matrix))
    else:
        node = call.emit("matmul", call.constant_node(matrix), x.node)
    if vector:
        return Value(_reshape(call, node, (*x.shape[:-2], x.shape[-1])), x.batch)
    return Value(node, rank - place)


def secret_product(call: Call, left: Value, right: Value) -> Value:
    """left @ right where both depend on an input: for each sample the product of its own two matrices."""
    place = left.from_right
    # Counted from the end, the last two axes are those of the matrices.
    if place != right.from_right or place < 3 or call.op == "aten.inner":
        shapes = f"{call.torch_shape(left)} and {call.torch_shape(right)}"
        raise call.mixes(
            f"factors of shapes {shapes} would be multiplied across samples",
            "give both factors the batch axis in front and a matrix behind it; of two vectors, "
            "(x * y).sum(-1) is the inner product and x.unsqueeze(-1) * y.unsqueeze(-2) the outer one",
        )
    batch = max(left.rank, right.rank) - place if left.seen else UNSEEN
    return Value(product_of_nodes(call, left.node, right.node), batch)


# A stack of products of two encrypted matrices is split if it has more products of elements than this; each matrix product
# is then packed by itself (passes/packing/products/matrix_products.py).
_FEW_PRODUCTS = 1 << 12


def product_of_nodes(call: Call, left: Node, right: Node) -> Node:
    """left @ right as numpy has it; a large stack of products as one op for each."""
    shapes = [tuple(node.type.shape) for node in (left, right)]  # type: ignore[union-attr]
    if min(map(len, shapes)) < 2 or max(map(len, shapes)) < 3:
        return call.emit("matmul", left, right)
    stack = np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
    count, (rows, inner), columns = math.prod(stack), shapes[0][-2:], shapes[1][-1]
    if count * rows * inner * columns <= _FEW_PRODUCTS:
        return call.emit("matmul", left, right)
    parts = []
    for place in np.ndindex(*stack):
        pair = [_matrix_at(call, node, shape, place) for node, shape in zip((left, right), shapes, strict=True)]
        made = call.emit("matmul", *pair)
        parts.append(_reshape(call, made, (1, rows, columns)))
    joined = parts[0] if len(parts) == 1 else call.emit("concat", *parts, axis=0)
    return _reshape(call, joined, (*stack, rows, columns))


def _matrix_at(call: Call, node: Node, shape: tuple[int, ...], place: tuple[int, ...]) -> Node:
    """One matrix of a stack, at that place of the stack that it is broadcast to."""
    outer = shape[:-2]
    own = [0 if size == 1 else at for size, at in zip(outer, place[len(place) - len(outer) :], strict=True)]
    if math.prod(outer) > 1:
        starts, stops = (*own, 0, 0), (*(at + 1 for at in own), *shape[-2:])
        node = call.emit("slice", node, starts=starts, stops=stops, steps=(1,) * len(shape))
    return _reshape(call, node, shape[-2:])


@rule(
    "aten.matmul", "aten.mm", "aten._sparse_mm", "aten.bmm", "aten.mv", "aten.dot", "aten.inner", "aten.linalg_matmul"
)
def matmul(call: Call, left: Any, right: Any) -> Value:
    if isinstance(left, Value) and isinstance(right, Value):
        return secret_product(call, left, right)
    return _times_plain(call, left, right) if isinstance(left, Value) else _plain_times(call, left, right)


@rule("aten.addmm", "aten.addmv", "aten.baddbmm")
def addmm(call: Call, bias: Any, left: Any, right: Any, beta: Any = 1, alpha: Any = 1) -> Value:
    plain = isinstance(bias, torch.Tensor) and bias.ndim == 1 and isinstance(right, torch.Tensor) and right.ndim == 2
    plain = plain and isinstance(left, Value) and left.from_right == 2 and bias.shape[0] == right.shape[1]
    if plain and beta == 1 and alpha == 1:
        return Value(matrix_times(call, left.node, transposed(call, right), bias), left.batch)
    if isinstance(left, Value) or isinstance(right, Value):
        product: Any = matmul(call, left, right)
    else:
        product = left @ right
    return total(call, scaled(call, bias, beta), scaled(call, product, alpha))
