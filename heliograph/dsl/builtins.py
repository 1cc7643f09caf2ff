"""Functions of the language that are not ops of the table: shapes, fixed arrays, parameters from files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from heliograph.dsl import ast
from heliograph.dsl.diagnostics import Fault
from heliograph.dsl.values import MAX_COMPUTED, Fixed, List, Value, as_array, as_integer, kind_of, make_list, shape_text
from heliograph.dsl.walk import Walk
from heliograph.ir import Node, TensorType
from heliograph.ir.types import SlotsType
from heliograph.texts import number_of

Builtin = Callable[[Walk, Sequence[Value], ast.Call], Value]

# Other words for the operators on slots.
SLOT_WORDS = {"add": "+", "sub": "-", "mul": "*", "multiply": "*", "neg": "-"}


def _need(call: ast.Call, count: int, usage: str) -> None:
    if call.keywords or len(call.arguments) != count:
        raise Fault(call.span, f"{call.name.name} takes {number_of(count, 'value')} without names", expected=usage)


def shape_of(value: Value, call: ast.Call) -> tuple[int, ...]:
    """The shape of a run-time value, a fixed array or a list."""
    if isinstance(value, Node):
        if isinstance(value.type, TensorType):
            return value.type.shape
        assert isinstance(value.type, SlotsType)
        return (value.type.slots,)
    if isinstance(value, str | bool):
        raise Fault(call.span, f"{kind_of(value)} has no shape", expected="a tensor or a list")
    return tuple(as_array(value, call.span).shape)


def _shape(low: Walk, values: Sequence[Value], call: ast.Call) -> Value:
    _need(call, 1, "shape(x)")
    return make_list(shape_of(values[0], call), call.span)


def _len(low: Walk, values: Sequence[Value], call: ast.Call) -> Value:
    _need(call, 1, "len(x)")
    if isinstance(values[0], List):
        return len(values[0])
    shape = shape_of(values[0], call)
    if not shape:
        raise Fault(call.span, "a number has no length", expected="a tensor or a list")
    return shape[0]


def _filled(number: float) -> Builtin:
    def make(low: Walk, values: Sequence[Value], call: ast.Call) -> Value:
        _need(call, 1, f"{call.name.name}([2, 3])")
        sizes = values[0] if isinstance(values[0], List) else (values[0],)
        shape = tuple(as_integer(size, call.span, "a size") for size in sizes)
        if any(size < 1 for size in shape) or math.prod(shape) > MAX_COMPUTED:
            raise Fault(
                call.span,
                f"{call.name.name} of shape {shape_text(shape)[:200]}",
                expected=f"sizes of at least 1, at most {MAX_COMPUTED} elements",
            )
        return Fixed(np.full(shape, number))

    return make


def _float32(low: Walk, values: Sequence[Value], call: ast.Call) -> Value:
    _need(call, 1, "float32(x)")
    with np.errstate(over="ignore"):
        array = as_array(values[0], call.span).astype(np.float32)
    if not np.isfinite(array).all():
        raise Fault(call.span, "a number does not fit 32 bits", expected="numbers below 3.4e38")
    return Fixed(array)


def _load(low: Walk, values: Sequence[Value], call: ast.Call) -> Value:
    usage = 'load("weights.npz", "name")'
    if call.keywords or not 1 <= len(values) <= 2 or not all(isinstance(value, str) for value in values):
        raise Fault(call.span, "load takes the path of a file and the name of an array", expected=usage)
    path, *key = (str(value) for value in values)
    return Fixed(low.loader.from_file(path, key[0] if key else None, call.span))


def _given(low: Walk, values: Sequence[Value], call: ast.Call) -> Value:
    _need(call, 1, 'given("name")')
    if not isinstance(values[0], str):
        raise Fault(call.span, "given takes the name of a parameter", expected='given("name")')
    return Fixed(low.loader.from_given(values[0], call.span), values[0])


def _flatten(low: Walk, values: Sequence[Value], call: ast.Call) -> Value:
    _need(call, 1, "flatten(x)")
    size = math.prod(shape_of(values[0], call))
    if not isinstance(values[0], Node):
        return Fixed(as_array(values[0], call.span).reshape(-1))
    if not isinstance(values[0].type, TensorType):
        return values[0]
    return low.emit("reshape", [values[0]], call.span, shape=(size,))


BUILTINS: dict[str, Builtin] = {
    "shape": _shape,
    "len": _len,
    "zeros": _filled(0.0),
    "ones": _filled(1.0),
    "float32": _float32,
    "load": _load,
    "given": _given,
    "flatten": _flatten,
}
