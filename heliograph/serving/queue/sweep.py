"""Removal of expired keys and results, and reconciliation of the queue with its files at a start."""

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
    """A thread that removes expired data; `once` does it now."""

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
        """Remove expired data."""
        self._keysets.expire()
        self._jobs.expire()
        self._lost.expire()
        self._database.note_time()

    def settle(self) -> None:
        """Reconcile queue and files, after a kill or after one of them was restored. Call it before workers start."""
        self._lost.sort()
        self._keysets.settle()
        self._jobs.settle()

    def _run(self) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                self.once()
            except (sqlite3.DatabaseError, OSError) as error:
                log("sweep", text=str(error))
