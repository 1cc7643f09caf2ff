"""Tables that the servers of a process share as long as one of them uses them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class Shared(Generic[T]):
    """Objects by key, each created once and dropped with its last user."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, T] = WeakValueDictionary()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The object for this key, created with `make` unless it is in use already."""
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = make()
            return found
