"""How many bytes of keys stay in the server's memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from heliograph.ir import Program, Stage


@dataclass(frozen=True, slots=True)
class Reside:
    """The scheduled program whose keys come in a folder, and no more than `key_bytes` of them are in memory at once.

    Its parameters say so (`resident_key_bytes`); the operations stay as they are.
    """

    key_bytes: int

    name: ClassVar[str] = "reside"
    needs: ClassVar[Stage] = Stage.EXECUTABLE
    makes: ClassVar[Stage] = Stage.EXECUTABLE

    def run(self, program: Program) -> Program:
        return replace(program, parameters=replace(program.planned, resident_key_bytes=self.key_bytes))
