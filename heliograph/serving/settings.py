"""The bounds of a server, in one place, and the folder that it keeps everything in."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from heliograph.errors import WireError

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what clients may send and keep. Times in seconds, sizes in bytes.

    `tenant_bytes` is what one tenant may have on the disk at once: uploads, keys, inputs, and results, which count as the
    bill says until they are there. `queued_jobs` may wait for one tenant. It may have `kept_jobs`, with those that have
    ended, `kept_uploads` and `kept_keysets`: small ones take files and rows too. `requests` of it may be open at once, of
    which `turns` are worked on. There are `connections` at most, and `address_connections` of one address.

    Uploads that nobody goes on with, keys that no job reads and results that nobody fetches go after their times; a result
    that was fetched goes after `fetched_s`. A worker that gives no sign of life for `worker_s` is ended and its job goes to
    another one, a job that lost `deaths` workers ends with an error. `free_bytes` of the disk are left free. A job of keys
    that a worker holds goes before others until one has waited for `patience_s`.
    """

    tenant_bytes: int = 64 * 1024**3
    queued_jobs: int = 2000
    kept_jobs: int = 20_000
    kept_uploads: int = 2000
    kept_keysets: int = 2000
    requests: int = 250
    turns: int = 2
    connections: int = 1000
    address_connections: int = 500
    free_bytes: int = 1 << 28
    upload_s: float = _DAY
    keys_s: float = 30 * _DAY
    result_s: float = 7 * _DAY
    fetched_s: float = 600.0
    worker_s: float = 120.0
    deaths: int = 5
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

    def upload(self, tenant: int, digest: str) -> Path:
        return self.uploads / f"{tenant}-{digest}"

    def keyset(self, folder: str) -> Path:
        return self.keys / folder

    def input(self, name: str) -> Path:
        return self.inputs / name

    def result(self, name: str) -> Path:
        return self.results / name

    def hidden(self, text: str) -> str:
        """A text for clients, in which no file of the folder is named."""
        roots = "|".join(re.escape(str(root)) for root in (self.root.absolute(), self.root))
        return re.sub(rf"(?<![\w/])(?:{roots})/[\w./-]*\w", "what was sent", text)

    def make(self) -> None:
        """Make the folders, for their owner only; a WireError where they cannot be made."""
        try:
            for folder in (self.root, self.inputs, self.results, self.keys, self.uploads):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.chmod(self.root, 0o700)
        except OSError as error:
            raise WireError(f"{self.root} cannot be made", why=error.strerror or str(error)) from None
