"""The interface of the walk over the statements (`lower.Lowerer`) for the other parts of the lowering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from heliograph.dsl import ast
from heliograph.dsl.diagnostics import Diagnostics, Source, Span
from heliograph.dsl.parameters import Loader
from heliograph.dsl.values import Frame, Items, Poison, Value
from heliograph.ir import ConstantName, Node, Stage
from heliograph.ir.node import Array


class Arithmetic(Protocol):
    """The meaning of operators on the run-time values of one kind of program."""

    def operand(self, value: Value, span: Span) -> Node:
        """The value as a node; a fixed one becomes a constant where the stage has constants."""

    def binary(self, operator: str, left: Value, right: Value, span: Span) -> Node:
        """`left operator right`; at least one operand is a node."""

    def negative(self, node: Node, span: Span) -> Node:
        """`-node`."""

    def index(self, node: Node, items: Items, span: Span) -> Node:
        """`node[items]`."""

    def fixed_attribute(self, array: Array, name: str, span: Span) -> Array:
        """A fixed array as the attribute of that name stores it."""


class Annotation:
    """The content of a `with` for one statement: attributes for the ops in it that take them."""

    def __init__(self, entries: dict[str, tuple[Value, ast.Keyword]]) -> None:
        self.entries = entries
        self.used: set[str] = set()


class Walk(Protocol):
    """The state of the walk, and its operations on expressions, values and nodes."""

    source: Source
    report: Diagnostics
    stage: Stage
    loader: Loader
    arithmetic: Arithmetic
    globals: dict[str, Value | Poison]
    frame: Frame
    annotations: list[Annotation]
    active: list[tuple[str, Span]]
    layer: str
    nesting: int

    def emit(self, op: str, operands: Sequence[Node], span: Span, /, **attrs: Any) -> Node: ...

    def operand(self, value: Value, span: Span) -> Node: ...

    def constant(self, value: Value, span: Span, name: str) -> ConstantName: ...

    def store(self, value: Any, label: str) -> ConstantName: ...

    def charge(self, span: Span, *values: Value) -> None: ...

    def call_note(self) -> str: ...

    def run_block(self, statements: Sequence[ast.Statement]) -> bool: ...

    def annotated(self, expression: ast.Expression, entries: tuple[ast.Keyword, ...]) -> Value: ...

    def dims(self, dims: Sequence[ast.Expression]) -> tuple[int, ...]: ...

    def evaluate(self, expression: ast.Expression) -> Value: ...
