"""The tree of a text: expressions and statements with their places, before any name or value is resolved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from heliograph.dsl.diagnostics import Span

# ---------------------------------------------------------------------------------------------- expressions


@dataclass(frozen=True, slots=True)
class Number:
    span: Span
    value: int | float
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Text:
    span: Span
    value: str
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Boolean:
    span: Span
    value: bool
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Name:
    span: Span
    name: str
    depth: int = 1


@dataclass(frozen=True, slots=True)
class ListOf:
    span: Span
    items: tuple[Expression, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Negative:
    span: Span
    operand: Expression
    depth: int


@dataclass(frozen=True, slots=True)
class Binary:
    """`operator` is one of + - * / // % @ ** > < >= <=."""

    span: Span
    operator: str
    left: Expression
    right: Expression
    depth: int


@dataclass(frozen=True, slots=True)
class Keyword:
    """`name = value` among the arguments of a call or in an annotation."""

    span: Span
    name: str
    value: Expression
    depth: int


@dataclass(frozen=True, slots=True)
class Call:
    span: Span
    name: Name
    arguments: tuple[Expression, ...]
    keywords: tuple[Keyword, ...]
    depth: int


@dataclass(frozen=True, slots=True)
class Slice:
    """`start:stop:step`; each part may be absent."""

    span: Span
    start: Expression | None
    stop: Expression | None
    step: Expression | None
    depth: int


@dataclass(frozen=True, slots=True)
class Index:
    span: Span
    base: Expression
    items: tuple[Expression | Slice, ...]
    depth: int


Expression: TypeAlias = Number | Text | Boolean | Name | ListOf | Negative | Binary | Call | Index

# ---------------------------------------------------------------------------------------------- types


@dataclass(frozen=True, slots=True)
class TensorOf:
    """`tensor[dims]`; in a function's parameter a plain name is a shape variable."""

    span: Span
    dims: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class SlotsOf:
    """`slots[count]`, or `slots` in a function's parameter."""

    span: Span
    count: Expression | None


@dataclass(frozen=True, slots=True)
class NumberOf:
    """`int` or `float` as the type of a function's parameter."""

    span: Span
    kind: str


TypeOf: TypeAlias = TensorOf | SlotsOf | NumberOf

# ---------------------------------------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Header:
    span: Span
    name: str


@dataclass(frozen=True, slots=True)
class Input:
    span: Span
    name: Name
    # "secret", "plain" or "carried".
    kind: str
    type: TypeOf
    low: Expression | None
    high: Expression | None

    @property
    def secret(self) -> bool:
        return self.kind != "plain"

    @property
    def carried(self) -> bool:
        """Whether the input comes from the previous run."""
        return self.kind == "carried"


@dataclass(frozen=True, slots=True)
class Param:
    span: Span
    name: Name
    type: TypeOf | None
    value: Expression | None


@dataclass(frozen=True, slots=True)
class Const:
    span: Span
    name: Name
    value: Expression


@dataclass(frozen=True, slots=True)
class Assign:
    span: Span
    targets: tuple[Name, ...]
    value: Expression
    annotation: tuple[Keyword, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """An output statement; each item is a value and its name, if the text gives one."""

    span: Span
    items: tuple[tuple[Name | None, Expression], ...]
    annotation: tuple[Keyword, ...]


@dataclass(frozen=True, slots=True)
class Return:
    span: Span
    values: tuple[Expression, ...]
    annotation: tuple[Keyword, ...]


@dataclass(frozen=True, slots=True)
class Parameter:
    span: Span
    name: Name
    type: TypeOf | None


@dataclass(frozen=True, slots=True)
class Function:
    span: Span
    name: Name
    parameters: tuple[Parameter, ...]
    result: TypeOf | None
    body: list[Statement] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class For:
    span: Span
    variable: Name
    start: Expression
    stop: Expression
    step: Expression | None
    body: list[Statement] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Broken:
    """A statement that could not be read; the names that it seems to define count as known.

    `kind` is the type of its first token: `INPUT`, `FN`, ..., or `NAME`.
    """

    span: Span
    names: tuple[str, ...]
    kind: str
    body: list[Statement] = field(default_factory=list)


Statement: TypeAlias = Header | Input | Param | Const | Assign | Output | Return | Function | For | Broken


@dataclass(frozen=True, slots=True)
class Module:
    """A whole text."""

    statements: list[Statement]

    def functions(self) -> dict[str, Function]:
        """The functions by name, the first where a name is taken twice."""
        table: dict[str, Function] = {}
        for statement in self.statements:
            if isinstance(statement, Function):
                table.setdefault(statement.name.name, statement)
        return table
