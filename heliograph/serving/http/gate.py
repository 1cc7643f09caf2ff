"""The gate: it rejects requests without a known token before bodies, threads and the database; tenants take turns."""

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
_PUBLIC = ("/health", "/health/live", "/health/ready", "/openapi.json")
# The most answers on a connection before a known token comes.
_STRANGE_ANSWERS = 20


class Gate:
    """Checks the tokens of requests, and divides the server among their tenants.

    A request that passes has `tenant` and `lane` in its `state`. Public paths have the rate limit of requests without a
    token; their requests have no `lane`, and a `tenant` only if the token is known.
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
        """Answer a tenant's request when its turn comes."""
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
    """A `send` for a stranger's answer that closes the connection after too many, or if an unread body follows."""
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
    """A `send` for a tenant's answer that gives up the turn while the client does not read."""

    async def sent(message: Message) -> None:
        if connection is not None and connection.clogged:
            async with lane.away():
                await connection.drained()
        await send(message)

    return sent


def _token(header: str) -> str | None:
    """The token in a header: a bearer token, or the password of HTTP's basic scheme, which browsers ask for."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
    return None
