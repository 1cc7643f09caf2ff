"""The local engine: spawned processes on this machine, which share one mapping of a folder's keys."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from heliograph.machine import usable_cores
from heliograph.serving.remote.records import ErrorRecord
from heliograph.serving.work.engine import Report, Task, Work, WorkerGone, WorkerHandle

_GRACE_S = 5.0


class LocalEngine:
    """Processes on this machine, which divide its cores; OMP_NUM_THREADS in the environment takes precedence."""

    name = "local"

    def __init__(self, work: Work, workers: int) -> None:
        self._work = work
        threads = str(max(1, usable_cores() // workers))
        self._threads = {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads}

    def start_worker(self) -> WorkerHandle:
        return _Process(self._work, {**self._threads, **os.environ})

    def close(self) -> None:
        """Do nothing: the engine has no processes besides its workers."""


class _Process:
    place = "here"

    def __init__(self, work: Work, environment: dict[str, str]) -> None:
        self.held: dict[str, int] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "heliograph.serving.work.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            # Ctrl-C must reach only the process that started the workers; that process lets them end.
            start_new_session=True,
        )
        self.process = self._process.pid
        self._reports: queue.SimpleQueue[Report | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="heliograph-reports", daemon=True).start()
        # If it is already dead, `poll` reports it.
        with contextlib.suppress(WorkerGone):
            self._say(asdict(work))

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def begin(self, task: Task) -> None:
        self._say({"task": asdict(task)})

    def poll(self, seconds: float) -> Report | None:
        try:
            report = self._reports.get(timeout=seconds)
        except queue.Empty:
            return None
        if report is None:
            raise self._gone()
        if report.state != "running":
            self.held = report.held
        return report

    def stop(self) -> None:
        self._say({"stop": True})

    def drop(self, folders: Collection[str]) -> None:
        self._say({"drop": list(folders)})
        self.held = {folder: size for folder, size in self.held.items() if folder not in folders}

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        self._process.kill()

    def _say(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._gone() from None

    def _gone(self) -> WorkerGone:
        """The error for a worker whose output or input has ended. If it still runs it is useless, and ended here."""
        try:
            status = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self._process.wait()
        if status < 0:
            return WorkerGone(signal.Signals(-status).name, killed=True)
        return WorkerGone(f"status {status}")

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                # A line cut off by the worker's death ends the reports too.
                with contextlib.suppress(ValueError):
                    self._reports.put(read_report(json.loads(line)))
        self._reports.put(None)


def read_report(fields: dict[str, Any]) -> Report:
    """A report from its JSON."""
    error = None if fields["error"] is None else ErrorRecord(**fields["error"])
    return Report(**{**fields, "error": error})
