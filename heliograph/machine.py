"""Facts about the machine from the system: usable cores and load."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The number of cores that this process may use; all cores if the system has no CPU affinity (macOS, Windows)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_average() -> float | None:
    """The mean number of running or waiting processes in the last minute; None on systems without it (Windows)."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
