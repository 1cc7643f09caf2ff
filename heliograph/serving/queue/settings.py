"""The limits of a server, and the layout of its folder."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from heliograph.errors import ProgramError, WireError
from heliograph.serving.queue.database import is_queue

_DAY = 86_400.0
# An absolute path of at least two names, but not the path of a request.
_WHOLE_PATH = re.compile(r"(?<![\w.:/~-])(?!/v1/)(?:/[\w.+~-]*\w){2,}")
# The file that marks a folder as a server's.
_MARK = ".heliograph-server"
_SAID = b"heliograph serve keeps its files here and deletes them when they expire. Keep nothing else in this folder.\n"
# Clients' names for the files in some of the folders; the files in the others were sent by the client.
_CALLED = {"keys": "an evaluation key", "results": "the result"}
# The contents of a new file system's root.
_NOTHING = {"lost+found"}
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the data that clients may send and keep. Times are in seconds, sizes in bytes."""

    # One tenant's data on the disk: uploads, keys, inputs, and results (by the bill until they exist).
    tenant_bytes: int = 64 * 1024**3
    # Waiting jobs of one tenant.
    queued_jobs: int = 2000
    # Jobs and key sets of one tenant, including ended ones: small ones take files and rows too.
    kept_jobs: int = 20_000
    kept_keysets: int = 2000
    # Open requests of one tenant, and how many of them are processed at once.
    requests: int = 250
    turns: int = 2
    # Connections in total, and from one address.
    connections: int = 1000
    address_connections: int = 500
    # Disk space that is left free.
    free_bytes: int = 1 << 28
    # Retention times of unused keys, of unfetched results, and of fetched results.
    keys_s: float = 30 * _DAY
    result_s: float = 7 * _DAY
    fetched_s: float = 600.0
    # A worker that is silent for this long is killed, and its job goes to another one.
    worker_s: float = 120.0
    # A job over which this many workers died ends with an error; eight deaths within `quick_s` of its start count as
    # one.
    deaths: int = 5
    quick_s: float = 5.0
    # How long a job may wait while a worker prefers jobs whose keys it holds.
    patience_s: float = 30.0
    # A client that sends nothing for this long in the middle of a body is dropped.
    silence_s: float = 60.0
    # Allowed on top of the sizes of keys and inputs in the bill, for the framing of their files.
    frame_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Places:
    """The folder of a server and the places of its files."""

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
        """The text for clients, without names of the folder's files and without absolute paths on this machine."""
        roots = "|".join(re.escape(str(root)) for root in (self.root.absolute(), self.root))
        text = re.sub(
            rf"(?<![\w/])(?:{roots})/([\w.-]*\w)(?:[\w./-]*\w)?",
            lambda found: _CALLED.get(found[1], "what was sent"),
            text,
        )
        return _WHOLE_PATH.sub("a file of the server", text)

    def make(self) -> None:
        """Create the folders, accessible to their owner only.

        Raises ProgramError if the folder has other files, which stay unchanged, and WireError if no folder can be
        created.
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
        """Mark an empty folder as a server's; a folder from an earlier version is recognized by its queue."""
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
        # If two servers begin at the same time, either may write the mark.
        with contextlib.suppress(FileExistsError), open(self.root / _MARK, "xb") as file:
            file.write(_SAID)
