"""A worker process of the local engine: takes jobs from its standard input and evaluates them, one at a time.

It is started anew, not forked (OpenFHE's generator must not be copied), as `python -m heliograph.serving.work.worker`.
Each line of its input is one JSON message: first the settings, then jobs and the other calls of a `WorkerHandle`. Each
line of its output is a report. It ends when its input ends, because its pool is gone then.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from heliograph.errors import InsecureWarning
from heliograph.serving.logs import log_to_stderr
from heliograph.serving.work.engine import BEAT_S, Report, Task, Work
from heliograph.serving.work.evaluation import Evaluation


class Reporter:
    """Writes reports: final reports from the evaluating thread, progress reports from a separate thread."""

    def __init__(self, handle: int, evaluation: Evaluation) -> None:
        self._file, self._evaluation = os.fdopen(handle, "w", buffering=1), evaluation
        self._lock, self._busy = threading.Lock(), False
        threading.Thread(target=self._beats, daemon=True).start()

    def begin(self) -> None:
        with self._lock:
            self._busy = True

    def end(self, report: Report) -> None:
        with self._lock:
            self._busy = False
            self._write(report)

    def _beats(self) -> None:
        pause = threading.Event()
        while not pause.wait(BEAT_S):
            with self._lock:
                if self._busy:
                    done, total = self._evaluation.place
                    self._write(Report(done=done, total=total))

    def _write(self, report: Report) -> None:
        try:
            self._file.write(json.dumps(asdict(report)) + "\n")
        except OSError:
            os._exit(0)


def main() -> None:
    work = Work(**json.loads(sys.stdin.readline()))
    log_to_stderr()
    warnings.simplefilter("ignore", InsecureWarning)
    # Only reports go to standard output; anything else that is printed goes to standard error.
    handle = os.dup(1)
    os.dup2(2, 1)
    evaluation = Evaluation(work)
    reporter = Reporter(handle, evaluation)
    messages: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(evaluation, messages), daemon=True).start()
    while True:
        message = messages.get()
        if "drop" in message:
            evaluation.drop(message["drop"])
            continue
        task = Task(**message["task"])
        reporter.begin()
        reporter.end(
            evaluation.run(
                task.artifact,
                Path(task.keys),
                Path(task.input),
                lambda output, path=task.output: output.save(path),  # type: ignore[misc]
            )
        )


def _listen(evaluation: Evaluation, messages: queue.SimpleQueue[dict[str, Any]]) -> None:
    """Pass messages on; when the input ends, end the process even during a job."""
    for line in sys.stdin:
        message = json.loads(line)
        if "stop" in message:
            evaluation.stop()
            continue
        if "task" in message:
            evaluation.begin()
        messages.put(message)
    os._exit(0)


if __name__ == "__main__":
    main()
