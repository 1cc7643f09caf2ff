"""The bounds of a server, in one place, and the folder that it keeps everything in."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from heliograph.errors import ProgramError, WireError
from heliograph.serving.queue.database import is_queue

_DAY = 86_400.0
# A path from the root, of two names at least, that is none of a request.
_WHOLE_PATH = re.compile(r"(?<![\w.:/~-])(?!/v1/)(?:/[\w.+~-]*\w){2,}")
# The file by which a folder is known as one of a server's.
_MARK = ".heliograph-server"
_SAID = b"heliograph serve keeps its files here and deletes them when they expire. Keep nothing else in this folder.\n"
# What the files in some of its folders are to a client; those in the others it sent.
_CALLED = {"keys": "an evaluation key", "results": "the result"}
# What a new file system has in its root.
_NOTHING = {"lost+found"}
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what clients may send and keep. Times in seconds, sizes in bytes."""

    # What one tenant may have on the disk: uploads, keys, inputs, and results, by the bill until they are there.
    tenant_bytes: int = 64 * 1024**3
    # Jobs of one tenant that wait.
    queued_jobs: int = 2000
    # Jobs and key sets of one tenant, those that ended included: small ones take files and rows too.
    kept_jobs: int = 20_000
    kept_keysets: int = 2000
    # Open requests of one tenant, and how many of them are worked on.
    requests: int = 250
    turns: int = 2
    # Connections, and those of one address.
    connections: int = 1000
    address_connections: int = 500
    # What is left free on the disk.
    free_bytes: int = 1 << 28
    # How long keys stay that no job reads, results that nobody fetches, and results that were fetched.
    keys_s: float = 30 * _DAY
    result_s: float = 7 * _DAY
    fetched_s: float = 600.0
    # A worker that is silent for so long is ended, and its job given to another one.
    worker_s: float = 120.0
    # A job over which so many workers died ends with an error; eight deaths within `quick_s` of its start count as one.
    deaths: int = 5
    quick_s: float = 5.0
    # How long jobs whose keys a worker holds go before others.
    patience_s: float = 30.0
    # A client that sends nothing for this long in the middle of a body is dropped.
    silence_s: float = 60.0
    # Allowed on top of the sizes of keys and inputs in the bill, for the framing of their files.
    frame_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Places:
    """The folder of a server, and what stands where in it."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "queue.sqlite"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def inputs(self) -> Path:
        return self.root / "inputs"

    @property
    def results(self) -> Path:
        return self.root / "results"

    @property
    def keys(self) -> Path:
        return self.root / "keys"

    @property
    def uploads(self) -> Path:
        return self.root / "uploads"

    @property
    def lost(self) -> Path:
        return self.root / "lost"

    def keyset(self, folder: str) -> Path:
        return self.keys / folder

    def input(self, name: str) -> Path:
        return self.inputs / name

    def result(self, name: str) -> Path:
        return self.results / name

    def hidden(self, text: str) -> str:
        """A text for clients, in which no file of the folder is named, nor another of the machine by its whole path."""
        roots = "|".join(re.escape(str(root)) for root in (self.root.absolute(), self.root))
        text = re.sub(
            rf"(?<![\w/])(?:{roots})/([\w.-]*\w)(?:[\w./-]*\w)?",
            lambda found: _CALLED.get(found[1], "what was sent"),
            text,
        )
        return _WHOLE_PATH.sub("a file of the server", text)

    def make(self) -> None:
        """Make the folders, for their owner only.

        Raises ProgramError where there are files of others, which stay as they are, and WireError where no folder can be
        made.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._mark()
            os.chmod(self.root, 0o700)
            for folder in (self.inputs, self.results, self.keys, self.uploads, self.lost):
                folder.mkdir(exist_ok=True, mode=0o700)
        except OSError as error:
            raise WireError(f"{self.root} cannot be made", why=error.strerror or str(error)) from None

    def _mark(self) -> None:
        """Make a folder a server's where nothing is in it; one that an earlier version served from is known by its queue."""
        found = set(os.listdir(self.root)) - _NOTHING
        if _MARK in found:
            return
        if found and not is_queue(self.database):
            names = sorted(found)
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise ProgramError(
                f"{self.root} holds files that are not a server's: {', '.join(map(repr, names[:_SHOWN]))}{more}",
                where="--data",
                why="a server deletes what expires in its folder, so it begins in an empty one",
                hint=f"name a new folder; if a server had this one and its files were copied without {_MARK}, make an empty "
                f"file of that name in it",
            )
        # Of two that begin at the same time, both may.
        with contextlib.suppress(FileExistsError), open(self.root / _MARK, "xb") as file:
            file.write(_SAID)
