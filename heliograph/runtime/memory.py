"""Checks of memory before work that may need more, and how the allocator keeps what is freed."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

from heliograph.errors import TooLittleMemoryError, said
from heliograph.machine import available_bytes

_HINT = said("compile with a lower {key_bytes} or {memory_bytes}, use a larger machine, or pass {check_memory=False}")
# Parameters of glibc's mallopt (malloc.h), and their values in bytes: arrays of ciphertexts come from the heap, which is
# extended by this much, and returned to the system where more than this lies free at its end.
_MALLOPT = {-3: 1 << 28, -2: 1 << 26, -1: 1 << 29}


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
