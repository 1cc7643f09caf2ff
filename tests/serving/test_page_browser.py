"""The operator's page as a browser shows it, where Chromium is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
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
def address(running: Running) -> str:
    """The page with the operator's token as a password, which Chromium gives when the server asks for it."""
    return running.url.replace("://", f"://operator:{running.operator}@")


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


def test_without_the_token_the_page_is_refused(running: Running, tmp_path: Path) -> None:
    for wrong in (running.url, running.url.replace("://", "://operator:wrong@")):
        assert "1 of 1 workers live" not in browse(tmp_path, "--dump-dom", wrong)
    answer = httpx.get(running.url, timeout=60)
    assert answer.status_code == 401
    assert answer.headers.get_list("WWW-Authenticate") == ["Bearer", 'Basic realm="heliograph"']
