"""Errors as HTTP answers: every refusal is JSON with our own text, and no request leads to a bare 500."""

from __future__ import annotations

import errno
import sqlite3
import time
import traceback
from collections.abc import MutableMapping
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heliograph.errors import HeliographError, InternalError
from heliograph.files import of_the_machine
from heliograph.serving.logs import log
from heliograph.serving.refusals import RETRY_S, Refused, status_of
from heliograph.serving.remote.records import ErrorRecord, RefusalRecord, as_record, reworded

_MAX_SHOWN = 300
# In the format of routes' `responses`, so that the OpenAPI description shows a refusal's form.
REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": RefusalRecord, "description": "The request is refused; the error says why and what to try"},
    "5XX": {"model": RefusalRecord, "description": "The server cannot carry it out now"},
}


def refusal(error: HeliographError, status: int | None = None) -> JSONResponse:
    """The answer for an error."""
    return _answered(as_record(error), status_of(error) if status is None else status)


def _answered(record: ErrorRecord, status: int) -> JSONResponse:
    response = JSONResponse(asdict(RefusalRecord(record)), status)
    if status == 401:
        # A line for each: Chromium takes a line with two for a scheme that it does not know, and asks for no password.
        response.headers.append("WWW-Authenticate", "Bearer")
        response.headers.append("WWW-Authenticate", 'Basic realm="heliograph"')
    elif status in (429, 503):
        response.headers["Retry-After"] = str(RETRY_S)
    return response


def add_handlers(app: FastAPI) -> None:
    """Install handlers by which the application answers errors with our own text."""

    async def ours(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HeliographError)
        lacking = of_the_machine(error)
        if lacking is not None:
            return _unexpected(lacking)
        record = reworded(as_record(error), request.app.state.site.places.hidden)
        return _answered(record, status_of(error))

    async def malformed(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        text = f"the request is malformed: {first['msg']}"
        return refusal(
            Refused(422, text[:_MAX_SHOWN], where=place[:_MAX_SHOWN], hint="/openapi.json describes requests")
        )

    async def unrouted(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        text = {404: "there is nothing at this address", 405: "this address does not take that method"}.get(
            error.status_code, "the request cannot be answered"
        )
        answer = refusal(Refused(error.status_code, text, hint="/openapi.json says what there is"))
        answer.headers.update(error.headers or {})
        return answer

    app.add_exception_handler(HeliographError, ours)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, unrouted)


class Outermost:
    """The outermost layer of the application: it logs requests, and turns unexpected errors into answers.

    It also forbids caches to store any answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        begun, status, broken = time.monotonic(), 0, False

        async def noted(message: Message) -> None:
            nonlocal status, broken
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [each for each in message.get("headers", ()) if each[0] != b"cache-control"]
                message = {**message, "headers": [*headers, (b"cache-control", b"no-store")]}
            try:
                await send(message)
            except Exception:
                # uvicorn refuses an answer if the framing of the request broke after its header; it has already closed the
                # connection.
                broken = True
                raise

        try:
            await self._app(scope, receive, noted)
        except Exception as error:
            if broken:
                return
            answer = _unexpected(error)
            if status == 0:
                await answer(scope, receive, noted)
        finally:
            _log_request(scope, status, time.monotonic() - begun)


def _unexpected(error: Exception) -> JSONResponse:
    """The answer for an error that is not the request's fault."""
    full = isinstance(error, sqlite3.OperationalError) and "full" in str(error)
    if full or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
        return refusal(Refused(507, "the disk of the server is full", hint="try again later"))
    if of_the_machine(error) is not None:
        return refusal(Refused(503, "the server has too many files open", hint="try again later"))
    if isinstance(error, sqlite3.OperationalError):
        return refusal(Refused(503, "the queue of the server is busy", hint="try again"))
    place = traceback.extract_tb(error.__traceback__)[-1]
    log("fault", kind=type(error).__name__, text=str(error)[:_MAX_SHOWN], file=place.filename, line=place.lineno)
    return refusal(InternalError("the server failed", hint="its log has the cause; tell its operator"), 500)


def _log_request(scope: MutableMapping[str, Any], status: int, seconds: float) -> None:
    """Write one log line, without the query, which may be anything, and without path parts that no route has."""
    route, state = scope.get("route"), scope["state"]
    tenant, peer = state.get("tenant"), scope.get("client")
    log(
        "request",
        method=str(scope["method"])[:10],
        route=getattr(route, "path", None),
        status=status,
        ms=round(1000 * seconds, 1),
        tenant=None if tenant is None else tenant.name,
        peer=None if peer is None else peer[0],
        **({"refused": state["refused"]} if status == 401 else {}),
    )
