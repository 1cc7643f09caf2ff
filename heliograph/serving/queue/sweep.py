"""What goes by itself: keys and results whose time is over; and how queue and files come together at a start."""

from __future__ import annotations

import sqlite3
import threading

from heliograph.serving.logs import log
from heliograph.serving.queue.database import Database
from heliograph.serving.queue.jobs import Jobs
from heliograph.serving.queue.keysets import KeySets
from heliograph.serving.queue.lost import Lost
from heliograph.serving.queue.settings import Limits, Places

_EVERY_S = 15.0


class Sweep:
    """A thread that removes what has expired; `once` does it now."""

    def __init__(self, database: Database, places: Places, limits: Limits, keysets: KeySets, jobs: Jobs) -> None:
        self._database, self._keysets, self._jobs = database, keysets, jobs
        self._lost = Lost(database, places, limits)
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
        self._keysets.expire()
        self._jobs.expire()
        self._lost.expire()
        self._database.note_time()

    def settle(self) -> None:
        """Bring queue and files together: after a kill, or after one of the two was put back. Before workers are started."""
        self._lost.sort()
        self._keysets.settle()
        self._jobs.settle()

    def _run(self) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                self.once()
            except (sqlite3.DatabaseError, OSError) as error:
                log("sweep", text=str(error))
