"""Evaluation keys over HTTP: a key set for each client and artifact, each key sent as a file."""

from __future__ import annotations

from anyio.to_thread import run_sync
from fastapi import APIRouter, Request

from heliograph.serving.http.access import BODY, ClientName, Fingerprint, Here, KeyName, Known, Turn
from heliograph.serving.http.bodies import received
from heliograph.serving.remote.records import KeysRecord

router = APIRouter(tags=["keys"])


@router.put("/v1/keys/{artifact}/{client}")
async def begin_keys(site: Here, known: Known, artifact: Fingerprint, client: ClientName) -> KeysRecord:
    """Begin the key set of a client, or say what is missing of it. Refused where no worker could use it."""
    served = site.catalog[artifact]
    served.require_fit()
    others = {each.record.artifact: each.keys for each in site.catalog}
    return await run_sync(site.keysets.begin, known.number, artifact, client, served.keys, others)


@router.get("/v1/keys/{artifact}/{client}")
async def keys(site: Here, known: Known, artifact: Fingerprint, client: ClientName) -> KeysRecord:
    """What of a key set is here."""
    return await run_sync(site.keysets.record, known.number, artifact, client, site.catalog[artifact].keys)


@router.put("/v1/keys/{artifact}/{client}/{name:path}", openapi_extra=BODY)
async def take_key(
    request: Request,
    site: Here,
    known: Known,
    turn: Turn,
    artifact: Fingerprint,
    client: ClientName,
    name: KeyName,
) -> KeysRecord:
    """Make the body the key of that name; one that is here already stays."""
    expected = site.catalog[artifact].keys
    found = await run_sync(site.keysets.taken, known.number, artifact, client, name, expected)
    if found is not None:
        return found
    most = expected[name].bytes + site.limits.frame_bytes
    async with received(request, site, known, turn, most) as upload, turn.away(), site.taking.of(known.number):
        return await run_sync(site.keysets.take, known.number, artifact, client, name, upload, expected)


@router.delete("/v1/keys/{artifact}/{client}", status_code=204)
async def delete_keys(site: Here, known: Known, artifact: Fingerprint, client: ClientName) -> None:
    """Forget a key set; jobs of it that have not ended end with an error."""
    await run_sync(site.keysets.delete, known.number, artifact, client)
