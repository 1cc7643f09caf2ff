"""Timing of several calls in turns, so that other work on the machine slows all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

K = TypeVar("K")


def medians_ms(
    calls: Mapping[K, Callable[[], Any]], repeats: int, progress: Callable[[int, int], None] | None = None
) -> dict[K, float]:
    """The median of each call over this many rounds, in milliseconds; a round before them warms up."""
    times: dict[K, list[float]] = {key: [] for key in calls}
    for repeat in range(repeats + 1):
        for key, call in calls.items():
            begun = time.perf_counter()
            call()
            if repeat:
                times[key].append(1e3 * (time.perf_counter() - begun))
        if progress is not None:
            progress(repeat + 1, repeats + 1)
    return {key: statistics.median(found) for key, found in times.items()}
