"""The jobs of a server's queue, for the workers of its pool."""

from __future__ import annotations

import contextlib
import math
import secrets
import sqlite3
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.errors import HeliographError
from heliograph.runtime.wire.keyfolder import KeysError
from heliograph.serving.logs import log
from heliograph.serving.queue.database import Database
from heliograph.serving.queue.jobs import Claim, Jobs
from heliograph.serving.queue.keysets import KeySets
from heliograph.serving.queue.notifier import Notifier
from heliograph.serving.queue.settings import Places
from heliograph.serving.remote.records import DONE, ErrorRecord
from heliograph.serving.work.engine import AGAIN, STOPPED, Report, Task, WorkerHandle, task_of

# The interval at which an idle worker is recorded as alive.
_SEEN_S = 5.0


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job of the queue that a worker has claimed."""

    claim: Claim
    task: Task
    # The time of the claim, by the monotonic clock.
    begun: float


@dataclass(slots=True)
class _Noted:
    """The record of a worker."""

    held: dict[str, int] = field(default_factory=dict)
    # The time of the record, by the monotonic clock.
    seen: float = -math.inf
    # The file of the result that the worker will write.
    output: Path | None = None


class QueuedJobs:
    """The queue of a server, for its pool (`pool.Jobs`)."""

    def __init__(self, database: Database, keysets: KeySets, jobs: Jobs, places: Places, notifier: Notifier) -> None:
        self._database, self._keysets, self._jobs = database, keysets, jobs
        self._places, self._notifier = places, notifier
        self._workers: defaultdict[str, _Noted] = defaultdict(_Noted)

    def begin(self) -> None:
        """Return the jobs of an earlier server's workers to the queue."""
        released = self._jobs.release(died=False)
        with self._database.writing() as connection:
            connection.execute("DELETE FROM workers")
        if released:
            log("released", jobs=released)

    def is_over(self) -> bool:
        return False

    def claim(self, worker: str, handle: WorkerHandle) -> QueuedJob | None:
        try:
            self._note(worker, handle)
            claim = self._jobs.claim(worker, tuple(handle.held))
        except (sqlite3.DatabaseError, OSError) as error:
            # The disk is full, too many files are open, or the queue is busy or damaged.
            log("queue", worker=worker, text=str(error))
            return None
        if claim is None:
            return None
        # A name only for this attempt: another worker that gets the job later writes to another file.
        output = self._places.result(f"{claim.number}-{secrets.token_hex(8)}")
        self._workers[worker].output = output
        keys, given = self._places.keyset(claim.folder), self._places.input(claim.input)
        return QueuedJob(claim, task_of(claim.artifact, keys, given, output), time.monotonic())

    def beat(self, worker: str, job: QueuedJob, report: Report) -> bool:
        with contextlib.suppress(sqlite3.DatabaseError):
            return self._jobs.beat(worker, job.claim.number, report.done, report.total)
        return True

    def end(self, worker: str, job: QueuedJob, report: Report) -> None:
        claim = job.claim
        ended = self._ended(worker, claim, report)
        noted = self._workers[worker]
        if not (ended and report.state == DONE) and noted.output is not None:
            noted.output.unlink(missing_ok=True)
        noted.output = None
        self._notifier.notify()
        if report.fault:
            log("fault", worker=worker, job=claim.id, text=report.fault)
        log(
            "job",
            worker=worker,
            job=claim.id,
            artifact=claim.artifact,
            client=claim.client,
            ended=ended,
            error=_shown_end(report),
            seconds=round(time.monotonic() - job.begun, 3),
        )

    def release(self, worker: str, cause: Exception | None) -> int:
        noted = self._workers[worker]
        if noted.output is not None:
            with contextlib.suppress(OSError):
                noted.output.unlink(missing_ok=True)
        released = self._jobs.release(worker, died=cause is not None)
        with self._database.writing() as connection:
            connection.execute("DELETE FROM workers WHERE name = ?", (worker,))
        del self._workers[worker]
        return released

    def close(self) -> None:
        self._database.close()

    def _ended(self, worker: str, claim: Claim, report: Report) -> bool:
        """End a job in the queue; returns whether it was still this worker's."""
        output = self._workers[worker].output
        if report.state == DONE and output is not None:
            return self._jobs.finish(worker, claim.number, output.name, report.total)
        if report.error is None:
            return False
        if report.state == AGAIN:
            return self._jobs.postpone(worker, claim.number, report.error)
        return self._jobs.fail(worker, claim.number, self._explained(worker, claim, report.error))

    def _explained(self, worker: str, claim: Claim, error: ErrorRecord) -> ErrorRecord:
        """A job's error; if the server's disk damaged the keys, with advice for the client."""
        try:
            if error.kind != KeysError.__name__ or not self._keysets.mend(claim.folder):
                return error
        except (HeliographError, OSError) as found:
            log("keys", worker=worker, keys=claim.folder, text=str(found))
            return error
        log("keys damaged", worker=worker, keys=claim.folder, text=error.what)
        return ErrorRecord(
            "HeliographError",
            "the job cannot be run",
            why="evaluation keys of its client were damaged on the disk of the server",
            hint="register the keys again, which sends those, and then submit the job: RemoteServer.register(keys)",
        )

    def _note(self, worker: str, handle: WorkerHandle) -> None:
        """Record that a worker is alive and which keys it holds, and let it drop deleted keys."""
        gone = [folder for folder in handle.held if not self._places.keyset(folder).exists()]
        if gone:
            handle.drop(gone)
        noted = self._workers[worker]
        if handle.held == noted.held and time.monotonic() - noted.seen < _SEEN_S:
            return
        noted.held, noted.seen = dict(handle.held), time.monotonic()
        with self._database.writing() as connection:
            connection.execute(
                "INSERT INTO workers VALUES (:name, :process, :place, :beat, :bytes, :servers)"
                " ON CONFLICT (name) DO UPDATE SET beat = excluded.beat, bytes = excluded.bytes, servers = excluded.servers",
                {
                    "name": worker,
                    "process": handle.process,
                    "place": handle.place,
                    "beat": self._database.clock.now(),
                    "bytes": sum(handle.held.values()),
                    "servers": len(handle.held),
                },
            )


def _shown_end(report: Report) -> str | None:
    """How a job ended, for the log; None if it has a result."""
    if report.state in (STOPPED, AGAIN):
        return report.state
    return None if report.error is None else report.error.kind
