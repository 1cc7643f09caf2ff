"""The gate: requests without a known token end here, before bodies, threads and the database; tenants take turns."""

from __future__ import annotations

import base64
import binascii
import contextlib

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heliograph.serving.connections import Connection, place_of
from heliograph.serving.fairness import Lane
from heliograph.serving.http.answers import refusal
from heliograph.serving.queue.tenants import Tenant
from heliograph.serving.refusals import Refused
from heliograph.serving.site import Site

# Paths that need no token.
_PUBLIC = ("/health", "/openapi.json")
# So many answers a connection has before a token that is known comes.
_STRANGE_ANSWERS = 20


class Gate:
    """The tokens of requests, and the shares of the tenants that they name.

    A request that passes has `tenant` and `lane` in its `state`. Public paths have the rate limit of requests without a
    token; their requests have no `lane`, and a `tenant` only where the token is known.
    """

    def __init__(self, app: ASGIApp, site: Site) -> None:
        self._app, self._site = app, site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, connection = Headers(scope=scope), scope["state"].get("connection")
        token = _token(headers.get("authorization", ""))
        tenant = None if token is None else self._site.tenants.of_token(token)
        if tenant is not None:
            scope["state"]["tenant"] = tenant
        else:
            scope["state"]["refused"] = "no token" if token is None else "unknown token"
            send = _closing(send, headers, connection)
        path = scope["path"] if scope["path"] in _PUBLIC else None
        if tenant is not None and path is None:
            await self._known(tenant, connection, scope, receive, send)
            return
        place = place_of(scope["client"][0]) if scope.get("client") else ""
        try:
            await self._site.rate_limit.wait((path, place))
            if path is None:
                raise Refused(
                    401,
                    "no token, or one that this server does not know",
                    hint="send Authorization: Bearer TOKEN; the operator makes tokens with heliograph token",
                )
        except Refused as error:
            await refusal(error)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _known(
        self, tenant: Tenant, connection: Connection | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Have a tenant's request answered, when it is its turn."""
        try:
            self._site.open_requests.enter(tenant.number)
        except Refused as error:
            with contextlib.suppress(Refused):
                await self._site.rate_limit.wait(tenant.number)
            await refusal(error)(scope, receive, send)
            return
        try:
            with contextlib.nullcontext() if connection is None else connection.busy():
                async with Lane(self._site.turns, tenant.number) as lane:
                    scope["state"]["lane"] = lane
                    await self._app(scope, receive, _reading(send, lane, connection))
        finally:
            self._site.open_requests.leave(tenant.number)


def _closing(send: Send, headers: Headers, connection: Connection | None) -> Send:
    """Answers to a stranger: after some, and where a body follows that nobody will read, the connection ends."""
    end = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    if connection is not None:
        connection.strange += 1
        end = end or connection.strange >= _STRANGE_ANSWERS

    async def sent(message: Message) -> None:
        if end and message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return sent


def _reading(send: Send, lane: Lane, connection: Connection | None) -> Send:
    """Answers to a tenant, for which no turn is held while it does not read them."""

    async def sent(message: Message) -> None:
        if connection is not None and connection.clogged:
            async with lane.away():
                await connection.drained()
        await send(message)

    return sent


def _token(header: str) -> str | None:
    """The token of a header: a bearer's, or the password of HTTP's basic scheme, which browsers ask for."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
    return None
