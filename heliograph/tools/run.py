"""Runs a model or an artifact encrypted, with client and server in this process."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.compiler.arguments import program_of
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.errors import ProgramError
from heliograph.execution.interface import plain_values, sample_count
from heliograph.execution.loop import Progress
from heliograph.ir import Program
from heliograph.records import named
from heliograph.report.text import bytes_text, seconds_text
from heliograph.runtime.client.client import Client
from heliograph.runtime.server.server import Server, require_server
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput


@dataclass(frozen=True, slots=True)
class EncryptedRun:
    """The result of an encrypted run, an array or a tuple of them, and the seconds of its four parts."""

    result: Any
    seconds: Mapping[str, float]


def _array(value: Any) -> Any:
    """One input as an array of any type; a ProgramError for lists of different lengths."""
    try:
        return np.asarray(plain_values(value))
    except (TypeError, ValueError, RuntimeError):
        raise ProgramError("an input is not an array of real numbers", why=f"got {type(value).__name__}") from None


@named(Options)
def run(
    model: Any,
    *inputs: Any,
    calibration: Any = None,
    input_range: Any = None,
    options: Options | None = None,
    plain: Mapping[str, Any] | None = None,
    allow_insecure: bool = False,
    quiet: bool = False,
    progress: Progress | None = None,
) -> Any:
    """The model's output, computed on encrypted data: one array, or a tuple for several outputs.

    `model` is an artifact, a program, a PyTorch module or a fitted scikit-learn estimator. Unless it is an artifact it
    is compiled with `options`; `calibration` and `input_range` are as for `trace` (an estimator needs calibration
    samples). `inputs` are one array for each encrypted input: one sample, or many with a leading axis, which the result
    then has too; `plain` has the others by name.

    It makes keys, encrypts, evaluates and decrypts, and reports progress on stderr in a few lines unless `quiet`.
    `progress(stage, done, total)` is called meanwhile, as by `compile`, `Client.evaluation_keys` and `Server.run`.
    Client and server share this process, so nothing is hidden from anyone, and keys are made for this one run. To
    serve, or for many samples, use `Client` and `Server`. An artifact without security is refused without
    `allow_insecure`.

    Raises the errors of `trace`, `compile`, `Client` and `Server`; TooLittleMemoryError before keys are made.
    """

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr)

    inputs = tuple(value if hasattr(value, "iloc") else _array(value) for value in inputs)
    artifact = _artifact(model, inputs, calibration, input_range, options, say, progress)
    found = run_encrypted(artifact, inputs, plain or {}, allow_insecure=allow_insecure, progress=progress)
    seconds = found.seconds
    size = bytes_text(artifact.report.figures.predicted.evaluation_key_bytes)
    say(f"made a secret key and {size} of evaluation keys in {seconds_text(seconds['keys'])}")
    say(
        f"encrypted in {seconds_text(seconds['encrypt'])}, evaluated in {seconds_text(seconds['evaluate'])}, decrypted in "
        f"{seconds_text(seconds['decrypt'])}; client and server shared this process"
    )
    return found.result


def run_encrypted(
    artifact: Artifact,
    inputs: Sequence[Any],
    plain: Mapping[str, Any],
    *,
    allow_insecure: bool = False,
    progress: Progress | None = None,
) -> EncryptedRun:
    """Keys, encryption, evaluation and decryption; `inputs` and `plain` as for `run`."""
    seconds: dict[str, float] = {}

    def timed(name: str, function: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        value = function()
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - begun
        return value

    require_server(artifact)

    def keys() -> Any:
        client = Client(artifact.public(), allow_insecure=allow_insecure)
        return client, client.evaluation_keys(progress)

    client, made = timed("keys", keys)
    with Server(artifact, made, allow_insecure=allow_insecure) as server:
        result = evaluated(
            client, lambda sent, told: server.run(sent, told, plain), inputs, progress=progress, timed=timed
        )
    return EncryptedRun(result, seconds)


def evaluated(
    client: Client,
    server: Callable[[EncryptedInput, Progress | None], EncryptedOutput],
    inputs: Sequence[Any],
    *,
    clip: bool = False,
    scores: bool = False,
    progress: Progress | None = None,
    timed: Callable[[str, Callable[[], Any]], Any] = lambda name, function: function(),
) -> Any:
    """The result of a server that runs on encrypted inputs: for one sample, or with an axis of samples in front.

    server: runs on one message of inputs, and tells of its progress.
    inputs, clip, scores: as for `Client.encrypt` and `Client.decrypt`. Of many samples, one message after the other is
        encrypted, evaluated and decrypted, so that a single one is in memory.
    progress: called by the server, or for several messages as `progress("samples", done, total)`.
    timed: calls the function that it is given, and may note the time of "encrypt", "evaluate" or "decrypt".
    """
    specs = client.public.given
    count, batch = sample_count(specs, inputs), specs[0].placed.batch if specs else 1
    if count is None or count <= (batch if batch > 1 else 0):
        sent = timed("encrypt", lambda: client.encrypt(*inputs, clip=clip))
        answer = timed("evaluate", lambda: server(sent, progress))
        result = timed("decrypt", lambda: client.decrypt(answer, of=sent, scores=scores))
        if sent.samples is None:
            return result
        # The artifact takes several samples at once: those that were not given are left out.
        kept: Any = slice(sent.samples) if count else 0
        return tuple(each[kept] for each in result) if isinstance(result, tuple) else result[kept]
    messages, parts = client.encrypt_many(*inputs, clip=clip), []
    for start in range(0, count, batch):
        if progress is not None:
            progress("samples", start, count)
        sent = timed("encrypt", lambda: next(messages))
        answer = timed("evaluate", functools.partial(server, sent, None))
        parts.append(timed("decrypt", functools.partial(client.decrypt_many, [answer], of=[sent], scores=scores)))
    if progress is not None:
        progress("samples", count, count)
    if isinstance(parts[0], tuple):
        return tuple(np.concatenate(column) for column in zip(*parts, strict=True))
    return np.concatenate(parts)


def _artifact(
    model: Any,
    inputs: Sequence[Any],
    calibration: Any,
    input_range: Any,
    options: Options | None,
    say: Callable[[str], None],
    progress: Progress | None,
) -> Artifact:
    """The artifact itself, or the compiled model."""
    if isinstance(model, Artifact):
        given = {"calibration": calibration, "input_range": input_range, "options": options}
        useless = [name for name, value in given.items() if value is not None]
        if useless:
            raise ProgramError(
                f"{useless[0]} cannot be used here",
                where="run",
                why="the artifact is compiled already",
                hint="leave it out, or give the model itself",
            )
        return model
    example = None
    if not isinstance(model, Program):
        # Many samples have as many axes as the calibration samples.
        many = len(inputs) == 1 and hasattr(calibration, "ndim") and np.ndim(inputs[0]) == calibration.ndim
        example = tuple(np.require(value, requirements="W")[None if not many else ...] for value in inputs)
    artifact = compile(program_of(model, "run", example, calibration, input_range), options, progress=progress)
    say(f"compiled {artifact!r}")
    return artifact
