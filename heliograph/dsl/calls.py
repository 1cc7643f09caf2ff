"""Calls of ops: operands and attributes, checked against the op table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from heliograph.dsl import ast
from heliograph.dsl.diagnostics import Fault, Poisoned, Span, did_you_mean, shown
from heliograph.dsl.values import MAX_COMPUTED, Fixed, List, Value, as_array, as_integer, as_number, holds_node, kind_of
from heliograph.dsl.walk import Walk
from heliograph.errors import ProgramError
from heliograph.ir import ConstantName, Node, SparseMatrix, TensorType
from heliograph.ir.node import Array
from heliograph.ir.ops.table import OPS, Context, OpSpec, Role, check_call
from heliograph.texts import number_of

# Attributes with one entry for each spatial axis of (channels, *spatial); a single number is used for all axes.
_PER_AXIS = {"kernel", "stride", "padding", "dilation", "output_size"}
# Ops that are computed while the text is read if all operands are known.
FOLDED = frozenset(name for name, spec in OPS.items() if spec.role is Role.MOVE)
# Constants that the op table requires as sparse matrices.
_SPARSE = {"matrix", "matrices"}

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a string",
    "ints": "a list of whole numbers",
    "floats": "a list of numbers",
    "strs": "a list of strings",
    "constant": "a fixed tensor: a param, or numbers",
    "constants": "a list of fixed tensors",
}


def _all_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(range(len(shape)))


def _per_axis(value: int) -> Callable[[tuple[int, ...], Mapping[str, Any]], tuple[int, ...]]:
    return lambda shape, attrs: (value,) * max(1, len(shape) - 1)


# Defaults for required attributes that a call leaves out: op -> attribute -> function of (shape, attributes).
_DEFAULTS: dict[str, dict[str, Callable[[tuple[int, ...], Mapping[str, Any]], Any]]] = {
    "conv": {
        "stride": _per_axis(1),
        "padding": _per_axis(0),
        "dilation": _per_axis(1),
        "groups": lambda shape, attrs: 1,
    },
    "avg_pool": {
        "stride": lambda shape, attrs: attrs.get("kernel"),
        "padding": _per_axis(0),
        "count_include_pad": lambda shape, attrs: True,
    },
    "max_pool": {"stride": lambda shape, attrs: attrs.get("kernel"), "padding": _per_axis(0), "dilation": _per_axis(1)},
    "batch_norm": {"eps": lambda shape, attrs: 1e-5},
    "layer_norm": {"rank": lambda shape, attrs: 1, "eps": lambda shape, attrs: 1e-5},
    **{op: {"axis": lambda shape, attrs: -1} for op in ("max", "min", "argmax", "softmax")},
    "sum": {"axes": lambda shape, attrs: _all_axes(shape), "keepdims": lambda shape, attrs: False},
    "mean": {"axes": lambda shape, attrs: _all_axes(shape), "keepdims": lambda shape, attrs: False},
    "slice": {"steps": lambda shape, attrs: (1,) * len(shape)},
}


# Attributes that a compiler's options can also set, by layer.
_TUNED = ("degree", "gap", "high")


def is_tuned(spec: OpSpec) -> bool:
    """Whether annotations and options control the op's approximation; such an op has a layer of its own."""
    return any(spec.attrs.get(name, "").endswith("?") for name in _TUNED)


def expand_range(values: dict[str, tuple[Value, Span]]) -> dict[str, tuple[Value, Span]]:
    """`range = [a, b]` as `low` and `high`."""
    if "range" not in values:
        return values
    out = dict(values)
    value, span = out.pop("range")
    if not isinstance(value, List) or len(value) != 2:
        raise Fault(span, f"range is {kind_of(value)}", expected="[low, high]")
    low, high = (as_number(bound, span, "a bound of the range") for bound in value)
    out["low"], out["high"] = (low, span), (high, span)
    return out


def call_op(low: Walk, spec: OpSpec, call: ast.Call, values: Sequence[Value]) -> Value:
    """The node of an op on the values of a call's arguments; a Fault with the op's operands if they do not fit."""
    spans = [argument.span for argument in call.arguments]
    given = {keyword.name: (low.evaluate(keyword.value), keyword.value.span) for keyword in call.keywords}
    first, attributes = _operands(low, spec, call, list(zip(values, spans, strict=True)), given)
    if "low" in spec.attrs and "high" in spec.attrs and "range" not in spec.attrs:
        attributes = expand_range(attributes)
    for name, (_, span) in attributes.items():
        if name not in spec.attrs:
            if low.report:
                # The checker has already reported it.
                raise Poisoned
            raise Fault(span, f"{spec.name} has no attribute {shown(name)!r}", hint=did_you_mean(name, spec.attrs))
    _annotate(low, spec, attributes)
    fold = spec.name in FOLDED and bool(first) and not any(holds_node(value) for value, _ in first)
    if low.stage not in spec.stages and not fold:
        raise Fault(call.span, f"{spec.name} works on fixed arrays only, in a program on slots")
    operands = [] if fold else [low.operand(value, span) for value, span in first]
    fixed = [as_array(value, span) for value, span in first] if fold else []
    shape: tuple[int, ...] = fixed[0].shape if fixed else ()
    if operands and isinstance(operands[0].type, TensorType):
        shape = operands[0].type.shape
    converted: dict[str, Any] = {}
    for name in spec.attrs:
        if name in attributes:
            value, span = attributes[name]
            converted[name] = _attribute(low, spec, name, value, span, shape)
    for name, default in _DEFAULTS.get(spec.name, {}).items():
        if name in spec.attrs and name not in converted:
            converted[name] = default(shape, converted)
    missing = [name for name, kind in spec.attrs.items() if not kind.endswith("?") and converted.get(name) is None]
    if missing:
        kinds = ", ".join(f"{name} = {_KINDS.get(spec.attrs[name], spec.attrs[name])}" for name in missing)
        raise Fault(call.span, f"{spec.name} needs {', '.join(missing)}", expected=kinds)
    if fold:
        low.charge(call.span, *(value for value, _ in first))
        return _folded(low, spec, call, fixed, converted)
    _check_numbers(spec, converted, call.span, attributes)
    if spec.name == "rotate" and not converted["amount"]:
        return operands[0]
    return low.emit(spec.name, operands, call.span, **converted)


def emit_annotated(low: Walk, op: str, operands: Sequence[Node], span: Span) -> Node:
    """The node of an operator: an op on these operands, with the attributes of annotations."""
    spec = OPS[op]
    attributes: dict[str, tuple[Value, Span]] = {}
    _annotate(low, spec, attributes)
    attrs = {name: _attribute(low, spec, name, value, place, ()) for name, (value, place) in attributes.items()}
    _check_numbers(spec, attrs, span, attributes)
    return low.emit(op, operands, span, **attrs)


def _folded(low: Walk, spec: OpSpec, call: ast.Call, arrays: list[Array], attrs: dict[str, Any]) -> Fixed:
    """The op computed on known arrays."""
    context = Context({})
    try:
        check_call(spec, len(arrays), attrs, {})
        types = [TensorType(array.shape, secret=False) for array in arrays]
        result = spec.infer_type(types, attrs, context)
        assert isinstance(result, TensorType)
        if result.size > MAX_COMPUTED:
            raise Fault(call.span, f"the result has {result.size} numbers", expected=f"at most {MAX_COMPUTED}")
        values = spec.evaluate([array[np.newaxis] for array in arrays], attrs, context)
    except ProgramError as error:
        raise Fault(call.span, error.what, expected=error.why, hint=error.hint) from None
    folded = Fixed(np.ascontiguousarray(values[0]).reshape(result.shape))
    low.charge(call.span, folded)
    return folded


def _operands(
    low: Walk,
    spec: OpSpec,
    call: ast.Call,
    values: list[tuple[Value, Span]],
    given: dict[str, tuple[Value, Span]],
) -> tuple[list[tuple[Value, Span]], dict[str, tuple[Value, Span]]]:
    """Operands, and attributes with the positional ones, in the order of the table."""
    least, most = spec.arity
    if most is None and len(values) == 1 and isinstance(values[0][0], List):
        values = [(item, values[0][1]) for item in values[0][0]]
    if len(values) < least:
        raise Fault(
            call.span,
            f"{spec.name} takes {'at least ' if most is None else ''}{number_of(least, 'operand')}, not {len(values)}",
            expected=_usage(spec),
        )
    first = values if most is None else values[:most]
    attributes = dict(given)
    rest = [] if most is None else values[most:]
    free = [name for name in spec.attrs if name not in given]
    if spec.name in ("max", "min") and rest and holds_node(rest[0][0]):
        raise Fault(
            rest[0][1], f"{spec.name} takes one tensor and an axis", hint=f"of two tensors it is {spec.name}imum(x, y)"
        )
    if len(rest) > len(free):
        raise Fault(rest[len(free)][1], f"{spec.name} does not take {len(values)} values", expected=_usage(spec))
    attributes.update(zip(free, rest, strict=False))
    return first, attributes


def _usage(spec: OpSpec) -> str:
    least, most = spec.arity
    operands = ["x", "y", "z"][: most or least] if (most or least) <= 3 else [f"x{i}" for i in range(least)]
    if most is None:
        operands.append("...")
    required = [f"{name}=..." for name, kind in spec.attrs.items() if not kind.endswith("?")]
    return f"{spec.name}({', '.join([*operands, *required])})"


def _annotate(low: Walk, spec: OpSpec, attributes: dict[str, tuple[Value, Span]]) -> None:
    """Add the attributes of annotations, the innermost first; attributes in the call itself take precedence."""
    own = set(attributes)
    for annotation in reversed(low.annotations):
        for name, (value, keyword) in annotation.entries.items():
            if name in spec.attrs:
                # Given in the call as well: the annotation still refers to this op.
                annotation.used.add(name)
                if name not in attributes and name not in own:
                    attributes[name] = (value, keyword.span)


def _attribute(low: Walk, spec: OpSpec, name: str, value: Value, span: Span, shape: tuple[int, ...]) -> Any:
    kind = spec.attrs[name].removesuffix("?")
    what = f"{spec.name}: attribute {name}"
    if kind == "constant":
        return low.constant(value, span, name)
    if kind == "constants":
        if not isinstance(value, List):
            raise Fault(span, f"{what} is {kind_of(value)}", expected=_KINDS[kind])
        return tuple(low.constant(item, span, name) for item in value)
    if kind == "int":
        return as_integer(value, span, what)
    if kind == "float":
        return as_number(value, span, what)
    if kind in ("bool", "str"):
        if not isinstance(value, bool if kind == "bool" else str):
            raise Fault(span, f"{what} is {kind_of(value)}", expected=_KINDS[kind])
        return value
    if kind not in ("ints", "floats", "strs"):
        raise Fault(span, f"{what} cannot be given in the language", note=f"its kind is {kind}")
    if kind == "ints" and isinstance(value, int) and not isinstance(value, bool):
        return (value,) * (max(1, len(shape) - 1) if name in _PER_AXIS else 1)
    items: Sequence[Any]
    if isinstance(value, Fixed) and value.array.ndim == 1:
        items = value.array.tolist()
    elif isinstance(value, List):
        items = value
    else:
        raise Fault(span, f"{what} is {kind_of(value)}", expected=_KINDS[kind])
    if kind == "strs":
        if not all(isinstance(item, str) for item in items):
            raise Fault(span, f"{what} is not a list of strings", expected=_KINDS[kind])
        return tuple(items)
    convert = as_integer if kind == "ints" else as_number
    entries = tuple(convert(item, span, f"{what}: an entry") for item in items)
    if spec.name == "reshape" and name == "shape":
        return _resolve_shape(entries, math.prod(shape))
    return entries


def _resolve_shape(entries: tuple[Any, ...], size: int) -> tuple[Any, ...]:
    """A shape in which one -1 is inferred."""
    if entries.count(-1) == 1:
        rest = -math.prod(entries)
        if rest > 0 and size % rest == 0:
            return tuple(size // rest if entry == -1 else entry for entry in entries)
    return entries


def _check_numbers(spec: OpSpec, attrs: dict[str, Any], span: Span, given: Mapping[str, tuple[Value, Span]]) -> None:
    """Degree, interval, gap and bits of an approximation, and the bounds of a clamp, where the op has them."""

    def place(name: str) -> Span:
        return given[name][1] if name in given else span

    for name, example in (("gap", "0.01"), ("bits", "10")):
        if name in attrs and spec.attrs[name] == "float?" and not attrs[name] > 0:
            raise Fault(place(name), f"{name} is {attrs[name]:g}", expected=f"a number above zero, such as {example}")
    if spec.name == "clamp" and not {"min", "max"} & attrs.keys():
        raise Fault(span, "clamp has no bound", expected="min, max or both: clamp(x, min=0, max=1)")
    if "degree" in attrs and attrs["degree"] < 1:
        raise Fault(place("degree"), f"degree {attrs['degree']} is too small", expected="1 or more")
    if ("low" in attrs) != ("high" in attrs):
        name = "low" if "low" in attrs else "high"
        raise Fault(place(name), f"{name} is given alone", expected="both bounds: range = [low, high]")
    if "low" in attrs and attrs["low"] >= attrs["high"]:
        raise Fault(place("low"), f"the range [{attrs['low']}, {attrs['high']}] is empty", expected="low below high")


def make_constant(low: Walk, value: Value, span: Span, name: str) -> ConstantName:
    """The value as one of the program's constants, in the form for the attribute of that name."""
    array = low.arithmetic.fixed_attribute(as_array(value, span), name, span)
    label = value.name if isinstance(value, Fixed) and value.name else name
    if name in _SPARSE:
        if array.ndim != 2:
            raise Fault(span, f"{name} has {array.ndim} axes", expected="a matrix: rows and columns")
        return low.store(SparseMatrix.of(np.asarray(array, dtype=np.float64)), label)
    return low.store(array, label)
