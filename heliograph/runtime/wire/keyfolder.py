"""Evaluation keys in a folder, one file each: written as they are generated, read one after the other.

The keys of a deep network take gigabytes. Each is written whole or not at all and then dropped from memory, so that
neither side ever holds all of them twice. Finished files survive a crash: the same client resumes with the missing
ones.

    index.keys          the owner: the fingerprints of artifact and client
    rotation-5.key      one key, with both fingerprints and its own name
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from heliograph.artifact.container import Container, parts, read_file
from heliograph.errors import HeliographError, WireError, raised_as, said
from heliograph.files import Bytes, exclusive, remove_parts, sync_folder, write_file
from heliograph.runtime.wire.messages import EvaluationKeys, are_names, check_belongs, check_objects

_INDEX, _KEY = "an index of evaluation keys", "an evaluation key"
_INDEX_FILE = "index.keys"
_INDEX_VERSION = 1
# The version of key files.
VERSION = 2
_MAX_INDEX_BYTES = 1 << 16
_MAX_KEY_BYTES = 8 * 1024**3
_NAME = re.compile(r"[a-z0-9]+(/[a-z0-9]+){0,2}")


class KeysError(WireError):
    """The files of evaluation keys in a folder are not, or no longer, what they should be."""


class KeyFolder:
    """The evaluation keys in a folder, as a server accepts them: `names`, and `blob` for one at a time.

    Raises KeysError if the folder holds no keys.
    """

    kind: ClassVar[str] = "evaluation keys"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with raised_as(KeysError, WireError):
            fields = read_file(self.path / _INDEX_FILE, _INDEX, _INDEX_VERSION, _MAX_INDEX_BYTES).fields
        if set(fields) != {"artifact", "client"} or not are_names(fields):
            raise KeysError(f"{self.path}: its index is not one of evaluation keys")
        self.artifact: str = fields["artifact"]
        self.client: str = fields["client"]

    def __repr__(self) -> str:
        return f"<KeyFolder {self.path} of client {self.client[:12]}>"

    def names(self) -> Sequence[str]:
        """The names of the keys in the folder."""
        return sorted(file.stem.replace("-", "/") for file in self.path.glob("*.key"))

    def blob(self, name: str) -> Bytes:
        """The serialized form of one key; raises KeysError unless its file is intact."""
        with raised_as(KeysError, WireError):
            return self._read(name, self.file(name))

    def file(self, name: str) -> Path:
        """The file of one key; raises WireError if this is not a key's name."""
        return _file(self.path, name)

    def adopt(self, name: str, path: str | Path) -> None:
        """Move a file on the same disk into the folder as the file of this key.

        Raises WireError unless it is an intact file of this key.
        """
        self._read(name, Path(path))
        try:
            os.replace(path, self.file(name))
        except OSError as error:
            raise WireError(f"{path} cannot be moved", why=error.strerror or str(error)) from None
        sync_folder(self.path)

    def _read(self, name: str, file: Path) -> Bytes:
        container = read_file(file, _KEY, (VERSION,), _MAX_KEY_BYTES)
        if container.fields != {"artifact": self.artifact, "client": self.client, "name": name}:
            raise WireError(f"{file} is not the key that its name says, or belongs to another artifact or client")
        return container.bytes("key")

    def check(self, artifact: str, client: str | None = None) -> None:
        """Raise a WireError unless the keys belong to this artifact (and this client)."""
        check_belongs(self, artifact, client)

    def check_names(self, expected: Collection[str]) -> None:
        """Raise a KeysError unless the folder holds exactly these keys."""
        with raised_as(KeysError, WireError):
            check_objects(self, expected)


def write_keys(
    path: str | Path,
    artifact: str,
    client: str,
    sizes: dict[str, int],
    make: Callable[[str], Bytes],
    done: Callable[[int, int], None] | None = None,
) -> KeyFolder:
    """Write the keys named in `sizes` (name -> bytes) into a folder, each as soon as `make(name)` returns it.

    A folder that was begun for the same artifact and client is completed: intact keys stay, and partial files of a
    killed process are removed. `done(number, total)` is called after each key.

    Raises WireError if the folder belongs to others or another process writes into it, HeliographError if the disk is
    too small.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WireError(f"{folder} cannot be written", why=error.strerror or str(error)) from None
    keys = _begun(folder, artifact, client)
    busy = WireError(
        f"another process is writing keys into {folder}",
        hint="wait for it to end, or give another folder; the next run resumes where this one stopped",
    )
    with exclusive(folder / _INDEX_FILE, busy):
        remove_parts(folder)
        missing = [name for name in sizes if not _intact(keys, name)]
        check_disk(folder, sum(sizes[name] for name in missing))
        number = len(sizes) - len(missing)
        for name in missing:
            write_file(_file(folder, name), key_parts(artifact, client, name, make(name)))
            number += 1
            if done is not None:
                done(number, len(sizes))
    return keys


def key_parts(artifact: str, client: str, name: str, key: Bytes) -> Iterator[Bytes]:
    """The bytes of one key's file, piece by piece."""
    return parts(Container(_KEY, VERSION, {"artifact": artifact, "client": client, "name": name}, {"key": key}))


def _begun(folder: Path, artifact: str, client: str) -> KeyFolder:
    """The folder, with its index; a WireError if it belongs to another client or artifact."""
    index = folder / _INDEX_FILE
    if not index.exists():
        if any(folder.glob("*.key")) and not index.exists():
            raise WireError(f"{folder} holds keys and no index", hint="give an empty folder")
        try:
            write_index(folder, artifact, client, overwrite=False)
        except WireError:
            # If another process was faster, its index is checked below like one that was already there. Otherwise it is a
            # different error.
            if not index.exists():
                raise
    keys = KeyFolder(folder)
    keys.check(artifact, client)
    return keys


def write_index(folder: Path, artifact: str, client: str, *, overwrite: bool = True) -> None:
    """Write a folder's index: the owner of its keys."""
    contents = Container(_INDEX, _INDEX_VERSION, {"artifact": artifact, "client": client})
    write_file(folder / _INDEX_FILE, parts(contents), overwrite=overwrite)


def load_keys(path: str | Path) -> EvaluationKeys | KeyFolder:
    """The evaluation keys of a folder, or of a file that has all of them; a WireError if there are none."""
    return KeyFolder(path) if Path(path).is_dir() else EvaluationKeys.load(path)


def _file(folder: Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise WireError(f"{name[:60]!r} is not the name of an evaluation key")
    return folder / (name.replace("/", "-") + ".key")


def _intact(keys: KeyFolder, name: str) -> bool:
    try:
        keys.blob(name)
    except WireError:
        return False
    return True


def check_disk(folder: str | Path, needed: int) -> None:
    """Raise a HeliographError if the disk of a folder has less than `needed` bytes left."""
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise WireError(f"{folder} cannot be written", why=error.strerror or str(error)) from None
    if needed > free:
        raise HeliographError(
            f"the evaluation keys need {needed / 1e6:.0f} MB in {folder}, and {free / 1e6:.0f} MB are free",
            hint=said("give a folder on a larger disk, or compile with a lower {key_bytes}"),
        )
