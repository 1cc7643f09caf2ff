"""The available memory, checked before work that may need more, and how the allocator keeps what is freed."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from pathlib import Path
from typing import Any

from heliograph.errors import HeliographError, said

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (
    # Version 2: the limit and the usage of the process's own group; names are relative to the group's folder.
    ("memory.max", "memory.current"),
)
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_HINT = said("compile with a lower {key_bytes} or {memory_bytes}, use a larger machine, or pass {check_memory=False}")
_CGROUP_V1 = (_CGROUP_ROOT / "memory/memory.limit_in_bytes", _CGROUP_ROOT / "memory/memory.usage_in_bytes")
# Parameters of glibc's mallopt (malloc.h), and their values in bytes: arrays of ciphertexts come from the heap, which is
# extended by this much, and returned to the system where more than this lies free at its end.
_MALLOPT = {-3: 1 << 28, -2: 1 << 26, -1: 1 << 29}


class TooLittleMemoryError(HeliographError):
    """The plan needs more memory than is available."""


def available_bytes() -> int | None:
    """The bytes still available: the smallest amount that the system or a control group leaves; None if unknown."""
    found = [left for left in (_system_bytes(), *_group_bytes()) if left is not None]
    return min(found) if found else None


def _system_bytes() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return _windows_bytes()
    with contextlib.suppress(OSError, ValueError):
        # macOS reports its total memory, not how much is free: an upper bound is better than none.
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _windows_bytes() -> int | None:
    """Free physical memory, from the 64-byte structure of GlobalMemoryStatusEx."""
    import ctypes

    # Its size and the load in per cent, then seven 64-bit numbers; the second is the free physical memory.
    status = (ctypes.c_uint64 * 8)(64)
    told = ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined,unused-ignore]
    return int(status[2]) if told else None


def _group_bytes() -> list[int]:
    """The bytes that the limits of the control groups leave, from the process's own group up to the root."""
    pairs = [_CGROUP_V1]
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, _, name = line.split(":", 2)
            if number == "0":
                folder = _CGROUP_ROOT / name.strip("/")
                for group in (folder, *folder.parents):
                    if group == _CGROUP_ROOT.parent:
                        break
                    pairs += [(group / limit, group / use) for limit, use in _CGROUPS]
    left = []
    for limit, use in pairs:
        with contextlib.suppress(OSError, ValueError):
            left.append(max(0, int(limit.read_text()) - int(use.read_text())))
    return left


@functools.cache
def _glibc() -> Any:
    """glibc, where it is the C library of this process, else None."""
    import ctypes

    with contextlib.suppress(OSError, TypeError):
        library = ctypes.CDLL(None)
        if hasattr(library, "gnu_get_libc_version"):
            return library
    return None


@functools.cache
def keep_freed_arrays() -> None:
    """Have glibc keep the memory of freed arrays for the next ones; other C libraries are left as they are.

    By default it returns every larger array to the system, which clears the pages of the next one: a fifth of the time
    of a deep network.
    """
    if _glibc() is not None:
        for parameter, value in _MALLOPT.items():
            _glibc().mallopt(parameter, value)


def return_freed_arrays() -> None:
    """Return the memory of freed arrays to the system."""
    if _glibc() is not None:
        _glibc().malloc_trim(0)


def check_memory(needed_bytes: int, what: str, hint: str = _HINT) -> None:
    """Raise a TooLittleMemoryError, with a hint, if less than `needed_bytes` is available."""
    left = available_bytes()
    if left is not None and needed_bytes > left:
        raise TooLittleMemoryError(
            f"{what} needs {needed_bytes / 1e6:.0f} MB more, and {left / 1e6:.0f} MB are available",
            why="the system would stop the process half way",
            hint=hint,
        )
