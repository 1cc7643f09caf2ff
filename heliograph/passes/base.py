"""What a pass is: a frozen dataclass with the stage that it needs and the stage that it makes."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

from heliograph.errors import InternalError
from heliograph.ir import Program, Stage
from heliograph.ir.verify import verify

T_co = TypeVar("T_co", covariant=True)


class Transform(Protocol):
    """Makes a new program; the old one is left as it was."""

    name: ClassVar[str]
    needs: ClassVar[Stage]
    makes: ClassVar[Stage]

    def run(self, program: Program) -> Program: ...


class Analysis(Protocol[T_co]):
    """Reads a program and returns a table; nothing is written on nodes."""

    name: ClassVar[str]

    def run(self, program: Program) -> T_co: ...


def apply(transform: Transform, program: Program) -> Program:
    """Run a transform and verify what it made."""
    if program.stage is not transform.needs:
        raise InternalError(f"pass {transform.name} needs stage {transform.needs.value}, not {program.stage.value}")
    result = transform.run(program)
    if result.stage is not transform.makes:
        raise InternalError(f"pass {transform.name} made stage {result.stage.value}, not {transform.makes.value}")
    return verify(result, after=transform.name)
