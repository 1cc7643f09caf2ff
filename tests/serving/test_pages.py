"""Pages in browsers: leave for origins, and the example page. Both are off unless the operator asks for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from runtime.support import toy_artifact

from heliograph.errors import ProgramError
from heliograph.serving.http.app import make_app
from heliograph.serving.http.pages import checked_origins, page_files
from heliograph.serving.site import Site, SiteSettings

PACKAGE = Path(__file__).resolve().parents[2] / "clients" / "js"
HERE, OTHER = "https://pages.example.org", "https://others.example.org"
ASKED = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization"}


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[FastAPI, str]]]:
    """Applications without workers, by what is asked for, each with a token."""
    folder, found, opened = tmp_path_factory.mktemp("pages"), {}, []
    toy_artifact().save(folder / "m.helio")
    for name, more in {"usual": {}, "open": {"origins": (HERE,), "demo": PACKAGE}}.items():
        settings = SiteSettings([folder / "m.helio"], folder / name, memory_bytes=1 << 31, allow_insecure=True, **more)
        opened.append(Site(settings))
        found[name] = make_app(opened[-1]), opened[-1].tenants.add("first")
    yield found
    for site in opened:
        site.close()


def _answer(app: FastAPI, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(asked())


@pytest.mark.parametrize(
    ("name", "origin", "leave"), [("open", HERE, HERE), ("open", OTHER, None), ("usual", HERE, None)]
)
def test_only_pages_of_the_origins_have_leave(
    name: str, origin: str, leave: str | None, sites: dict[str, tuple[FastAPI, str]]
) -> None:
    app, token = sites[name]
    before = _answer(app, "OPTIONS", "/v1/artifacts", {"Origin": origin, **ASKED})
    assert (before.status_code, before.headers.get("access-control-allow-origin")) == (204 if leave else 401, leave)
    assert before.headers.get("access-control-allow-credentials") is None
    found = _answer(app, "GET", "/v1/artifacts", {"Origin": origin, "Authorization": f"Bearer {token}"})
    assert (found.status_code, found.headers.get("access-control-allow-origin")) == (200, leave)
    # A page may read why it is refused.
    refused = _answer(app, "GET", "/v1/artifacts", {"Origin": origin})
    assert (refused.status_code, refused.headers.get("access-control-allow-origin")) == (401, leave)


def test_the_example_page_needs_no_token_and_is_off_by_default(sites: dict[str, tuple[FastAPI, str]]) -> None:
    app, _ = sites["open"]
    page = _answer(app, "GET", "/demo/", {})
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "connect-src 'self'" in page.headers["content-security-policy"]
    kernels = _answer(app, "GET", "/demo/wasm/simd.wasm", {})
    assert (kernels.headers["content-type"], kernels.content[:4]) == ("application/wasm", b"\0asm")
    for path in ("/demo/package.json", "/demo/../pyproject.toml", "/demo/kernels/build.py", "/demo"):
        assert _answer(app, "GET", path, {}).status_code == 401
    assert _answer(app, "PUT", "/demo/", {}).status_code == 401
    assert _answer(sites["usual"][0], "GET", "/demo/", {}).status_code == 401


def test_all_that_the_page_loads_is_served() -> None:
    served = page_files(PACKAGE)
    needed = {f"/demo/src/{file.name}" for file in (PACKAGE / "src").glob("*.js")}
    assert needed | {"/demo/", "/demo/demo/demo.js", "/demo/demo/demo.css", "/demo/wasm/plain.wasm"} <= set(served)


@pytest.mark.parametrize("origin", ["*", "pages.example.org", "https://a.org/", "https://a.org\r\nX: y", "null", ""])
def test_strange_origins_are_refused(origin: str) -> None:
    with pytest.raises(ProgramError, match="not an origin"):
        checked_origins([origin])


def test_a_folder_without_the_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="example page"):
        page_files(tmp_path)
