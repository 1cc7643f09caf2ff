"""Connections: counted from acceptance to their end, dropped for new ones if idle, and closed if silent.

asyncio accepts from our `Listener`, so that a connection counts as long as it has a descriptor, even during its TLS
handshake. `Connection` is uvicorn's, with time limits on the head of each request and on the reading of answers, and
with a common budget for the bodies of all requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import resource
import socket
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from heliograph.serving.refusals import RETRY_S, Refused
from heliograph.serving.remote.records import RefusalRecord, as_record

# Connections accepted in a row before the open ones get their turn.
_AT_ONCE = 16
# Descriptors not used by connections: SQLite in each thread, libraries, workers. A connection may need one more, for
# its upload or its result.
_OTHER_FILES = 256
_MOST_FILES = 1 << 16
# The most bytes read at once: of a body that the application asked for, and of anything else.
_READ, _HEAD = 1 << 16, 1 << 12
# The most bytes of bodies in memory, over all connections.
_BODIES = 1 << 23


class Crowded(Refused):
    """No connection can be dropped for a new one: each has a request of a tenant."""

    def __init__(self) -> None:
        super().__init__(503, "the server has as many connections as it takes", hint="try again")


class Connections:
    """The connections of a server: at most `most`, and at most `each` of one address.

    Beyond these limits, a new connection replaces the one that has been without a tenant's request for longest: from
    the same address if that has `each`, else from an address with the most connections. Used from one event loop.
    """

    def __init__(self, most: int, each: int) -> None:
        self.bodies = Bodies(_BODIES)
        self._most, self._each = most, each
        self._open: Counter[str] = Counter()
        # The connections that may be dropped: by address, in the order in which they became idle.
        self._idle: defaultdict[str, dict[Accepted, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return self._open.total()

    def enter(self, accepted: Accepted) -> None:
        """Count a connection until it is closed; raises Crowded if there is no room for it."""
        if self._open[accepted.place] >= self._each:
            self._drop_one([accepted.place])
        elif len(self) >= self._most:
            self._drop_one([place for place, _ in self._open.most_common()])
        self._open[accepted.place] += 1
        accepted.connections = self
        self.idle(accepted)

    def idle(self, accepted: Accepted) -> None:
        """Note that a connection may be dropped from now on."""
        self._idle[accepted.place][accepted] = None

    def busy(self, accepted: Accepted) -> None:
        """Note that a connection has a request of a tenant, and stays."""
        idle = self._idle[accepted.place]
        idle.pop(accepted, None)
        if not idle:
            del self._idle[accepted.place]

    def leave(self, accepted: Accepted) -> None:
        """Stop counting a connection."""
        self.busy(accepted)
        self._open[accepted.place] -= 1
        if not self._open[accepted.place]:
            del self._open[accepted.place]

    def _drop_one(self, places: list[str]) -> None:
        place = next((place for place in places if place in self._idle), None)
        if place is None:
            raise Crowded
        longest = next(iter(self._idle[place]))
        self.busy(longest)
        longest.drop()


class Bodies:
    """The bytes of bodies read but not yet written, over all connections; reading stops when they reach `most`."""

    def __init__(self, most: int) -> None:
        self._most, self._total = most, 0
        self._held: dict[BodyFlow, int] = {}
        # The flows that are reading, and those that wait for room.
        self._reading: dict[BodyFlow, None] = {}
        self._waiting: dict[BodyFlow, None] = {}

    def hold(self, flow: BodyFlow, size: int) -> None:
        """Note the number of bytes that a connection holds, and pause its reading until it asks again."""
        flow.pause_reading()
        self._waiting.pop(flow, None)
        self._reading.pop(flow, None)
        self._total += size - self._held.get(flow, 0)
        self._held[flow] = size
        if self._total >= self._most:
            # This includes flows that are ready to be read in this turn of the loop.
            for each in self._reading:
                each.pause_reading()
            self._waiting |= self._reading
            self._reading.clear()

    def ask(self, flow: BodyFlow) -> None:
        """Note that a connection holds nothing, and resume its reading as soon as there is room."""
        self._waiting[flow] = None
        self._release(flow)

    def leave(self, flow: BodyFlow) -> None:
        """Note that a connection has no body."""
        self._waiting.pop(flow, None)
        self._reading.pop(flow, None)
        self._release(flow)

    def _release(self, flow: BodyFlow) -> None:
        self._total -= self._held.pop(flow, 0)
        if self._total < self._most:
            for each in self._waiting:
                each.read()
            self._reading |= self._waiting
            self._waiting.clear()


class BodyFlow(FlowControl):
    """The flow of one connection: a piece of a body is read when the application asks for it and there is room."""

    def __init__(self, connection: Connection, transport: asyncio.Transport, bodies: Bodies) -> None:
        super().__init__(transport)
        self._connection, self.bodies = connection, bodies

    def resume_reading(self) -> None:
        """Called by uvicorn when the application asks for more, and at the end of an answer."""
        cycle = self._connection.cycle
        if cycle is None or cycle.response_complete or not (cycle.more_body or cycle.body):
            self.bodies.leave(self)
            self._set_most(_HEAD)
            super().resume_reading()
        elif not cycle.body:
            # Everything read before has been written by now.
            self.bodies.ask(self)

    def read(self) -> None:
        self._set_most(_READ)
        super().resume_reading()

    def _set_most(self, size: int) -> None:
        self._transport.max_size = size  # type: ignore[attr-defined]


class Accepted(socket.socket):
    """The socket of a connection. `place` identifies its address; `connections` counts it until it is closed."""

    def __init__(self, accepted: socket.socket, place: str) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self.place = place
        self.connections: Connections | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, seconds: float) -> None:
        """Close the connection unless it is `taken` within this time: its TLS handshake does not end."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self.drop)

    def taken(self, transport: asyncio.Transport) -> None:
        """Note that the handshake is over."""
        self._transport = transport
        self._stop()

    def drop(self) -> None:
        """Close the connection now, even with unsent data."""
        if self._transport is not None:
            self._transport.abort()
        else:
            with contextlib.suppress(OSError):
                self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        _ACCEPTED.pop(self.fileno(), None)
        super().close()
        self._stop()
        if self.connections is not None:
            self.connections.leave(self)
            self.connections = None

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


# By descriptor, because asyncio shows a protocol nothing else of its socket.
_ACCEPTED: dict[int, Accepted] = {}


class Listener(socket.socket):
    """A listening socket that counts its connections. An excess one is closed; without TLS it gets an answer first."""

    def __init__(self, family: int, connections: Connections, *, tls: bool) -> None:
        # asyncio sends at once (TCP_NODELAY) on sockets that name their protocol.
        super().__init__(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._connections, self._tls, self._calls = connections, tls, 0

    def accept(self) -> tuple[socket.socket, Any]:
        self._calls += 1
        if self._calls % (_AT_ONCE + 1) == 0:
            # The loop calls again after its other work.
            raise BlockingIOError
        found, address = super().accept()
        accepted = Accepted(found, place_of(address[0]))
        try:
            self._connections.enter(accepted)
        except Crowded as error:
            with contextlib.suppress(OSError):
                accepted.setblocking(False)
                if not self._tls:
                    accepted.send(_refused(error))
            accepted.close()
            raise ConnectionAbortedError from None
        _ACCEPTED[accepted.fileno()] = accepted
        accepted.expect(Connection.head_s)
        return accepted, address


class Connection(H11Protocol):
    """A connection that ends if, for `head_s` seconds, a request's head is incomplete or no byte of an answer is read.

    uvicorn's own class waits for ever, so that clients which send or read nothing could take all connections.
    """

    head_s = 30.0
    # The number of answers before a known token came.
    strange = 0
    _accepted: Accepted | None = None
    _timer: asyncio.TimerHandle | None = None
    _unsent = 0
    _over = False

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # The `state` of requests.
        self.app_state = {**self.app_state, "connection": self}

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.max_size = _HEAD
        self._accepted = _ACCEPTED.get(transport.get_extra_info("socket").fileno())
        if self._accepted is not None:
            self._accepted.taken(transport)
            if self._accepted.connections is not None:
                self.flow = BodyFlow(self, transport, self._accepted.connections.bodies)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle = self.cycle
        # The rest of a body is discarded if the answer came before its end.
        if isinstance(self.flow, BodyFlow) and cycle is not None and cycle.body and not cycle.response_complete:
            self.flow.bodies.hold(self.flow, len(cycle.body))
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._stop()
        if isinstance(self.flow, BodyFlow):
            self.flow.bodies.leave(self.flow)
        super().connection_lost(exc)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """A context for a tenant's request, in which the connection is not dropped for another one."""
        if self._accepted is not None and self._accepted.connections is not None:
            self._accepted.connections.busy(self._accepted)
        try:
            yield
        finally:
            if self._accepted is not None and self._accepted.connections is not None:
                self._accepted.connections.idle(self._accepted)

    @property
    def clogged(self) -> bool:
        """Whether the client does not read as fast as it is answered."""
        return bool(self.flow.write_paused)

    async def drained(self) -> None:
        """Wait until the connection is no longer clogged, or closed."""
        await self.flow.drain()

    def _watch(self) -> None:
        """Run the timer while there is no request, and while an answer waits to be read."""
        working = self.cycle is not None and not self.cycle.response_complete
        if working and not self.clogged:
            self._stop()
        elif self._timer is None and not self._over:
            self._wait()

    def _wait(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(self.head_s, self._late)

    def _late(self) -> None:
        self._timer = None
        if self.transport.get_write_buffer_size() < self._unsent:
            self._wait()
        else:
            # `close` would wait until everything was read.
            self.transport.abort()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def place_of(host: str) -> str:
    """The key by which an address is counted; for IPv6 the /64 network, because a client has many addresses there."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


def connections_for(asked: int) -> int:
    """The number of connections that descriptors allow, at most `asked`, once the process's limit is raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        return asked
    return min(asked, max((soft - _OTHER_FILES) // 2, 1))


def _refused(error: Crowded) -> bytes:
    """The answer to a connection that is not accepted."""
    body = json.dumps(asdict(RefusalRecord(as_record(error)))).encode()
    head = (
        f"HTTP/1.1 {error.status} Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        f"Retry-After: {RETRY_S}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
