"""The machine's cores, load and free memory, and work on all of its cores."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# Work on fewer numbers than this takes less time in one thread: most of its calls into numpy are short, and Python runs
# one thread at a time between them. (Keys on two cores: of 2^19 numbers 16 ms with threads and 11 without; of 2^21.5, 45
# and 58.)
_LEAST = 1 << 20

# Whether this is one of several threads of `in_threads`.
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("_inside", default=False)

_MEMINFO = Path("/proc/meminfo")
_CGROUPS = (
    # Version 2: the limit and the usage of the process's own group; names are relative to the group's folder.
    ("memory.max", "memory.current"),
)
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_CGROUP_V1 = (_CGROUP_ROOT / "memory/memory.limit_in_bytes", _CGROUP_ROOT / "memory/memory.usage_in_bytes")


def usable_cores() -> int:
    """The number of cores that this process may use; all cores if the system has no CPU affinity (macOS, Windows)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def without_core_file() -> None:
    """Let a crash of this process leave no file with its memory; Windows writes none."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def load_average() -> float | None:
    """The mean number of running or waiting processes in the last minute; None on systems without it (Windows)."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


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
def _libraries() -> Any:
    """The libraries with threads of their own. To look for them takes milliseconds."""
    # Clients multiply no matrices, and need not have it.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _one_blas_thread() -> contextlib.AbstractContextManager[object]:
    """BLAS has one thread for each that calls it.

    The limit is the process's, and calls that overlap would end it in the wrong order: so the main thread alone sets it.
    """
    if threading.current_thread() is not threading.main_thread():
        return contextlib.nullcontext()
    limit: contextlib.AbstractContextManager[object] = _libraries().limit(limits=1, user_api="blas")
    return limit


def threads_for(count: int, size: int) -> int:
    """The threads that `in_threads` takes for this many calls on `size` numbers each; at least one."""
    threads = 1 if _inside.get() or count * size < _LEAST else min(usable_cores(), count)
    if (asked := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        threads = min(threads, int(asked))
    return max(threads, 1)


def in_threads(work: Callable[[int], T], count: int, size: int, blas: bool = False) -> list[T]:
    """work(0), work(1), ... work(count - 1), each on `size` numbers, computed on all usable cores.

    OMP_NUM_THREADS limits the threads, as it does those of kernels. Within `work`, `in_threads` takes one thread.

    With `blas`, and in the main thread, BLAS has one thread for each of these: its own would wait for each other, all the
    more beside other work on the machine.
    """
    threads = threads_for(count, size)
    if threads == 1:
        return [work(number) for number in range(count)]

    def share(first: int) -> list[T]:
        # Each thread takes every so many: a task for each number would cost more.
        token = _inside.set(True)
        try:
            return [work(number) for number in range(first, count, threads)]
        finally:
            _inside.reset(token)

    # With numpy's settings for overflows, which belong to the context.
    contexts = [contextvars.copy_context() for _ in range(threads - 1)]
    limit = _one_blas_thread() if blas else contextlib.nullcontext()
    with limit, ThreadPoolExecutor(threads - 1, thread_name_prefix="heliograph") as pool:
        others = [pool.submit(context.run, share, first) for first, context in enumerate(contexts, 1)]
        parts = [share(0), *(other.result() for other in others)]
    return [parts[number % threads][number // threads] for number in range(count)]
