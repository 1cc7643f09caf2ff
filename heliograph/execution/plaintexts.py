"""Encoded plaintexts: those that are kept between runs, and those that a thread encodes before they are used."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any


class PlaintextCache:
    """Encoded plaintexts, kept until a byte bound is reached; several threads may use it.

    What is there stays: a program reads its plaintexts in the same order on every run, and dropping the one used longest
    ago would drop each just before it is needed. `reserved` bytes are for those that a run uses more than once.
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
        """Whether a plaintext of that size would be kept; `often` is used more than once in a run."""
        return self.bytes + size <= self.max_bytes - (0 if often else self.reserved)

    def get(self, key: Hashable, make: Callable[[], Any], size: int, often: bool = False) -> Any:
        """The plaintext of that key, made if it is not there, and kept if there is room: for `size` bytes, or what the
        plaintext itself says that it takes.
        """
        value = self._entries.get(key)
        if value is None:
            # Two threads may make the same one; the first is kept.
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
    """A plaintext that a program uses: its key, how it is made, and the bytes that it takes.

    `kept` is the key under which it is kept: transforms by the same map, at one level and scale, have one in common, and use
    it `often`.
    """

    key: Hashable
    make: Callable[[], Any]
    size: int
    kept: Hashable
    often: bool


class EncodeAhead:
    """A thread that encodes plaintexts in the order of their use, at most `max_bytes` ahead.

    `following(key)` gives the encodings of a program from that of `key` on, in the order of their use and over again from
    the beginning: what the first layers need is then there when the next sample comes. Encoding fills the moments in which
    a homomorphic operation does not use every core. One run has it at a time.
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
        """Whether it encodes."""
        return self._thread is not None

    def take(self, encoding: Encoding) -> Any:
        """The plaintext; made here where the thread was not asked for it."""
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
        """Forget what was encoded ahead, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._thread = None
        self._queue.clear()
        self._bytes, self._rest, self._next = 0, iter(()), None
