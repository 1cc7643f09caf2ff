"""Work on the rows of polynomials, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from heliograph.machine import usable_cores

T = TypeVar("T")

# Fewer coefficients than this take less time than starting threads.
_LEAST = 1 << 17


def in_threads(work: Callable[[int], T], count: int, ring_dim: int) -> list[T]:
    """work(0), work(1), ... work(count - 1), each on rows of this ring dimension, computed on all usable cores.

    OMP_NUM_THREADS limits the threads, as it does those of kernels.
    """
    threads = min(usable_cores(), count)
    if (asked := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        threads = min(threads, int(asked))
    if threads <= 1 or count * ring_dim < _LEAST:
        return [work(number) for number in range(count)]
    with ThreadPoolExecutor(threads, thread_name_prefix="heliograph-client") as pool:
        # Each thread takes every so many rows: a task for each row would cost more.
        parts = list(pool.map(lambda first: [work(number) for number in range(first, count, threads)], range(threads)))
    return [parts[number % threads][number // threads] for number in range(count)]
