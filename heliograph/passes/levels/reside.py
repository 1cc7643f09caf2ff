"""Bound the bytes of keys in the server's memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from heliograph.ir import Program, Stage


@dataclass(frozen=True, slots=True)
class Reside:
    """Plans a scheduled program for keys in a folder, with at most `key_bytes` of them in memory at once.

    Only the parameter `resident_key_bytes` changes; the operations stay as they are.
    """

    key_bytes: int

    name: ClassVar[str] = "reside"
    needs: ClassVar[Stage] = Stage.EXECUTABLE
    makes: ClassVar[Stage] = Stage.EXECUTABLE

    def run(self, program: Program) -> Program:
        return replace(program, parameters=replace(program.planned, resident_key_bytes=self.key_bytes))
