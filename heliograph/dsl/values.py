"""Values known when a text is read, and the arithmetic on them: numbers, strings, lists, fixed arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from heliograph.dsl import ast
from heliograph.dsl.diagnostics import Fault, Span
from heliograph.dsl.tree import MAX_INTEGER
from heliograph.ir import Node
from heliograph.ir.node import Array

# The largest tensor that a program may refer to, and the largest array that is computed while the text is read.
MAX_ELEMENTS = 2**26
MAX_COMPUTED = 2**22
_MAX_MULTIPLICATIONS = 2**28


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """An array that is known when the text is read; `name` is its name among the program's constants."""

    array: Array
    name: str = ""


class List(tuple["Value", ...]):
    """A list in the text; it may hold run-time values (the results of a function, the operands of concat).

    `size` counts all elements inside, `depth` the nesting of lists, `has_node` whether a run-time value is
    among them. A list that holds another one twice is small in memory and large to walk, hence the bounds.
    """

    size: int
    depth: int
    has_node: bool


Value: TypeAlias = "bool | int | float | str | Fixed | Node | List"

_MAX_AXES = 16


def make_list(items: Sequence[Value], span: Span) -> List:
    """The items as a list; a Fault if it grows too large or too deep."""
    made = List(items)
    lists = [item for item in items if isinstance(item, List)]
    fixed = [item for item in items if isinstance(item, Fixed)]
    plain = len(items) - len(lists) - len(fixed)
    made.size = plain + sum(item.size for item in lists) + sum(item.array.size for item in fixed)
    made.depth = 1 + max((item.depth for item in lists), default=0)
    made.has_node = any(isinstance(item, Node) for item in items) or any(item.has_node for item in lists)
    if made.size > MAX_COMPUTED:
        raise Fault(span, f"this list holds {made.size} numbers", expected=f"at most {MAX_COMPUTED}")
    if made.depth > _MAX_AXES:
        raise Fault(span, f"lists nest more than {_MAX_AXES} deep")
    return made


def kind_of(value: Value) -> str:
    """The value's kind, in words for messages."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "a whole number"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, List):
        return f"a list of {len(value)}"
    if isinstance(value, Fixed):
        return f"a fixed tensor {shape_text(value.array.shape)}"
    return f"a run-time value {value.type}"


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape in the syntax of the text: `[2, 3]`."""
    return "[" + ", ".join(map(str, shape)) + "]"


def holds_node(value: Value) -> bool:
    return isinstance(value, Node) or (isinstance(value, List) and value.has_node)


def as_array(value: Value, span: Span) -> Array:
    """The value as an array of numbers; lists become float64, files keep float32."""
    if isinstance(value, Fixed):
        return value.array
    if isinstance(value, bool | str | Node):
        raise Fault(span, f"{kind_of(value)} stands where a fixed tensor is needed", expected="numbers, or a param")
    if isinstance(value, List):
        _shape(value, span)
    return np.asarray(_plain(value, span), dtype=np.float64)


def _shape(value: Value, span: Span) -> tuple[int, ...]:
    """The shape of a list; a Fault if its rows differ."""
    if isinstance(value, Fixed):
        return value.array.shape
    if not isinstance(value, List):
        return ()
    shapes = {_shape(item, span) for item in value}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise Fault(
            span,
            "the rows of this list have different shapes",
            expected=f"one shape; there are {shape_text(first)} and {shape_text(second)}",
        )
    return (len(value), *(shapes.pop() if shapes else ()))


def _plain(value: Value, span: Span) -> Any:
    if isinstance(value, List):
        return [_plain(item, span) for item in value]
    if isinstance(value, Fixed):
        return value.array.tolist()
    if isinstance(value, bool | str | Node):
        raise Fault(span, f"the list holds {kind_of(value)}", expected="numbers only")
    return value


def as_integer(value: Value, span: Span, what: str) -> int:
    """A whole number; also a fixed array of one whole number."""
    if isinstance(value, Fixed) and value.array.ndim == 0:
        value = float(value.array)
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_INTEGER:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Fault(span, f"{what} is {kind_of(value)}", expected="a whole number known when the text is read")
    return value


def as_number(value: Value, span: Span, what: str) -> float:
    """A number as a float."""
    if isinstance(value, Fixed) and value.array.ndim == 0:
        return float(value.array)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Fault(span, f"{what} is {kind_of(value)}", expected="a number known when the text is read")
    return float(value)


def _bounded(value: int | float, span: Span) -> int | float:
    if isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise Fault(span, f"this is larger than {MAX_INTEGER}", hint="compute with 1.0 instead of 1")
    elif not math.isfinite(value):
        raise Fault(span, "this does not fit a double", expected="numbers below 1.8e308")
    return value


# 1 if the comparison holds and 0 if not, as for run-time values.
_COMPARISONS = {">": np.greater, "<": np.less, ">=": np.greater_equal, "<=": np.less_equal}


def _scalar(operator: str, left: int | float, right: int | float, span: Span) -> int | float:
    if operator in _COMPARISONS:
        return int(_COMPARISONS[operator](left, right))
    if operator in ("/", "//", "%") and right == 0:
        raise Fault(span, "division by zero")
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if operator == "/":
        return left / right
    if operator == "//":
        return left // right
    if operator == "%":
        return left % right
    if operator == "@":
        raise Fault(span, "@ needs tensors, these are numbers", hint="write *")
    whole = isinstance(left, int) and isinstance(right, int) and right >= 0
    if whole and abs(left) > 1 and right * math.log2(abs(left)) > 64:
        raise Fault(span, f"this is larger than {MAX_INTEGER}", hint="compute with 1.0 instead of 1")
    if left == 0 and right < 0:
        raise Fault(span, "division by zero")
    result = left**right
    if isinstance(result, complex):
        raise Fault(span, "a negative number to a power that is not whole is not real")
    return result


def _arrays(operator: str, left: Array, right: Array, span: Span) -> Array:
    if operator == "@":
        if not left.ndim or not right.ndim:
            raise Fault(span, "@ needs tensors, one side is a number", hint="write *")
        inner = right.shape[-2] if right.ndim > 1 else right.shape[0]
        cost = left.size * (right.size // max(inner, 1))
        if cost > _MAX_MULTIPLICATIONS:
            raise Fault(span, "this product is too large to compute while the text is read", hint="compute it outside")
        return np.asarray(left @ right)
    operations = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "**": np.power, **_COMPARISONS}
    if operator not in operations:
        raise Fault(span, f"{operator} works on numbers, not on tensors")
    if math.prod(np.broadcast_shapes(left.shape, right.shape)) > MAX_COMPUTED:
        raise Fault(span, f"the result has more than {MAX_COMPUTED} elements", hint="compute it outside and load() it")
    if operator == "**":
        left = left.astype(np.float64)
    result = np.asarray(operations[operator](left, right))
    return result.astype(np.result_type(left, right)) if operator in _COMPARISONS else result


def fixed_binary(operator: str, left: Value, right: Value, span: Span) -> Value:
    """`left operator right` on two known values; a Fault if it has no meaning."""
    for side in (left, right):
        if isinstance(side, str | bool):
            raise Fault(span, f"{operator} does not take {kind_of(side)}", expected="numbers or tensors")
    if isinstance(left, int | float) and isinstance(right, int | float):
        try:
            return _bounded(_scalar(operator, left, right, span), span)
        except OverflowError:
            raise Fault(span, "this does not fit a double", expected="numbers below 1.8e308") from None
    a, b = as_array(left, span), as_array(right, span)
    # Numbers keep the dtype of a float32 array, as in numpy.
    if isinstance(left, int | float):
        a = a.astype(b.dtype)
    if isinstance(right, int | float):
        b = b.astype(a.dtype)
    try:
        with np.errstate(all="ignore"):
            result = _arrays(operator, a, b, span)
    except ValueError:
        raise Fault(
            span,
            f"{operator}: shapes {shape_text(a.shape)} and {shape_text(b.shape)} do not match",
            expected="the last axis of the left equal to the rows of the right"
            if operator == "@"
            else "each axis equal or 1, counted from the last",
        ) from None
    if not np.isfinite(result).all():
        raise Fault(span, f"{operator} gives infinity or no number here", expected="finite results")
    return Fixed(result)


def fixed_negative(value: Value, span: Span) -> Value:
    if isinstance(value, bool | str):
        raise Fault(span, f"- does not take {kind_of(value)}", expected="a number or a tensor")
    if isinstance(value, int | float):
        return -value
    return Fixed(-as_array(value, span))


# An index or the bounds of a slice, from `index_bounds`.
Item: TypeAlias = "int | tuple[int, int, int]"
# As written: an index, or start, stop and step that may be absent.
Items: TypeAlias = "list[int | tuple[int | None, int | None, int | None]]"


def index_bounds(items: Items, size: tuple[int, ...], span: Span) -> list[Item]:
    """Indices and slices with non-negative bounds for every axis of the shape."""
    if len(items) > len(size):
        what = f"{len(items)} indices for a value of shape {shape_text(size)}"
        raise Fault(span, what, expected=f"at most {len(size)}")
    out: list[Item] = []
    for axis, length in enumerate(size):
        item = items[axis] if axis < len(items) else (None, None, None)
        if isinstance(item, int):
            if not -length <= item < length:
                raise Fault(span, f"index {item} is outside axis {axis} of {length}", expected=f"0 to {length - 1}")
            out.append(item % length)
            continue
        start, stop, step = item
        if step is not None and step < 1:
            raise Fault(span, f"the step {step} of a slice must be positive", expected="1 or more")
        first, last, pace = slice(start, stop, step).indices(length)
        if first >= last:
            raise Fault(span, f"this slice of axis {axis} of {length} is empty", expected="start below stop")
        out.append((first, last, pace))
    return out


def fixed_index(value: Value, items: Items, span: Span) -> Value:
    """An element or a part of a list or fixed array."""
    if isinstance(value, List) and len(items) == 1:
        (bounds,) = index_bounds(items, (len(value),), span)
        return value[bounds] if isinstance(bounds, int) else make_list(value[slice(*bounds)], span)
    if isinstance(value, List | Fixed) and not holds_node(value):
        array = as_array(value, span)
        key = tuple(b if isinstance(b, int) else slice(*b) for b in index_bounds(items, array.shape, span))
        part = array[key]
        if part.ndim == 0:
            return float(part)
        return Fixed(np.ascontiguousarray(part))
    raise Fault(span, f"{kind_of(value)} cannot be indexed like this", expected="a tensor or a list")


class Poison:
    """The placeholder for a value whose statement had an error."""


POISON = Poison()


@dataclass(slots=True)
class Frame:
    """The scope in which names are looked up: the program, or one activation of a function."""

    function: ast.Function | None
    values: dict[str, Value | Poison] = field(default_factory=dict)
    prefix: str = ""
    loops: str = ""
