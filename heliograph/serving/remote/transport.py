"""Requests to a server that may be away for a while: retried, bounded, with refusals raised as our errors."""

from __future__ import annotations

import random
import re
import ssl
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from heliograph import errors
from heliograph.errors import HeliographError, InsecureWarning, SecurityError, StatusError, WireError, said
from heliograph.files import Bytes
from heliograph.serving.remote.exchange import BoundedTransport, Exchange
from heliograph.serving.remote.records import ERRORS, ErrorRecord, RefusalRecord, as_error, read_record
from heliograph.strict_json import strict_json
from heliograph.texts import shown

# The most that is read of JSON, of one stream of events, of one event, and of a refusal: bytes, and values.
_MAX_JSON, _MAX_VALUES = 1 << 22, 1 << 18
_MAX_EVENTS, _MAX_EVENT = 1 << 20, 1 << 14
_MAX_ERROR, _MAX_WORDS = 1 << 16, 1000
# Bytes that are sent at once.
_PIECE = 1 << 18
# The most characters of the connection's own error texts, which quote the server.
_MAX_WHY = 300
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,200}")
_FIRST_REST_S, _LONGEST_REST_S = 0.1, 5.0
# Statuses after which a retry may succeed.
_AGAIN = (408, 429, 502, 503, 504)
# After a fault of the server there is one retry: most faults recur every time.
_FAULT = 500
Query = Mapping[str, str | int | float]


class Transport:
    """HTTP to one server. If the server is away or too busy, requests are retried for `patience_s`.

    Each request may take `timeout_s` with its answer, and one more second for every 32 kB of them. Redirects count as
    refusals.

    Raises SecurityError for an address without TLS that is not on this machine, unless `plain_http` is given, and for
    `verify=False`, unless `allow_insecure` is given. A server's refusal is raised as the error that it names, with its
    text.
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        verify: bool | str,
        plain_http: bool,
        allow_insecure: bool,
        timeout_s: float,
        patience_s: float,
    ) -> None:
        try:
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
        except ValueError:
            sound = False
        if not sound:
            raise WireError(f"{url!r} is not the address of a server", hint="as https://models.example.org")
        if parts.scheme == "http" and not plain_http and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise SecurityError(
                f"{url} has no TLS: others on the way could read the token",
                where="RemoteServer",
                hint=said("use https; on a network of your own pass {plain_http=True}"),
            )
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise errors.ProgramError(
                "that is not a token of a server",
                where="RemoteServer",
                hint="give the text that `heliograph token` printed",
            )
        self.url, self.timeout_s, self._patience_s = url.rstrip("/"), timeout_s, patience_s
        try:
            self._client = httpx.Client(
                base_url=self.url,
                headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
                timeout=timeout_s,
                transport=BoundedTransport(_context(parts.scheme, verify, allow_insecure)),
                follow_redirects=False,
                trust_env=False,
            )
        except httpx.InvalidURL as error:
            raise WireError(f"{url!r} is not the address of a server", why=str(error)) from None

    def close(self) -> None:
        self._client.close()

    def json(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        data: Bytes | None = None,
        sent: Callable[[int], None] | None = None,
        patience_s: float | None = None,
    ) -> Any:
        """The JSON of the server's answer, None if the answer is empty.

        `data` is sent whole, and again with each retry; `sent` is called with the number of bytes sent so far.
        `patience_s` is for a first contact: the patience of this request.
        """
        text = self.read(method, path, query, data, sent, patience_s=patience_s)
        try:
            return strict_json(text, _MAX_VALUES) if text else None
        except ValueError:
            raise self._strange() from None

    def read(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        data: Bytes | None = None,
        sent: Callable[[int], None] | None = None,
        max_bytes: int = _MAX_JSON,
        patience_s: float | None = None,
    ) -> bytes:
        """The bytes of the server's answer, at most `max_bytes`; see `json`."""
        headers = None if data is None else {"Content-Length": str(len(data))}
        failed = False
        for rest in self._rests(f"{method} {path}", patience_s):
            try:
                content = None if data is None else _pieces(data, sent)
                more = {"params": query, "content": content, "headers": headers}
                with self._stream(method, path, max_bytes, patience_s, **more) as response:
                    if response.status_code in _AGAIN or (response.status_code == _FAULT and not failed):
                        failed = failed or response.status_code == _FAULT
                        rest(as_error(_said(response), ""), _asked_s(response))
                        continue
                    if not 200 <= response.status_code < 300:
                        raise self._refusal(response)
                    return self._body(response, max_bytes)
            except httpx.TransportError as error:
                why = shown(f"{type(error).__name__}: {error}", _MAX_WHY)
                hint = "" if patience_s is None else "is the server running at this address?"
                rest(HeliographError(f"{self.url} does not answer", why=why, hint=hint))
        raise AssertionError("unreachable")

    def events(self, path: str) -> Iterator[Any]:
        """The data of server-sent events, until the stream ends or breaks; the error that broke it is not raised.

        The stream also ends when its time is over: the caller can call again for more.
        """
        try:
            with self._stream("GET", path, _MAX_EVENTS) as response:
                if response.status_code != 200:
                    return
                size, line = 0, bytearray()
                for block in _blocks(response):
                    size += len(block)
                    first, *more = block.split(b"\n")
                    line += first
                    for following in more:
                        if line.startswith(b"data: "):
                            yield strict_json(bytes(line[6:]), _MAX_WORDS)
                        line = bytearray(following)
                    if size > _MAX_EVENTS or len(line) > _MAX_EVENT:
                        return
        except (httpx.TransportError, ValueError, WireError):
            return

    def _stream(self, method: str, path: str, max_bytes: int, patience_s: float | None = None, **more: Any) -> Any:
        """A request and its answer, of which at most `max_bytes` are read."""
        exchange = Exchange(self.timeout_s, max_bytes)
        # 0 means a single try, which takes its time all the same.
        times = {
            "connect": min(self.timeout_s, patience_s or self.timeout_s),
            "pool": self.timeout_s,
            "read": exchange,
            "write": exchange,
        }
        return self._client.stream(method, path, extensions={"timeout": times}, **more)

    def _rests(self, what: str, patience_s: float | None = None) -> Iterator[Any]:
        """For each try, a function that waits before the next try, or raises its error if patience is over."""
        patience = self._patience_s if patience_s is None else patience_s
        end, pause = time.monotonic() + patience, _FIRST_REST_S

        def rest(error: HeliographError, asked: float = 0.0) -> None:
            nonlocal pause
            if time.monotonic() + max(pause, asked) > end:
                raise HeliographError(
                    f"{error.what} ({what}, tried for {patience:g} s)",
                    why=error.why,
                    hint=error.hint or "what was sent stays there; call again to send the rest",
                ) from None
            # Pauses are random, so that clients do not all return at once after an outage.
            time.sleep(max(pause * random.uniform(0.5, 1.0), asked * random.uniform(1.0, 1.5)))
            pause = min(2 * pause, _LONGEST_REST_S)

        while True:
            yield rest

    def _body(self, response: httpx.Response, max_bytes: int) -> bytes:
        body = bytearray()
        for block in _blocks(response):
            body += block
            if len(body) > max_bytes:
                raise WireError(f"{self.url} answers more than the {max_bytes} bytes that are read here")
        return bytes(body)

    def _refusal(self, response: httpx.Response) -> HeliographError:
        """The error in a refusal, as an exception."""
        said = _said(response)
        error = as_error(said, self.url)
        if said.kind in ERRORS and response.status_code not in (401, 404, 409):
            return error
        return StatusError(response.status_code, error.what, where=self.url, why=error.why, hint=error.hint)

    def _strange(self) -> WireError:
        return WireError(f"{self.url} does not answer like a Heliograph server", hint="look at the address")


def _pieces(data: Bytes, sent: Callable[[int], None] | None) -> Iterator[bytes]:
    for start in range(0, len(data), _PIECE):
        if sent is not None:
            sent(start)
        yield bytes(data[start : start + _PIECE])


def _blocks(response: httpx.Response) -> Iterator[bytes]:
    """The body as it arrives, not decompressed: a hostile server could expand a few bytes to gigabytes."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise WireError("the server sends a packed answer, which it was not asked for", hint="look at the address")
    yield from response.iter_raw()


def _asked_s(response: httpx.Response) -> float:
    """The seconds that the server asks to wait, if any; the value is untrusted."""
    asked = response.headers.get("retry-after", "")
    return float(asked) if re.fullmatch("[0-9]{1,2}", asked) else 0.0


def _said(response: httpx.Response) -> ErrorRecord:
    """The error in a refusal; for an answer that is not from one of our servers, the status."""
    text = bytearray()
    try:
        for block in _blocks(response):
            text += block
            if len(text) > _MAX_ERROR:
                break
        return read_record(RefusalRecord, strict_json(bytes(text), _MAX_WORDS)).error
    except (ValueError, WireError):
        return ErrorRecord("", f"the server answers with status {response.status_code}")


def _context(scheme: str, verify: bool | str, allow_insecure: bool) -> ssl.SSLContext:
    """The TLS context that checks certificates; a SecurityError if checks are off and `allow_insecure` is not given."""
    if verify is False:
        if not allow_insecure:
            raise SecurityError(
                "verify=False checks no certificate: others on the way can read the token and answer for the server",
                where="RemoteServer",
                hint=said(
                    "give the file with the certificate to trust; for a test without secrets, {allow_insecure=True}"
                ),
            )
        warnings.warn(
            "certificates are not checked: others on the way can read the token and answer for the server",
            InsecureWarning,
            stacklevel=4,
        )
    if scheme == "http":
        # No certificates are loaded, and no connection will use them.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if isinstance(verify, bool):
        return httpx.create_ssl_context(verify=verify, trust_env=False)
    try:
        return ssl.create_default_context(cafile=verify)
    except OSError as error:
        raise WireError(f"{verify} holds no certificates to trust", why=error.strerror or str(error)) from None
