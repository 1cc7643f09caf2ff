"""OpenFHE's process-wide maps of evaluation keys, and the lock for reading and changing them.

OpenFHE looks up evaluation keys by tag in two static maps, which all contexts of the process share without a lock. Each
server has its own tag, so that two servers never see each other's keys. One thread at a time evaluates or changes keys.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

from heliograph.runtime.openfhe.context import library

_LOCK = threading.Lock()
_owner: int | None = None
_released: deque[str] = deque()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the lock on the maps, for an evaluation or a change; reentrant."""
    global _owner
    if _owner == threading.get_ident():
        yield
        return
    with _LOCK:
        _owner = threading.get_ident()
        try:
            yield
        finally:
            _owner = None
    _drop_released()


def release(tag: str) -> None:
    """Drop the keys of a tag now, or as soon as the maps are free. Never waits: finalizers call it too."""
    _released.append(tag)
    _drop_released()


def _drop_released() -> None:
    # The lock is not re-entrant: a finalizer may run at any moment in the thread that holds it, in the middle of a change.
    while _released and _LOCK.acquire(blocking=False):
        try:
            drop({_released.popleft() for _ in range(len(_released))})
        finally:
            _LOCK.release()


def drop(tags: Collection[str]) -> None:
    """Remove the keys of these tags from OpenFHE's maps.

    OpenFHE can only clear its maps completely, so the other keys are put back; keys are shared pointers, nothing is
    copied.
    """
    openfhe = library()
    # These are static functions of the class; the binding exposes them as methods of instances.
    context = openfhe.CryptoContext
    rotation: dict[str, Any] = context.GetAllEvalAutomorphismKeys()
    products: dict[str, Any] = context.GetAllEvalMultKeys()
    if any(tag in rotation for tag in tags):
        context.ClearEvalAutomorphismKeys()
        for tag, keys in rotation.items():
            if tag not in tags:
                context.InsertEvalAutomorphismKey(keys, tag)
    if any(tag in products for tag in tags):
        openfhe.ClearEvalMultKeys()
        for tag, keys in products.items():
            if tag not in tags:
                context.InsertEvalMultKey(keys, tag)


def installed() -> set[str]:
    """The tags with keys in this process."""
    context = library().CryptoContext
    return {*context.GetAllEvalAutomorphismKeys(), *context.GetAllEvalMultKeys()}
