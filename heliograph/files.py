"""Files that are written whole or not at all, and opened without waiting for a pipe in their place."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from heliograph.errors import HeliographError, WireError, said

# Bytes read from files and sockets; a view avoids a copy of blobs of hundreds of megabytes.
Bytes = bytes | memoryview


# A flag for `os.open`, without which Windows would change line ends.
BINARY: int = getattr(os, "O_BINARY", 0)

# The name of a file that is being written: the final name and some random letters.
_PART = re.compile(r"\.(.+)\.[a-z0-9_]{8}\.part", re.DOTALL)

# The byte that Windows locks, which no file reaches, because locked bytes cannot be read there; the pause between
# tries.
_LOCKED_BYTE = 1 << 40
_POLL_S = 0.05

# Errors of the machine, which say nothing about the requested file.
_OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


def of_the_machine(error: BaseException) -> OSError | None:
    """The OSError behind an error, if it only means a full disk or too many open files; otherwise None."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError):
            return found if found.errno in _OF_THE_MACHINE else None
        # Our own errors have it too, although they are raised `from None` to keep it out of tracebacks.
        found = found.__context__
    return None


def open_file(path: str | Path, *, follow: bool = True) -> io.BufferedReader:
    """A file, open for reading bytes; an OSError if it does not exist or is not a regular file.

    With `follow=False`, links are refused too.

    It does not wait for a pipe: anyone who can put one in place of a file could block a reader for ever.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | BINARY
    if not follow and not hasattr(os, "O_NOFOLLOW") and os.path.islink(path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    handle = os.open(path, flags if follow else flags | getattr(os, "O_NOFOLLOW", 0))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def write_file(
    path: str | Path, data: Bytes | Iterable[Bytes], *, private: bool = False, overwrite: bool = True
) -> None:
    """Write a file so that a reader finds the old one or the whole new one, never a part.

    `private` gives it mode 0600 from the start, whatever the umask allows, and otherwise 0644 as far as the umask allows
    (Windows has no modes: who may read a file there follows from its folder). `overwrite=False` refuses to replace a
    file. Partial files that killed processes left of the same file are removed.
    """
    path = Path(path)
    try:
        if not overwrite and path.exists():
            raise _exists(path)
        remove_parts(path.parent, path.name)
        handle, temporary = _begin(path, 0o600 if private else 0o644)
    except OSError as error:
        raise WireError(f"{path} cannot be written", why=error.strerror or str(error)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            for part in (data,) if isinstance(data, (bytes, memoryview)) else data:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            if sys.platform == "win32":
                # Windows cannot rename an open file. Elsewhere the file stays locked until it has its name.
                file.close()
            if overwrite:
                os.replace(temporary, path)
            else:
                _name_anew(temporary, path)
        sync_folder(path.parent)
    except FileExistsError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise _exists(path) from None
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise WireError(f"{path} cannot be written", why=error.strerror or str(error)) from None
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _exists(path: Path) -> WireError:
    return WireError(f"{path} already exists", hint=said("choose another name, or pass {overwrite=True}"))


def _begin(path: Path, mode: int) -> tuple[int, Path]:
    """A new file beside `path`, open and locked: the lock shows that the writing process is alive."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, mode)
        except FileExistsError:
            continue
        with contextlib.suppress(OSError):
            lock(handle, wait=True)
        if os.fstat(handle).st_nlink:
            return handle, temporary
        # Another process removed it before it was locked, because it assumed that the writer was dead.
        os.close(handle)


def _name_anew(temporary: Path, path: Path) -> None:
    """Give a file its name if nothing has that name yet; otherwise a FileExistsError."""
    try:
        os.link(temporary, path)
        os.unlink(temporary)
    except FileExistsError:
        raise
    except OSError:
        # Some file systems have no hard links. An empty file takes the name first, then the complete file replaces it.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.replace(temporary, path)


def remove_parts(folder: str | Path, name: str | None = None) -> None:
    """Remove partial files that killed processes left of the file `name`, or of any file in the folder.

    Files that a living process is writing are locked and stay; on a file system without locks everything stays.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _PART.fullmatch(entry.name)
            if found is None or name not in (None, found[1]):
                continue
            with contextlib.suppress(OSError):
                _remove_part(entry.path)


def _remove_part(path: str) -> None:
    if sys.platform == "win32":
        # A file that its writer has open cannot be removed there.
        os.unlink(path)
        return
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(handle).st_mode):
            lock(handle, wait=False)
            os.unlink(path)
    finally:
        os.close(handle)


def lock(handle: int, *, wait: bool) -> None:
    """Lock an open file until it is closed or this process ends.

    Raises BlockingIOError if another process has the lock (not with `wait`), or another OSError if there are no locks.
    """
    if sys.platform == "win32":
        import msvcrt

        place = os.lseek(handle, 0, os.SEEK_CUR)
        os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
        try:
            while True:
                try:
                    msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
                    return
                except PermissionError:
                    if not wait:
                        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
                time.sleep(_POLL_S)
        finally:
            os.lseek(handle, place, os.SEEK_SET)
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextlib.contextmanager
def locked_folder(folder: str | Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock of a folder, with the errors of `lock`, or an OSError if the folder cannot be opened.

    On Windows, which cannot open folders, a file `.lock` in the folder is locked.
    """
    handle = _open_folder(folder)
    try:
        lock(handle, wait=wait)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def exclusive(path: str | Path, refused: HeliographError) -> Iterator[None]:
    """Lock a file, created if missing, or a folder for this process alone; the lock ends with the process.

    Raises `refused` if another process has the lock, WireError if the file or folder cannot be opened. On a file system
    without locks, other processes are not detected.
    """
    try:
        handle = _open_folder(path) if os.path.isdir(path) else os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise WireError(f"{path} cannot be written", why=error.strerror or str(error)) from None
    try:
        try:
            lock(handle, wait=False)
        except BlockingIOError:
            raise refused from None
        except OSError:
            pass
        yield
    finally:
        os.close(handle)


def _open_folder(path: str | Path) -> int:
    if sys.platform == "win32":
        return os.open(Path(path) / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def is_ours(found: os.stat_result, others: int) -> bool:
    """Whether a file belongs to this user, and others have none of the permissions `others` (0o077: none at all).

    Always true on Windows, where permissions follow from the folder.
    """
    return not hasattr(os, "geteuid") or (found.st_uid == os.geteuid() and not found.st_mode & others)


def sync_folder(folder: str | Path) -> None:
    """Make new names in a folder durable, even across a power cut; not every file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
