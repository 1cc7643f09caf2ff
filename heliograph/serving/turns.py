"""Fair shares of one server's time and connections among its tenants."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter, defaultdict
from collections.abc import AsyncIterator

from heliograph.serving.refusals import Refused


class Turns:
    """Long work of requests, one piece at a time: of each tenant one waits with those of the others, and its rest behind it.

    Who waits takes no thread. Used from one event loop.
    """

    def __init__(self) -> None:
        self._tenants: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._one = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def of(self, tenant: int) -> AsyncIterator[None]:
        """While it is this tenant's turn."""
        async with self._tenants[tenant], self._one:
            yield


class Crowd:
    """The requests of each tenant that are open: slow ones of one tenant must not take the connections of all."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._open: Counter[int] = Counter()

    def enter(self, tenant: int) -> None:
        """Count a request, until `leave`; a refusal where the tenant has too many."""
        with self._lock:
            if self._open[tenant] >= self._most:
                raise Refused(
                    429, f"{self._most} requests of this token are open already", hint="try again when some have ended"
                )
            self._open[tenant] += 1

    def leave(self, tenant: int) -> None:
        with self._lock:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]
