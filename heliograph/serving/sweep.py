"""What goes by itself: uploads, keys and results whose time is over, and what a killed server left."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time

from heliograph.files import remove_parts
from heliograph.serving.database import Database
from heliograph.serving.jobs import Jobs
from heliograph.serving.keysets import KeySets
from heliograph.serving.logs import log
from heliograph.serving.refusals import Refused
from heliograph.serving.settings import Limits, Places
from heliograph.serving.uploads import Uploads

_EVERY_S = 15.0


class Sweep:
    """A thread that removes what has expired; `once` does it now."""

    def __init__(
        self, database: Database, places: Places, limits: Limits, uploads: Uploads, keysets: KeySets, jobs: Jobs
    ) -> None:
        self._database, self._places, self._limits = database, places, limits
        self._uploads, self._keysets, self._jobs = uploads, keysets, jobs
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heliograph-sweep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def once(self) -> None:
        """Remove what has expired."""
        before = time.time() - self._limits.upload_s
        rows = self._database.reading().execute("SELECT tenant, digest FROM uploads WHERE touched < ?", (before,))
        for row in rows.fetchall():
            with contextlib.suppress(Refused):
                self._uploads.delete(row["tenant"], row["digest"], before=before)
        self._keysets.expire()
        self._jobs.expire()

    def strays(self) -> None:
        """Remove what a killed server left: files without a name, uploads without a file. Before workers are started."""
        known = set()
        for row in self._database.reading().execute("SELECT tenant, digest FROM uploads").fetchall():
            path = self._places.upload(row["tenant"], row["digest"])
            if path.exists():
                known.add(path.name)
            else:
                # It was taken as a key, or deleted.
                self._uploads.delete(row["tenant"], row["digest"])
        for name in os.listdir(self._places.uploads):
            if name not in known:
                with contextlib.suppress(OSError):
                    os.unlink(self._places.uploads / name)
        self._jobs.remove_strays()
        self._keysets.remove_strays()
        remove_parts(self._places.results)

    def _run(self) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                self.once()
            except (sqlite3.DatabaseError, OSError) as error:
                log("sweep", text=str(error))
