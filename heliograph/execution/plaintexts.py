"""Encoded plaintexts: a cache that lasts between runs, and a thread that encodes them before they are used."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


class PlaintextCache:
    """Encoded plaintexts, kept until a byte bound is reached; several threads may use it.

    Entries stay: a program reads its plaintexts in the same order on every run, and dropping the least recently used
    one would drop each just before it is needed. `reserved` bytes are for plaintexts that a run uses more than once.
    """

    def __init__(self, max_bytes: int, reserved: int = 0) -> None:
        self.max_bytes = max_bytes
        self.reserved = min(reserved, max_bytes)
        self.bytes = 0
        self._entries: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._entries

    def has_room(self, size: int, often: bool = False) -> bool:
        """Whether a plaintext of that size would be kept; `often` means that a run uses it more than once."""
        return self.bytes + size <= self.max_bytes - (0 if often else self.reserved)

    def get(self, key: Hashable, make: Callable[[], Any], size: int, often: bool = False) -> Any:
        """The plaintext of that key, computed if it is missing, and kept if there is room for `size` bytes, or for its
        own `nbytes`.
        """
        value = self._entries.get(key)
        if value is None:
            # Two threads may compute the same one; the first is kept.
            value = make()
            size = getattr(value, "nbytes", size)
            with self._lock:
                if key not in self._entries and self.has_room(size, often):
                    self._entries[key] = value
                    self.bytes += size
                    self.reserved -= min(size, self.reserved) if often else 0
        return value

    def close(self) -> None:
        """Drop everything, and keep nothing from now on."""
        with self._lock:
            self._entries.clear()
            self.bytes = self.max_bytes = self.reserved = 0


@dataclass(frozen=True, slots=True)
class Encoding:
    """A plaintext of a program.

    `key`: the place of its use.
    `make`: encodes it.
    `size`: its bytes.
    `kept`: its key in the cache; transforms by the same map at one level and scale share it.
    `often`: whether several transforms share it.
    """

    key: Hashable
    make: Callable[[], Any]
    size: int
    kept: Hashable
    often: bool


class EncodeAhead:
    """A thread that encodes plaintexts in the order of their use, at most `max_bytes` ahead.

    `following(key)` returns the encodings of a program from `key` on, in the order of their use and cyclically: the
    plaintexts of the first layers are then ready when the next sample comes. Encoding fills the moments in which a
    homomorphic operation does not use every core. One run uses it at a time.
    """

    def __init__(self, following: Callable[[Hashable], Iterator[Encoding]], max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._following = following
        self._queue: deque[tuple[Encoding, Future[Any]]] = deque()
        self._bytes = 0
        self._rest: Iterator[Encoding] = iter(())
        self._next: Encoding | None = None
        self._thread: ThreadPoolExecutor | None = None

    @property
    def begun(self) -> bool:
        """Whether the thread has started."""
        return self._thread is not None

    def take(self, encoding: Encoding) -> Any:
        """The plaintext, encoded here if the thread does not have it."""
        if not self._queue or self._queue[0][0].key != encoding.key:
            # The very first plaintext, or an evaluation that started over.
            self.clear()
            if encoding.size > self.max_bytes:
                return encoding.make()
            self._rest = self._following(encoding.key)
            self._next = next(self._rest, None)
            self._fill()
            if not self._queue or self._queue[0][0].key != encoding.key:
                return encoding.make()
        taken, made = self._queue.popleft()
        self._bytes -= taken.size
        self._fill()
        return made.result()

    def _fill(self) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode-ahead")
        while self._next is not None and self._bytes + self._next.size <= self.max_bytes:
            self._queue.append((self._next, self._thread.submit(self._next.make)))
            self._bytes += self._next.size
            self._next = next(self._rest, None)

    def clear(self) -> None:
        """Drop the plaintexts encoded ahead, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None
        self._queue.clear()
        self._bytes, self._rest, self._next = 0, iter(()), None
