"""What browsers need of a server: leave for pages of other origins, and the example page. Both are off by default."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heliograph.errors import ProgramError
from heliograph.serving.connections import place_of
from heliograph.serving.http.answers import refusal
from heliograph.serving.refusals import Refused
from heliograph.serving.site import Site

_ORIGIN = re.compile(r"https?://[A-Za-z0-9.\-]+(:[0-9]{1,5})?|https?://\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")
# Browsers keep a leave for this long.
_KEPT_S = 600
_AT = "/demo/"
# The files of the package that the page loads, by folder and suffix, and their types.
_FILES = {("demo", ".js"): "text/javascript", ("src", ".js"): "text/javascript", ("wasm", ".js"): "text/javascript"}
_FILES |= {("wasm", ".wasm"): "application/wasm", ("demo", ".css"): "text/css"}
# Only the server's own scripts run, and they reach nothing but the server. No other page shares their process.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; "
    "connect-src 'self'; worker-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def checked_origins(origins: Sequence[str]) -> frozenset[str]:
    """The origins; a ProgramError for one that no browser names so."""
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ProgramError(f"{origin!r} is not an origin", where="--origin", hint="as https://pages.example.org")
    return frozenset(origins)


class Origins:
    """Lets pages of these origins use the server. They need a token like everybody; cookies play no part."""

    def __init__(self, app: ASGIApp, site: Site, origins: frozenset[str]) -> None:
        self._app, self._site, self._origins = app, site, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        origin = "" if headers is None else headers.get("origin", "")
        if headers is None or origin not in self._origins:
            await self._app(scope, receive, send)
            return
        leave = {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            leave["Access-Control-Allow-Methods"] = "GET, PUT, DELETE"
            leave["Access-Control-Allow-Headers"] = "Authorization, Content-Type"
            leave["Access-Control-Max-Age"] = str(_KEPT_S)
            await _in_turn(self._site, Response(status_code=204, headers=leave), scope, receive, send)
            return
        leave["Access-Control-Expose-Headers"] = "Retry-After"
        more = [(name.lower().encode(), value.encode()) for name, value in leave.items()]

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        await self._app(scope, receive, sent)


class Pages:
    """Answers requests for the example page and the files that it loads. They need no token."""

    def __init__(self, app: ASGIApp, site: Site, files: dict[str, tuple[bytes, str]]) -> None:
        self._app, self._site, self._files = app, site, files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._files.get(scope["path"]) if scope["type"] == "http" else None
        if found is None or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        data, kind = found
        answer = Response(data if scope["method"] == "GET" else b"", media_type=kind, headers=_HEADERS)
        await _in_turn(self._site, answer, scope, receive, send)


async def _in_turn(site: Site, answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an answer that needs no token, at the rate of such answers."""
    place = place_of(scope["client"][0]) if scope.get("client") else ""
    try:
        await site.rate_limit.wait(("pages", place))
    except Refused as error:
        await refusal(error)(scope, receive, send)
        return
    await answer(scope, receive, send)


def page_files(folder: Path) -> dict[str, tuple[bytes, str]]:
    """The example page in the folder of the package in JavaScript, by paths: contents and types."""
    page = folder / "demo" / "index.html"
    try:
        found = {_AT: (page.read_bytes(), "text/html")}
        for (part, suffix), kind in _FILES.items():
            for file in sorted((folder / part).glob(f"*{suffix}")):
                found[f"{_AT}{part}/{file.name}"] = file.read_bytes(), kind
    except OSError as error:
        raise ProgramError(
            f"{folder} does not have the example page",
            where="--demo",
            why=error.strerror or str(error),
            hint="give the folder clients/js of the repository, or node_modules/heliograph-client",
        ) from None
    return found
