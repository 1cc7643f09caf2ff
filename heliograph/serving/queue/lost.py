"""Files in a server's folder that no row of its queue owns: they are put aside, never deleted at once.

A killed server leaves such files. But the queue may also be new, or an old copy, and the files may be all that is left
of keys and results. So at a start they go to `lost/DATE` and stay there for as long as keys are kept. Files that a
later queue owns again are moved back.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path

from heliograph.files import remove_parts, sync_folder
from heliograph.serving.logs import log
from heliograph.serving.queue.database import Database, note
from heliograph.serving.queue.settings import Limits, Places
from heliograph.serving.remote.records import DONE, QUEUED, RUNNING

# The prefix of the names under which the queue notes when a file was last put into a folder of `lost`.
_NOTE = "lost/"


class Lost:
    """The folder `lost` of a server."""

    def __init__(self, database: Database, places: Places, limits: Limits) -> None:
        self._database, self._places, self._limits = database, places, limits

    def sort(self) -> None:
        """Put aside files that the queue does not own, and move back owned ones; the folder must not be in use."""
        # A killed worker's partial files are no results, and uploads that a killed server had not stored are sent
        # again.
        remove_parts(self._places.results)
        remove_parts(self._places.uploads)
        for folder, owned in self._owned().items():
            there = set(os.listdir(folder))
            for name in owned - there:
                self._take_back(folder, name)
            if strays := there - owned:
                self._put_aside(folder, strays)

    def expire(self) -> None:
        """Delete files that were put aside long ago. In a different queue they all count as put aside now."""
        now = self._database.clock.now()
        there = set(os.listdir(self._places.lost))
        with self._database.writing() as connection:
            rows = connection.execute("SELECT name, value FROM counters WHERE name GLOB ?", (f"{_NOTE}*",)).fetchall()
            since = {row["name"].removeprefix(_NOTE): row["value"] for row in rows}
            for name in there - since.keys():
                note(connection, f"{_NOTE}{name}", now)
            over = {name for name, moment in since.items() if moment < now - self._limits.keys_s}
            for name in over | (since.keys() - there):
                connection.execute("DELETE FROM counters WHERE name = ?", (f"{_NOTE}{name}",))
        for name in over & there:
            log("lost files deleted", folder=name)
            shutil.rmtree(self._places.lost / name, ignore_errors=True)

    def _owned(self) -> dict[Path, set[str]]:
        """The names that rows of the queue own, by folder."""
        read = self._database.reading().execute
        inputs = read("SELECT input FROM jobs WHERE state IN (?, ?)", (QUEUED, RUNNING)).fetchall()
        results = read("SELECT result FROM jobs WHERE state = ?", (DONE,)).fetchall()
        return {
            self._places.inputs: {row["input"] for row in inputs},
            self._places.results: {row["result"] for row in results},
            self._places.keys: {row["folder"] for row in read("SELECT folder FROM keysets").fetchall()},
            # An earlier version left files there.
            self._places.uploads: set(),
        }

    def _take_back(self, folder: Path, name: str) -> None:
        for found in sorted(self._places.lost.glob(f"*/{folder.name}/{name}"), reverse=True):
            with contextlib.suppress(OSError):
                os.rename(found, folder / name)
                log("taken back", place=folder.name, name=name)
                return

    def _put_aside(self, folder: Path, names: set[str]) -> None:
        now = self._database.clock.now()
        day = time.strftime("%Y-%m-%d", time.gmtime(now))
        target = self._places.lost / day / folder.name
        with self._database.writing() as connection:
            note(connection, f"{_NOTE}{day}", now)
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in names:
            # A folder on another disk cannot be moved into this one, and stays.
            with contextlib.suppress(OSError):
                os.rename(folder / name, target / name)
        sync_folder(target)
        log("put aside", place=folder.name, files=len(names), folder=str(target))
