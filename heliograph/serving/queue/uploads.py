"""Uploads: bytes that come in parts and are named by their SHA-256, for keys and inputs alike.

A file `uploads/TENANT-DIGEST` grows as parts come; its size is how far it got, so that a client resumes after its own
death or the server's. Bytes are written where they belong: a second connection that sends the same part again does no harm.
Complete is what has all its bytes and the digest that it was announced with. Before that is checked all parts on their way
are closed, so that nothing is written into what was checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from heliograph.files import of_the_machine, open_file
from heliograph.serving.queue.database import Database
from heliograph.serving.queue.settings import Limits, Places
from heliograph.serving.queue.tenants import require_few, require_room, reserved_bytes
from heliograph.serving.refusals import Refused, nothing_there
from heliograph.serving.remote.records import UploadRecord

_BLOCK = 1 << 20


class Uploads:
    """The uploads of all tenants. `max_bytes` is the most that one may have, by the bills of what is served."""

    def __init__(self, database: Database, places: Places, limits: Limits, max_bytes: int) -> None:
        self._database, self._places, self._limits = database, places, limits
        self.max_bytes = max_bytes
        # The parts on their way into each upload, and how many checks of it are under way.
        self._lock = threading.Lock()
        self._parts: defaultdict[tuple[int, str], set[Part]] = defaultdict(set)
        self._checked: Counter[tuple[int, str]] = Counter()

    def begin(self, tenant: int, digest: str, total: int) -> UploadRecord:
        """The upload, begun where it is new; a refusal where it is too large or there is no room."""
        if total > self.max_bytes:
            raise Refused(
                413,
                f"an upload of {total} bytes is refused",
                why=f"the largest key or input of what is served here has {self.max_bytes} bytes",
            )
        with self._database.writing() as connection:
            row = connection.execute(
                "SELECT total, complete FROM uploads WHERE tenant = ? AND digest = ?", (tenant, digest)
            ).fetchone()
            path = self._places.upload(tenant, digest)
            if row is None:
                require_few(connection, tenant, "uploads", self._limits.kept_uploads)
                require_room(connection, tenant, total, self._limits)
                require_free(self._places.uploads, total, self._limits.free_bytes + reserved_bytes(connection))
                _begin_file(path)
                connection.execute(
                    "INSERT INTO uploads (tenant, digest, total, touched) VALUES (?, ?, ?, ?)",
                    (tenant, digest, total, self._database.clock.now()),
                )
            elif row["total"] != total:
                raise Refused(
                    409, f"this upload was announced with {row['total']} bytes, not {total}", hint="delete it first"
                )
            else:
                if not path.exists():
                    # A server was killed after it removed the file and before it removed the row.
                    _begin_file(path)
                    connection.execute(
                        "UPDATE uploads SET complete = 0 WHERE tenant = ? AND digest = ?", (tenant, digest)
                    )
                connection.execute(
                    "UPDATE uploads SET touched = ? WHERE tenant = ? AND digest = ?",
                    (self._database.clock.now(), tenant, digest),
                )
        return self.record(tenant, digest)

    def record(self, tenant: int, digest: str) -> UploadRecord:
        """How far an upload is."""
        row = (
            self._database.reading()
            .execute("SELECT total, complete FROM uploads WHERE tenant = ? AND digest = ?", (tenant, digest))
            .fetchone()
        )
        if row is None:
            raise nothing_there("upload")
        size = 0
        with contextlib.suppress(OSError):
            size = self._places.upload(tenant, digest).stat().st_size
        complete = bool(row["complete"]) and size == row["total"]
        return UploadRecord(digest, min(size, row["total"]), row["total"], complete)

    def part(self, tenant: int, digest: str, offset: int) -> Part:
        """A part to be written from `offset` on; a refusal where that leaves a gap.

        Where the upload is complete, or is being checked, nothing of it is written.
        """
        record = self.record(tenant, digest)
        if offset > record.received:
            raise Refused(
                409,
                f"the part begins at {offset}, and {record.received} bytes are here",
                hint="resume where the upload stopped",
            )
        path, name = self._places.upload(tenant, digest), (tenant, digest)
        with self._lock:
            # Under the lock: `complete` closes the parts that there are, and lets no further ones be.
            closed = self._checked[name] > 0 or self.record(tenant, digest).complete
            left = self._limits.free_bytes + reserved_bytes(self._database.reading())
            part = Part(path, offset, record.total, left, self._forget(name), closed=closed)
            self._parts[name].add(part)
        return part

    def _forget(self, name: tuple[int, str]) -> Callable[[Part], None]:
        def forget(part: Part) -> None:
            with self._lock:
                self._parts[name].discard(part)
                if not self._parts[name]:
                    del self._parts[name]

        return forget

    @contextlib.contextmanager
    def _closed(self, name: tuple[int, str]) -> Iterator[None]:
        """Have no part be written into an upload meanwhile, nor afterwards those that were there before."""
        with self._lock:
            self._checked[name] += 1
            parts = list(self._parts.get(name, ()))
        try:
            for part in parts:
                part.stop()
            yield
        finally:
            with self._lock:
                self._checked[name] -= 1
                if not self._checked[name]:
                    del self._checked[name]

    def complete(self, tenant: int, digest: str) -> UploadRecord:
        """The upload; complete where all bytes are there. Refused, and forgotten, where they are not its digest's."""
        record = self.record(tenant, digest)
        if record.complete or record.received < record.total:
            return record
        path = self._places.upload(tenant, digest)
        with self._closed((tenant, digest)):
            if _digest(path) != digest:
                self.delete(tenant, digest)
                raise Refused(
                    422,
                    "the upload is damaged: its bytes do not have the digest that it was announced with",
                    hint="send it again",
                )
            with self._database.writing() as connection:
                connection.execute("UPDATE uploads SET complete = 1 WHERE tenant = ? AND digest = ?", (tenant, digest))
        return self.record(tenant, digest)

    def finished(self, tenant: int, digest: str) -> Path:
        """The file of a complete upload; a refusal where there is none."""
        record = self.record(tenant, digest)
        if not record.complete:
            raise Refused(
                409,
                f"the upload is not complete: {record.received} of {record.total} bytes are here",
                hint="send the rest",
            )
        return self._places.upload(tenant, digest)

    def delete(self, tenant: int, digest: str, *, before: float | None = None) -> None:
        """Forget an upload and its bytes; with `before` only where nobody has gone on with it since."""
        with self._database.writing() as connection:
            gone = connection.execute(
                "DELETE FROM uploads WHERE tenant = ? AND digest = ? AND (? IS NULL OR touched < ?)",
                (tenant, digest, before, before),
            )
        if gone.rowcount == 0:
            raise nothing_there("upload")
        unlink_forgotten(self._database, self._places, tenant, digest)


class Part:
    """A part on its way into the file of an upload; no byte goes beyond the announced size.

    Once it is `stop`ped, what comes is thrown away: the upload has all its bytes.
    """

    def __init__(
        self,
        path: Path,
        offset: int,
        total: int,
        free_bytes: int,
        ended: Callable[[Part], None],
        *,
        closed: bool = False,
    ) -> None:
        try:
            self._handle = os.open(path, os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            if of_the_machine(error) is not None:
                raise
            raise nothing_there("upload") from None
        self._place, self._total = offset, total
        self._folder, self._free_bytes = path.parent, free_bytes
        self._ended, self._stopped = ended, closed
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        # Uploads begun at the same time may together ask for more space than there is.
        require_free(self._folder, len(data), self._free_bytes)
        if self._place + len(data) > self._total:
            raise Refused(413, f"the part goes beyond the {self._total} bytes that were announced")
        with self._lock:
            while data and not self._stopped:
                written = os.pwrite(self._handle, data, self._place)
                self._place += written
                data = data[written:]

    def stop(self) -> None:
        """Write no more from now on."""
        with self._lock:
            self._stopped = True

    def close(self) -> None:
        """What was written lasts."""
        self._ended(self)
        try:
            os.fsync(self._handle)
        finally:
            os.close(self._handle)


def unlink_forgotten(database: Database, places: Places, tenant: int, digest: str) -> None:
    """Remove the file of an upload that was forgotten, unless the same bytes are being sent again already."""
    with database.writing() as connection:
        again = connection.execute("SELECT 1 FROM uploads WHERE tenant = ? AND digest = ?", (tenant, digest)).fetchone()
        if again is None:
            places.upload(tenant, digest).unlink(missing_ok=True)


def require_free(folder: Path, size: int, left: int) -> None:
    """Raise a refusal where the disk has no room for so many bytes beside those that are to be left free."""
    free = shutil.disk_usage(folder).free - left
    if size > free:
        raise Refused(
            507,
            f"the disk of the server has no room for {size} bytes",
            why=f"{max(free, 0)} bytes are free",
            hint="try again later",
        )


def _begin_file(path: Path) -> None:
    """An empty file, never one that had the name before: a job may have that as its input, under a second name."""
    path.unlink(missing_ok=True)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with open_file(path, follow=False) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        if of_the_machine(error) is not None:
            raise
        return ""
    return digest.hexdigest()
