"""A pool of workers: each has a thread, which claims jobs for it, follows them, and starts another worker when it dies.

A `Jobs` object hands out jobs and records their ends: for the queue of a server (`queued.py`), or for a list of files
(`spread.py`).
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from heliograph.serving.logs import log
from heliograph.serving.work.engine import AGAIN, Engine, Report, Task, WorkerGone, WorkerHandle, follow

# The interval at which an idle worker is checked and looks for jobs for which it was not woken.
_LOOK_S = 0.25
# The pause before a worker that died at once is replaced, and before a busy queue is tried again.
_REST_S = 2.0
R = TypeVar("R")


class Job(Protocol):
    """A job that was claimed for a worker."""

    @property
    def task(self) -> Task: ...


J = TypeVar("J", bound=Job)


class Jobs(Protocol[J]):
    """The jobs of a pool. `worker` is a worker's name for its lifetime; its thread makes all calls for it.

    Every method may raise sqlite3.DatabaseError if a queue is busy; `end` and `release` are then called again.
    """

    def is_over(self) -> bool:
        """Whether no more jobs will come."""

    def claim(self, worker: str, handle: WorkerHandle) -> J | None:
        """Claim the next job for this worker; None if none waits."""

    def beat(self, worker: str, job: J, report: Report) -> bool:
        """Record a job's progress; False if it is no longer wanted."""

    def end(self, worker: str, job: J, report: Report) -> None:
        """Record a job's end: with its output, with an error, or for another evaluation later."""

    def release(self, worker: str, cause: Exception | None) -> int:
        """Return the job of a lost worker; returns the number of jobs.

        `cause` is a WorkerGone if the worker died, another exception if the job could not be followed or ended, None if
        the pool was closed, which says nothing about the job.
        """

    def close(self) -> None:
        """Close the resources of the calling thread, which ends."""


class Pool(Generic[J]):
    """A number of workers of an engine, on some jobs. A worker that is silent for `silence_s` seconds is killed."""

    def __init__(self, engine: Engine, jobs: Jobs[J], workers: int, silence_s: float) -> None:
        self._engine = engine
        self._closed = threading.Event()
        self._threads = [_WorkerThread(engine, jobs, silence_s, self._closed) for _ in range(workers)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until the jobs are over."""
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def close(self) -> None:
        """End the workers, even during a job, and return their jobs."""
        self._closed.set()
        self.wake()
        self._engine.close()
        self.join()

    def wake(self) -> None:
        """Tell the workers that a job waits."""
        for thread in self._threads:
            thread.woken.set()

    @property
    def alive(self) -> int:
        """The number of live workers, as last seen by their threads; this never waits for a worker."""
        return sum(thread.handle is not None for thread in self._threads)


class _Closed(Exception):
    """The pool was closed."""


class _WorkerThread(threading.Thread, Generic[J]):
    """Runs one worker after another."""

    def __init__(self, engine: Engine, jobs: Jobs[J], silence_s: float, closed: threading.Event) -> None:
        super().__init__(name="heliograph-pool", daemon=True)
        self._engine, self._jobs, self._silence_s, self._closed = engine, jobs, silence_s, closed
        self._worker = ""
        self.handle: WorkerHandle | None = None
        self.woken = threading.Event()

    def run(self) -> None:
        try:
            while not (self._closed.is_set() or self._jobs.is_over()):
                self._one_worker()
        finally:
            self._jobs.close()

    def _one_worker(self) -> None:
        """Run a worker from its start to its death or the end of the pool."""
        self._worker, begun = secrets.token_hex(8), time.monotonic()
        cause: Exception | None = None
        said: dict[str, str | int | None] = {}
        try:
            self.handle = self._engine.start_worker()
            said["process"] = self.handle.process
            log("worker started", worker=self._worker, process=self.handle.process, place=self.handle.place)
            self._serve(self.handle)
        except _Closed:
            pass
        except WorkerGone as gone:
            cause, said["how"] = gone, gone.how
        except Exception as error:
            # No error in a job may end this thread. Losing the job counts as a death, so a job that always fails ends
            # too.
            cause, said = error, {"kind": type(error).__name__, "text": str(error)[:500]}
        # From here on the worker is not counted as alive.
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.close()
        if self._closed.is_set():
            cause = None
        released = self._insist(lambda: self._jobs.release(self._worker, cause))
        if cause is None:
            return
        dead = isinstance(cause, WorkerGone)
        log("worker died" if dead else "fault", worker=self._worker, **said, jobs=released)
        if not dead or not (cause.killed or time.monotonic() - begun >= _REST_S):  # type: ignore[attr-defined]
            self._closed.wait(_REST_S)

    def _serve(self, handle: WorkerHandle) -> None:
        while not (self._closed.is_set() or self._jobs.is_over()):
            self.woken.clear()
            job = self._jobs.claim(self._worker, handle)
            if job is not None:
                self._evaluate(handle, job)
            elif not handle.alive:
                # Its last report is the end of its job.
                handle.poll(_LOOK_S)
                raise WorkerGone("it ended")
            else:
                self.woken.wait(_LOOK_S)

    def _evaluate(self, handle: WorkerHandle, job: J) -> None:
        def going_on(report: Report) -> bool:
            if self._closed.is_set():
                raise _Closed
            return self._jobs.beat(self._worker, job, report)

        report = follow(handle, job.task, going_on, self._silence_s)
        self._insist(lambda: self._jobs.end(self._worker, job, report))
        if report.state == AGAIN:
            self._closed.wait(_REST_S)

    def _insist(self, call: Callable[[], R]) -> R | None:
        """The result of a call, repeated while the queue is busy; None if the pool is closed meanwhile."""
        while True:
            try:
                return call()
            except sqlite3.DatabaseError as error:
                log("queue", worker=self._worker, text=str(error))
                if self._closed.wait(_REST_S):
                    return None
