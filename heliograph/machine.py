"""The machine's cores and load, and work on all of its cores."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Work on fewer numbers than this takes less time in one thread: most of its calls into numpy are short, and Python runs
# one thread at a time between them. (Keys on two cores: of 2^19 numbers 16 ms with threads and 11 without; of 2^21.5, 45
# and 58.)
_LEAST = 1 << 20


def usable_cores() -> int:
    """The number of cores that this process may use; all cores if the system has no CPU affinity (macOS, Windows)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_average() -> float | None:
    """The mean number of running or waiting processes in the last minute; None on systems without it (Windows)."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def in_threads(work: Callable[[int], T], count: int, size: int) -> list[T]:
    """work(0), work(1), ... work(count - 1), each on `size` numbers, computed on all usable cores.

    OMP_NUM_THREADS limits the threads, as it does those of kernels.
    """
    threads = min(usable_cores(), count)
    if (asked := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        threads = min(threads, int(asked))
    if threads <= 1 or count * size < _LEAST:
        return [work(number) for number in range(count)]

    def share(first: int) -> list[T]:
        # Each thread takes every so many: a task for each number would cost more.
        return [work(number) for number in range(first, count, threads)]

    # With numpy's settings for overflows, which belong to the context.
    contexts = [contextvars.copy_context() for _ in range(threads - 1)]
    with ThreadPoolExecutor(threads - 1, thread_name_prefix="heliograph") as pool:
        others = [pool.submit(context.run, share, first) for first, context in enumerate(contexts, 1)]
        parts = [share(0), *(other.result() for other in others)]
    return [parts[number % threads][number // threads] for number in range(count)]
