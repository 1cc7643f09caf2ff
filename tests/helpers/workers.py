"""The memory of a process of the tests: what modules leave behind is freed, and the peak is told at the end of a run."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

# Keeps keys for all tests.
KEYED = "helpers.keyed"
# Remembers that the kernels were called once.
WARM = "heliograph.runtime.native.warm"
# A test that leaves this much more behind has its garbage collected: objects of OpenFHE are few for Python, but large.
GROWTH_BYTES = 200_000_000
# A process that holds more at the end of a module empties its caches.
SPARE_BYTES = 900_000_000
# More than this in one process is said to be too much.
MOST_BYTES = 2_000_000_000


def memory_bytes() -> tuple[int, int]:
    """What this process holds, and the most that it held; zeros where the system does not say."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return 1024 * int(lines["VmRSS"].split()[0]), 1024 * int(lines["VmHWM"].split()[0])
    except (OSError, KeyError):
        return 0, 0


def collect() -> None:
    """Give what nobody holds any more back to the system."""
    gc.collect()
    # Of glibc.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def clear_caches(ended: str) -> None:
    """Empty the caches of functions in the package and in the module of tests that ended, and forget shared keys."""
    for name, module in list(sys.modules.items()):
        if (name.startswith("heliograph.") and name != WARM) or name in (ended, KEYED):
            for value in [module, *vars(module).values()]:
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Memory(config), "memory")


class _Memory:
    """Frees memory at the end of modules; gathers the peaks of all processes."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        # The most that a process held, and the module in which it did.
        self.peak = (0, "")
        self.peaks: list[tuple[int, str]] = []
        # What it held after the last collection.
        self._held = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: Any, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        result = yield
        held, peak = memory_bytes()
        if peak > self.peak[0]:
            self.peak = peak, item.nodeid.partition("::")[0]
        grown, ended = held - self._held, nextitem is None or nextitem.path != item.path
        caches = ended and held > SPARE_BYTES and grown > GROWTH_BYTES / 4
        if caches:
            clear_caches(item.module.__name__)
        if caches or grown > GROWTH_BYTES:
            collect()
            self._held, _ = memory_bytes()
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["peak"] = self.peak
            return
        if self.peak[0]:
            self.peaks.append(self.peak)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of pytest-xdist has ended."""
        peak = getattr(node, "workeroutput", {}).get("peak")
        if peak and peak[0]:
            self.peaks.append(tuple(peak))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for peak, module in sorted(self.peaks, reverse=True):
            line = f"most memory of a process: {peak / 1e9:.2f} GB, in {module}"
            terminalreporter.line(f"{line}: too much!" if peak > MOST_BYTES else line, yellow=peak > MOST_BYTES)
