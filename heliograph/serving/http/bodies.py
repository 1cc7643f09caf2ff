"""The bodies of requests: keys and inputs, each streamed to a file as it comes."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator

import anyio
from anyio.to_thread import run_sync
from fastapi import Request

from heliograph.serving.fairness import Lane
from heliograph.serving.queue.tenants import Tenant
from heliograph.serving.queue.uploads import Upload
from heliograph.serving.refusals import Refused
from heliograph.serving.site import Site


@contextlib.asynccontextmanager
async def received(request: Request, site: Site, known: Tenant, turn: Lane, most: int) -> AsyncIterator[Upload]:
    """The complete body of a request in a file, which is removed at the end unless it was renamed.

    Bodies of more than `most` bytes, without an announced size, or incomplete are refused.
    """
    length = request.headers.get("content-length", "")
    if not re.fullmatch("[0-9]{1,18}", length):
        raise Refused(411, "the request does not say how many bytes its body has", hint="send Content-Length")
    upload = await run_sync(site.uploads.begin, known.number, int(length), most)
    try:
        while await _piece(request, upload, site.limits.silence_s, turn):
            pass
        await run_sync(upload.finish)
        yield upload
    finally:
        # This must run even if the client is gone.
        with anyio.CancelScope(shield=True):
            await run_sync(upload.close)


async def _piece(request: Request, upload: Upload, silence_s: float, turn: Lane) -> bool:
    """Write the next piece of the body; returns whether there is more.

    The piece is written and released before the next one is requested: the budget of bodies relies on that
    (connections.py). `request.stream` would keep it meanwhile.
    """
    try:
        async with turn.away():
            with anyio.fail_after(silence_s):
                message = await request.receive()
    except TimeoutError:
        raise Refused(408, f"nothing came for {silence_s:g} s", hint="send the whole again") from None
    if message["type"] == "http.disconnect":
        # Nobody receives this; it ends the request.
        raise Refused(400, "the connection ended in the middle of the body")
    if message["body"]:
        await run_sync(upload.write, message["body"])
    return bool(message["more_body"])
