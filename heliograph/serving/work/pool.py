"""The workers of one server: each has a thread here, which claims jobs for it, watches it, and gets another when it dies."""

from __future__ import annotations

import contextlib
import secrets
import sqlite3
import threading
import time
from dataclasses import dataclass

from heliograph.errors import HeliographError
from heliograph.runtime.wire.keyfolder import KeysError
from heliograph.serving.logs import log
from heliograph.serving.queue.bell import Bell
from heliograph.serving.queue.database import Database
from heliograph.serving.queue.jobs import Claim, Jobs
from heliograph.serving.queue.keysets import KeySets
from heliograph.serving.queue.settings import Limits, Places
from heliograph.serving.remote.records import DONE, ErrorRecord
from heliograph.serving.work.engine import AGAIN, STOPPED, Engine, Report, Seat, WorkerGone, follow, task_of

# How often an idle worker is checked and looks for jobs that it was not woken for; and how often it is noted as alive.
_LOOK_S = 0.25
_SEEN_S = 5.0
# A worker that dies at once is restarted only after a pause.
_REST_S = 2.0


class _Over(Exception):
    """The server ends."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all workers of a server have in common."""

    engine: Engine
    database: Database
    keysets: KeySets
    jobs: Jobs
    places: Places
    limits: Limits
    bell: Bell


class Pool:
    """This many workers of an engine, on the queue of a server."""

    def __init__(self, shared: Shared, workers: int) -> None:
        self._engine, self._database, self._jobs = shared.engine, shared.database, shared.jobs
        self._over = threading.Event()
        self._posts = [_Post(shared, self._over) for _ in range(workers)]

    def start(self) -> None:
        """Start the workers; jobs that those of an earlier server had go back to the queue first."""
        released = self._jobs.release(died=False)
        with self._database.writing() as connection:
            connection.execute("DELETE FROM workers")
        if released:
            log("released", jobs=released)
        for post in self._posts:
            post.thread.start()

    def close(self) -> None:
        """Stop the workers; what they had is evaluated again by those of the next server."""
        self._over.set()
        self.wake()
        self._engine.close()
        for post in self._posts:
            if post.thread.is_alive():
                post.thread.join()
        self._jobs.release(died=False)

    def wake(self) -> None:
        """Tell the workers that a job waits."""
        for post in self._posts:
            post.woken.set()

    @property
    def alive(self) -> int:
        """How many workers live, as their threads saw last; nobody waits for a worker here."""
        return sum(post.seat is not None for post in self._posts)


class _Post:
    """One worker after the other; what the thread does."""

    def __init__(self, shared: Shared, over: threading.Event) -> None:
        self._engine, self._bell, self._over = shared.engine, shared.bell, over
        self._database, self._keysets, self._jobs = shared.database, shared.keysets, shared.jobs
        self._places, self._limits = shared.places, shared.limits
        self._name, self._seen = "", 0.0
        self._noted: dict[str, int] = {}
        self.seat: Seat | None = None
        self.woken = threading.Event()
        self.thread = threading.Thread(target=self._run, name="heliograph-pool", daemon=True)

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._one_worker()
        finally:
            self._database.close()

    def _one_worker(self) -> None:
        """Have a worker, from its start to its death or the server's end."""
        self._name, begun = secrets.token_hex(8), time.monotonic()
        rest = False
        try:
            seat = self._engine.seat()
            self.seat = seat
            log("worker started", worker=self._name, process=seat.process, place=seat.place)
            self._serve(seat)
        except _Over:
            pass
        except WorkerGone as gone:
            rest = not gone.killed and time.monotonic() - begun < _REST_S
            process = None if self.seat is None else self.seat.process
            self._leave()
            if not self._over.is_set():
                released = self._released()
                log("worker died", worker=self._name, process=process, how=gone.how, jobs=released)
        except Exception as error:
            # Nothing that a job does may end this thread. Losing the job counts as a death, so a job that always fails ends
            # too.
            rest = True
            self._leave()
            log("fault", worker=self._name, kind=type(error).__name__, text=str(error)[:500], jobs=self._released())
        finally:
            self._leave()
        if rest:
            self._over.wait(_REST_S)

    def _leave(self) -> None:
        """End the worker; from here on it is not counted as alive."""
        seat, self.seat = self.seat, None
        if seat is not None:
            seat.close()

    def _serve(self, seat: Seat) -> None:
        self._noted, self._seen = {}, 0.0
        while not self._over.is_set():
            self.woken.clear()
            try:
                self._note(seat)
                claim = self._jobs.claim(self._name, tuple(seat.held))
            except (sqlite3.DatabaseError, OSError) as error:
                # The disk is full, too many files are open, or the queue is busy or damaged.
                log("queue", worker=self._name, text=str(error))
                claim = None
            if claim is not None:
                self._evaluate(seat, claim)
            elif not seat.alive:
                # Its last report tells how it ended.
                seat.poll(_LOOK_S)
                raise WorkerGone("it ended")
            else:
                self.woken.wait(_LOOK_S)

    def _evaluate(self, seat: Seat, claim: Claim) -> None:
        # A name for this attempt alone: another worker that has the job by now writes to another file.
        name, begun = f"{claim.number}-{secrets.token_hex(8)}", time.monotonic()
        path, keys = self._places.result(name), self._places.keyset(claim.folder)
        task = task_of(claim.artifact, keys, self._places.input(claim.input), path)

        def going_on(report: Report) -> bool:
            if self._over.is_set():
                raise _Over
            with contextlib.suppress(sqlite3.DatabaseError):
                return self._jobs.beat(self._name, claim.number, report.done, report.total)
            return True

        kept = False
        try:
            report = follow(seat, task, going_on, self._limits.worker_s)
            ended = self._end(claim, report, name)
            kept = ended and report.state == DONE
        finally:
            if not kept:
                path.unlink(missing_ok=True)
        self._bell.ring()
        if report.fault:
            log("fault", worker=self._name, job=claim.id, text=report.fault)
        log(
            "job",
            worker=self._name,
            job=claim.id,
            artifact=claim.artifact,
            client=claim.client,
            ended=ended,
            error=_shown_end(report),
            seconds=round(time.monotonic() - begun, 3),
        )
        if report.state == AGAIN:
            self._over.wait(_REST_S)

    def _end(self, claim: Claim, report: Report, name: str) -> bool:
        """End the job in the queue, however long the queue is busy; whether it was still this worker's."""
        while True:
            try:
                if report.state == DONE:
                    return self._jobs.finish(self._name, claim.number, name, report.total)
                if report.error is None:
                    return False
                if report.state == AGAIN:
                    return self._jobs.postpone(self._name, claim.number, report.error)
                return self._jobs.fail(self._name, claim.number, self._explained(claim, report.error))
            except sqlite3.DatabaseError as error:
                log("queue", worker=self._name, text=str(error))
                if self._over.wait(_REST_S):
                    raise _Over from None

    def _explained(self, claim: Claim, error: ErrorRecord) -> ErrorRecord:
        """What a job ended with, where the disk of the server spoiled the keys: what its client can do about it."""
        try:
            if error.kind != KeysError.__name__ or not self._keysets.mend(claim.folder):
                return error
        except (HeliographError, OSError) as found:
            log("keys", worker=self._name, keys=claim.folder, text=str(found))
            return error
        log("keys damaged", worker=self._name, keys=claim.folder, text=error.what)
        return ErrorRecord(
            "HeliographError",
            "the job cannot be run",
            why="evaluation keys of its client were damaged on the disk of the server",
            hint="register the keys again, which sends those, and then submit the job: RemoteServer.register(keys)",
        )

    def _note(self, seat: Seat) -> None:
        """Write down that the worker lives, and what it holds; have it let go of keys that were deleted."""
        gone = [folder for folder in seat.held if not self._places.keyset(folder).exists()]
        if gone:
            seat.drop(gone)
        if seat.held == self._noted and time.monotonic() - self._seen < _SEEN_S:
            return
        self._noted, self._seen = dict(seat.held), time.monotonic()
        with self._database.writing() as connection:
            connection.execute(
                "INSERT INTO workers VALUES (:name, :process, :place, :beat, :bytes, :servers)"
                " ON CONFLICT (name) DO UPDATE SET beat = excluded.beat, bytes = excluded.bytes, servers = excluded.servers",
                {
                    "name": self._name,
                    "process": seat.process,
                    "place": seat.place,
                    "beat": self._database.clock.now(),
                    "bytes": sum(seat.held.values()),
                    "servers": len(seat.held),
                },
            )

    def _released(self) -> int:
        """Give the jobs of the dead worker back; how many there were."""
        while True:
            try:
                released = self._jobs.release(self._name)
                with self._database.writing() as connection:
                    connection.execute("DELETE FROM workers WHERE name = ?", (self._name,))
                return released
            except sqlite3.DatabaseError as error:
                log("queue", worker=self._name, text=str(error))
                if self._over.wait(_REST_S):
                    return 0


def _shown_end(report: Report) -> str | None:
    """How a job ended, for the log: None where it has a result."""
    if report.state in (STOPPED, AGAIN):
        return report.state
    return None if report.error is None else report.error.kind
