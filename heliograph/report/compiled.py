"""The source of a report: a compiled program with its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.ir import Program
from heliograph.report.text import Report


class Compiled(Protocol):
    """An executable program, its report, and the texts of its stages; an `Artifact` is one."""

    @property
    def name(self) -> str: ...

    @property
    def program(self) -> Program: ...

    @property
    def report(self) -> Report: ...

    @property
    def stages(self) -> Mapping[str, str]: ...

    @property
    def ring(self) -> Ring: ...

    @property
    def evaluation_keys(self) -> tuple[EvaluationKey, ...]: ...

    @property
    def fingerprint(self) -> str: ...
