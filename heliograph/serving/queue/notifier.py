"""Immediate notification of waiting requests when a job ends."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Notifier:
    """Wakes all waiting requests in an event loop whenever a job ends; each checks whether it was its own job."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def notify(self) -> None:
        """Wake all waiting requests; may be called from any thread."""
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for loop, event in waiting:
            # Nobody waits on a loop that was closed meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    @contextlib.contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that the next `notify` sets. Check the job inside this context, so that no end is missed."""
        entry = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._waiting.add(entry)
        try:
            yield entry[1]
        finally:
            with self._lock:
                self._waiting.discard(entry)
