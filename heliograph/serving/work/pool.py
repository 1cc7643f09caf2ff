"""A pool of workers: each has a thread, which claims jobs for it, follows them, and starts another worker when it dies.

A `Jobs` object gives out jobs and notes how they end: for the queue of a server (`queued.py`), or for a list of files
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

# How often an idle worker is checked and looks for jobs that it was not woken for.
_LOOK_S = 0.25
# The pause before a worker that died at once is replaced, and before a busy queue is asked again.
_REST_S = 2.0
R = TypeVar("R")


class Job(Protocol):
    """A job that was claimed for a worker."""

    @property
    def task(self) -> Task: ...


J = TypeVar("J", bound=Job)


class Jobs(Protocol[J]):
    """The jobs of a pool. `worker` names a worker from its start to its death; its thread makes all calls for it.

    Every method may raise sqlite3.DatabaseError where a queue is busy; `end` and `release` are called again then.
    """

    def is_over(self) -> bool:
        """Whether no job will come any more."""

    def claim(self, worker: str, handle: WorkerHandle) -> J | None:
        """The next job, which is this worker's from now on; None where none waits."""

    def beat(self, worker: str, job: J, report: Report) -> bool:
        """Note how far a job is; False where it is wanted no longer."""

    def end(self, worker: str, job: J, report: Report) -> None:
        """Note how a job ended: with its output, with an error, or so that it is to be evaluated again."""

    def release(self, worker: str, cause: Exception | None) -> int:
        """Give back the job of a worker that is gone; how many there were.

        `cause` is a WorkerGone where the worker died, another exception where the job could not be followed or ended, None
        where the pool was closed, which says nothing of the job.
        """

    def close(self) -> None:
        """Close what belongs to the thread, which ends."""


class Pool(Generic[J]):
    """So many workers of an engine, on some jobs. A worker that is silent for `silence_s` seconds is killed."""

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
        """End the workers, whatever they do, and give their jobs back."""
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
        """How many workers live, as their threads saw last; nobody waits for a worker here."""
        return sum(thread.handle is not None for thread in self._threads)


class _Closed(Exception):
    """The pool was closed."""


class _WorkerThread(threading.Thread, Generic[J]):
    """Has one worker after the other."""

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
        """Have a worker, from its start to its death or the end of the pool."""
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
            # Nothing that a job does may end this thread. Losing the job counts as a death, so a job that always fails ends
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
                # Its last report tells how it ended.
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
        """What a call gives, however long the queue is busy; None where the pool is closed meanwhile."""
        while True:
            try:
                return call()
            except sqlite3.DatabaseError as error:
                log("queue", worker=self._worker, text=str(error))
                if self._closed.wait(_REST_S):
                    return None
