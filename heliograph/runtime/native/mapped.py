"""The keys of a folder in the kernels' form, in one file that all processes of a machine map.

The first process that needs the file writes it, in the folder of the keys. It holds the residues of each key as
`read_key` returns them, page-aligned, in the order of the artifact's keys. Its name is a digest of the owner of the
keys and of the digests at the ends of their files: another set of keys has another name. The file is a cache, and is
trusted like the memory of the process that wrote it: if another user could have written it, it is rewritten.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.ckks.keys import EvaluationKey
from heliograph.errors import ProgramError, TooLittleDiskError, WireError
from heliograph.files import is_ours, lock, open_file, remove_parts, sync_folder
from heliograph.ir import Array
from heliograph.runtime.native.ciphertext import key_over, read_key, words_of
from heliograph.runtime.wire.keyfolder import KeyFolder, KeysError

_FORM = b"heliograph mapped keys 2 " + sys.byteorder.encode()
_PREFIX, _SUFFIX, _LOCK = "mapped-", ".keys", ".mapped.lock"
_PAGE = mmap.ALLOCATIONGRANULARITY
_DIGEST = 32
# Disk space that is left free.
_FREE_BYTES = 1 << 28
_BLOCK = 1 << 20


class MappedKeys:
    """The keys of a folder, mapped. If the file does not exist yet, one process writes it while others wait.

    Raises KeysError for damaged files, WireError for malformed keys, TooLittleDiskError if the disk has no room for the
    file, ProgramError on Windows.
    """

    def __init__(self, folder: KeyFolder, keys: Sequence[EvaluationKey]) -> None:
        if sys.platform == "win32":
            raise ProgramError(
                "keys cannot be mapped on Windows",
                where="Server(mapped=True)",
                why="a file that is mapped cannot be given another name there",
                hint="leave `mapped` out: each process then has keys of its own",
            )
        self._begins = {}
        # An empty file cannot be mapped, and a program may need no keys.
        self._mapping: mmap.mmap | None = None
        end = 0
        for key in keys:
            self._begins[key] = end
            end += -(-4 * words_of(key) // _PAGE) * _PAGE
        if end == 0:
            return
        path = folder.path / (_PREFIX + _named(folder, keys).hexdigest()[:32] + _SUFFIX)
        if not _is_whole(path, end):
            with _locked(folder.path / _LOCK):
                if not _is_whole(path, end):
                    self._make(path, end, folder)
        with open_file(path) as file:
            # A private mapping, because kernels take writable arrays. Nothing is written, so all pages stay shared.
            self._mapping = mmap.mmap(file.fileno(), end, access=mmap.ACCESS_COPY)
        if hasattr(mmap, "MADV_WILLNEED"):
            self._mapping.madvise(mmap.MADV_WILLNEED)

    def value(self, key: EvaluationKey) -> Any:
        """One key; the mapping stays as long as any of them."""
        assert self._mapping is not None
        return key_over(key, self._room(self._mapping, key))

    def _room(self, mapping: mmap.mmap, key: EvaluationKey) -> Array:
        return np.frombuffer(mapping, dtype=np.uint32, count=words_of(key), offset=self._begins[key])

    def _make(self, path: Path, size: int, folder: KeyFolder) -> None:
        for old in path.parent.glob(f"{_PREFIX}*{_SUFFIX}"):
            # A process that has it mapped keeps it.
            old.unlink(missing_ok=True)
        remove_parts(path.parent, path.name)
        free = shutil.disk_usage(path.parent).free
        if size + _FREE_BYTES > free:
            raise _too_little(path.parent, size, f"{free / 1e6:.0f} MB are free")
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "r+b") as file:
                with contextlib.suppress(OSError):
                    lock(handle, wait=True)
                _reserve(handle, size)
                # The mapping closes with the last array on it; after an error some arrays may still be alive.
                mapping = mmap.mmap(handle, size)
                for key in self._begins:
                    read_key(folder.blob(key.name), key, folder.client, self._room(mapping, key))
                mapping.flush()
                os.fsync(file.fileno())
                os.replace(part, path)
            sync_folder(path.parent)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                # The free space may be gone: others write to the disk too, and some file systems have quotas.
                raise _too_little(path.parent, size, os.strerror(error.errno)) from None
            raise WireError(f"{path} cannot be written", why=error.strerror or str(error)) from None
        finally:
            with contextlib.suppress(OSError):
                part.unlink()


def _too_little(folder: Path, size: int, why: str) -> TooLittleDiskError:
    return TooLittleDiskError(
        f"to be mapped the keys need {size / 1e6:.0f} MB of disk space in {folder}",
        why=why,
        hint="use a larger disk, or do not map them: each process then has its own",
    )


def _reserve(handle: int, size: int) -> None:
    """Give a new file its size, with disk space for all of it; an OSError if the disk has no room.

    Without this, space is allocated when a mapped page is written, and a full disk ends the process (SIGBUS).
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(handle, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
    # A system or a file system that reserves nothing.
    for place in range(0, size, _BLOCK):
        block = bytes(min(_BLOCK, size - place))
        while block:
            block = block[os.write(handle, block) :]


def _named(folder: KeyFolder, keys: Sequence[EvaluationKey]) -> Any:
    """A digest of the keys' owner and of the contents of their files."""
    found = hashlib.sha256(_FORM + folder.artifact.encode() + folder.client.encode())
    for key in keys:
        path = folder.file(key.name)
        try:
            with open_file(path) as file:
                file.seek(-_DIGEST, os.SEEK_END)
                end = file.read(_DIGEST)
        except OSError as error:
            raise KeysError(f"{path} cannot be read", why=error.strerror or str(error)) from None
        found.update(f"\n{key.name} {key.bytes} ".encode() + end)
    return found


def _is_whole(path: Path, size: int) -> bool:
    """Whether the file exists and belongs to this user; it gets its name only once it is complete."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and is_ours(found, 0o022) and found.st_size == size


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock, so that only one process writes the file; without file locks, each may write it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise WireError(f"{path} cannot be written", why=error.strerror or str(error)) from None
    try:
        with contextlib.suppress(OSError):
            lock(handle, wait=True)
        yield
    finally:
        os.close(handle)
