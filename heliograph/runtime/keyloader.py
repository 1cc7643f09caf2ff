"""Evaluation keys that do not all fit in memory: loaded before the node that reads them, dropped when others need the room.

Keys that are not of rotations stay. The order in which a program reads the others is known, so the one whose next use is
furthest away goes first (execution/key_use.py), and a thread reads and checks the next ones while nodes are evaluated. The
table of keys is changed by the evaluating thread alone, between two nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.execution.key_use import KeyUse

# A server's keys, by chain, kind and amount.
KeyTable = dict[tuple[Ring, str, int], Any]


def place_of(key: EvaluationKey) -> tuple[Ring, str, int]:
    """Where a key stands in a table."""
    return key.ring, key.kind, key.amount % key.ring.slots


class KeyLoader:
    """The keys of one server within `key_bytes`, put into `table`: call `require(position)` before each node.

    `read(key)` gives the table's value of a key, or raises; it is called by threads too, while others evaluate.
    `loads`, `loaded_bytes` and `waited_s` count what was read after the keys that stay; `peak_bytes` is the most that was
    held at once, keys read ahead included. One evaluation at a time: hold `lock`.
    """

    def __init__(self, use: KeyUse, read: Callable[[EvaluationKey], Any], table: KeyTable, key_bytes: int) -> None:
        self.key_bytes, self.lock = key_bytes, threading.Lock()
        self.loads, self.loaded_bytes, self.waited_s, self.peak_bytes = 0, 0, 0.0, 0
        self._use, self._read, self._table = use, read, table
        self._room, self._ahead_room = use.room(key_bytes)
        self._held: set[str] = set()
        self._ahead: dict[str, Future[Any]] = {}
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="heliograph-keys")
        for key in use.staying:
            table[place_of(key)] = read(key)
        self._note_peak()
        self._read_ahead(-1)

    def require(self, position: int) -> None:
        """Have the keys in place that the node at this position reads; a WireError where one of them is malformed.

        After an error everything is as before, less the keys that had made room: the same node may be tried again.
        """
        missing = sorted(self._use.reads[position] - self._held)
        if not missing:
            return
        begun = time.perf_counter()
        for name in self._use.dropped(self._held, position, self._room):
            self._held.remove(name)
            del self._table[place_of(self._use.others[name])]
        try:
            values = {name: self._value(name) for name in missing}
            self._table.update((place_of(self._use.others[name]), value) for name, value in values.items())
            self._held.update(values)
            self._note_peak()
        finally:
            self.waited_s += time.perf_counter() - begun
        self._read_ahead(position)

    def close(self) -> None:
        """Stop reading ahead and let go of what was read; the keys in the table are the server's. Never waits.

        An evaluation that is running in another thread finishes with keys that it reads itself.
        """
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self.lock.acquire(blocking=False):
            self._ahead.clear()
            self.lock.release()

    def _value(self, name: str) -> Any:
        key, coming = self._use.others[name], self._ahead.pop(name, None)
        if coming is None or coming.cancelled():
            value = self._read(key)
        else:
            value = coming.result()
        self.loads += 1
        self.loaded_bytes += key.bytes
        return value

    def _read_ahead(self, position: int) -> None:
        room = 0 if self._closed else self._ahead_room - self._use.size(self._ahead)
        for name in self._use.upcoming(position):
            key = self._use.others[name]
            if name in self._held or name in self._ahead:
                continue
            if key.bytes > room:
                return
            self._ahead[name] = self._thread.submit(self._read, key)
            room -= key.bytes
        self._note_peak()

    def _note_peak(self) -> None:
        now = self._use.staying_bytes + self._use.size(self._held) + self._use.size(self._ahead)
        self.peak_bytes = max(self.peak_bytes, now)
