"""A worker process: claims jobs from the queue and evaluates them, one at a time.

It is started anew, not forked (OpenFHE's generator must not be copied), as `python -m heliograph.serving.worker`; the
first line on its standard input says what to serve, as JSON. Each further line wakes it. When the input ends its server is
gone, and it goes too: its job is another's by then.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import sys
import threading
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

from heliograph.errors import HeliographError, InsecureWarning
from heliograph.runtime.messages import EncryptedInput
from heliograph.serving.database import Database
from heliograph.serving.holding import Holding
from heliograph.serving.jobs import Claim, Jobs
from heliograph.serving.logs import log, log_to_stderr
from heliograph.serving.records import ErrorRecord, as_record
from heliograph.serving.settings import Limits, Places

# How often a worker looks for jobs that nobody woke it for, and how often it writes progress.
_LOOK_S = 0.5
_BEAT_S = 0.25


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker is told. `paths` are the artifacts' files by fingerprint, `plain` files of plain inputs by name."""

    name: str
    root: str
    paths: dict[str, str]
    plain: dict[str, str]
    worker_bytes: int
    backend: str | None
    allow_insecure: bool
    limits: Limits

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> WorkerSettings:
        fields = json.loads(text)
        return WorkerSettings(**{**fields, "limits": Limits(**fields["limits"])})


class Stopped(Exception):
    """The job is no longer this worker's: it was deleted, or given to another one."""


class Beat:
    """Writes progress and the lease of one job while it is evaluated, from a thread of its own."""

    def __init__(self, jobs: Jobs, worker: str, number: int) -> None:
        self._jobs, self._worker, self._number = jobs, worker, number
        self._place = (0, 0)
        self._over, self._lost = threading.Event(), False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def progress(self, stage: str, done: int, total: int) -> None:
        """What the evaluation calls after each operation; raises Stopped where it is for nobody."""
        self._place = done, total
        if self._lost:
            raise Stopped

    @property
    def total(self) -> int:
        """The operations of the evaluation, 0 before the first."""
        return self._place[1]

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_BEAT_S):
            try:
                if not self._jobs.beat(self._worker, self._number, *self._place):
                    self._lost = True
                    return
            except sqlite3.OperationalError:
                # The disk is full or the queue busy; the lease is long enough for the next one.
                continue


class Worker:
    """One worker on a queue."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.places = Places(Path(settings.root))
        self.database = Database(self.places.database)
        self.jobs = Jobs(self.database, self.places, settings.limits)
        self.holding = Holding(
            settings.paths,
            settings.plain,
            settings.worker_bytes,
            backend=settings.backend,
            allow_insecure=settings.allow_insecure,
        )

    def once(self) -> bool:
        """Claim and end one job; False where none waits."""
        claim = self.jobs.claim(self.settings.name, self.holding.folders)
        if claim is None:
            return False
        beat = Beat(self.jobs, self.settings.name, claim.number)
        begun = time.monotonic()
        error: ErrorRecord | None = None
        try:
            ended = self._evaluate(claim, beat)
        except Stopped:
            ended, error = False, ErrorRecord("Stopped", "the job is no longer this worker's")
        except HeliographError as found:
            error = as_record(found)
            ended = self.jobs.fail(self.settings.name, claim.number, error)
        except MemoryError:
            self.holding.drop(claim.folder)
            error = ErrorRecord("TooLittleMemoryError", "the worker ran out of memory over this job")
            ended = self.jobs.fail(self.settings.name, claim.number, error)
        except Exception as found:
            # Our fault; the job ends all the same, and what was held may be broken.
            self.holding.drop(claim.folder)
            log("fault", worker=self.settings.name, job=claim.id, kind=type(found).__name__, text=str(found)[:500])
            error = ErrorRecord(
                "InternalError", "the evaluation failed by a fault of ours", why=f"{type(found).__name__}"
            )
            ended = self.jobs.fail(self.settings.name, claim.number, error)
        finally:
            beat.close()
        log(
            "job",
            worker=self.settings.name,
            job=claim.id,
            artifact=claim.artifact,
            client=claim.client,
            ended=ended,
            error=None if error is None else error.kind,
            seconds=round(time.monotonic() - begun, 3),
        )
        return True

    def _evaluate(self, claim: Claim, beat: Beat) -> bool:
        encrypted = EncryptedInput.load(self.places.input(claim.input))
        server = self.holding.server(claim.artifact, claim.folder, self.places.keyset(claim.folder))
        output = server.run(encrypted, beat.progress, self.holding.plain(claim.artifact))
        # The attempt's own name: another worker that has the job by now writes another file.
        name = f"{claim.number}-{secrets.token_hex(8)}"
        path = self.places.result(name)
        output.save(path)
        if self.jobs.finish(self.settings.name, claim.number, name, beat.total):
            return True
        path.unlink(missing_ok=True)
        return False

    def beat(self) -> None:
        """Say that the worker lives, and what it holds; let go of keys that were deleted."""
        self.holding.drop_gone(self.places.keys)
        with self.database.writing() as connection:
            connection.execute(
                "INSERT INTO workers VALUES (:name, :process, :beat, :bytes, :servers) ON CONFLICT (name) DO UPDATE SET"
                " beat = excluded.beat, bytes = excluded.bytes, servers = excluded.servers",
                {
                    "name": self.settings.name,
                    "process": os.getpid(),
                    "beat": time.time(),
                    "bytes": self.holding.held_bytes,
                    "servers": len(self.holding.folders),
                },
            )


def main() -> None:
    settings = WorkerSettings.from_json(sys.stdin.readline())
    log_to_stderr()
    warnings.simplefilter("ignore", InsecureWarning)
    wake = threading.Event()
    threading.Thread(target=_listen, args=(wake,), daemon=True).start()
    worker = Worker(settings)
    worker.beat()
    beaten = time.monotonic()
    while True:
        try:
            busy = worker.once()
            if not busy or time.monotonic() - beaten > 5:
                worker.beat()
                beaten = time.monotonic()
        except sqlite3.OperationalError as error:
            log("queue", worker=settings.name, text=str(error))
            busy = False
        if not busy:
            wake.wait(_LOOK_S)
            wake.clear()


def _listen(wake: threading.Event) -> None:
    """Wake the worker for every line; end the process, whatever it does, when the server is gone."""
    for _ in sys.stdin:
        wake.set()
    os._exit(0)


if __name__ == "__main__":
    main()
