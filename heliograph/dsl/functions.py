"""Functions of a text: their bodies are copied to each call, with their shape variables bound."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.dsl import ast
from heliograph.dsl.arithmetic import SlotArithmetic
from heliograph.dsl.diagnostics import Fault, Poisoned, Span, shown
from heliograph.dsl.values import Fixed, Frame, Value, as_array, as_integer, as_number, kind_of, make_list, shape_text
from heliograph.dsl.walk import Walk
from heliograph.ir import Node, TensorType
from heliograph.ir.types import SlotsType

# The limit on nested evaluation: each level costs two frames of Python's stack, which has a thousand; a call
# costs as much as `_CALL_NESTING` nested expressions.
MAX_NESTING = 160
_CALL_NESTING = 5


def inline(low: Walk, call: ast.Call, function: ast.Function, values: list[Value]) -> Value:
    """The results of the function on these values, its body copied to this place."""
    named = {keyword.name: (low.evaluate(keyword.value), keyword.value.span) for keyword in call.keywords}
    arguments = dict(named)
    for parameter, value, argument in zip(function.parameters, values, call.arguments, strict=False):
        arguments[parameter.name.name] = (value, argument.span)
    names = {parameter.name.name for parameter in function.parameters}
    if (
        arguments.keys() != names
        or len(values) + len(named) != len(names)
        or any(function.name.name == active for active, _ in low.active)
    ):
        # Reported by the checker.
        raise Poisoned
    frame = Frame(function, prefix=f"{low.layer}." if low.layer else "")
    for parameter in function.parameters:
        value, span = arguments[parameter.name.name]
        frame.values[parameter.name.name] = value
        if parameter.type is not None:
            _match(low, parameter, value, span, frame, call)
    outer, low.frame = low.frame, frame
    low.active.append((function.name.name, call.span))
    low.nesting += _CALL_NESTING
    try:
        if low.nesting > MAX_NESTING:
            raise Fault(call.span, "calls nest too deeply", hint="give inner parts names")
        *body, last = function.body or [ast.Broken(function.span, (), "NAME")]
        if not low.run_block(body) or not isinstance(last, ast.Return):
            raise Poisoned
        results: list[Value] = []
        for expression in last.values:
            results.append(low.annotated(expression, last.annotation))
        _check_result(low, function, results)
    except Fault as fault:
        fault.note = fault.note or low.call_note()
        raise
    finally:
        low.nesting -= _CALL_NESTING
        low.active.pop()
        low.frame = outer
    return results[0] if len(results) == 1 else make_list(results, call.span)


def _match(low: Walk, parameter: ast.Parameter, value: Value, span: Span, frame: Frame, call: ast.Call) -> None:
    """Check a value against its parameter's type, and bind the type's shape variables."""
    kind, name = parameter.type, shown(parameter.name.name)
    where = f"in the call of {shown(call.name.name)}"
    if isinstance(kind, ast.NumberOf):
        if kind.kind == "int":
            frame.values[parameter.name.name] = as_integer(value, span, f"{where}: {name}")
        else:
            frame.values[parameter.name.name] = as_number(value, span, f"{where}: {name}")
        return
    if isinstance(kind, ast.SlotsOf):
        if not isinstance(value, Node) or not isinstance(value.type, SlotsType):
            raise Fault(span, f"{where}: {name} is {kind_of(value)}", expected="slots")
        assert isinstance(low.arithmetic, SlotArithmetic)
        _match_dims(low, () if kind.count is None else (kind.count,), (low.arithmetic.size,), frame, span, name)
        return
    assert isinstance(kind, ast.TensorOf)
    if isinstance(value, Node) and isinstance(value.type, TensorType):
        shape = value.type.shape
    elif isinstance(value, Node):
        raise Fault(span, f"{where}: {name} is {kind_of(value)}", expected="a tensor")
    else:
        low.charge(span, value)
        array = as_array(value, span)
        shape = array.shape
        frame.values[parameter.name.name] = value if isinstance(value, Fixed) else Fixed(array)
    if len(shape) != len(kind.dims):
        raise Fault(
            span,
            f"{where}: {name} has shape {shape_text(shape)}",
            expected=f"a tensor with {len(kind.dims)} axes, as line {_line(low, kind.span)} says",
        )
    _match_dims(low, kind.dims, shape, frame, span, name)


def _match_dims(
    low: Walk, dims: Sequence[ast.Expression], shape: tuple[int, ...], frame: Frame, span: Span, name: str
) -> None:
    for dim, size in zip(dims, shape, strict=False):
        if isinstance(dim, ast.Name) and dim.name not in frame.values and dim.name not in low.globals:
            frame.values[dim.name] = size
            continue
        outer, low.frame = low.frame, frame
        try:
            wanted = as_integer(low.evaluate(dim), dim.span, "a dimension")
        finally:
            low.frame = outer
        if wanted != size:
            text = f"{shown(dim.name)} = {wanted}" if isinstance(dim, ast.Name) else str(wanted)
            raise Fault(
                span,
                f"{name} has shape {shape_text(shape)}, which does not match line {_line(low, dim.span)}",
                expected=f"{text} where it has {size}",
            )


def _check_result(low: Walk, function: ast.Function, results: list[Value]) -> None:
    kind = function.result
    if kind is None:
        return
    if len(results) > 1:
        raise Fault(kind.span, f"the function returns {len(results)} values, its type speaks of one")
    (value,) = results
    shape: tuple[int, ...] | None = None
    if isinstance(kind, ast.TensorOf):
        if isinstance(value, Node):
            shape = value.type.shape if isinstance(value.type, TensorType) else None
        else:
            shape = as_array(value, kind.span).shape
        wanted = low.dims(kind.dims)
        if shape != wanted:
            raise Fault(
                kind.span,
                f"fn {shown(function.name.name)} returns shape {shape_text(shape or ())}",
                expected=f"tensor{shape_text(wanted)}, as its type says",
            )
    elif isinstance(kind, ast.SlotsOf) and not (isinstance(value, Node) and isinstance(value.type, SlotsType)):
        raise Fault(kind.span, f"fn {shown(function.name.name)} returns {kind_of(value)}", expected="slots")
    elif isinstance(kind, ast.NumberOf):
        (as_integer if kind.kind == "int" else as_number)(value, kind.span, "the result")


def _line(low: Walk, span: Span) -> int:
    return low.source.line_column(span.start)[0]
