"""Encrypted inputs in files, spread over the workers of an engine: `heliograph evaluate --engine`.

As with one process (runtime/server/batch.py), each output is written whole and existing outputs are kept. An input that
a dead worker had begun is evaluated again by another.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from heliograph.array_files import read_by_name
from heliograph.artifact.artifact import Artifact
from heliograph.errors import InternalError
from heliograph.execution.loop import Progress
from heliograph.runtime.server.batch import Outputs
from heliograph.runtime.server.server import refuse_carried
from heliograph.runtime.wire.keyfolder import KeyFolder, load_keys, write_keys
from heliograph.runtime.wire.messages import EncryptedInput
from heliograph.serving.queue.catalog import require_fit, room
from heliograph.serving.queue.plaintexts import require_plaintexts
from heliograph.serving.queue.settings import Limits
from heliograph.serving.remote.records import DONE, as_error
from heliograph.serving.work.engine import Report, Task, Work, WorkerGone, WorkerHandle, bytes_each, task_of
from heliograph.serving.work.engines import make_engine
from heliograph.serving.work.pool import Pool


def spread_files(
    path: str | Path,
    keys: str | Path,
    targets: Mapping[Path, Path],
    *,
    engine: str,
    workers: int = 1,
    plain: str | None = None,
    keep: bool = True,
    backend: str | None = None,
    plaintexts: str | None = None,
    allow_insecure: bool = False,
    progress: Progress | None = None,
    finished: Callable[[Path, float | None], None] | None = None,
) -> None:
    """Evaluate the artifact in a file on encrypted inputs: `targets` maps each input's file to its output's file.

    `keys` is a folder of evaluation keys or a file of all of them, `plain` the file of plain inputs, `plaintexts` a folder
    in which workers keep encoded plaintexts. With `keep`, existing outputs are kept, and outputs are marked
    (runtime/server/batch.py). `finished(output, seconds)` is called after each, with None for an output that was kept;
    `progress` counts operations.

    Raises the error of a refused input once the running ones have ended; TooLittleMemoryError if a worker has too
    little memory by the bill; InternalError for an input over which five workers died.
    """
    artifact = Artifact.load(path)
    refuse_carried(artifact)
    worker_bytes = bytes_each(None, workers)
    require_fit(artifact.name, room(artifact, worker_bytes), worker_bytes, "use fewer --workers or a larger machine")
    if plaintexts is not None:
        require_plaintexts(Path(plaintexts), backend, artifact)
    values = {} if plain is None else read_by_name(plain, artifact.plain_inputs)
    with _folder_of(keys) as folder:
        folder.check(artifact.fingerprint)
        outputs = Outputs(artifact, folder.client, values) if keep else None
        work = Work(
            home=str(folder.path.resolve()),
            paths={artifact.fingerprint: str(Path(path).resolve())},
            plain={} if plain is None else {artifact.name: str(Path(plain).resolve())},
            worker_bytes=worker_bytes,
            backend=backend,
            allow_insecure=allow_insecure,
            plaintexts=None if plaintexts is None else str(Path(plaintexts).resolve()),
        )
        made = make_engine(engine, work, min(workers, len(targets)))
        files = _FileJobs(artifact.fingerprint, folder.path, targets, outputs, progress, finished)
        pool = Pool(made, files, min(workers, len(targets)), Limits().worker_s)
        pool.start()
        try:
            pool.join()
        finally:
            # After Ctrl-C workers abandon their jobs.
            pool.close()
        files.raise_error()


@contextlib.contextmanager
def _folder_of(keys: str | Path) -> Iterator[KeyFolder]:
    """The folder of the keys; keys in one file are written into a temporary folder, since workers take folders."""
    loaded = load_keys(keys)
    if isinstance(loaded, KeyFolder):
        yield loaded
        return
    with tempfile.TemporaryDirectory(prefix="heliograph-keys-") as name:
        sizes = {each: len(loaded.blob(each)) for each in loaded.names()}
        yield write_keys(name, loaded.artifact, loaded.client, sizes, loaded.blob)


@dataclass(frozen=True, slots=True)
class _FileJob:
    """A file of an encrypted input that must be evaluated."""

    file: Path
    encrypted: EncryptedInput
    task: Task
    # The time when a worker got it, by the monotonic clock.
    begun: float = 0.0


class _FileJobs:
    """Inputs in files, for a pool (`pool.Jobs`). After the first error, nothing new is begun."""

    def __init__(
        self,
        artifact: str,
        keys: Path,
        targets: Mapping[Path, Path],
        outputs: Outputs | None,
        progress: Progress | None,
        finished: Callable[[Path, float | None], None] | None,
    ) -> None:
        self._artifact, self._keys, self._outputs = artifact, keys, outputs
        self._progress, self._finished = progress, finished
        # Files that were not checked yet, inputs that wait for a worker, and inputs that a worker has.
        self._targets, self._files = targets, deque(targets)
        self._waiting: deque[_FileJob] = deque()
        self._running: dict[str, _FileJob] = {}
        self._deaths: Counter[Path] = Counter()
        # The evaluated operations of each running input, and the operations of a whole input.
        self._places: dict[Path, int] = {}
        self._ended, self._each = 0, 0
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def raise_error(self) -> None:
        """Raise the first error, if there was one."""
        if self._error is not None:
            raise self._error

    def is_over(self) -> bool:
        """Whether nothing waits or runs any more. Inputs with existing outputs are skipped; they need no worker."""
        job = self._next()
        with self._lock:
            if job is not None:
                self._waiting.appendleft(job)
            return self._error is not None or self._ended == len(self._targets)

    def claim(self, worker: str, handle: WorkerHandle) -> _FileJob | None:
        job = self._next()
        if job is not None:
            with self._lock:
                self._running[worker] = job = replace(job, begun=time.monotonic())
        return job

    def beat(self, worker: str, job: _FileJob, report: Report) -> bool:
        with self._lock:
            self._places[job.file], self._each = report.done, max(self._each, report.total)
            self._show()
        return True

    def end(self, worker: str, job: _FileJob, report: Report) -> None:
        with self._lock:
            self._running.pop(worker)
        if report.error is not None:
            # The user of the command is the operator too.
            error = replace(report.error, why=report.fault or report.error.why)
            self._fail(as_error(error, str(job.file)))
            return
        assert report.state == DONE
        if self._outputs is not None:
            self._outputs.mark(job.encrypted, self._targets[job.file])
        self._finish(job.file, time.monotonic() - job.begun, report.total)

    def release(self, worker: str, cause: Exception | None) -> int:
        """Return the input of a dead worker. Too many deaths over one input end everything in an InternalError."""
        with self._lock:
            job = self._running.pop(worker, None)
            if job is not None:
                self._places.pop(job.file, None)
                self._waiting.appendleft(job)
        if cause is not None and not isinstance(cause, WorkerGone):
            self._fail(cause)
        elif cause is not None and job is not None:
            self._deaths[job.file] += 1
            if self._deaths[job.file] >= Limits().deaths:
                error = InternalError(
                    f"{Limits().deaths} workers died or went silent over {job.file}",
                    why=cause.how,
                    hint="the machine may have too little memory: use fewer --workers",
                )
                self._fail(error)
        return int(job is not None)

    def close(self) -> None:
        """Do nothing: threads have no resources here."""

    def _next(self) -> _FileJob | None:
        """The next input to evaluate; None if none waits."""
        while self._error is None:
            with self._lock:
                if self._waiting:
                    return self._waiting.popleft()
                if not self._files:
                    return None
                file = self._files.popleft()
            try:
                encrypted, target = EncryptedInput.load(file), self._targets[file]
                if self._outputs is None or not self._outputs.is_done(encrypted, target):
                    return _FileJob(file, encrypted, task_of(self._artifact, self._keys, file, target))
                self._finish(file, None)
            except Exception as error:
                self._fail(error)
        return None

    def _finish(self, file: Path, seconds: float | None, operations: int = 0) -> None:
        with self._lock:
            self._places.pop(file, None)
            self._each = max(self._each, operations)
            self._ended += 1
            self._show()
            if self._finished is not None:
                self._finished(self._targets[file], seconds)

    def _show(self) -> None:
        if self._progress is not None and self._each:
            done = self._ended * self._each + sum(self._places.values())
            self._progress("evaluate", done, len(self._targets) * self._each)

    def _fail(self, error: Exception) -> None:
        """Record the first error, after which nothing more is begun."""
        with self._lock:
            if self._error is None:
                self._error = error
