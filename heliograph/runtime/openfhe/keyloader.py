"""Evaluation keys that do not all fit in memory: loaded before the node that reads them, dropped when others need the room.

Keys of bootstraps and relinearization keys stay. The order in which a program reads the others is known, so the one whose
next use is furthest away goes first (execution/key_use.py), and the next ones are read, checked and made into OpenFHE's
objects by a thread while nodes are evaluated. OpenFHE's maps are changed by the evaluating thread alone, between two nodes,
while no evaluation of the process reads them (registry.pausing).
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.execution.key_use import KeyUse
from heliograph.runtime.openfhe import registry
from heliograph.runtime.openfhe.serial import check_installed, insert_key
from heliograph.runtime.openfhe.template import Template, rotation_key_template

# A key of a tiny ring for an automorphism that does not exist, the first of every map: OpenFHE's map of a tag is the first
# map that was given for it, and grows, so that one of a real key could not be put back without the others.
_SEED_RING = Ring(10, 60, 40, 1, 1, None)
_SEED_INDEX = 2


class KeyLoader:
    """The keys of one server within `key_bytes`: `require(position)` before each node.

    `read(key, form)` gives OpenFHE's object of a key, or raises (see `serial.read_key`); `tags` are the names of the keys
    of each part of the chain.
    `loads`, `loaded_bytes` and `waited_s` count what was read after the keys that stay; `peak_bytes` is the most that was
    held at once, keys read ahead included. One evaluation at a time: hold `lock`.
    """

    def __init__(
        self, use: KeyUse, read: Callable[[EvaluationKey, Template], Any], tags: Mapping[Ring, str], key_bytes: int
    ) -> None:
        self.key_bytes, self.lock = key_bytes, threading.Lock()
        self.loads, self.loaded_bytes, self.waited_s, self.peak_bytes = 0, 0, 0.0, 0
        self._use, self._read, self._tags = use, read, dict(tags)
        self._room, self._ahead_room = use.room(key_bytes)
        self._staying: list[tuple[str, Any]] = []
        self._held: dict[str, Any] = {}
        self._ahead: dict[str, Future[Any]] = {}
        # Learned now: it takes keys of their own, and none are made while an evaluation runs.
        self._forms = {ring: rotation_key_template(ring) for ring in tags}
        self._closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="heliograph-keys")
        self._start()

    def _start(self) -> None:
        seeds = {tag: _seed() for tag in self._tags.values()}
        staying = [(key, self._read(key, self._forms[key.ring])) for key in self._use.staying]
        with registry.changing():
            for tag, seed in seeds.items():
                registry.put_maps(tag, [seed])
            for key, value in staying:
                insert_key(key, value, self._tags[key.ring])
        self._staying = [(self._tags[key.ring], value) for key, value in staying if key.kind != "relinearization"]
        for ring, tag in self._tags.items():
            check_installed([key for key in self._use.staying if key.ring == ring], tag, (_SEED_INDEX,))
        self._note_peak()
        self._read_ahead(-1)

    def require(self, position: int) -> None:
        """Have the keys in place that the node at this position reads; a WireError where one of them is malformed.

        After an error everything is as before, less the keys that had made room: the same node may be tried again.
        """
        missing = sorted(self._use.reads[position] - self._held.keys())
        if not missing:
            return
        begun = time.perf_counter()
        gone = self._use.dropped(self._held, position, self._room)
        for name in gone:
            del self._held[name]
        if gone:
            self._put_back({self._tags[self._use.others[name].ring] for name in gone})
        try:
            values = {name: self._value(name) for name in missing}
            with registry.pausing():
                for name, value in values.items():
                    key = self._use.others[name]
                    insert_key(key, value, self._tags[key.ring])
            self._held.update(values)
            self._note_peak()
        finally:
            self.waited_s += time.perf_counter() - begun
        self._read_ahead(position)

    def close(self) -> None:
        """Stop reading ahead and let go of all keys; those in OpenFHE's maps are the registry's. Never waits.

        An evaluation that goes on in another thread finishes with keys that it reads itself.
        """
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self.lock.acquire(blocking=False):
            for table in (self._staying, self._held, self._ahead):
                table.clear()
            self.lock.release()

    def _put_back(self, tags: set[str]) -> None:
        """Leave exactly the keys that are held in the maps of these tags."""
        maps = {tag: [value for of, value in self._staying if of == tag] for tag in tags}
        for name, value in self._held.items():
            tag = self._tags[self._use.others[name].ring]
            if tag in maps:
                maps[tag].append(value)
        with registry.pausing():
            for tag, values in maps.items():
                registry.put_maps(tag, [_seed(), *values])

    def _value(self, name: str) -> Any:
        key, coming = self._use.others[name], self._ahead.pop(name, None)
        if coming is None or coming.cancelled():
            value = self._read(key, self._forms[key.ring])
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
            self._ahead[name] = self._thread.submit(self._read, key, self._forms[key.ring])
            room -= key.bytes
        self._note_peak()

    def _note_peak(self) -> None:
        now = self._use.staying_bytes + self._use.size(self._held) + self._use.size(self._ahead)
        self.peak_bytes = max(self.peak_bytes, now)


@functools.cache
def _seed_bytes() -> bytes:
    template = rotation_key_template(_SEED_RING)
    blank = bytes(8 * _SEED_RING.ring_dim)
    return template.fill([blank] * len(template.blocks), "0" * 32, _SEED_INDEX)


def _seed() -> Any:
    from heliograph.runtime.openfhe.context import library

    return library().DeserializeEvalKeyMapString(_seed_bytes(), library().BINARY)
