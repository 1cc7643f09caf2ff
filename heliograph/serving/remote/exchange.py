"""Connections that bound a whole exchange in time and in bytes; httpx itself only bounds each read."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from heliograph.errors import WireError

# An exchange may take its timeout, and one more second for this many bytes.
_LEAST_RATE = 1 << 15
# Connections of one client, and how long an idle one is kept.
_CONNECTIONS, _KEPT_S = 100, 5.0
# Headers with cookies and redirects, which are dropped: httpx would keep the former and parse the latter.
_UNHEARD = ("set-cookie", "location")
# Bytes that are passed to the system at once.
_PIECE = 1 << 16
# Allowances for an answer's size on the line: its heads, and the framing of chunks.
_HEADS_BYTES, _FRAMED = 1 << 18, 2


class Exchange(float):
    """One request and its answer: the seconds that they may take together, and the seconds used so far.

    It is passed as the timeout of the request's reads and writes. httpcore hands it unchanged to our connection, which
    counts.
    """

    _left_bytes: float
    _begun: float | None
    _moved: int

    def __new__(cls, timeout_s: float, max_bytes: int) -> Exchange:
        made = super().__new__(cls, timeout_s)
        made._begun, made._moved = None, 0
        made._left_bytes = _FRAMED * max_bytes + _HEADS_BYTES
        return made

    def left(self, late: type[Exception]) -> float:
        """The seconds that are left; raises `late` if there are none."""
        now = time.monotonic()
        if self._begun is None:
            self._begun = now
        left = self._begun + float(self) + self._moved / _LEAST_RATE - now
        if left <= 0:
            raise late(f"not over within {now - self._begun:.0f} s")
        return left

    def sent(self, count: int) -> None:
        self._moved += count

    def received(self, count: int) -> None:
        """Count bytes of the answer; a WireError if there are too many."""
        self._moved += count
        self._left_bytes -= count
        if self._left_bytes < 0:
            raise WireError("a server's answer has more bytes than are read here", hint="look at the address")


class BoundedTransport(httpx.HTTPTransport):
    """httpx's transport on connections that obey an `Exchange`."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(verify=context, trust_env=False)
        self._pool.close()
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            max_connections=_CONNECTIONS,
            max_keepalive_connections=_CONNECTIONS,
            keepalive_expiry=_KEPT_S,
            network_backend=_Network(),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        for name in _UNHEARD:
            response.headers.pop(name, None)
        return response


class _Network(httpcore.NetworkBackend):
    """httpcore's own connections, wrapped."""

    def __init__(self) -> None:
        self._made = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._made.connect_tcp(host, port, timeout, local_address, socket_options))

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._made.connect_unix_socket(path, timeout, socket_options))

    def sleep(self, seconds: float) -> None:
        self._made.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    """A connection that counts time and bytes for the `Exchange` passed as its timeout."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not isinstance(timeout, Exchange):
            return self._stream.read(max_bytes, timeout)
        data = self._stream.read(max_bytes, timeout.left(httpcore.ReadTimeout))
        timeout.received(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not isinstance(timeout, Exchange):
            self._stream.write(buffer, timeout)
            return
        for start in range(0, len(buffer), _PIECE):
            piece = buffer[start : start + _PIECE]
            self._stream.write(piece, timeout.left(httpcore.WriteTimeout))
            timeout.sent(len(piece))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
