"""Rules for arithmetic: sums, products, powers, matrix products, reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from heliograph.frontends.torch_decisions import either
from heliograph.frontends.torch_layers import matrix_times, transposed
from heliograph.frontends.torch_values import Call, Value, elementwise, is_number, reduced_axes, rule, scalar
from heliograph.ir import Node

# ---------------------------------------------------------------------------------------------- elementwise


def _scaled(call: Call, x: Any, factor: Any) -> Any:
    """x times a plain number; x itself where the number is 1."""
    if factor == 1:
        return x
    if isinstance(x, Value):
        return Value(call.emit("mul", x.node, call.constant_node(float(factor))), x.batch)
    return x * factor


@rule("aten.add")
def add(call: Call, x: Any, other: Any, alpha: Any = 1) -> Value:
    if call.result.dtype == torch.bool:
        return either(call, x, other)
    return elementwise(call, "add", x, _scaled(call, other, alpha))


@rule("aten.sub", "aten.subtract")
def sub(call: Call, x: Any, other: Any, alpha: Any = 1) -> Value:
    return elementwise(call, "sub", x, _scaled(call, other, alpha))


@rule("aten.rsub")
def rsub(call: Call, x: Any, other: Any, alpha: Any = 1) -> Value:
    return elementwise(call, "sub", other, _scaled(call, x, alpha))


@rule("aten.neg", "aten.negative")
def neg(call: Call, x: Any) -> Value:
    return Value(call.emit("neg", x.node), x.batch)


@rule("aten.mul", "aten.multiply")
def mul(call: Call, x: Any, other: Any) -> Value:
    if is_number(other) and other == 1:
        # torch writes 1 / x as the reciprocal times 1.
        return Value(x.node, x.batch)
    return elementwise(call, "mul", x, other)


@rule("aten.div", "aten.divide", "aten.true_divide")
def div(call: Call, x: Any, other: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is not None:
        raise call.refuse(f"rounding_mode={rounding_mode!r} rounds an encrypted value", "divide without rounding")
    if isinstance(other, Value):
        return elementwise(call, "div", x, other)
    divisor = other if isinstance(other, torch.Tensor) else torch.tensor(float(other), dtype=torch.float64)
    if bool((divisor == 0).any()):
        raise call.refuse("the divisor holds a zero", "remove the zero")
    inverse = divisor.double().reciprocal()
    call.names.set(inverse, f"{call.names.get(divisor, repr(scalar(divisor)))}.reciprocal")
    return elementwise(call, "mul", x, inverse)


@rule("aten.addcmul")
def addcmul(call: Call, x: Any, left: Any, right: Any, value: Any = 1) -> Value:
    product = left * right if not isinstance(left, Value) and not isinstance(right, Value) else None
    return elementwise(
        call, "add", x, _scaled(call, elementwise(call, "mul", left, right) if product is None else product, value)
    )


@rule("aten.lerp")
def lerp(call: Call, x: Any, end: Any, weight: Any) -> Value:
    difference = elementwise(call, "sub", end, x)
    return elementwise(call, "add", x, elementwise(call, "mul", difference, weight))


@rule("aten.square")
def square(call: Call, x: Any) -> Value:
    return Value(call.emit("power", x.node, exponent=2), x.batch)


_ROOTS = {-1.0: "reciprocal", 0.5: "sqrt", -0.5: "rsqrt"}


@rule("aten.pow", "aten.float_power")
def power(call: Call, x: Any, exponent: Any) -> Any:
    if isinstance(exponent, Value):
        raise call.refuse(
            "the exponent depends on an input",
            "use a fixed whole exponent; a positive number b to the power x is torch.exp(x * math.log(b))",
        )
    number = scalar(exponent)
    if number in _ROOTS:
        return Value(call.emit(_ROOTS[number], x.node), x.batch)
    if number is None or number != int(number) or number < 0:
        shown = "a tensor of exponents" if number is None else f"the exponent {number:g}"
        raise call.refuse(
            f"{shown} is not a whole number of at least 0, nor -1, 0.5 or -0.5",
            "write it with whole powers, torch.reciprocal, torch.sqrt and torch.rsqrt: x ** -2 is (1 / x) ** 2",
        )
    if number == 0:
        return torch.ones(call.shape, dtype=torch.float64)
    if number == 1:
        return Value(x.node, x.batch)
    return Value(call.emit("power", x.node, exponent=int(number)), x.batch)


# ---------------------------------------------------------------------------------------------- matrix products


def _swap(call: Call, node: Node) -> Node:
    """The last two axes of the node exchanged."""
    rank = len(node.type.shape)  # type: ignore[union-attr]
    return call.emit("permute", node, axes=(*range(rank - 2), rank - 1, rank - 2))


def _reshape(call: Call, node: Node, shape: Sequence[int]) -> Node:
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
        # The rows that torch sees are the samples: here each is one row of its own.
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
        # The columns that torch sees are the samples: here the last axis is the one that the matrix sums over.
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
    return Value(call.emit("matmul", left.node, right.node), max(left.rank, right.rank) - place)


@rule("aten.matmul", "aten.mm", "aten.bmm", "aten.mv", "aten.dot", "aten.inner", "aten.linalg_matmul")
def matmul(call: Call, left: Any, right: Any) -> Value:
    if isinstance(left, Value) and isinstance(right, Value):
        return secret_product(call, left, right)
    return _times_plain(call, left, right) if isinstance(left, Value) else _plain_times(call, left, right)


@rule("aten.einsum")
def einsum(call: Call, equation: str, tensors: Sequence[Any], path: Any = None) -> Value:
    terms, result = _letters(call, equation)
    values = [(term, x) for term, x in zip(terms, tensors, strict=True) if isinstance(x, Value)]
    plain = [(term, x) for term, x in zip(terms, tensors, strict=True) if not isinstance(x, Value)]
    batch = {term[x.batch] for term, x in values}
    letter = min(batch)
    if len(batch) > 1 or letter not in result or any(letter in term for term, _ in plain):
        raise call.mixes(
            f"the batch axis is {' and '.join(sorted(batch))} in {equation!r}",
            "give it one letter in all inputs and in the result, and in no other factor: 'bij,bjk->bik'",
        )
    kept = result.replace(letter, "")
    summed = "".join(dict.fromkeys(c for term in terms for c in term if c not in result))
    order = kept + summed
    factors = [(term.replace(letter, ""), x.node) for term, x in values]
    factors += [(term, call.constant_node(x)) for term, x in plain]
    product = None
    for term, node in factors:
        axes = sorted(range(len(term)), key=lambda axis, term=term: order.index(term[axis]))  # type: ignore[misc]
        if axes != list(range(len(term))):
            node = call.emit("permute", node, axes=tuple(axes))
        sizes = {term[axis]: size for axis, size in zip(axes, node.type.shape, strict=True)}  # type: ignore[union-attr]
        node = _reshape(call, node, [sizes.get(c, 1) for c in order])
        product = node if product is None else call.emit("mul", product, node)
    assert product is not None
    if summed:
        product = call.emit("sum", product, axes=tuple(range(len(kept), len(order))), keepdims=False)
    return Value(product, result.index(letter))


def _letters(call: Call, equation: str) -> tuple[list[str], str]:
    """The axes of each factor and of the result, a letter each."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:
        letters = sorted(set(left) - {","})
        result = "".join(c for c in letters if left.count(c) == 1)
    if "." in equation or any(len(set(term)) < len(term) for term in terms):
        raise call.refuse(
            f"{equation!r} has dots or a diagonal", "name each axis by a letter of its own: 'bij,bjk->bik'"
        )
    return terms, result


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
    return elementwise(call, "add", _scaled(call, bias, beta), _scaled(call, product, alpha))


# ---------------------------------------------------------------------------------------------- reductions


def _reduce(call: Call, op: str, x: Any, dims: Any, keepdim: bool) -> Value:
    axes, batch = reduced_axes(call, op, x, dims, keepdim)
    return Value(call.emit(op, x.node, axes=axes, keepdims=bool(keepdim)), batch)


@rule("aten.mean")
def mean(call: Call, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return _reduce(call, "mean", x, dim, keepdim)


@rule("aten.sum")
def sum_(call: Call, x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return _reduce(call, "sum", x, dim, keepdim)
