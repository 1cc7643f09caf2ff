"""Runs of a program that carries values, in a folder: complete rounds survive when the process is killed.

After each round the folder holds its carried values (`00012.carried`) and its outputs (`00012.output`). Files are
written whole, the output first: a round is complete when its carried values exist. A new process continues from the
last complete round. An empty file `00012.kept` marks a round whose files stay.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from heliograph.errors import ProgramError, WireError
from heliograph.execution.loop import Progress
from heliograph.files import exclusive, remove_parts, write_file
from heliograph.runtime.server.server import Server
from heliograph.runtime.wire.messages import CarriedValues, EncryptedInput, EncryptedOutput

_ROUND = re.compile(r"(\d{5,9})\.(carried|output|kept)")
_LOCK = ".lock"


class Session:
    """Consecutive runs of one server, kept in `folder`; each continues from the one before.

    `start` sets the carried values of the first run. After a kill, a session on the same folder continues with the
    round after the last complete one. The last `kept` rounds can be read again, and so can rounds for which `keep` was
    called.

    Raises ProgramError for a program that carries nothing, or if another process uses the folder; WireError if its
    files belong to another artifact or client.
    """

    def __init__(self, server: Server, folder: str | Path, *, kept: int = 2) -> None:
        if not server.artifact.program.interface.carried:
            raise ProgramError(
                f"{server.artifact.name} carries nothing from run to run",
                where="Session",
                hint="declare it: input NAME: carried tensor[...] in [...], and an output of that name",
            )
        if kept < 1:
            raise ProgramError(f"kept = {kept}: at least the last round is kept", where="Session")
        self._server, self._kept = server, kept
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = contextlib.ExitStack()
        busy = ProgramError(f"another process is using {self.folder}", where="Session")
        self._lock.enter_context(exclusive(self.folder / _LOCK, busy))
        remove_parts(self.folder)
        done = self._rounds("carried")
        self._round = max(done, default=-1)
        if done:
            self.carried(self._round)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the folder for other processes; nothing in it changes."""
        self._lock.close()

    @property
    def started(self) -> bool:
        return self._round >= 0

    @property
    def round(self) -> int:
        """The number of runs that are complete."""
        return max(self._round, 0)

    def start(self, carried: CarriedValues) -> None:
        """Set the carried values of the first run; raises ProgramError if there are complete runs already."""
        if self.started:
            raise ProgramError(
                f"{self.folder} has {self.round} rounds already",
                where="Session.start",
                hint="continue, or use a new folder",
            )
        self._checked(carried)
        carried.save(self._path(0, "carried"))
        self._round = 0

    def run(
        self,
        encrypted: EncryptedInput,
        progress: Progress | None = None,
        plain: Mapping[str, Any] | None = None,
        outputs: Collection[str] | None = None,
    ) -> EncryptedOutput:
        """One run: its outputs (or the requested ones), returned once they and the carried values are in the folder."""
        if not self.started:
            raise ProgramError(
                "the first run takes values from one before", where="Session.run", hint="call start first"
            )
        output, left = self._server.step(encrypted, self.carried(self._round), progress, plain, outputs)
        following = self._round + 1
        output.save(self._path(following, "output"))
        left.save(self._path(following, "carried"))
        self._round = following
        self._tidy()
        return output

    def look(
        self,
        encrypted: EncryptedInput,
        outputs: Collection[str],
        progress: Progress | None = None,
        plain: Mapping[str, Any] | None = None,
    ) -> EncryptedOutput:
        """Some outputs from what the last run left, without a run (`Server.look`)."""
        return self._server.look(encrypted, self.carried(), outputs, progress, plain)

    def carried(self, number: int | None = None) -> CarriedValues:
        """The carried values after a round, the last one by default; 0 means those of `start`."""
        values: CarriedValues = CarriedValues.load(self._path(self.round if number is None else number, "carried"))
        self._checked(values)
        return values

    def output(self, number: int | None = None) -> EncryptedOutput:
        """The outputs of a round, the last one by default."""
        found: EncryptedOutput = EncryptedOutput.load(self._path(self.round if number is None else number, "output"))
        return found

    def keep(self, number: int) -> None:
        """Keep the values of a round however many rounds follow; earlier marks are dropped.

        The mark survives a kill. A kill between setting the new mark and dropping the old one leaves both, until the
        next call.
        """
        write_file(self._path(number, "kept"), b"")
        for other in self._rounds("kept"):
            if other != number:
                self._path(other, "kept").unlink(missing_ok=True)
        self._tidy()

    @property
    def marked(self) -> int | None:
        """The round that `keep` was last called for, or None."""
        return max(self._rounds("kept"), default=None)

    def _checked(self, values: CarriedValues) -> None:
        if not isinstance(values, CarriedValues):
            raise WireError(f"a session starts from carried values, not from {type(values).__name__}")
        values.check(self._server.artifact.fingerprint, self._server.client)

    def _path(self, number: int, kind: str) -> Path:
        return self.folder / f"{number:05d}.{kind}"

    def _rounds(self, kind: str) -> list[int]:
        found = (_ROUND.fullmatch(name) for name in os.listdir(self.folder))
        return sorted(int(match[1]) for match in found if match is not None and match[2] == kind)

    def _tidy(self) -> None:
        """Remove the files of rounds that are too old or were never completed."""
        least, marked = self._round - self._kept + 1, set(self._rounds("kept"))
        for kind in ("carried", "output"):
            for number in self._rounds(kind):
                if number < least and number not in marked:
                    self._path(number, kind).unlink(missing_ok=True)
