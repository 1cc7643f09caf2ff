"""Encoded plaintexts of an artifact in a file that other servers and later ones map, so that they encode nothing.

The key of a record is a digest of values, scale and primes, so that nothing in a file can be out of date. Records are
appended when they are first encoded; a file has at most the plaintexts of its program. It begins with the length up to
which all data is written and synced: data beyond that, left by a killed server, is overwritten. Only the process that
has the file's lock appends. After each run the others map the new records, and if the appending process has ended, one
of them takes over.

The file is a cache, and is trusted like the memory of the process that wrote it: if another user could have written it,
it is rewritten. It contains the model's weights, as the artifact does: nobody else may read it.
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
import warnings
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from heliograph.errors import WireError
from heliograph.files import is_ours, lock
from heliograph.ir import Array

_FORM = b"heliograph plaintexts 2 " + sys.byteorder.encode().ljust(8)
_DIGEST = 32
# File header: the form, and how much of the file is complete. Record header: the digest, and the shape.
_HEAD = 64
# Appended data is synced whenever this much has accumulated, and at the end.
_SYNC_BYTES = 1 << 28
# Disk space that is left free.
_FREE_BYTES = 1 << 30
_TRIES = 5

# Servers in one process share an open file, because locks only work between processes.
_OPEN: weakref.WeakValueDictionary[Path, PlaintextFile] = weakref.WeakValueDictionary()
_OPENING = threading.Lock()


class PlaintextFileError(WireError):
    """A file of plaintexts cannot be opened; a server can do without it."""


class PlaintextFile:
    """The plaintexts in one file; `of` opens it. Several threads and processes may use it.

    If the disk is full or the file cannot be written to, appending stops with a warning, and nothing else does. Raises
    PlaintextFileError if the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._known: dict[bytes, Array] = {}
        # Plaintexts that were appended and are not mapped yet. Their users hold them in memory, like plaintexts in no
        # file.
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
        """The file of that name, shared by the servers of this process; the folder is created if needed."""
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
        """The residues of these values at that scale modulo these primes: mapped, or computed by `make`."""
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
        """Try to take the lock; returns whether this process appends from now on."""
        try:
            lock(self._handle, wait=False)
        except OSError:
            return False
        return True

    def _read(self, begins: bool) -> None:
        """Map the complete records that are not mapped yet. The appending process empties a file of another format."""
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
            if not towers or not length or place + _HEAD + 4 * numbers > end:
                break
            values = np.frombuffer(mapping, np.uint32, numbers, place + _HEAD)
            self._known[key] = values.reshape(towers, length)
            self._written.discard(key)
            place = _after(place, numbers)
        self._mapped = begin + place

    def _append(self, key: bytes, made: Array) -> None:
        try:
            if shutil.disk_usage(self._path.parent).free < _FREE_BYTES + made.nbytes:
                self._stop("its disk is almost full")
                return
            towers, length = made.shape
            head = key + towers.to_bytes(8, "little") + length.to_bytes(8, "little") + bytes(_HEAD - 48)
            _write(self._handle, head + made.tobytes(), self._end)
        except OSError as error:
            self._stop(error.strerror or str(error))
            return
        self._end = _after(self._end, made.size)
        self._written.add(key)
        self._unsynced += made.nbytes
        if self._unsynced >= _SYNC_BYTES:
            self._sync()

    def _stop(self, why: str) -> None:
        self._writes, self._full = False, True
        warnings.warn(
            f"no more plaintexts are kept in {self._path}, and later servers encode the rest again: {why}", stacklevel=2
        )

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
    """Open the file; it is replaced if another user could have written it or can read it."""
    if not hasattr(os, "pread"):
        raise OSError(errno.ENOTSUP, "this system does not read and write at places of a file")
    for _ in range(_TRIES):
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        if _is_ours(handle):
            return handle
        os.close(handle)
        # Another process may have replaced the file meanwhile. It then loses its new file, and goes on without one.
        path.unlink(missing_ok=True)
    raise OSError(errno.EPERM, "others can read or write it here")


def _key(values: Array, log_scale: float, primes: Sequence[int]) -> bytes:
    """A digest of everything that the residues depend on."""
    about = f"{values.dtype.str} {values.shape} {log_scale.hex()} {','.join(map(str, primes))} "
    found = hashlib.blake2b(about.encode(), digest_size=_DIGEST)
    found.update(np.ascontiguousarray(values).data)
    return found.digest()


def _after(place: int, numbers: int) -> int:
    """The start of the next record, aligned to a cache line."""
    return place + _HEAD + -(-4 * numbers // _HEAD) * _HEAD


def _write(handle: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, place)
        view, place = view[written:], place + written


def _is_ours(handle: int) -> bool:
    """Whether no other user can have written the file, and none can read it."""
    found = os.fstat(handle)
    return stat.S_ISREG(found.st_mode) and is_ours(found, 0o077)
