"""The worker processes of one server: started, watched, started again; what a dead one had goes back to the queue."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

from heliograph.serving.database import Database
from heliograph.serving.jobs import Jobs
from heliograph.serving.logs import log
from heliograph.serving.worker import WorkerSettings

_WATCH_S = 0.2
# A worker that dies at once is not started again in a hurry.
_REST_S = 2.0


@dataclass
class _Process:
    settings: WorkerSettings
    process: subprocess.Popen[bytes]
    started: float


class Pool:
    """So many workers. `settings` are those of each, but for its name; threads are shared out among them."""

    def __init__(self, settings: WorkerSettings, workers: int, database: Database, jobs: Jobs) -> None:
        self._settings, self._number = settings, workers
        self._database, self._jobs = database, jobs
        self._processes: list[_Process] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="heliograph-pool", daemon=True)

    def start(self) -> None:
        """Start the workers; jobs that those of an earlier server had go back to the queue first."""
        released = self._jobs.release()
        with self._database.writing() as connection:
            connection.execute("DELETE FROM workers")
        if released:
            log("released", jobs=released)
        for _ in range(self._number):
            self._processes.append(self._begun())
        self._thread.start()

    def close(self) -> None:
        """Stop the workers; what they had is evaluated again by those of the next server."""
        self._over.set()
        self._thread.join()
        with self._lock:
            for each in self._processes:
                with contextlib.suppress(OSError):
                    assert each.process.stdin is not None
                    each.process.stdin.close()
            for each in self._processes:
                try:
                    each.process.wait(5)
                except subprocess.TimeoutExpired:
                    each.process.kill()
                    each.process.wait()
        self._jobs.release(died=False)

    def wake(self) -> None:
        """Tell the workers that a job waits."""
        with self._lock:
            for each in self._processes:
                # Where it is dead the watch sees it; where its pipe is full it has lines enough to wake it.
                with contextlib.suppress(OSError):
                    assert each.process.stdin is not None
                    os.write(each.process.stdin.fileno(), b"\n")

    @property
    def alive(self) -> int:
        """How many workers live."""
        with self._lock:
            return sum(each.process.poll() is None for each in self._processes)

    @property
    def processes(self) -> list[int]:
        """The workers' process ids."""
        with self._lock:
            return [each.process.pid for each in self._processes]

    def _begun(self) -> _Process:
        settings = WorkerSettings(
            name=secrets.token_hex(8),
            root=self._settings.root,
            paths=self._settings.paths,
            plain=self._settings.plain,
            worker_bytes=self._settings.worker_bytes,
            backend=self._settings.backend,
            allow_insecure=self._settings.allow_insecure,
            limits=self._settings.limits,
        )
        threads = str(max(1, len(os.sched_getaffinity(0)) // self._number))
        environment = {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads, **os.environ}
        process = subprocess.Popen(
            [sys.executable, "-m", "heliograph.serving.worker"],
            stdin=subprocess.PIPE,
            env=environment,
            # Ctrl-C is the server's: it lets its workers end.
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(settings.to_json().encode() + b"\n")
        process.stdin.flush()
        os.set_blocking(process.stdin.fileno(), False)
        log("worker started", worker=settings.name, process=process.pid)
        return _Process(settings, process, time.monotonic())

    def _watch(self) -> None:
        while not self._over.wait(_WATCH_S):
            try:
                self._replace_dead()
                self._end_silent(self._jobs.release_late())
            except (sqlite3.OperationalError, OSError) as error:
                log("pool", text=str(error))

    def _end_silent(self, names: list[str]) -> None:
        """End the workers that gave no sign of life for the time of a lease: others have their jobs."""
        for each in self._processes:
            if each.settings.name in names:
                log("worker silent", worker=each.settings.name, process=each.process.pid)
                each.process.kill()

    def _replace_dead(self) -> None:
        for number, each in enumerate(self._processes):
            status = each.process.poll()
            if status is None or (time.monotonic() - each.started < _REST_S and status >= 0):
                continue
            released = self._jobs.release(each.settings.name)
            with self._database.writing() as connection:
                connection.execute("DELETE FROM workers WHERE name = ?", (each.settings.name,))
            how = signal.Signals(-status).name if status < 0 else str(status)
            log("worker died", worker=each.settings.name, process=each.process.pid, how=how, jobs=released)
            fresh = self._begun()
            with self._lock:
                self._processes[number] = fresh
            self.wake()
