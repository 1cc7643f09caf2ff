"""Engines: they evaluate jobs in workers outside the process that has the jobs.

An engine starts workers; each takes one job at a time and reports its progress through its `WorkerHandle`. The pool
(`pool.py`) hands out jobs, and gives a dead worker's job to another one. So every engine keeps the same guarantees.
`local` spawns processes, `ray_engine` creates actors on a Ray cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from heliograph.errors import HeliographError
from heliograph.files import of_the_machine
from heliograph.machine import available_bytes
from heliograph.serving.remote.records import FAILED, RUNNING, ErrorRecord, as_record

ENGINES = ("local", "ray")
STOPPED, AGAIN = "stopped", "again"
# The interval of a worker's progress reports, and the wait for a report.
BEAT_S = 0.25
# Workers may use this share of the free memory at their start or, if that is unknown, of 4 GiB.
_SHARE, _UNKNOWN_BYTES = 0.8, 1 << 32


@dataclass(frozen=True, slots=True)
class Work:
    """The settings of each worker."""

    # The folder of the server, or of the keys.
    home: str
    # Files of artifacts by fingerprint, and of plain inputs by the name of the artifact.
    paths: Mapping[str, str]
    plain: Mapping[str, str]
    # The memory of one worker.
    worker_bytes: int
    backend: str | None = None
    allow_insecure: bool = False
    # The workers' folder of encoded plaintexts, if they keep any.
    plaintexts: str | None = None
    # Files of encrypted inputs that stay with the server, by the name of the artifact.
    kept: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """One job: an artifact's fingerprint, the folder of a key set, the file of an input, and the file of the output."""

    artifact: str
    keys: str
    input: str
    output: str


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a job: its progress, or its end."""

    # "running", "done", "failed", "stopped", or "again": to be evaluated again when the machine has room.
    state: str = RUNNING
    # Evaluated operations, and all operations.
    done: int = 0
    total: int = 0
    # The reason of the failure, or what the machine lacks.
    error: ErrorRecord | None = None
    # An unexpected failure, only for the operator's log.
    fault: str = ""
    # The key sets in the worker's memory after the job, by the names of their folders, and their bytes by the bill.
    held: dict[str, int] = field(default_factory=dict)


class WorkerGone(Exception):
    """The worker died, or cannot be reached; `killed` if a signal ended it."""

    def __init__(self, how: str, *, killed: bool = False) -> None:
        super().__init__(how)
        self.how, self.killed = how, killed


class WorkerHandle(Protocol):
    """One started worker. Used by one thread, except for `kill`."""

    # Its process id, its machine, and the key sets that it holds after its last job (`Report.held`).
    process: int
    place: str
    held: dict[str, int]

    @property
    def alive(self) -> bool: ...

    def begin(self, task: Task) -> None:
        """Start a job on the worker; WorkerGone if it is dead."""

    def poll(self, seconds: float) -> Report | None:
        """The worker's next report; None if none comes within this time. WorkerGone if it died."""

    def stop(self) -> None:
        """Tell the worker to abandon the job; its report is then "stopped", or the job's end if that came first."""

    def drop(self, folders: Collection[str]) -> None:
        """Tell the worker, between jobs, to drop these key sets."""

    def close(self) -> None:
        """End the worker, even during a job."""

    def kill(self) -> None:
        """End the worker immediately, for one that does not answer."""


class Engine(Protocol):
    """A starter of workers."""

    name: str

    def start_worker(self) -> WorkerHandle:
        """A new worker; WorkerGone if none can be started now. May wait until `close` is called."""

    def close(self) -> None:
        """Start no more workers; the pool closes those that run."""


def follow(handle: WorkerHandle, task: Task, going_on: Callable[[Report], bool], silence_s: float) -> Report:
    """Have a worker evaluate a job; returns the report of its end.

    `going_on` is called with each progress report, about every `BEAT_S` seconds, and returns whether the job is still
    wanted. Raises WorkerGone if the worker died, or was silent for `silence_s` and was killed.
    """
    handle.begin(task)
    silent = 0.0
    while True:
        report = handle.poll(BEAT_S)
        if report is None:
            silent += BEAT_S
            if silent > silence_s:
                handle.kill()
                raise WorkerGone(f"no sign of life for {silence_s:g} s", killed=True)
            continue
        silent = 0.0
        if report.state != RUNNING:
            return report
        if not going_on(report):
            handle.stop()


def ended_by(error: HeliographError) -> Report:
    """The report of a job that ended in an error: failed for good, or postponed until the machine has room."""
    return Report(FAILED if of_the_machine(error) is None else AGAIN, error=as_record(error))


def bytes_each(memory_bytes: int | None, workers: int) -> int:
    """The memory for each worker: its share of `memory_bytes`, by default of four fifths of the free memory."""
    if memory_bytes is None:
        memory_bytes = int(_SHARE * (available_bytes() or _UNKNOWN_BYTES))
    return memory_bytes // workers


def task_of(artifact: str, keys: Path, input: Path, output: Path) -> Task:
    """A job with absolute paths, valid in any process of the machine."""
    return Task(artifact, *(str(path.absolute()) for path in (keys, input, output)))
