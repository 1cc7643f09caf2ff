"""Run the blocks of a page of docs/: Python in one namespace, commands in one folder, output compared with the page."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.serving import free_port

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```([a-z-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a page: language (empty where none is named) and text, in order."""
    return _FENCE.findall(text)


def steady(text: str) -> list[str]:
    """A text's lines without what depends on the machine: times, sizes in memory."""
    text = re.sub(r"[0-9.,]+ (ms|s|MB|GB|kB)\b", "#", text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


@dataclass
class Page:
    """A page whose blocks run one after the other in `folder`.

    A `python` block is executed; one whose first line is `# NAME.py` is written to that file instead. A `text` block is
    what the block before it prints. In a `console` block every line after `$ ` is a command; one that ends in & stays until
    the page ends.
    """

    folder: Path
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    port: int = field(default_factory=free_port)
    ran: int = 0

    def run(self, path: Path, update: bool = False) -> None:
        """Run all blocks. An AssertionError says which printed something else, or `update` writes it into the page."""
        printed: str | None = None
        text, changed = path.read_text(), dict[int, str]()
        self._command()
        old = Path.cwd()
        os.chdir(self.folder)
        sys.path.insert(0, str(self.folder))
        try:
            for number, (kind, block) in enumerate(blocks(text)):
                if kind == "python" and (named := re.match(r"# (\w+\.py)\n", block)):
                    Path(named[1]).write_text(block)
                    # Another test may have imported a module of that name.
                    sys.modules.pop(Path(named[1]).stem, None)
                elif kind == "python":
                    printed = self._python(block, path.name)
                elif kind == "console":
                    for line in block.splitlines():
                        assert line.startswith("$ "), f"{line!r} is not a command"
                        self._shell(line[2:])
                elif kind == "text" and printed is not None:
                    same = steady(printed) == steady(block)
                    assert update or same, f"{path.name} shows\n{block}\nand this was printed\n{printed}"
                    if not same:
                        changed[number] = printed
                    printed = None
                else:
                    continue
                self.ran += 1
        finally:
            os.chdir(old)
            sys.path.remove(str(self.folder))
            for process in self.running:
                process.terminate()
                process.wait(60)
        if changed:
            numbers = itertools.count()
            path.write_text(
                _FENCE.sub(
                    lambda found: f"```text\n{changed[n]}```" if (n := next(numbers)) in changed else found[0], text
                )
            )

    def _python(self, block: str, page: str) -> str:
        shown = io.StringIO()
        block = block.replace("127.0.0.1:8100", f"127.0.0.1:{self.port}")
        with contextlib.redirect_stdout(shown):
            exec(compile(block, page, "exec"), self.names)
        return shown.getvalue()

    def _command(self) -> None:
        """`heliograph` on the path is this checkout's."""
        script = self.folder / "bin" / "heliograph"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m heliograph.cli.main "$@"\n')
        script.chmod(0o755)

    def _shell(self, line: str) -> None:
        line = line.replace("127.0.0.1:8100", f"127.0.0.1:{self.port}")
        paths = os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])
        environment = {**os.environ, "PATH": paths, "PYTHONPATH": str(ROOT)}
        if not line.endswith("&"):
            done = subprocess.run(line, shell=True, env=environment, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, f"{line}: {done.stderr}"
            return
        log = self.folder / "background.log"
        with log.open("ab") as out:
            self.running.append(
                subprocess.Popen("exec " + line.rstrip("& "), shell=True, env=environment, stdout=out, stderr=out)
            )
        self._wait(log)

    def _wait(self, log: Path, seconds: float = 60.0) -> None:
        import httpx

        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.running[-1].poll() is None, log.read_text()[-3000:]
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=5).status_code == 200:
                    return
            time.sleep(0.1)
        raise AssertionError(log.read_text()[-3000:])
