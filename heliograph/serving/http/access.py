"""The parameters of routes and their formats: the server, the tenant, names in paths and queries."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request
from fastapi.security import HTTPBearer

from heliograph.serving.fairness import Lane
from heliograph.serving.queue.tenants import Tenant
from heliograph.serving.refusals import Refused
from heliograph.serving.site import Site

Fingerprint = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="an artifact: its fingerprint, 64 hex digits")]
AskedFingerprint = Annotated[str, Query(pattern="^[0-9a-f]{64}$", description="an artifact's fingerprint")]
ClientName = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="a client: the name of its key, 32 hex digits")]
AskedClient = Annotated[str, Query(pattern="^[0-9a-f]{32}$", description="the name of a client's key")]
AskedDigest = Annotated[
    str, Query(pattern="^[0-9a-f]{64}$", description="the last 32 bytes of the body, as 64 hexadecimal digits")
]
JobId = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="32 hexadecimal digits that the client chose")]
KeyName = Annotated[str, Path(pattern="^[a-z0-9]+(/[a-z0-9]+){0,2}$", max_length=60, description="an evaluation key")]

_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
BODY: dict[str, Any] = {"requestBody": {"content": _BINARY, "required": True}}
BYTES: dict[int | str, dict[str, Any]] = {200: {"content": _BINARY}}

_BEARER = HTTPBearer(auto_error=False, description="the token that `heliograph token` made")


async def _site(request: Request) -> Site:
    site = request.app.state.site
    assert isinstance(site, Site)
    return site


Here = Annotated[Site, Depends(_site)]


async def _tenant(request: Request, _: Annotated[object, Depends(_BEARER)]) -> Tenant:
    """The tenant of the request's token (gate.py)."""
    tenant = request.state.tenant
    assert isinstance(tenant, Tenant)
    return tenant


Known = Annotated[Tenant, Depends(_tenant)]


async def _lane(request: Request) -> Lane:
    lane = request.state.lane
    assert isinstance(lane, Lane)
    return lane


# The turn of a tenant's request, to be given up while the request waits.
Turn = Annotated[Lane, Depends(_lane)]


async def _operator(known: Known) -> Tenant:
    if not known.operator:
        raise Refused(403, "this is for the operator's token", hint="heliograph token NAME --operator makes one")
    return known


Operator = Annotated[Tenant, Depends(_operator)]
