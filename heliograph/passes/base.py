"""What a pass is: a frozen dataclass with the stage that it needs and the stage that it makes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

from heliograph.errors import InternalError
from heliograph.ir import Node, Program, Stage
from heliograph.ir.verify import verify

Rule = TypeVar("Rule")


class Transform(Protocol):
    """A pass from program to program; its argument stays as it is."""

    name: ClassVar[str]

    @property
    def needs(self) -> Stage: ...

    @property
    def makes(self) -> Stage: ...

    def run(self, program: Program) -> Program: ...


def rule_for(rules: Mapping[str, Rule], node: Node, name: str) -> Rule:
    """The rule of the pass `name` for the node's op; an InternalError that names the op where there is no rule."""
    rule = rules.get(node.op)
    if rule is None:
        raise InternalError(f"pass {name} has no rule for {node.op}", where=node.loc)
    return rule


class Step(NamedTuple):
    """The name of a pass and its result."""

    name: str
    program: Program


Trail: TypeAlias = "tuple[Step, ...]"


# Who listens to the work of this thread.
_LISTENER: ContextVar[Callable[[str, bool], None] | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def listening(listener: Callable[[str, bool], None] | None) -> Iterator[None]:
    """Meanwhile, `listener` is called with what this thread begins and whether it is a pass, as told to `begins`."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def begins(what: str, a_pass: bool = False) -> None:
    """Tell whoever listens that a pass, or another part of the work, begins."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(what, a_pass)


def apply(transform: Transform, program: Program) -> Program:
    """Run a transform and verify its result."""
    begins(transform.name, True)
    if program.stage is not transform.needs:
        raise InternalError(f"pass {transform.name} needs stage {transform.needs.value}, not {program.stage.value}")
    result = transform.run(program)
    if result.stage is not transform.makes:
        raise InternalError(f"pass {transform.name} made stage {result.stage.value}, not {transform.makes.value}")
    return verify(result, after=transform.name)


def run(transforms: Iterable[Transform], program: Program) -> Trail:
    """Run transforms one after the other, and verify each result."""
    trail = []
    for transform in transforms:
        program = apply(transform, program)
        trail.append(Step(transform.name, program))
    return tuple(trail)
