"""The work of a worker of any engine: it evaluates one job at a time and keeps servers between jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from pathlib import Path

from heliograph.errors import HeliographError
from heliograph.files import of_the_machine
from heliograph.runtime.server.steps import StepInput, StepOutput
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput
from heliograph.serving.remote.records import DONE, FAILED, ErrorRecord
from heliograph.serving.work.engine import AGAIN, STOPPED, Report, Work, ended_by
from heliograph.serving.work.holding import Holding, OwnFilesError

_MAX_FAULT = 500
Output = EncryptedOutput | StepOutput


class Stopped(Exception):
    """The job is no longer wanted."""


class Evaluation:
    """Evaluates jobs; another thread may use `place` and `stop` meanwhile."""

    def __init__(self, work: Work) -> None:
        self._holding = Holding(work)
        self._place, self._stop = (0, 0), threading.Event()

    @property
    def place(self) -> tuple[int, int]:
        """The number of evaluated operations, and of all operations; (0, 0) before the first."""
        return self._place

    def begin(self) -> None:
        """Reset progress and `stop` from the previous job; call it before `run`."""
        self._place = 0, 0
        self._stop.clear()

    def stop(self) -> None:
        """Abandon the job after the current operation."""
        self._stop.set()

    def drop(self, folders: Collection[str]) -> None:
        """Drop these key sets."""
        for folder in folders:
            self._holding.drop(folder)

    def run(self, artifact: str, keys: Path, given: Path | bytes, save: Callable[[Output], None]) -> Report:
        """Evaluate one job on input in a file or bytes, and save its output; returns the final report. Never raises.

        For a program that carries values, a job is a step: its input is a StepInput and its output a StepOutput.
        """
        state, error, fault = FAILED, None, ""
        try:
            save(self._evaluated(artifact, keys, given))
            state = DONE
        except Stopped:
            state = STOPPED
        except HeliographError as found:
            ended = ended_by(found)
            state, error = ended.state, ended.error
            if isinstance(found, OwnFilesError):
                error = ErrorRecord(
                    "HeliographError", "the server's own inputs cannot be read", hint="the operator's log says more"
                )
                fault = str(found)[:_MAX_FAULT]
        except MemoryError:
            self._holding.drop(keys.name)
            error = ErrorRecord("TooLittleMemoryError", "the worker ran out of memory over this job")
        except Exception as found:
            # The job ends all the same, and the keys held for it may be broken.
            self._holding.drop(keys.name)
            lacking = of_the_machine(found)
            if lacking is not None:
                state, error = AGAIN, ErrorRecord("HeliographError", "the job cannot go on", why=str(lacking.strerror))
            else:
                error = ErrorRecord(
                    "InternalError", "the evaluation failed by a fault of ours", why=type(found).__name__
                )
                fault = f"{type(found).__name__}: {found}"[:_MAX_FAULT]
        return Report(state, *self._place, error, fault, self._holding.held)

    def _evaluated(self, artifact: str, keys: Path, given: Path | bytes) -> Output:
        step = self._holding.artifact(artifact).program.interface.carried
        kind = StepInput if step else EncryptedInput
        message = kind.load(given) if isinstance(given, Path) else kind.from_bytes(given)
        server, plain = self._holding.server(artifact, keys.name, keys), self._holding.plain(artifact)
        if isinstance(message, StepInput):
            return StepOutput.of(*server.step(*message.halves(), self._progress, plain))
        return server.run(message, self._progress, plain)

    def _progress(self, stage: str, done: int, total: int) -> None:
        self._place = done, total
        if self._stop.is_set():
            raise Stopped
