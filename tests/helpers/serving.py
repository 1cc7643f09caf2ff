"""A server in a process of its own, as a user starts it, that tests may kill."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx

from heliograph.serving.queue.database import Database
from heliograph.serving.queue.settings import Places
from heliograph.serving.queue.tenants import Tenants


def free_port() -> int:
    """A port below those that the system gives out itself, so that no other process is given it before it is used."""
    while True:
        port = 15_000 + secrets.randbelow(15_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Running:
    """`heliograph serve` on a folder and a port that stay the same over restarts."""

    def __init__(self, folder: Path, artifacts: list[Path], *options: str) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder.parent / f"{folder.name}.log"
        self._artifacts, self._options = artifacts, options
        places = Places(folder)
        places.make()
        self.places = places
        self.tenants = Tenants(Database(places.database))
        self.token = self.tenants.add("first")
        self.other = self.tenants.add("second")
        self.operator = self.tenants.add("operator", operator=True)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, verify: ssl.SSLContext | bool = True) -> Running:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "heliograph.cli.main", "serve", *map(str, self._artifacts), "--insecure"),
                    *("--listen", f"127.0.0.1:{self.port}", "--data", str(self.folder), *self._options),
                ],
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        self.wait(verify)
        return self

    def wait(self, verify: ssl.SSLContext | bool = True, seconds: float = 60.0) -> None:
        """Until it answers."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            try:
                if httpx.get(f"{self.url}/health", timeout=5, verify=verify).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"no answer within {seconds} s: {self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """kill -9 of the server; its workers end by themselves."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; the exit status, 0 where it ended by that signal, as it should."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30) % -signal.SIGTERM

    def events(self, name: str) -> list[dict[str, object]]:
        """The lines of the log of that event."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def workers(self) -> list[int]:
        """The process ids of the workers that live, by the log."""
        started = [int(str(line["process"])) for line in self.events("worker started")]
        return [process for process in started if Path(f"/proc/{process}").exists()]

    def upload_sizes(self) -> list[int]:
        """The bytes of each body that is coming in; one may end while the others are looked at."""
        sizes = []
        for file in self.places.uploads.iterdir():
            with contextlib.suppress(FileNotFoundError):
                sizes.append(file.stat().st_size)
        return sizes

    def get(self, path: str, token: str | None = None) -> httpx.Response:
        return self.request("GET", path, token)

    def request(
        self, method: str, path: str, token: str | None = None, headers: dict[str, str] | None = None, **more: object
    ) -> httpx.Response:
        own = {"Authorization": f"Bearer {self.token if token is None else token}", **(headers or {})}
        return httpx.request(method, self.url + path, headers=own, timeout=60, **more)  # type: ignore[arg-type]
