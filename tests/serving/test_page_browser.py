"""The operator's page as a browser shows it, where Chromium is installed."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from helpers.serving import Running
from PIL import Image
from runtime.support import sample, toy_artifact

import heliograph as hg

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


@pytest.fixture
def address(running: Running) -> Iterator[str]:
    """The page through a proxy that knows the operator's token: a browser without a head has nobody to ask for it."""
    basic = base64.b64encode(f"operator:{running.operator}".encode()).decode()

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = httpx.get(running.url + self.path, headers={"Authorization": f"Basic {basic}"}, timeout=60)
            self.send_response(answer.status_code)
            for name in ("Content-Type", "Content-Security-Policy"):
                self.send_header(name, answer.headers[name])
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


def browse(folder: Path, *options: str) -> str:
    assert BROWSER is not None
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_page_in_a_browser(
    address: str, remote: hg.RemoteServer, running: Running, client: hg.Client, tmp_path: Path
) -> None:
    job = remote.submit(client.encrypt(sample()))
    running.get(f"/v1/jobs/{job}?wait=30")
    # What the browser has made of the text: every table is closed, every row where it belongs.
    shown = browse(tmp_path, "--dump-dom", address)
    assert toy_artifact().fingerprint in shown
    assert "1 of 1 workers live" in shown
    row = re.search(rf'<tr><td data-name="job"><code>{job}</code></td>(.*?)</tr>', shown)
    assert row is not None
    assert '<td data-name="tenant">first</td>' in row[1]
    assert '<td data-name="state">done</td>' in row[1]
    assert running.operator not in shown
    for width in (1200, 420):
        file = tmp_path / f"page{width}.png"
        browse(tmp_path, f"--screenshot={file}", f"--window-size={width},900", "--hide-scrollbars", address)
        with Image.open(file) as image:
            assert image.size == (width, 900)
            # Nothing is cut off: the last column of pixels is empty. Text and lines: many pixels are not the ground's.
            assert set(image.crop((width - 2, 0, width, 900)).convert("L").tobytes()) == {255}
            assert sum(image.convert("L").histogram()[:128]) > 1000
    remote.result(job)
