"""Evaluation of many files of encrypted inputs, one after the other. A stopped batch resumes without repeating work."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.errors import ProgramError, WireError
from heliograph.execution.loop import Progress
from heliograph.files import open_file, write_file
from heliograph.runtime.server.server import Server, given_inputs
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput

# Larger than any mark.
_MAX_MARK = 1 << 10
_BLOCK = 1 << 20


def evaluate_files(
    server: Server,
    inputs: Sequence[str | Path],
    folder: str | Path,
    *,
    plain: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    finished: Callable[[Path, float | None], None] | None = None,
) -> list[Path]:
    """Evaluate files of encrypted inputs; returns the files of the outputs, in `folder` under the same names.

    Each output is written whole as soon as it is computed. An existing output of this artifact and client from the same
    inputs is kept: a stopped batch resumes where it was. `finished(path, seconds)` is called after each, with None for
    an output that was kept.

    A file `.NAME.made` beside an output, for its owner only, records its origin: a digest of input, plain inputs and
    output. It is not for the client: anyone who guesses the plain inputs can confirm the guess with it.

    Raises ProgramError if two inputs have the same name or `plain` does not fit the program's declaration, WireError
    for a malformed input (after the inputs before it were evaluated).
    """
    targets = output_files(inputs, folder)
    outputs = Outputs(server.artifact, server.client, plain)
    for file, target in targets.items():
        seconds = None
        encrypted = EncryptedInput.load(file)
        if not outputs.is_done(encrypted, target):
            server.run(encrypted, progress, plain).save(target)
            outputs.mark(encrypted, target)
            seconds = server.trace.seconds
        if finished is not None:
            finished(target, seconds)
    return list(targets.values())


def output_files(inputs: Sequence[str | Path], folder: str | Path) -> dict[Path, Path]:
    """The output file of each input: in the folder, which is created, under the input's name.

    Raises ProgramError if two inputs have the same name or an output would overwrite its input.
    """
    folder = Path(folder)
    files = [Path(name) for name in inputs]
    names = [file.name for file in files]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ProgramError(f"two inputs are called {twice}: their outputs would be one file", hint="rename one of them")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WireError(f"{folder} cannot be made", why=error.strerror or str(error)) from None
    targets = {file: folder / file.name for file in files}
    for file, target in targets.items():
        if target.exists() and target.samefile(file):
            raise ProgramError(f"{target} is the input itself", hint="choose another folder for the outputs")
    return targets


class Outputs:
    """Checks whether output files answer given inputs, by the marks beside them, and writes these marks.

    `plain` are the server's plain inputs; a ProgramError if they do not fit the program's declaration.
    """

    def __init__(self, artifact: Artifact, client: str, plain: Mapping[str, Any] | None = None) -> None:
        self._artifact, self._client = artifact.fingerprint, client
        found = hashlib.sha256(f"{self._artifact}/{client}\0".encode())
        for node, value in given_inputs(artifact.program, plain or {}).items():
            # The program fixes the shapes, so the bytes can be split in only one way.
            found.update(node.attrs["name"].encode() + b"\0" + np.asarray(value, dtype="<f8").tobytes())
        self._own = found.digest()

    def is_done(self, encrypted: EncryptedInput, target: Path) -> bool:
        """Whether the answer exists: intact, of this artifact and client, from the same encrypted and plain inputs.

        File times cannot show this: a file that is moved, copied or unpacked over another may keep an old time.
        """
        try:
            output = EncryptedOutput.load(target)
            output.check(self._artifact, self._client)
            output.check_answers(encrypted)
            with open_file(_mark(target)) as file:
                return file.read(_MAX_MARK) == _marked(target, self._given(encrypted))
        except (WireError, OSError):
            return False

    def mark(self, encrypted: EncryptedInput, target: Path) -> None:
        """Write the mark that the output at `target` comes from these inputs."""
        write_file(_mark(target), _marked(target, self._given(encrypted)), private=True)

    def _given(self, encrypted: EncryptedInput) -> bytes:
        """A digest of the output's origin: encrypted inputs, artifact, client and plain inputs."""
        found = hashlib.sha256(self._own + encrypted.request.encode())
        for name in encrypted.names():
            blob = encrypted.blob(name)
            found.update(f"{name}\0{len(blob)}\0".encode())
            found.update(blob)
        return found.digest()


def _mark(target: Path) -> Path:
    return target.with_name(f".{target.name}.made")


def _marked(target: Path, given: bytes) -> bytes:
    """The contents of an output's mark. It fits no other output, so the two files may be written in any order."""
    found = hashlib.sha256(given)
    with open_file(target) as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest().encode()
