"""The HTTP application (FastAPI): what a client of a server can ask for. /openapi.json describes it.

Only uploads have bodies, which are streamed to the disk; everything else is in paths and queries, which are short. No
answer depends on other tenants, except /health and, for operators, the page and /metrics.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from anyio.to_thread import run_sync
from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from heliograph.serving import metrics, routes_jobs, routes_keys, routes_uploads
from heliograph.serving.access import BYTES, Fingerprint, Here, Known, Operator
from heliograph.serving.answers import REFUSALS, Outermost, add_handlers
from heliograph.serving.page import PAGE_HEADERS, page
from heliograph.serving.records import ArtifactRecord, HealthRecord
from heliograph.serving.site import Site

router = APIRouter()


def make_app(site: Site) -> FastAPI:
    """The application of a server; its workers live as long as it does."""

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
        redirect_slashes=False,
        responses=REFUSALS,
    )
    app.state.site = site
    add_handlers(app)
    app.add_middleware(Outermost)
    for each in (router, routes_uploads.router, routes_keys.router, routes_jobs.router):
        app.include_router(each)
    return app


@router.get("/", response_class=HTMLResponse, tags=["operator"])
def status_page(site: Here, _: Operator) -> HTMLResponse:
    """A page with artifacts, workers and jobs."""
    return HTMLResponse(page(site), headers=PAGE_HEADERS)


@router.get("/metrics", response_class=PlainTextResponse, tags=["operator"])
def prometheus(site: Here, _: Operator) -> Response:
    """Figures for Prometheus."""
    return Response(metrics.text(site), media_type=metrics.CONTENT_TYPE)


@router.get("/health", tags=["operator"])
def health(site: Here, response: Response) -> HealthRecord:
    """Whether workers live; without a token. The status is 503 where none does."""
    alive = site.pool.alive
    if alive == 0:
        response.status_code = 503
    return HealthRecord("ok" if alive else "no worker lives", alive, metrics.jobs_by_state(site))


@router.get("/v1/artifacts", tags=["artifacts"])
def artifacts(site: Here, _: Known) -> list[ArtifactRecord]:
    """What is served."""
    return [served.record for served in site.catalog]


@router.get("/v1/artifacts/{artifact}/public", tags=["artifacts"], response_class=Response, responses=BYTES)
def public(site: Here, _: Known, artifact: Fingerprint) -> Response:
    """The public part of an artifact, as a client takes it."""
    return Response(site.catalog[artifact].public, media_type="application/octet-stream")
