"""The tree nodes that the rules of `grammar.lark` make, bottom up, while lark reads a statement."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from heliograph.dsl import ast
from heliograph.dsl.diagnostics import Fault, Span
from heliograph.dsl.tokens import span_of

if TYPE_CHECKING:
    import lark

MAX_DEPTH = 100
MAX_INTEGER = 2**53


def _depth(span: Span, *parts: Any) -> int:
    depth = 1 + max((part.depth for part in parts if part is not None), default=0)
    if depth > MAX_DEPTH:
        raise Fault(
            span,
            f"the expression nests more than {MAX_DEPTH} deep",
            hint="give a part of it a name in a statement of its own",
        )
    return depth


def _name(token: lark.Token) -> ast.Name:
    return ast.Name(span_of(token), str(token))


def _string(token: lark.Token) -> str:
    try:
        return str(json.loads(str(token)))
    except ValueError:
        raise Fault(
            span_of(token), "this string has an unknown escape", expected='\\\\, \\", \\n, \\t or \\uXXXX'
        ) from None


def _keywords(children: list[Any]) -> tuple[ast.Keyword, ...]:
    pairs = zip(children[0::2], children[1::2], strict=True)
    return tuple(ast.Keyword(span_of(name), str(name), value, _depth(span_of(name), value)) for name, value in pairs)


class TreeBuilder:
    """One method per rule; each gets the list of its children (tokens, tree nodes, None for an absent one)."""

    # ------------------------------------------------------------------ expressions

    def number(self, children: list[Any]) -> ast.Number:
        token = children[0]
        text, span = str(token), span_of(token)
        if text.isdigit():
            if len(text) > 30 or int(text) > MAX_INTEGER:
                raise Fault(span, f"this whole number is larger than {MAX_INTEGER}", hint="write it as 1e20")
            return ast.Number(span, int(text))
        value = float(text)
        if not math.isfinite(value):
            raise Fault(span, "this number does not fit a double", expected="a number below 1.8e308")
        return ast.Number(span, value)

    def string(self, children: list[Any]) -> ast.Text:
        return ast.Text(span_of(children[0]), _string(children[0]))

    def boolean(self, children: list[Any]) -> ast.Boolean:
        return ast.Boolean(span_of(children[0]), str(children[0]) == "true")

    def name(self, children: list[Any]) -> ast.Name:
        return _name(children[0])

    def group(self, children: list[Any]) -> Any:
        return children[1]

    def list_of(self, children: list[Any]) -> ast.ListOf:
        span = span_of(children[0]).to(span_of(children[-1]))
        items = tuple(item for item in children[1:-1] if item is not None)
        return ast.ListOf(span, items, _depth(span, *items))

    def negative(self, children: list[Any]) -> ast.Negative:
        span = span_of(children[0]).to(children[1].span)
        return ast.Negative(span, children[1], _depth(span, children[1]))

    def binary(self, children: list[Any]) -> ast.Binary:
        left, operator, right = children
        span = left.span.to(right.span)
        return ast.Binary(span, str(operator), left, right, _depth(span, left, right))

    def keyword(self, children: list[Any]) -> ast.Keyword:
        return _keywords(children)[0]

    def call(self, children: list[Any]) -> ast.Call:
        name, *arguments, closing = children
        given = [argument for argument in arguments if argument is not None]
        span = span_of(name).to(span_of(closing))
        positional = tuple(argument for argument in given if not isinstance(argument, ast.Keyword))
        keywords = tuple(argument for argument in given if isinstance(argument, ast.Keyword))
        if keywords and positional and positional[-1].span.start > keywords[0].span.start:
            raise Fault(
                positional[-1].span,
                "a value without a name follows one with a name",
                hint="put the values without a name first",
            )
        return ast.Call(span, _name(name), positional, keywords, _depth(span, *given))

    def slice(self, children: list[Any]) -> ast.Slice:
        start, stop, step = (*children, None)[:3]
        parts = [part for part in (start, stop, step) if part is not None]
        # A bare `:` has no span of its own; the index around it has one.
        span = parts[0].span.to(parts[-1].span) if parts else Span(0, 0)
        return ast.Slice(span, start, stop, step, _depth(span, *parts))

    def index(self, children: list[Any]) -> ast.Index:
        base, *items, closing = children
        span = base.span.to(span_of(closing))
        return ast.Index(span, base, tuple(items), _depth(span, base, *items))

    # ------------------------------------------------------------------ types

    def tensor_type(self, children: list[Any]) -> ast.TensorOf:
        return ast.TensorOf(span_of(children[0]), tuple(dim for dim in children[1:] if dim is not None))

    def slots_type(self, children: list[Any]) -> ast.SlotsOf:
        return ast.SlotsOf(span_of(children[0]), children[1])

    def number_type(self, children: list[Any]) -> ast.NumberOf:
        return ast.NumberOf(span_of(children[0]), str(children[0]))

    # ------------------------------------------------------------------ statements

    def annotation(self, children: list[Any]) -> tuple[ast.Keyword, ...]:
        return _keywords(children[1:])

    def program(self, children: list[Any]) -> ast.Header:
        name = _string(children[1]) if children[1].type == "STRING" else str(children[1])
        return ast.Header(span_of(children[0]).to(span_of(children[1])), name)

    def input(self, children: list[Any]) -> ast.Input:
        keyword, name, *rest = children
        kind = "secret"
        if getattr(rest[0], "type", "") in ("SECRET", "PLAIN", "CARRIED"):
            kind = rest.pop(0).type.lower()
        type_, _, low, high = rest
        return ast.Input(span_of(keyword).to(span_of(name)), _name(name), kind, type_, low, high)

    def param(self, children: list[Any]) -> ast.Param:
        keyword, name, type_, value = children
        return ast.Param(span_of(keyword).to(span_of(name)), _name(name), type_, value)

    def const(self, children: list[Any]) -> ast.Const:
        keyword, name, value = children
        return ast.Const(span_of(keyword).to(span_of(name)), _name(name), value)

    def output_item(self, children: list[Any]) -> tuple[ast.Name | None, Any]:
        name, value = children
        if name is None:
            return None, value
        return ast.Name(span_of(name), _string(name) if name.type == "STRING" else str(name)), value

    def output(self, children: list[Any]) -> ast.Output:
        keyword, *items, annotation = children
        return ast.Output(span_of(keyword), tuple(items), annotation or ())

    def assign(self, children: list[Any]) -> ast.Assign:
        *names, value, annotation = children
        targets = tuple(_name(name) for name in names)
        return ast.Assign(targets[0].span.to(value.span), targets, value, annotation or ())

    def return_(self, children: list[Any]) -> ast.Return:
        keyword, *values, annotation = children
        return ast.Return(span_of(keyword).to(values[-1].span), tuple(values), annotation or ())

    def parameter(self, children: list[Any]) -> ast.Parameter:
        return ast.Parameter(span_of(children[0]), _name(children[0]), children[1])

    def fn(self, children: list[Any]) -> ast.Function:
        keyword, name, *rest = children
        parameters = tuple(part for part in rest if isinstance(part, ast.Parameter))
        result = rest[-1] if isinstance(rest[-1], ast.TensorOf | ast.SlotsOf | ast.NumberOf) else None
        return ast.Function(span_of(keyword).to(span_of(name)), _name(name), parameters, result)

    def for_(self, children: list[Any]) -> ast.For:
        parts = [part for part in children if getattr(part, "type", "") not in ("FOR", "IN", "RANGE", "BY", "LBRACE")]
        name, start, stop, *rest = parts
        step = rest[0] if rest else None
        return ast.For(span_of(children[0]).to(stop.span), _name(name), start, stop, step)
