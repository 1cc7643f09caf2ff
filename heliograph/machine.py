"""What the system tells of the machine: usable cores and load."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """The cores that this process may use; all of them where the system binds processes to none (macOS, Windows)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_average() -> float | None:
    """How many processes ran or waited in the last minute; None where the system does not count (Windows)."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None
