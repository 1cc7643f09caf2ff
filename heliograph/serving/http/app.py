"""The HTTP application (FastAPI) for the clients of a server. /openapi.json describes it.

Only keys and inputs have bodies, which are streamed to the disk; everything else is in paths and queries, which are
short. No answer depends on other tenants, except /health, the page and /metrics for operators.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator

from anyio.to_thread import run_sync
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse

from heliograph.serving.http import metrics, routes_jobs, routes_keys
from heliograph.serving.http.access import BYTES, Fingerprint, Here, Known, Operator
from heliograph.serving.http.answers import REFUSALS, Outermost, add_handlers
from heliograph.serving.http.gate import Gate
from heliograph.serving.http.page import PAGE_HEADERS, page
from heliograph.serving.http.pages import Origins, Pages, checked_origins, page_files
from heliograph.serving.remote.records import ArtifactRecord, HealthRecord
from heliograph.serving.site import Site

router = APIRouter()
_PIECE = 1 << 16


def make_app(site: Site) -> FastAPI:
    """The application of a server; its workers live as long as the application."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_sync(site.start)
        try:
            yield
        finally:
            await run_sync(site.close)

    app = FastAPI(
        title="Heliograph",
        summary="Encrypted inference: evaluation keys and ciphertexts in, ciphertexts out.",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        responses=REFUSALS,
    )
    app.state.site = site
    description: list[bytes] = []

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        if not description:
            description.append(json.dumps(app.openapi()).encode())
        return Response(description[0], media_type="application/json")

    add_handlers(app)
    app.add_middleware(Gate, site=site)
    if site.settings.demo is not None:
        app.add_middleware(Pages, site=site, files=page_files(site.settings.demo))
    if origins := checked_origins(site.settings.origins):
        app.add_middleware(Origins, site=site, origins=origins)
    app.add_middleware(Outermost)
    for each in (router, routes_keys.router, routes_jobs.router):
        app.include_router(each)
    return app


@router.get("/", response_class=HTMLResponse, tags=["operator"])
async def status_page(site: Here, _: Operator) -> HTMLResponse:
    """A page with artifacts, workers and jobs."""
    return HTMLResponse(await run_sync(page, site), headers=PAGE_HEADERS)


@router.get("/metrics", response_class=PlainTextResponse, tags=["operator"])
async def prometheus(site: Here, _: Operator) -> Response:
    """Figures for Prometheus."""
    return Response(await run_sync(metrics.text, site), media_type=metrics.CONTENT_TYPE)


@router.get("/health/live", tags=["operator"])
async def live() -> HealthRecord:
    """That the server answers; without a token. A server that does not is to be started again."""
    return HealthRecord("ok", 0, {})


@router.get("/health", tags=["operator"])
@router.get("/health/ready", tags=["operator"])
async def health(request: Request, site: Here, response: Response) -> HealthRecord:
    """Whether workers live; without a token. The status is 503 where none does. Operators get the jobs by state too."""
    alive = site.pool.alive
    if alive == 0:
        response.status_code = 503
    tenant = getattr(request.state, "tenant", None)
    jobs = await run_sync(metrics.jobs_by_state, site) if tenant is not None and tenant.operator else {}
    return HealthRecord("ok" if alive else "no worker lives", alive, jobs)


@router.get("/v1/artifacts", tags=["artifacts"])
async def artifacts(site: Here, _: Known) -> list[ArtifactRecord]:
    """What is served."""
    return [served.record for served in site.catalog]


@router.get("/v1/artifacts/{artifact}/public", tags=["artifacts"], response_class=Response, responses=BYTES)
async def public(site: Here, _: Known, artifact: Fingerprint) -> StreamingResponse:
    """The public part of an artifact, as a client takes it."""
    data = site.catalog[artifact].public
    return StreamingResponse(
        _pieces(data), media_type="application/octet-stream", headers={"Content-Length": str(len(data))}
    )


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    """The bytes piece by piece, so that unread bytes are not copied for each connection."""
    for place in range(0, len(data), _PIECE):
        yield data[place : place + _PIECE]
