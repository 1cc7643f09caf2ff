"""Rules for products of matrices: with a constant on either side, and of two encrypted ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from heliograph.frontends.torch.rules.arithmetic import scaled, total
from heliograph.frontends.torch.rules.layers import matrix_times, transposed
from heliograph.frontends.torch.values import Call, Value, rule
from heliograph.ir import Node, shape_of


def _swap(call: Call, node: Node) -> Node:
    """The last two axes of the node exchanged."""
    rank = len(node.type.shape)  # type: ignore[union-attr]
    return call.emit("permute", node, axes=(*range(rank - 2), rank - 1, rank - 2))


def _bare(call: Call, matrix: torch.Tensor, rank: int) -> torch.Tensor:
    """The constant operand, without leading axes of length one that broadcasting to the other's rank ignores."""
    name = call.names.get(matrix, f"{call.loc.layer}.constant")
    while 2 < matrix.ndim <= rank and matrix.shape[0] == 1:
        matrix = matrix[0]
    if matrix.ndim == 1:
        matrix = matrix.unsqueeze(0)
    call.names.set(matrix, name)
    return matrix


def _times_plain(call: Call, x: Value, matrix: torch.Tensor) -> Value:
    """x @ matrix."""
    vector, matrix = matrix.ndim == 1, _bare(call, matrix, x.rank)
    if vector:
        return Value(call.reshaped(matrix_times(call, x.node, matrix), x.shape[:-1]))
    if matrix.ndim == 2:
        return Value(matrix_times(call, x.node, transposed(call, matrix)))
    return Value(call.emit("matmul", x.node, call.constant_node(matrix)))


def _plain_times(call: Call, matrix: torch.Tensor, x: Value) -> Value:
    """matrix @ x."""
    vector, matrix = matrix.ndim == 1, _bare(call, matrix, x.rank)
    if x.rank == 1:
        node = matrix_times(call, x.node, matrix.reshape(-1, matrix.shape[-1]))
        return Value(call.reshaped(node, () if vector else matrix.shape[:-1]))
    if matrix.ndim == 2:
        node = _swap(call, matrix_times(call, _swap(call, x.node), matrix))
    else:
        node = call.emit("matmul", call.constant_node(matrix), x.node)
    return Value(call.reshaped(node, (*x.shape[:-2], x.shape[-1])) if vector else node)


def _secret_product(call: Call, left: Value, right: Value) -> Value:
    """left @ right where both depend on an input; a vector is a row or a column."""
    row = call.reshaped(left.node, (1, *left.shape)) if left.rank == 1 else left.node
    column = call.reshaped(right.node, (*right.shape, 1)) if right.rank == 1 else right.node
    made = product_of_nodes(call, row, column)
    *stack, rows, columns = shape_of(made)
    kept = [*([rows] if left.rank > 1 else []), *([columns] if right.rank > 1 else [])]
    return Value(call.reshaped(made, (*stack, *kept)))


def product_of_nodes(call: Call, left: Node, right: Node) -> Node:
    """left @ right with numpy's meaning; a stack of one product is a product of two matrices."""
    shapes = [shape_of(node) for node in (left, right)]
    stack = np.broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
    if not stack or math.prod(stack) > 1:
        return call.emit("matmul", left, right)
    made = call.emit("matmul", *(call.reshaped(node, shape_of(node)[-2:]) for node in (left, right)))
    return call.reshaped(made, (*stack, *shape_of(made)))


@rule("aten.matmul", "aten.mm", "aten._sparse_mm", "aten.bmm", "aten.mv", "aten.dot", "aten.linalg_matmul")
def matmul(call: Call, left: Any, right: Any) -> Value:
    if isinstance(left, Value) and isinstance(right, Value):
        return _secret_product(call, left, right)
    return _times_plain(call, left, right) if isinstance(left, Value) else _plain_times(call, left, right)


@rule("aten.inner")
def inner(call: Call, left: Any, right: Any) -> Value:
    """The sums over the last axis of both."""

    def rows(x: Any) -> Any:
        shape = (math.prod(x.shape[:-1]), x.shape[-1])
        return Value(call.reshaped(x.node, shape)) if isinstance(x, Value) else x.reshape(shape)

    other = rows(right)
    turned = Value(_swap(call, other.node)) if isinstance(other, Value) else transposed(call, other)
    return Value(call.reshaped(matmul(call, rows(left), turned).node, call.shape))


@rule("aten.addmm", "aten.addmv", "aten.baddbmm")
def addmm(call: Call, bias: Any, left: Any, right: Any, beta: Any = 1, alpha: Any = 1) -> Value:
    plain = isinstance(bias, torch.Tensor) and bias.ndim == 1 and isinstance(right, torch.Tensor) and right.ndim == 2
    plain = plain and isinstance(left, Value) and left.rank == 2 and bias.shape[0] == right.shape[1]
    if plain and beta == 1 and alpha == 1:
        return Value(matrix_times(call, left.node, transposed(call, right), bias))
    if isinstance(left, Value) or isinstance(right, Value):
        product: Any = matmul(call, left, right)
    else:
        product = left @ right
    return total(call, scaled(call, bias, beta), scaled(call, product, alpha))
