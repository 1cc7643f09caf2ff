"""Jobs over HTTP: submit, wait or watch, fetch, delete."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Annotated, Any

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from heliograph.files import of_the_machine, open_file
from heliograph.serving.fairness import Lane
from heliograph.serving.http.access import (
    BODY,
    BYTES,
    AskedClient,
    AskedDigest,
    AskedFingerprint,
    Here,
    JobId,
    Known,
    Turn,
)
from heliograph.serving.http.bodies import received
from heliograph.serving.queue.jobs import CURSOR, has_ended
from heliograph.serving.refusals import Refused, nothing_there
from heliograph.serving.remote.records import JobRecord

router = APIRouter(tags=["jobs"])
# The bytes of a result in memory at once.
_BLOCK = 1 << 18
# The intervals at which a job is checked: for requests that wait for its end (also checked whenever any job ends), and
# for those that watch its progress.
_LOOK_S, _WATCH_S = 1.0, 0.25
_MAX_WAIT_S = 60.0
# Proxies close connections on which nothing arrives.
_KEEP_ALIVE_S = 10.0
_LINKED: dict[int | str, dict[str, Any]] = {
    200: {"headers": {"Link": {"description": 'the next page, as <...>; rel="next"', "schema": {"type": "string"}}}}
}


@router.put("/v1/jobs/{id}", openapi_extra=BODY)
async def submit(
    request: Request,
    site: Here,
    known: Known,
    turn: Turn,
    id: JobId,
    artifact: AskedFingerprint,
    client: AskedClient,
    digest: AskedDigest,
) -> JobRecord:
    """Accept a job on the encrypted inputs in the body. The same request again is answered with the same job."""
    found = await run_sync(site.expected, known.number, id, artifact, client, digest)
    if isinstance(found, JobRecord):
        return found
    async with received(request, site, known, turn, found) as upload, turn.away(), site.submitting.of(known.number):
        return await run_sync(site.submit, known.number, id, artifact, client, digest, upload)


@router.get("/v1/jobs", responses=_LINKED)
async def jobs(
    site: Here,
    known: Known,
    response: Response,
    before: Annotated[str | None, Query(pattern=CURSOR, description="go on where a page ended")] = None,
) -> list[JobRecord]:
    """The token's jobs, the latest first, in pages of a hundred; where there are more, Link has the next page."""
    page, rest = await run_sync(site.jobs.records, known.number, before)
    if rest is not None:
        response.headers["Link"] = f'</v1/jobs?before={rest}>; rel="next"'
    return page


@router.get("/v1/jobs/{id}")
async def job(
    site: Here,
    known: Known,
    turn: Turn,
    id: JobId,
    wait: Annotated[float, Query(ge=0, le=_MAX_WAIT_S, description="wait this many seconds for its end")] = 0.0,
) -> JobRecord:
    """How far a job is; with `wait` as soon as it has ended, or when the time is over."""
    end = time.monotonic() + wait
    while True:
        with site.notifier.listening() as ended:
            record = await run_sync(site.jobs.record, known.number, id)
            left = end - time.monotonic()
            if has_ended(record) or left <= 0 or not site.tenants.stands(known):
                return record
            await _until(ended, min(_LOOK_S, left), turn)


@router.get(
    "/v1/jobs/{id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def events(site: Here, known: Known, turn: Turn, id: JobId) -> StreamingResponse:
    """The job's progress as server-sent events, each with the job as JSON; they end with the job, or with its token."""
    first = await run_sync(site.jobs.record, known.number, id)

    async def stream() -> AsyncIterator[str]:
        record, said = first, time.monotonic()
        yield _event(record)
        while not has_ended(record) and site.tenants.stands(known):
            try:
                with site.notifier.listening() as ended:
                    found = await run_sync(site.jobs.record, known.number, id)
                    if found == record:
                        await _until(ended, _WATCH_S, turn)
            except Refused:
                yield "event: gone\ndata: {}\n\n"
                return
            if found != record:
                record, said = found, time.monotonic()
                yield _event(record)
            elif time.monotonic() - said > _KEEP_ALIVE_S:
                said = time.monotonic()
                yield ": still there\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream")


@router.get("/v1/jobs/{id}/result", response_class=Response, responses=BYTES)
async def result(site: Here, known: Known, id: JobId) -> StreamingResponse:
    """The encrypted outputs of a job. Once they went out whole they are kept for a short time only; delete the job then."""
    path = await run_sync(site.jobs.result, known.number, id)
    file, size = await run_sync(_opened, path)

    def sent() -> None:
        site.jobs.fetched(known.number, id)

    return StreamingResponse(
        _blocks(file, sent), media_type="application/octet-stream", headers={"Content-Length": str(size)}
    )


@router.delete("/v1/jobs/{id}", status_code=204)
async def delete_job(site: Here, known: Known, id: JobId) -> None:
    """Forget a job and its result; where it has not ended it is stopped."""
    await run_sync(site.jobs.delete, known.number, id)


async def _until(ended: asyncio.Event, seconds: float, turn: Lane) -> None:
    """Wait until any job ends, for at most this many seconds."""
    async with turn.away():
        with anyio.move_on_after(seconds):
            await ended.wait()


def _event(record: JobRecord) -> str:
    return f"event: {record.state}\ndata: {json.dumps(asdict(record))}\n\n"


def _opened(path: Path) -> tuple[IO[bytes], int]:
    try:
        file = open_file(path, follow=False)
    except OSError as error:
        if of_the_machine(error) is not None:
            raise
        raise nothing_there("result") from None
    # The size of the open file: its path may be gone by now.
    return file, os.fstat(file.fileno()).st_size


async def _blocks(file: IO[bytes], sent: Callable[[], None]) -> AsyncIterator[bytes]:
    """The file block by block; `sent` is called when the last block is on its way."""
    try:
        while block := await run_sync(file.read, _BLOCK):
            yield block
        await run_sync(sent)
    finally:
        file.close()
