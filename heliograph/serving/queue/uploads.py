"""Uploads: the bodies of requests, keys and inputs, on their way to the disk.

Each is written to its own file in `uploads`, under a random name. A complete one is checked and renamed, as a key
(keysets.py) or as an input (jobs.py); any other file is removed at the end of its request. An interrupted upload is
sent again from its beginning. Files that a killed server leaves are removed at the next start (`files.remove_parts`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
from collections import Counter
from pathlib import Path

from heliograph.serving.queue.database import Database
from heliograph.serving.queue.settings import Limits, Places
from heliograph.serving.queue.tenants import require_room, reserved_bytes
from heliograph.serving.refusals import Refused


class Uploads:
    """The uploads of all tenants. Their announced sizes count towards the share of their tenant."""

    def __init__(self, database: Database, places: Places, limits: Limits) -> None:
        self._database, self._places, self._limits = database, places, limits
        self._lock = threading.Lock()
        self._announced: Counter[int] = Counter()

    def announced_bytes(self, tenant: int | None = None) -> int:
        """The announced sizes of a tenant's uploads, or of all tenants'."""
        return self._announced.total() if tenant is None else self._announced[tenant]

    def begin(self, tenant: int, size: int, most: int) -> Upload:
        """Begin an upload of `size` bytes; a refusal if that is more than `most`, or if there is no room."""
        if size > most:
            raise Refused(
                413,
                f"an upload of {size} bytes is refused",
                why=f"by the bill of the artifact it has at most {most} bytes",
            )
        with self._database.writing() as connection:
            require_room(connection, tenant, self._announced[tenant] + size, self._limits)
            left = self._limits.free_bytes + reserved_bytes(connection)
            require_free(self._places.uploads, size, left)
            # Within the transaction, so that no other upload begins between the check and the count.
            upload = Upload(self, tenant, size, self._places.uploads, left)
            self.count(tenant, size)
        return upload

    def count(self, tenant: int, change: int) -> None:
        """Change the announced bytes of a tenant."""
        with self._lock:
            self._announced[tenant] += change
            if not self._announced[tenant]:
                del self._announced[tenant]


class Upload:
    """One upload: `write` its bytes, `finish` it, rename its file at `path`, and always `close` it."""

    def __init__(self, uploads: Uploads, tenant: int, size: int, folder: Path, left: int) -> None:
        self.tenant, self.size = tenant, size
        self.path = folder / f".{secrets.token_hex(16)}.{secrets.token_hex(4)}.part"
        self._uploads, self._left = uploads, left
        self._written, self._counted = 0, True
        self._handle: int | None = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, data: bytes) -> None:
        """Append bytes; a refusal if they exceed the announced size, or the disk has no room for them."""
        assert self._handle is not None
        if self._written + len(data) > self.size:
            raise Refused(413, f"the body goes beyond the {self.size} bytes that were announced")
        # Simultaneous uploads may together need more space than there is.
        require_free(self.path.parent, len(data), self._left)
        while data:
            count = os.write(self._handle, data)
            self._written += count
            data = data[count:]

    def finish(self) -> None:
        """Make the written bytes durable; a refusal if there are fewer than announced."""
        assert self._handle is not None
        if self._written < self.size:
            raise Refused(400, f"the body has {self._written} bytes of the {self.size} that were announced")
        os.fsync(self._handle)

    def uncount(self) -> None:
        """Stop counting it as an upload: in the transaction that counts it as a key or an input, or at its end."""
        if self._counted:
            self._counted = False
            self._uploads.count(self.tenant, -self.size)

    def close(self) -> None:
        """Remove the file unless it was renamed."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            with contextlib.suppress(OSError):
                os.close(handle)
            self.uncount()
            self.path.unlink(missing_ok=True)


def require_free(folder: Path, size: int, left: int) -> None:
    """Raise a refusal if the disk has no room for `size` bytes beside the `left` bytes that stay free."""
    free = shutil.disk_usage(folder).free - left
    if size > free:
        raise Refused(
            507,
            f"the disk of the server has no room for {size} bytes",
            why=f"{max(free, 0)} bytes are free",
            hint="try again later",
        )
