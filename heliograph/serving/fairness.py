"""Fair shares of a server's time and connections among its tenants, and a rate limit for requests without a token."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Hashable
from functools import partial

from heliograph.serving.refusals import Refused

# With this many clients, a rate limit forgets those that need not wait.
_MANY = 4096


class FairLock:
    """A lock that `together` requests may hold at once, at most `each` of one tenant.

    A tenant's further requests queue behind its own first ones, not before those of other tenants. Waiting takes no thread.
    Used from one event loop.
    """

    def __init__(self, each: int = 1, together: int = 1) -> None:
        self._tenants: defaultdict[int, asyncio.Semaphore] = defaultdict(partial(asyncio.Semaphore, each))
        self._all = asyncio.Semaphore(together)

    @contextlib.asynccontextmanager
    async def of(self, tenant: int) -> AsyncIterator[None]:
        """Hold the lock for a request of this tenant."""
        await self.enter(tenant)
        try:
            yield
        finally:
            self.leave(tenant)

    async def enter(self, tenant: int) -> None:
        await self._tenants[tenant].acquire()
        try:
            await self._all.acquire()
        except BaseException:
            self._tenants[tenant].release()
            raise

    def leave(self, tenant: int) -> None:
        self._all.release()
        self._tenants[tenant].release()


class Lane:
    """One request's hold of a fair lock, from its beginning to its end, except while it is `away`."""

    def __init__(self, turns: FairLock, tenant: int) -> None:
        self._turns, self._tenant = turns, tenant
        self._has, self._over = False, False

    async def __aenter__(self) -> Lane:
        await self._enter()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        self._leave()

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Release the lock while the request waits: for its client, for a job, for another lock."""
        self._leave()
        try:
            yield
        finally:
            await self._enter()

    async def _enter(self) -> None:
        if not self._over:
            await self._turns.enter(self._tenant)
            self._has = True

    def _leave(self) -> None:
        if self._has:
            self._has = False
            self._turns.leave(self._tenant)


class RequestLimit:
    """A limit on the open requests of each tenant: slow ones of one tenant must not take the connections of all."""

    def __init__(self, most: int) -> None:
        self._most, self._lock = most, threading.Lock()
        self._open: Counter[int] = Counter()

    def enter(self, tenant: int) -> None:
        """Count a request, until `leave`; a refusal if the tenant has too many."""
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


class RateLimit:
    """A limit on the rate of answers to each client: `burst` at once, then one in `every` seconds.

    A client that asks faster waits for each answer, `longest` seconds at most.
    """

    def __init__(self, every: float, burst: int, longest: float) -> None:
        self._every, self._burst, self._longest = every, burst, longest
        # The time when the next answer to each client would be due without a burst.
        self._due: dict[Hashable, float] = {}

    async def wait(self, whom: Hashable) -> None:
        """Wait until an answer is due; a refusal if that would take too long."""
        now = time.monotonic()
        if len(self._due) > _MANY:
            self._due = {each: due for each, due in self._due.items() if due > now}
        due = max(self._due.get(whom, 0.0), now - self._burst * self._every)
        if due - now > self._longest:
            raise Refused(429, "too many requests without a token that is known, or beyond those it may have open")
        self._due[whom] = due + self._every
        if due > now:
            await asyncio.sleep(due - now)
