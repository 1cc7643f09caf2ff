"""Evaluation keys that do not all fit in memory: loaded before the node that uses them, evicted to make room.

Only rotation keys are evicted. The order in which a program uses them is known, so the key with the most distant next
use is evicted first (execution/key_use.py), and a thread reads and checks the next keys while nodes are evaluated. Only
the evaluating thread changes the table of keys, between two nodes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.execution.key_use import KeyUse

# A server's keys, by chain, kind and amount.
KeyTable = dict[tuple[Ring, str, int], Any]


def place_of(key: EvaluationKey) -> tuple[Ring, str, int]:
    """The place of a key in a table."""
    return key.ring, key.kind, key.amount % key.ring.slots


class KeyLoader:
    """The keys of one server within `key_bytes`, put into `table`: call `require(position)` before each node.

    `read(key)` returns the table's entry for a key, or raises; reading threads call it during evaluation too. `loads`,
    `loaded_bytes` and `waited_s` count the reads of evicted keys, without the keys that stay; `peak_bytes` is the most
    that was in memory at once, keys read ahead included. One evaluation at a time: hold `lock`.
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
        """Load the keys that the node at this position needs; a WireError if one of them is malformed.

        After an error the state is as before, except for evicted keys: the same node may be tried again.
        """
        missing = sorted(self._use.reads[position] - self._held)
        if not missing:
            return
        begun = time.perf_counter()
        try:
            self._exchange(self._use.dropped(self._held, position, self._room), missing)
        finally:
            self.waited_s += time.perf_counter() - begun
        self._read_ahead(position)

    def rotation(self, ring: Ring, amounts: Sequence[int]) -> int:
        """One of these amounts whose key on the ring is in memory; else one is loaded in place of all others."""
        for amount in amounts:
            if (ring, "rotation", amount % ring.slots) in self._table:
                return amount
        name, key = next((name, key) for name, key in self._use.others.items() if key.ring == ring)
        self._exchange(list(self._held), [name])
        return key.amount

    def close(self) -> None:
        """Stop reading ahead and drop the keys read ahead; the keys in the table belong to the server. Never waits.

        An evaluation that is running in another thread reads its remaining keys itself.
        """
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self.lock.acquire(blocking=False):
            self._ahead.clear()
            self.lock.release()

    def _exchange(self, dropped: Iterable[str], loaded: Iterable[str]) -> None:
        for name in dropped:
            self._held.remove(name)
            del self._table[place_of(self._use.others[name])]
        values = {name: self._value(name) for name in loaded}
        self._table.update((place_of(self._use.others[name]), value) for name, value in values.items())
        self._held.update(values)
        self._note_peak()

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
