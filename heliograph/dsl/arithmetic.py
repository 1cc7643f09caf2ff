"""Operators and indices on run-time values: tensors become tensor ops, slots become CKKS operations."""

from __future__ import annotations

import numpy as np

from heliograph.dsl.calls import emit_annotated
from heliograph.dsl.diagnostics import Fault, Span
from heliograph.dsl.values import Fixed, Items, Value, as_array, as_integer, index_bounds, kind_of, shape_text
from heliograph.dsl.walk import Walk
from heliograph.ir import Node, TensorType
from heliograph.ir.node import Array

# A product with a whole number up to this size spends no level: it is a sum of the ciphertext with itself.
_MAX_INTEGER_FACTOR = 1024
MAX_POWER = 1024
# The op of each operator on tensors.
OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "div", "@": "matmul", ">": "gt", "<": "lt", ">=": "ge", "<=": "le",
}  # fmt: skip


def _exponent(value: Value, span: Span) -> int:
    if isinstance(value, Node):
        raise Fault(span, "the exponent is a run-time value", expected="a whole number known when the text is read")
    exponent = as_integer(value, span, "the exponent")
    if not 1 <= exponent <= MAX_POWER:
        raise Fault(span, f"the exponent is {exponent}", expected=f"a whole number from 1 to {MAX_POWER}")
    return exponent


def _no_operator(operator: str, left: Value, right: Value, span: Span) -> Fault:
    return Fault(span, f"{operator} does not take {kind_of(left)} and {kind_of(right)}")


def _inverse(value: Value, span: Span) -> Value:
    """1 / value for a known value."""
    array = as_array(value, span)
    if (array == 0).any():
        raise Fault(span, "division by zero")
    with np.errstate(over="ignore"):
        inverse = 1.0 / array
    if not np.isfinite(inverse).all():
        raise Fault(span, "1 over this divisor does not fit a double", expected="a divisor further from zero")
    return Fixed(np.asarray(inverse, dtype=array.dtype)) if array.ndim else float(inverse)


class TensorArithmetic:
    """Operators on tensors: one op of the table each."""

    def __init__(self, low: Walk) -> None:
        self.low = low

    def operand(self, value: Value, span: Span) -> Node:
        if isinstance(value, Node):
            return value
        name = self.low.store(as_array(value, span), value.name or "c" if isinstance(value, Fixed) else "c")
        return self.low.emit("constant", [], span, value=name)

    def binary(self, operator: str, left: Value, right: Value, span: Span) -> Node:
        if operator == "**" and isinstance(left, Node):
            exponent = _exponent(right, span)
            return left if exponent == 1 else self.low.emit("power", [left], span, exponent=exponent)
        if operator == "/" and not isinstance(right, Node):
            operator, right = "*", _inverse(right, span)
        if operator == "/" and isinstance(right, Node) and isinstance(left, int | float) and left is not True:
            inverse = emit_annotated(self.low, "reciprocal", [right], span)
            return inverse if left == 1 else self.binary("*", inverse, left, span)
        if operator not in OPERATORS:
            raise _no_operator(operator, left, right, span)
        operands = [self.operand(left, span), self.operand(right, span)]
        return emit_annotated(self.low, OPERATORS[operator], operands, span)

    def negative(self, node: Node, span: Span) -> Node:
        return self.low.emit("neg", [node], span)

    def index(self, node: Node, items: Items, span: Span) -> Node:
        assert isinstance(node.type, TensorType)
        bounds = index_bounds(items, node.type.shape, span)
        full = [(b, b + 1, 1) if isinstance(b, int) else b for b in bounds]
        kept = tuple(-(-(b[1] - b[0]) // b[2]) for b in bounds if not isinstance(b, int))
        if any(b != (0, size, 1) for b, size in zip(full, node.type.shape, strict=True)):
            starts, stops, steps = (tuple(b[i] for b in full) for i in range(3))
            node = self.low.emit("slice", [node], span, starts=starts, stops=stops, steps=steps)
        assert isinstance(node.type, TensorType)
        return node if node.type.shape == kept else self.low.emit("reshape", [node], span, shape=kept)

    def fixed_attribute(self, array: Array, name: str, span: Span) -> Array:
        return array


class SlotArithmetic:
    """Operators on slots: products and sums of ciphertexts, and of ciphertexts with plaintext vectors.

    `size` is the n of `slots[n]`; a ciphertext has `slots`, the next power of two. Vectors are padded with zeros.
    """

    def __init__(self, low: Walk, size: int, slots: int) -> None:
        self.low = low
        self.size = size
        self.slots = slots

    def operand(self, value: Value, span: Span) -> Node:
        if isinstance(value, Node):
            return value
        raise Fault(
            span,
            f"{kind_of(value)} stands where slots are needed",
            expected="a value made from an input",
            hint="plaintexts are combined with + - * only",
        )

    def _vector(self, value: Value, span: Span) -> Array:
        return self.fixed_attribute(as_array(value, span), "value", span)

    def fixed_attribute(self, array: Array, name: str, span: Span) -> Array:
        if name != "value":
            return array
        if array.ndim == 0 or array.shape == (1,):
            return array.reshape(1).astype(np.float64)
        if array.ndim != 1 or array.size not in (self.size, self.slots):
            raise Fault(
                span,
                f"a plaintext of shape {shape_text(array.shape)} with slots[{self.size}]",
                expected=f"one number, or {self.size} of them",
            )
        return np.pad(array.astype(np.float64), (0, self.slots - array.size))

    def binary(self, operator: str, left: Value, right: Value, span: Span) -> Node:
        if operator == "**" and isinstance(left, Node):
            return self._power(left, _exponent(right, span), span)
        if operator == "/" and isinstance(right, Node):
            raise Fault(
                span,
                "slots cannot be divided by slots",
                hint="multiply with an inverse, or with poly(...) of one",
                unsupported=True,
            )
        if operator == "/":
            operator, right = "*", _inverse(right, span)
        if operator in (">", "<", ">=", "<="):
            raise Fault(span, "slots cannot be compared", hint="write the program on tensors, or poly(...) of a step")
        if operator not in ("+", "-", "*"):
            raise _no_operator(operator, left, right, span)
        if isinstance(left, Node) and isinstance(right, Node):
            return self._nodes(operator, left, right, span)
        if isinstance(left, Node):
            node, fixed = left, right
        else:
            assert isinstance(right, Node)
            node, fixed = right, left
        if operator == "*":
            return self._scaled(node, fixed, span)
        if operator == "-" and node is right:
            node = self.negative(node, span)
        sign = -1.0 if operator == "-" and node is left else 1.0
        vector = sign * self._vector(fixed, span)
        if vector.size == 1:
            return self.low.emit("add_scalar", [node], span, value=float(vector[0]))
        return self.low.emit("add_plain", [node], span, value=self.low.store(vector, _label(fixed)))

    def _nodes(self, operator: str, left: Node, right: Node, span: Span) -> Node:
        """Two values of run time as nodes; a plain one beside a secret one becomes a plaintext."""
        if left.type.secret == right.type.secret:
            return self.low.emit({"+": "add_ct", "-": "sub_ct", "*": "mul_ct"}[operator], [left, right], span)
        if operator == "-":
            right = self.negative(right, span)
        secret, plain = (left, right) if left.type.secret else (right, left)
        return self.low.emit("mul_pt" if operator == "*" else "add_pt", [secret, plain], span)

    def _scaled(self, node: Node, fixed: Value, span: Span) -> Node:
        if isinstance(fixed, int) and not isinstance(fixed, bool) and abs(fixed) <= _MAX_INTEGER_FACTOR:
            return self.low.emit("mul_int", [node], span, factor=fixed)
        name = self.low.store(self._vector(fixed, span), _label(fixed))
        return self.low.emit("mul_plain", [node], span, value=name)

    def _power(self, node: Node, exponent: int, span: Span) -> Node:
        """The power in as few levels as possible: halves multiplied together."""
        made = {1: node}

        def power(k: int) -> Node:
            if k not in made:
                low = 1 << (k.bit_length() - 1)
                half = k // 2 if low == k else low
                made[k] = self.low.emit("mul_ct", [power(half), power(k - half)], span)
            return made[k]

        return power(exponent)

    def negative(self, node: Node, span: Span) -> Node:
        return self.low.emit("negate", [node], span)

    def index(self, node: Node, items: Items, span: Span) -> Node:
        raise Fault(
            span,
            "slots have no index: they share one ciphertext",
            hint="rotate(x, k) moves slot k to slot 0; a product with zeros and ones selects",
        )


def _label(value: Value) -> str:
    return value.name or "c" if isinstance(value, Fixed) else "c"
