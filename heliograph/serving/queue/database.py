"""A server's single SQLite file: its tables, and transactions that are atomic even across kill -9."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from heliograph.errors import WireError
from heliograph.files import open_file
from heliograph.serving.queue.clock import Clock

_VERSION = 5
# The tables by which one of our files is recognized, in any version.
_OURS = {"tenants", "keysets", "jobs"}
_TABLES = """
CREATE TABLE tenants (
  number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, token TEXT NOT NULL UNIQUE, operator INTEGER NOT NULL,
  created REAL NOT NULL, expires REAL);
CREATE TABLE keysets (
  folder TEXT PRIMARY KEY, tenant INTEGER NOT NULL, artifact TEXT NOT NULL, client TEXT NOT NULL,
  bytes INTEGER NOT NULL DEFAULT 0, complete INTEGER NOT NULL DEFAULT 0, used REAL NOT NULL,
  UNIQUE (tenant, artifact, client));
CREATE TABLE jobs (
  number INTEGER PRIMARY KEY AUTOINCREMENT, tenant INTEGER NOT NULL, id TEXT NOT NULL, artifact TEXT NOT NULL,
  client TEXT NOT NULL, folder TEXT NOT NULL, digest TEXT NOT NULL, input TEXT NOT NULL, bytes INTEGER NOT NULL,
  state TEXT NOT NULL, done INTEGER NOT NULL DEFAULT 0, total INTEGER NOT NULL DEFAULT 0, created REAL NOT NULL,
  started REAL, ended REAL, worker TEXT, deaths INTEGER NOT NULL DEFAULT 0, error TEXT, result TEXT,
  result_bytes INTEGER, fetched REAL, UNIQUE (tenant, id));
CREATE INDEX jobs_by_state ON jobs (state, number);
CREATE INDEX jobs_by_tenant ON jobs (tenant, state);
CREATE TABLE workers (name TEXT PRIMARY KEY, process INTEGER NOT NULL, place TEXT NOT NULL, beat REAL NOT NULL,
  bytes INTEGER NOT NULL, servers INTEGER NOT NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value REAL NOT NULL);
"""
_ENDINGS = """
CREATE TABLE endings (artifact TEXT NOT NULL, tenant INTEGER NOT NULL, state TEXT NOT NULL, bucket INTEGER NOT NULL,
  jobs INTEGER NOT NULL, seconds REAL NOT NULL, PRIMARY KEY (artifact, tenant, state, bucket))
"""
_TABLES += _ENDINGS
_LATEST = """
SELECT MAX(moment) FROM (
  SELECT MAX(used) AS moment FROM keysets UNION ALL SELECT MAX(created) FROM jobs UNION ALL
  SELECT MAX(ended) FROM jobs UNION ALL SELECT MAX(fetched) FROM jobs)
"""
# The names of the values that `note_time` writes.
_LAST, _SKEW = "clock", "clock skew"
_DAMAGED = (
    "nothing was deleted; put a copy back, or move queue.sqlite, -wal and -shm away to begin with an empty queue "
    "(docs/serving.md)"
)
_MAGIC = b"SQLite format 3\0"
# How to upgrade a queue from one version to the next. 1: leases no longer exist, and workers (none at a start) have places.
# 2: uploads are not resumed. 3: tokens may expire. 4: endings
# are counted by artifact and tenant.
_STEPS = {
    1: """
ALTER TABLE jobs DROP COLUMN lease;
DROP TABLE workers;
CREATE TABLE workers (name TEXT PRIMARY KEY, process INTEGER NOT NULL, place TEXT NOT NULL, beat REAL NOT NULL,
  bytes INTEGER NOT NULL, servers INTEGER NOT NULL);
""",
    2: "DROP TABLE uploads",
    3: "ALTER TABLE tenants ADD COLUMN expires REAL",
    4: _ENDINGS,
}


class Database:
    """One SQLite file in WAL mode, used by several threads and processes; each thread has its own connection.

    With `upgrade`, which is only for the server that owns the folder, a file of an earlier version is checked for
    damage and upgraded to this version in one transaction. Raises WireError for a file that is not ours, is damaged, or
    has another version; the file stays unchanged. `clock` gives the times in the tables.
    """

    def __init__(self, path: Path, *, upgrade: bool = False) -> None:
        self.path = path
        self._local = threading.local()
        # In SQLite, writers of other processes poll now and then; threads of this process are woken one by one.
        self._one = threading.Lock()
        try:
            with contextlib.suppress(FileExistsError):
                # SQLite gives the files beside it the same mode.
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            if upgrade:
                self._require_whole()
            with self.writing() as connection:
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                steps = [_STEPS[step] for step in range(version, _VERSION)] if version and upgrade else []
                for text in [_TABLES] if version == 0 else steps:
                    for statement in text.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {_VERSION}")
            for name in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.chmod(f"{path}{name}", 0o600)
        except OSError as error:
            raise WireError(f"{path} cannot be used as a queue", why=error.strerror or str(error)) from None
        except sqlite3.Error as error:
            raise self._unusable(error) from None
        if version > _VERSION or (0 < version < _VERSION and not upgrade):
            raise WireError(
                f"{path} is a queue of version {version}; this program has version {_VERSION}",
                hint="serve from a new folder, or with the Heliograph that made this one"
                if version > _VERSION
                else "start the server again: it brings the queue up to date",
            )
        try:
            self.clock = Clock(*self._noted_time())
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def note_time(self) -> None:
        """Write down the time for the next server."""
        now, skew = self.clock.noted()
        with self.writing() as connection:
            note(connection, _LAST, now)
            note(connection, _SKEW, skew)

    def _noted_time(self) -> tuple[float, float | None]:
        """Skew and time as noted by the last server, or else the latest time in the tables; None in a new queue."""
        found = dict(self.reading().execute("SELECT name, value FROM counters WHERE name IN (?, ?)", (_LAST, _SKEW)))
        if len(found) == 2:
            return found[_SKEW], found[_LAST]
        (last,) = self.reading().execute(_LATEST).fetchone()
        return 0.0, last

    def _require_whole(self) -> None:
        """Raise a WireError if pages or indices of the file are damaged."""
        found = [row[0] for row in self.reading().execute("PRAGMA quick_check(3)").fetchall()]
        if found != ["ok"]:
            raise WireError(
                f"{self.path} is damaged",
                why="; ".join(map(str, found))[:300],
                hint=_DAMAGED,
            )

    def _unusable(self, error: sqlite3.Error) -> WireError:
        # Other classes mean that the file is busy or the disk is full.
        hint = _DAMAGED if type(error) is sqlite3.DatabaseError else ""
        return WireError(f"{self.path} cannot be used as a queue", why=str(error), hint=hint)

    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(self.path, timeout=30.0, isolation_level=None)
            found.row_factory = sqlite3.Row
            found.execute("PRAGMA journal_mode = WAL")
            # Accepted jobs must survive a power cut too.
            found.execute("PRAGMA synchronous = FULL")
            self._local.connection = found
        return found

    def reading(self) -> sqlite3.Connection:
        """The thread's connection, for single queries."""
        return self._connection()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """An exclusive write transaction, rolled back if the block raises."""
        connection = self._connection()
        with self._one:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # On a full disk SQLite may or may not have rolled back already. A transaction left open would lock all
                # others out.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the thread's connection."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is not None:
            found.close()
            self._local.connection = None


def is_queue(path: Path) -> bool:
    """Whether a file is a server's queue, of any version; the file is only read."""
    try:
        with open_file(path) as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                return False
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    except (OSError, sqlite3.Error):
        return False
    return {name for (name,) in tables} >= _OURS


def note(connection: sqlite3.Connection, name: str, value: float) -> None:
    """Store a value that lasts as long as the queue."""
    connection.execute("INSERT OR REPLACE INTO counters VALUES (?, ?)", (name, value))


def count(connection: sqlite3.Connection, name: str, amount: float = 1) -> None:
    """Add to a counter that lasts as long as the queue."""
    connection.execute(
        "INSERT INTO counters VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
        (name, amount),
    )
