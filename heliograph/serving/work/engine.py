"""Engines: what evaluates jobs beside the process that has them. A worker is given artifacts, a key set, and jobs.

An engine starts workers; each takes one job at a time and says how far it is, through its `WorkerHandle`. The pool
(`pool.py`) gives jobs out, and gives the job of a worker that died to another one. So every engine keeps the same promises.
`local` spawns processes, `ray_engine` makes actors on a Ray cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from heliograph.errors import HeliographError
from heliograph.files import of_the_machine
from heliograph.runtime.memory import available_bytes
from heliograph.serving.remote.records import FAILED, RUNNING, ErrorRecord, as_record

ENGINES = ("local", "ray")
STOPPED, AGAIN = "stopped", "again"
# How often a worker reports its progress, and how long to wait for a report.
BEAT_S = 0.25
# Workers may use this share of the memory that is free when they start or, if that is unknown, of 4 GiB.
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
    # The folder of encoded plaintexts of all workers, where they keep any.
    plaintexts: str | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """One job: an artifact's fingerprint, the folder of a key set, the file of an input, and where the output goes."""

    artifact: str
    keys: str
    input: str
    output: str


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a job: how far it is, or how it ended."""

    # "running", or "done", "failed", "stopped", or "again": to be evaluated when the machine has room.
    state: str = RUNNING
    # Operations.
    done: int = 0
    total: int = 0
    # Why it failed, or what the machine lacks.
    error: ErrorRecord | None = None
    # An unexpected failure, for the operator's log alone.
    fault: str = ""
    # The key sets in the worker's memory after the job, by the names of their folders, and their bytes by the bill.
    held: dict[str, int] = field(default_factory=dict)


class WorkerGone(Exception):
    """The worker died, or cannot be reached; `killed` where a signal ended it."""

    def __init__(self, how: str, *, killed: bool = False) -> None:
        super().__init__(how)
        self.how, self.killed = how, killed


class WorkerHandle(Protocol):
    """One worker that was started. Used by one thread, but for `kill`."""

    # Its process id, the machine it is on, and what it holds after its last job (`Report.held`).
    process: int
    place: str
    held: dict[str, int]

    @property
    def alive(self) -> bool: ...

    def begin(self, task: Task) -> None:
        """Have the worker begin a job; WorkerGone where it is dead."""

    def poll(self, seconds: float) -> Report | None:
        """What it says next; None where it says nothing for so long. WorkerGone where it died."""

    def stop(self) -> None:
        """Tell it to leave the job; its report says "stopped", or how the job ended before."""

    def drop(self, folders: Collection[str]) -> None:
        """Tell it to let go of these key sets, between jobs."""

    def close(self) -> None:
        """End the worker, whatever it does."""

    def kill(self) -> None:
        """The same at once, for one that does not answer."""


class Engine(Protocol):
    """What starts workers."""

    name: str

    def start_worker(self) -> WorkerHandle:
        """A new worker. WorkerGone where none can be had now; that may take as long as `close` is not called."""

    def close(self) -> None:
        """No more workers are started; those that run are closed by the pool."""


def follow(handle: WorkerHandle, task: Task, going_on: Callable[[Report], bool], silence_s: float) -> Report:
    """Have a worker evaluate a job: the report of its end.

    `going_on` hears of each report on the way, about every `BEAT_S` seconds, and says whether the job is still wanted.
    WorkerGone where the worker died, or said nothing for `silence_s`; it is killed then.
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
    """The end of a job in an error: for good, or until the machine has room again."""
    return Report(FAILED if of_the_machine(error) is None else AGAIN, error=as_record(error))


def bytes_each(memory_bytes: int | None, workers: int) -> int:
    """The memory for each worker: its share of `memory_bytes`, by default of four fifths of what the machine has free."""
    if memory_bytes is None:
        memory_bytes = int(_SHARE * (available_bytes() or _UNKNOWN_BYTES))
    return memory_bytes // workers


def task_of(artifact: str, keys: Path, input: Path, output: Path) -> Task:
    """A job with its paths as any process of the machine understands them."""
    return Task(artifact, *(str(path.absolute()) for path in (keys, input, output)))
