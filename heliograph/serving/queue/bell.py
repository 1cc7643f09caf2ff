"""The end of a job, heard at once by requests that wait for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class Bell:
    """Rung by threads of workers when a job has ended; who waits in an event loop then looks whether it was theirs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._heard: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def ring(self) -> None:
        with self._lock:
            heard, self._heard = self._heard, set()
        for loop, event in heard:
            # Nobody waits on a loop that was closed meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(event.set)

    @contextlib.contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that the next ring sets; look whether there is anything to wait for inside, so that no ring is missed."""
        entry = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._heard.add(entry)
        try:
            yield entry[1]
        finally:
            with self._lock:
                self._heard.discard(entry)
