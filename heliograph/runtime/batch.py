"""Many encrypted inputs, one file after the other: what was finished before a run was stopped is not done again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.container import write_file
from heliograph.errors import ProgramError, WireError
from heliograph.execution.backend import Progress
from heliograph.runtime.messages import EncryptedInput, EncryptedOutput
from heliograph.runtime.server import Server


def evaluate_files(
    server: Server,
    inputs: Sequence[str | Path],
    folder: str | Path,
    *,
    plain: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    finished: Callable[[Path, float | None], None] | None = None,
) -> list[Path]:
    """Evaluate files of encrypted inputs; the outputs' files, in `folder` under the same names.

    Each output is written whole, as soon as it is there. One that is there already, of this artifact and client, made with
    the same plain inputs and not older than its input, is kept: a batch that was stopped goes on where it stood.
    `finished(path, seconds)` is called after each, without seconds for an output that was kept.

    Where there are plain inputs, a file `.NAME.plain` beside each output, for its owner only, has a digest of them and of
    the output. It is not for the client: whoever can guess the values can see by it that the guess was right.

    Raises ProgramError where two inputs have one name or `plain` is not what the program declares, WireError for a malformed
    input (after those before it were done).
    """
    folder = Path(folder)
    files = [Path(name) for name in inputs]
    names = [file.name for file in files]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ProgramError(f"two inputs are called {twice}: their outputs would be one file", hint="rename one of them")
    own = _digest(server, plain or {})
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WireError(f"{folder} cannot be made", why=error.strerror or str(error)) from None
    made = []
    for file in files:
        target = folder / file.name
        if target.exists() and target.samefile(file):
            raise ProgramError(f"{target} is the input itself", hint="choose another folder for the outputs")
        seconds = None
        if not _is_done(server, file, target, own):
            server.run(EncryptedInput.load(file), progress, plain).save(target)
            if own is not None:
                write_file(_mark(target), _marked(target, own), private=True)
            seconds = server.trace.seconds
        made.append(target)
        if finished is not None:
            finished(target, seconds)
    return made


def _is_done(server: Server, source: Path, target: Path, own: bytes | None) -> bool:
    """Whether the output of that input is there: intact, of this artifact and client, made with the same plain inputs, and
    not older than its input.
    """
    if not target.exists() or not source.exists() or target.stat().st_mtime < source.stat().st_mtime:
        return False
    try:
        EncryptedOutput.load(target).check(server.artifact.fingerprint, server.client)
        return own is None or _mark(target).read_bytes() == _marked(target, own)
    except (WireError, OSError):
        return False


def _digest(server: Server, plain: Mapping[str, Any]) -> bytes | None:
    """A digest of the plain inputs as the program takes them; None where it has none."""
    values = server.plain_inputs(plain)
    found = hashlib.sha256()
    for node, value in values.items():
        # Shapes are the program's: the bytes cannot be divided otherwise.
        found.update(node.attrs["name"].encode() + b"\0" + np.asarray(value, dtype="<f8").tobytes())
    return found.digest() if values else None


def _mark(target: Path) -> Path:
    return target.with_name(f".{target.name}.plain")


def _marked(target: Path, own: bytes) -> bytes:
    """What the mark of an output says. It fits no other output, so the order of the two files' writing does not matter."""
    return hashlib.sha256(own + target.read_bytes()).hexdigest().encode()
