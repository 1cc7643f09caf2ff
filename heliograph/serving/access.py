"""What routes take: the server, who asks, and parameters with their forms."""

from __future__ import annotations

import base64
import binascii
import contextlib
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request
from fastapi.security import HTTPBearer

from heliograph.serving.refusals import Refused
from heliograph.serving.site import Site
from heliograph.serving.tenants import Tenant

MAX_BYTES = 1 << 40

Fingerprint = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="an artifact: its fingerprint, 64 hex digits")]
AskedFingerprint = Annotated[str, Query(pattern="^[0-9a-f]{64}$", description="an artifact's fingerprint")]
ClientName = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="a client: the name of its key, 32 hex digits")]
AskedClient = Annotated[str, Query(pattern="^[0-9a-f]{32}$", description="the name of a client's key")]
Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="the SHA-256 of all bytes")]
AskedDigest = Annotated[str, Query(pattern="^[0-9a-f]{64}$", description="the digest of a complete upload")]
JobId = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="32 hexadecimal digits that the client chose")]
KeyName = Annotated[str, Query(pattern="^[a-z0-9]+(/[a-z0-9]+){0,2}$", max_length=60, description="an evaluation key")]
Size = Annotated[int, Query(ge=0, le=MAX_BYTES)]

_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
BODY: dict[str, Any] = {"requestBody": {"content": _BINARY, "required": True}}
BYTES: dict[int | str, dict[str, Any]] = {200: {"content": _BINARY}}

_BEARER = HTTPBearer(auto_error=False, description="the token that `heliograph token` made")


def _site(request: Request) -> Site:
    site = request.app.state.site
    assert isinstance(site, Site)
    return site


Here = Annotated[Site, Depends(_site)]


def _tenant(request: Request, site: Here, _: Annotated[object, Depends(_BEARER)]) -> Tenant:
    token = _token(request.headers.get("authorization", ""))
    known = None if token is None else site.tenants.of_token(token)
    if known is None:
        raise Refused(
            401,
            "no token, or one that this server does not know",
            hint="send Authorization: Bearer TOKEN; the operator makes tokens with heliograph token",
        )
    request.state.tenant = known.name
    site.crowd.enter(known.number)
    # Called by the outermost part of the application when the request is over (answers.py).
    request.state.leave = lambda: site.crowd.leave(known.number)
    return known


Known = Annotated[Tenant, Depends(_tenant)]


def _operator(known: Known) -> Tenant:
    if not known.operator:
        raise Refused(403, "this is for the operator's token", hint="heliograph token NAME --operator makes one")
    return known


Operator = Annotated[Tenant, Depends(_operator)]


def _token(header: str) -> str | None:
    """The token of a header: a bearer's, or the password of HTTP's basic scheme, which browsers ask for."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
    return None
