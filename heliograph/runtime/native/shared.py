"""Tables that all servers of a process share, for as long as one of them has them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class Shared(Generic[T]):
    """Things by key that are made once; they go with the last that holds them."""

    def __init__(self) -> None:
        self._known: WeakValueDictionary[Hashable, T] = WeakValueDictionary()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The thing of that key, made unless somebody has it."""
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = make()
            return found
