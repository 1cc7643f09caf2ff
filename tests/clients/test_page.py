"""The example page in a real browser, where Chromium is installed: keys, a drawing or a row, a class, and what left."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="serving needs the extra `serve`")

from helpers.serving import Running

import heliograph as hg
from heliograph.ir import Builder, Location, Stage

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
PACKAGE = Path(__file__).resolve().parents[2] / "clients" / "js"

VISITOR = Path(__file__).with_name("visitor.js")


@contextlib.contextmanager
def _running(artifact: hg.Artifact, folder: Path) -> Iterator[Running]:
    artifact.save(folder / "m.helio")
    server = Running(folder / "data", [folder / "m.helio"], "--demo", str(PACKAGE)).start()
    yield server
    assert server.stop() == 0


@contextlib.contextmanager
def _proxy(running: Running) -> Iterator[tuple[str, queue.Queue[dict[str, Any]]]]:
    """The server behind a proxy that adds the visitor to the page, and hears of it."""
    heard: queue.Queue[dict[str, Any]] = queue.Queue()

    class Proxy(BaseHTTPRequestHandler):
        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path == "/told":
                heard.put(json.loads(body))
                self._send(204, {}, b"")
            elif self.path == "/visitor.js":
                self._send(
                    200,
                    {"Content-Type": "text/javascript"},
                    VISITOR.read_bytes().replace(b"TOKEN", running.token.encode()),
                )
            else:
                kept = {name: value for name, value in self.headers.items() if name.lower() in ("authorization",)}
                answer = httpx.request(
                    self.command, running.url + self.path, headers=kept, content=body or None, timeout=100
                )
                data = answer.content
                if self.path == "/demo/":
                    data = data.replace(b"</body>", b'<script type="module" src="/visitor.js"></script></body>')
                headers = {k: v for k, v in answer.headers.items() if k not in ("content-length", "connection", "date")}
                self._send(answer.status_code, headers, data)

        do_GET = do_PUT = do_POST = do_DELETE = _pass

        def _send(self, status: int, headers: dict[str, str], data: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/demo/", heard
    server.shutdown()
    server.server_close()


def _visited(artifact: hg.Artifact, folder: Path) -> dict[str, Any]:
    """What a visitor tells of the page; the checks that hold on every sheet are made here."""
    with _running(artifact, folder) as running, _proxy(running) as (address, heard):
        profile = folder / "profile"
        command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", address]
        browser = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # type: ignore[arg-type]
        try:
            told = heard.get(timeout=240)
        finally:
            browser.kill()
            browser.wait()
    assert "fault" not in told, told
    print(told["keys"], told["times"])
    assert told["state"] == ""
    assert "keys of" in told["keys"]
    assert "encrypted in" in told["times"]
    assert told["isolated"]
    requests = [row[0].split("/")[:3] for row in told["rows"]]
    assert ["PUT ", "v1", "jobs"] in requests
    assert ["PUT ", "v1", "keys"] in requests
    # Nothing but ciphertexts and keys has left: what has a body is at least as long as a polynomial.
    assert all(int(row[1]) == 0 or int(row[1]) > 10_000 for row in told["rows"])
    return told


@pytest.mark.front
def test_a_digit_is_drawn_and_classified(tmp_path: Path) -> None:
    """A network on images of 8 by 8, at 128 bits."""
    random = np.random.default_rng(0)
    builder = Builder("digits", Stage.TENSOR)
    x = builder.input("x", Location("model.py", 1, 1, ""), shape=(64,), low=0.0, high=1.0)
    weight = builder.constant(random.normal(size=(10, 64)) / 8, "fc.weight")
    out = builder.op("linear", (x,), Location("model.py", 2, 1, "fc"), weight=weight)
    told = _visited(hg.compile(builder.finish({"y": out})), tmp_path)
    assert told["label"] in set("0123456789")
    assert told["fields"] == {}


def test_a_form_for_a_row_of_a_table(tmp_path: Path) -> None:
    """Trees at 128 bits, whose form has a number and a category; a column that they do not read is not in it."""
    pandas = pytest.importorskip("pandas", reason="named columns need pandas")
    ensemble = pytest.importorskip("sklearn.ensemble", reason="trees need scikit-learn")
    random = np.random.default_rng(0)
    rows = pandas.DataFrame(
        {"age": random.integers(18, 80, 600), "constant": np.ones(600), "kind": random.integers(0, 4, 600)}
    )
    labels = (rows["age"] + 15 * (rows["kind"] == 2) + random.normal(0, 5, 600) > 50).astype(int)
    model = ensemble.HistGradientBoostingClassifier(
        max_iter=5, max_depth=3, categorical_features=["kind"], random_state=0
    ).fit(rows, labels)
    told = _visited(hg.compile(hg.from_sklearn(model, rows[:300], binned=True)), tmp_path)
    assert sorted(told["fields"]) == ["age", "kind"]
    row = pandas.DataFrame({name: [float(told["fields"].get(name, 1))] for name in rows.columns})
    clear = model.predict_proba(row)[0]
    assert told["label"] == str(clear.argmax())
    shown = [float(re.fullmatch(r"\d+ +([0-9.]+) %", line)[1]) for line in told["scores"]]  # type: ignore[index]
    assert shown == pytest.approx(100 * clear, abs=1.0)
