"""Encoded plaintexts of an artifact in a file that other servers and later ones map, so that they encode nothing.

A record is found by a digest of what was encoded: values, scale and primes. So nothing in a file can be out of date. Records
are appended as they are first encoded; a file has at most the plaintexts of its program. It begins with the length up to
which all is written and synced: what a killed server left beyond that is written again. One process at a time appends, the
one that has the file's lock. After each run the others map what came meanwhile, and one of them appends where it has ended.

It is a copy that can be made again, and is trusted like the memory of the process that made it: where another user could
have written it, it is made anew. It holds the model's weights, as the artifact does: nobody else may read it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import shutil
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from heliograph.errors import WireError
from heliograph.files import is_ours, lock
from heliograph.ir import Array

_FORM = b"heliograph plaintexts 1 " + sys.byteorder.encode().ljust(8)
_DIGEST = 32
# File header: the form, and how much of the file is complete. Record header: the digest, and the shape.
_HEAD = 64
# Appended data is synced whenever this much has accumulated, and at the end.
_SYNC_BYTES = 1 << 28
# This much disk space is left free.
_FREE_BYTES = 1 << 30
_TRIES = 5

# Servers in one process share an open file, because locks only work between processes.
_OPEN: weakref.WeakValueDictionary[Path, PlaintextFile] = weakref.WeakValueDictionary()
_OPENING = threading.Lock()


class PlaintextFileError(WireError):
    """A file of plaintexts cannot be had; a server can do without it."""


class PlaintextFile:
    """The plaintexts in one file; `of` opens it. Several threads and processes may use it.

    A disk that is full, or a file that cannot be written to, ends the appending, and nothing else. Raises PlaintextFileError
    where there cannot be such a file.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._known: dict[bytes, Array] = {}
        # Plaintexts that were appended and are not mapped yet. Whoever asked for one keeps it like a plaintext that is in
        # no file.
        self._written: set[bytes] = set()
        self._unsynced = 0
        try:
            self._handle = _opened(path)
        except OSError as error:
            raise PlaintextFileError(f"{path} cannot be written", why=error.strerror or str(error)) from None
        weakref.finalize(self, os.close, self._handle)
        self._path = path
        self._writes, self._full = False, False
        # The end of the mapped part, and where the next record goes.
        self._mapped = self._end = _HEAD
        self.exchange()

    @staticmethod
    def of(folder: str | Path, name: str) -> PlaintextFile:
        """The file of that name, which servers of this process share; the folder is made where it is not there."""
        path = Path(folder).absolute() / f"{name}.plaintexts"
        with _OPENING:
            found = _OPEN.get(path)
            if found is None:
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise PlaintextFileError(
                        f"{path.parent} cannot be made", why=error.strerror or str(error)
                    ) from None
                found = _OPEN[path] = PlaintextFile(path)
            else:
                found.exchange()
            return found

    def get(self, values: Array, log_scale: float, primes: Sequence[int], make: Callable[[], Array]) -> Array:
        """The residues of these values at that scale modulo these primes: mapped, or what `make` gives."""
        key = _key(values, log_scale, primes)
        found = self._known.get(key)
        if found is not None:
            return found
        made = make()
        if self._writes:
            with self._lock:
                if self._writes and key not in self._written and key not in self._known:
                    self._append(key, made)
        return made

    def exchange(self) -> None:
        """Sync what was appended, map what others appended, and take over appending if no other process has it."""
        with self._lock, contextlib.suppress(OSError):
            self._sync()
            begins = not self._writes and not self._full and self._locked()
            self._read(begins)
            if begins:
                self._writes, self._end = True, self._mapped

    def _locked(self) -> bool:
        """Whether this process is the one that appends from now on."""
        try:
            lock(self._handle, wait=False)
        except OSError:
            return False
        return True

    def _read(self, begins: bool) -> None:
        """Map the complete records that are not mapped yet. The process that appends empties a file of another form."""
        size = os.fstat(self._handle).st_size
        head = os.pread(self._handle, _HEAD, 0)
        whole = int.from_bytes(head[32:40], "little")
        if head[:32] != _FORM or not self._mapped <= whole <= size:
            if begins and self._mapped == _HEAD:
                os.ftruncate(self._handle, 0)
                os.pwrite(self._handle, _FORM + _HEAD.to_bytes(8, "little") + bytes(_HEAD - 40), 0)
            return
        if whole == self._mapped:
            return
        # A private mapping, because kernels take writable arrays. Nothing is written, so all pages stay shared.
        begin = self._mapped // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        mapping = mmap.mmap(self._handle, whole - begin, access=mmap.ACCESS_COPY, offset=begin)
        place, end = self._mapped - begin, whole - begin
        while place + _HEAD <= end:
            key = mapping[place : place + _DIGEST]
            towers, length = (int.from_bytes(mapping[place + at : place + at + 8], "little") for at in (32, 40))
            numbers = towers * length
            if not towers or not length or place + _HEAD + 8 * numbers > end:
                break
            values = np.frombuffer(mapping, np.uint64, numbers, place + _HEAD)
            self._known[key] = values.reshape(towers, length)
            self._written.discard(key)
            place = _after(place, numbers)
        self._mapped = begin + place

    def _append(self, key: bytes, made: Array) -> None:
        try:
            if shutil.disk_usage(self._path.parent).free < _FREE_BYTES + made.nbytes:
                self._writes, self._full = False, True
                return
            towers, length = made.shape
            head = key + towers.to_bytes(8, "little") + length.to_bytes(8, "little") + bytes(_HEAD - 48)
            _write(self._handle, head + made.tobytes(), self._end)
        except OSError:
            self._writes, self._full = False, True
            return
        self._end = _after(self._end, made.size)
        self._written.add(key)
        self._unsynced += made.nbytes
        if self._unsynced >= _SYNC_BYTES:
            self._sync()

    def _sync(self) -> None:
        if not self._unsynced:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, self._end)
            os.fsync(self._handle)
            os.pwrite(self._handle, self._end.to_bytes(8, "little"), 32)
            os.fsync(self._handle)
            self._unsynced = 0


def _opened(path: Path) -> int:
    """The file, open; one that another user could have written or can read is made anew."""
    if not hasattr(os, "pread"):
        raise OSError(errno.ENOTSUP, "this system does not read and write at places of a file")
    for _ in range(_TRIES):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        if _is_ours(handle):
            return handle
        os.close(handle)
        # Another process may have replaced the file meanwhile, and now loses the one that it has begun; it goes on without
        # it.
        path.unlink(missing_ok=True)
    raise OSError(errno.EPERM, "others can read or write it here")


def _key(values: Array, log_scale: float, primes: Sequence[int]) -> bytes:
    """A digest of all that residues depend on."""
    about = f"{values.dtype.str} {values.shape} {log_scale.hex()} {','.join(map(str, primes))} "
    found = hashlib.blake2b(about.encode(), digest_size=_DIGEST)
    found.update(np.ascontiguousarray(values).data)
    return found.digest()


def _after(place: int, numbers: int) -> int:
    """Where the next record begins: at a whole number of cache lines."""
    return place + _HEAD + -(-8 * numbers // _HEAD) * _HEAD


def _write(handle: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, place)
        view, place = view[written:], place + written


def _is_ours(handle: int) -> bool:
    """Whether nobody else can have written it, and nobody else can read it."""
    found = os.fstat(handle)
    return stat.S_ISREG(found.st_mode) and is_ours(found, 0o077)
