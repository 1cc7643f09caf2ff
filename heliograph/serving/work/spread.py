"""Encrypted inputs in files, spread over the workers of an engine: `heliograph evaluate --engine`.

As with one process (runtime/server/batch.py) each output is written whole, those that are there are kept, and what a
worker that died had begun is evaluated again by another.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
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
from heliograph.serving.work.engine import STOPPED, Engine, Report, Task, Work, WorkerGone, bytes_each, follow, task_of
from heliograph.serving.work.engines import make_engine

# A worker that died at once is restarted only after a pause.
_REST_S = 1.0


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
    """Evaluate the artifact in a file on encrypted inputs: `targets` has the file of each one's output.

    `keys` is a folder of evaluation keys or a file of all of them, `plain` the file of plain inputs, `plaintexts` a folder
    in which workers keep encoded plaintexts. With `keep` outputs that are there are kept, and marked
    (runtime/server/batch.py). `finished(output, seconds)` is called after each, without seconds for one that was kept;
    `progress` counts operations.

    Raises what an input is refused for, when those that run have ended; TooLittleMemoryError where a worker has too little
    memory by the bill; InternalError for an input over which five workers died.
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
        crew = _Crew(made, artifact.fingerprint, folder.path, targets, outputs, progress, finished)
        crew.run(min(workers, len(targets)))


@contextlib.contextmanager
def _folder_of(keys: str | Path) -> Iterator[KeyFolder]:
    """The keys in a folder, which workers take; those of a file in one that is temporary."""
    loaded = load_keys(keys)
    if isinstance(loaded, KeyFolder):
        yield loaded
        return
    with tempfile.TemporaryDirectory(prefix="heliograph-keys-") as name:
        sizes = {each: len(loaded.blob(each)) for each in loaded.names()}
        yield write_keys(name, loaded.artifact, loaded.client, sizes, loaded.blob)


class _Crew:
    """Workers and the inputs that wait for them; a thread for each worker."""

    def __init__(
        self,
        engine: Engine,
        artifact: str,
        keys: Path,
        targets: Mapping[Path, Path],
        outputs: Outputs | None,
        progress: Progress | None,
        finished: Callable[[Path, float | None], None] | None,
    ) -> None:
        self._engine, self._artifact, self._keys, self._outputs = engine, artifact, keys, outputs
        self._progress, self._finished = progress, finished
        self._limits = Limits()
        self._targets, self._waiting = targets, deque(targets)
        self._deaths = dict.fromkeys(targets, 0)
        # Operations done so far for each running input, and the operations of one whole input.
        self._places: dict[Path, int] = {}
        self._ended, self._each = 0, 0
        self._left = len(targets)
        self._error: BaseException | None = None
        self._over, self._lock = threading.Event(), threading.Lock()

    def run(self, workers: int) -> None:
        """Evaluate all of them; raises the first error when what runs has ended."""
        threads = [threading.Thread(target=self._work, name="heliograph-spread", daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            # Ctrl-C: workers abandon what they have begun.
            self._over.set()
            self._engine.close()
            for thread in threads:
                thread.join()
            raise
        self._engine.close()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        """One worker after the other, until nothing waits."""
        try:
            while not self._done():
                begun = time.monotonic()
                try:
                    self._with_worker()
                except WorkerGone as gone:
                    if not gone.killed and time.monotonic() - begun < _REST_S:
                        self._over.wait(_REST_S)
        except BaseException as error:
            self._fail(error)

    def _with_worker(self) -> None:
        """What one worker does. WorkerGone where it died."""
        seat = None
        try:
            while (file := self._next()) is not None:
                try:
                    encrypted = EncryptedInput.load(file)
                    target = self._targets[file]
                    if self._outputs is not None and self._outputs.is_done(encrypted, target):
                        self._end(file, None)
                        continue
                    if seat is None:
                        seat = self._engine.seat()
                    begun = time.monotonic()
                    report = follow(seat, self._task(file), self._going_on(file), self._limits.worker_s)
                except WorkerGone as gone:
                    self._again(file, gone)
                    raise
                if report.state == STOPPED:
                    return
                if report.error is not None:
                    # Whoever runs the command is the operator too.
                    why = report.fault or report.error.why
                    raise as_error({**asdict(report.error), "why": why}, str(file))
                assert report.state == DONE
                if self._outputs is not None:
                    self._outputs.mark(encrypted, target)
                self._end(file, time.monotonic() - begun, report.total)
        finally:
            if seat is not None:
                seat.close()

    def _task(self, file: Path) -> Task:
        return task_of(self._artifact, self._keys, file, self._targets[file])

    def _going_on(self, file: Path) -> Callable[[Report], bool]:
        def heard(report: Report) -> bool:
            with self._lock:
                self._places[file], self._each = report.done, max(self._each, report.total)
                self._show()
            return not self._over.is_set()

        return heard

    def _done(self) -> bool:
        with self._lock:
            return self._over.is_set() or self._error is not None or self._left == 0

    def _next(self) -> Path | None:
        """The next input; waits where others may yet give one back. None where there is nothing more to do."""
        while not self._done():
            with self._lock:
                if self._waiting:
                    return self._waiting.popleft()
            self._over.wait(0.05)
        return None

    def _again(self, file: Path, gone: WorkerGone) -> None:
        """Give the input of a dead worker back; an InternalError where too many died over it."""
        with self._lock:
            self._deaths[file] += 1
            self._places.pop(file, None)
            if self._deaths[file] >= self._limits.deaths:
                raise InternalError(
                    f"{self._limits.deaths} workers died or went silent over {file}",
                    why=gone.how,
                    hint="the machine may have too little memory: use fewer --workers",
                )
            self._waiting.appendleft(file)

    def _end(self, file: Path, seconds: float | None, operations: int = 0) -> None:
        with self._lock:
            self._places.pop(file, None)
            self._each = max(self._each, operations)
            self._left -= 1
            self._ended += 1
            self._show()
            if self._finished is not None:
                self._finished(self._targets[file], seconds)

    def _show(self) -> None:
        if self._progress is not None and self._each:
            done = self._ended * self._each + sum(self._places.values())
            self._progress("evaluate", done, len(self._targets) * self._each)

    def _fail(self, error: BaseException) -> None:
        """Note the first error: nothing more is begun."""
        with self._lock:
            if self._error is None:
                self._error = error
