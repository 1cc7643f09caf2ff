"""Jobs over HTTP: submit, wait or watch, fetch, delete."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Annotated

import anyio
from anyio.to_thread import run_sync
from fastapi import APIRouter, Query
from fastapi.responses import Response, StreamingResponse

from heliograph.files import of_the_machine, open_file
from heliograph.serving.access import BYTES, AskedClient, AskedDigest, AskedFingerprint, Here, JobId, Known
from heliograph.serving.jobs import has_ended
from heliograph.serving.records import JobRecord
from heliograph.serving.refusals import Refused, nothing_there

router = APIRouter(tags=["jobs"])
_BLOCK = 1 << 20
# How often a job is checked for those who wait for it, besides every time that some job ends.
_LOOK_S = 0.25
_MAX_WAIT_S = 60.0
# Proxies close connections on which nothing arrives.
_KEEP_ALIVE_S = 10.0


@router.put("/v1/jobs/{id}")
async def submit(
    site: Here, known: Known, id: JobId, artifact: AskedFingerprint, client: AskedClient, upload: AskedDigest
) -> JobRecord:
    """Accept a job on a complete upload of encrypted inputs. The same request again is answered with the same job."""
    async with site.submitting.of(known.number):
        return await run_sync(site.submit, known.number, id, artifact, client, upload)


@router.get("/v1/jobs")
def jobs(site: Here, known: Known) -> list[JobRecord]:
    """The token's jobs, the latest first; at most a thousand."""
    return site.jobs.records(known.number)


@router.get("/v1/jobs/{id}")
async def job(
    site: Here,
    known: Known,
    id: JobId,
    wait: Annotated[float, Query(ge=0, le=_MAX_WAIT_S, description="wait this many seconds for its end")] = 0.0,
) -> JobRecord:
    """How far a job is; with `wait` as soon as it has ended, or when the time is over."""
    end = time.monotonic() + wait
    while True:
        with site.bell.listening() as ended:
            record = await run_sync(site.jobs.record, known.number, id)
            left = end - time.monotonic()
            if has_ended(record) or left <= 0:
                return record
            await _until(ended, min(_LOOK_S, left))


@router.get(
    "/v1/jobs/{id}/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def events(site: Here, known: Known, id: JobId) -> StreamingResponse:
    """The job's progress as server-sent events, each with the job as JSON; the stream ends with the job."""
    first = await run_sync(site.jobs.record, known.number, id)

    async def stream() -> AsyncIterator[str]:
        record, said = first, time.monotonic()
        yield _event(record)
        while not has_ended(record):
            try:
                with site.bell.listening() as ended:
                    found = await run_sync(site.jobs.record, known.number, id)
                    if found == record:
                        await _until(ended, _LOOK_S)
            except Refused:
                yield "event: gone\ndata: {}\n\n"
                return
            if found != record:
                record, said = found, time.monotonic()
                yield _event(record)
            elif time.monotonic() - said > _KEEP_ALIVE_S:
                said = time.monotonic()
                yield ": still there\n\n"

    return StreamingResponse(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


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
def delete_job(site: Here, known: Known, id: JobId) -> None:
    """Forget a job and its result; where it has not ended it is stopped."""
    site.jobs.delete(known.number, id)


async def _until(ended: asyncio.Event, seconds: float) -> None:
    """Wait until a job has ended, whichever, for so many seconds at most."""
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
    # Of the open file: the path may be gone by now.
    return file, os.fstat(file.fileno()).st_size


async def _blocks(file: IO[bytes], sent: Callable[[], None]) -> AsyncIterator[bytes]:
    """The file block by block; `sent` is called when the last one is on its way."""
    try:
        while block := await run_sync(file.read, _BLOCK):
            yield block
        await run_sync(sent)
    finally:
        file.close()
