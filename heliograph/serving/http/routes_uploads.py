"""Uploads over HTTP: a part is streamed to the disk as it comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request

from heliograph.serving.http.access import BODY, MAX_BYTES, Digest, Here, Known, Size, Turn
from heliograph.serving.refusals import Refused
from heliograph.serving.remote.records import UploadRecord
from heliograph.serving.turns import Lane

router = APIRouter(tags=["uploads"])


@router.put("/v1/uploads/{digest}", openapi_extra=BODY)
async def send(
    request: Request,
    site: Here,
    known: Known,
    turn: Turn,
    digest: Digest,
    total: Annotated[int, Query(ge=1, le=MAX_BYTES, description="the size of the whole")],
    offset: Size = 0,
) -> UploadRecord:
    """A part of an upload, from `offset` on; an empty body begins it, or asks how far it is."""
    record = await run_sync(site.uploads.begin, known.number, digest, total)
    if record.complete:
        return record
    part = await run_sync(site.uploads.part, known.number, digest, offset)
    try:
        await _received(request, part.write, site.limits.silence_s, turn)
    finally:
        # Also if the client is gone: what arrived of the part is kept, and the upload resumes from there.
        with anyio.CancelScope(shield=True):
            await run_sync(part.close)
    record = await run_sync(site.uploads.record, known.number, digest)
    if record.received < record.total:
        return record
    async with turn.away(), site.digesting.of(known.number):
        return await run_sync(site.uploads.complete, known.number, digest)


@router.get("/v1/uploads/{digest}")
async def upload(site: Here, known: Known, digest: Digest) -> UploadRecord:
    """How far an upload is."""
    return await run_sync(site.uploads.record, known.number, digest)


@router.delete("/v1/uploads/{digest}", status_code=204)
async def delete_upload(site: Here, known: Known, digest: Digest) -> None:
    """Forget an upload."""
    await run_sync(site.uploads.delete, known.number, digest)


async def _received(request: Request, write: Callable[[bytes], None], silence_s: float, turn: Lane) -> None:
    """Hand the body over as it comes; a refusal where the client falls silent or goes away in the middle of it."""
    while await _piece(request, write, silence_s, turn):
        pass


async def _piece(request: Request, write: Callable[[bytes], None], silence_s: float, turn: Lane) -> bool:
    """Hand over the next piece of the body, and say whether there is more.

    It is written, and nothing refers to it any longer, before the next one is asked for: the budget of bodies counts on
    that (connections.py). `request.stream` would keep it meanwhile.
    """
    try:
        async with turn.away():
            with anyio.fail_after(silence_s):
                message = await request.receive()
    except TimeoutError:
        raise Refused(408, f"nothing came for {silence_s:g} s", hint="resume where the upload stopped") from None
    if message["type"] == "http.disconnect":
        # Nobody receives this; it ends the request.
        raise Refused(400, "the connection ended in the middle of the part")
    if message["body"]:
        await run_sync(write, message["body"])
    return bool(message["more_body"])
