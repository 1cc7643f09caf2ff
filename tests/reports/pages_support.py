"""How the pages of reports are read, with and without a browser, and an artifact that bootstraps."""

from __future__ import annotations

import functools
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import heliograph as hg

BOOTSTRAPPED = (
    "program p\ninput x: secret slots[16] in [-1, 1]\ny = bootstrap(3 * x * x)\noutput z = y * y - rotate(y, 1)\n"
)


@functools.cache
def bootstrapped() -> hg.Artifact:
    return hg.compile(hg.parse(BOOTSTRAPPED), hg.Options(security_bits=None, log_ring=11))


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def parsed(page: str) -> _Page:
    reader = _Page()
    reader.feed(page)
    return reader


def browse(program: str, folder: Path, text: str, *options: str) -> tuple[str, str]:
    """What the browser prints about a page: stdout and what its log says of the console."""
    path = folder / "report.html"
    path.write_text(text)
    done = subprocess.run(
        [
            program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
            "--disable-component-update", "--disable-sync", "--no-first-run", f"--user-data-dir={folder / 'profile'}",
            "--enable-logging=stderr", "--v=0", *options, path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )  # fmt: skip
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
