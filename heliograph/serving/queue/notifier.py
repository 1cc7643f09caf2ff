"""The end of a job, told at once to requests that wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Notifier:
    """Wakes the requests that wait, in an event loop, whenever a job has ended; each looks whether it was its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def notify(self) -> None:
        """Wake all that wait; from any thread."""
        with self._lock:
            waiting, self._waiting = self._waiting, set()
        for loop, event in waiting:
            # Nobody waits on a loop that was closed meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    @contextlib.contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that the next `notify` sets. Look at the job inside, so that none is missed."""
        entry = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._waiting.add(entry)
        try:
            yield entry[1]
        finally:
            with self._lock:
                self._waiting.discard(entry)
