"""Many encrypted inputs, one file after the other: what was finished before a run was stopped is not done again."""

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
    """Evaluate files of encrypted inputs; the outputs' files, in `folder` under the same names.

    Each output is written whole, as soon as it is there. One that is there already, of this artifact and client and made
    from the same inputs, is kept: a batch that was stopped resumes where it was. `finished(path, seconds)` is called after
    each, without seconds for an output that was kept.

    What an output was made from is told by a file `.NAME.made` beside it, for its owner only: a digest of input, plain
    inputs and output. It is not for the client: whoever can guess the plain inputs can see by it that the guess was right.

    Raises ProgramError where two inputs have one name or `plain` is not what the program declares, WireError for a malformed
    input (after those before it were done).
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
    """The file of each input's output: in the folder, which is made, under the input's name.

    Raises ProgramError where two inputs have one name or an output would be written over its input.
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
    """What is known of outputs in files: whether one is the answer to these inputs, and the mark that says so.

    `plain` are the plain inputs, as the server takes them; a ProgramError where they are not what the program declares.
    """

    def __init__(self, artifact: Artifact, client: str, plain: Mapping[str, Any] | None = None) -> None:
        self._artifact, self._client = artifact.fingerprint, client
        found = hashlib.sha256(f"{self._artifact}/{client}\0".encode())
        for node, value in given_inputs(artifact.program, plain or {}).items():
            # The program fixes the shapes, so the bytes can be split in only one way.
            found.update(node.attrs["name"].encode() + b"\0" + np.asarray(value, dtype="<f8").tobytes())
        self._own = found.digest()

    def is_done(self, encrypted: EncryptedInput, target: Path) -> bool:
        """Whether the answer is there: intact, of this artifact and client, and made from the same inputs and plain inputs.

        No file's time tells it: a file that is moved, copied or unpacked over another may keep an old one.
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
        """Say that the output there was made from these inputs."""
        write_file(_mark(target), _marked(target, self._given(encrypted)), private=True)

    def _given(self, encrypted: EncryptedInput) -> bytes:
        """A digest of what the output is made from: encrypted inputs, artifact, client and plain inputs."""
        found = hashlib.sha256(self._own + encrypted.request.encode())
        for name in encrypted.names():
            blob = encrypted.blob(name)
            found.update(f"{name}\0{len(blob)}\0".encode())
            found.update(blob)
        return found.digest()


def _mark(target: Path) -> Path:
    return target.with_name(f".{target.name}.made")


def _marked(target: Path, given: bytes) -> bytes:
    """What the mark of an output says. It fits no other output, so the order of the two files' writing does not matter."""
    found = hashlib.sha256(given)
    with open_file(target) as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest().encode()
