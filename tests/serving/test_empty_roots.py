"""The three roles as deploy/ installs them: each in an empty folder, on the Pythons of Debian 12 and 13.

No container engine is needed: of each Dockerfile, what its context keeps is copied, its `pip` lines run in a new virtual
environment, and its entry point is started; then the command of the unit. Paths are those of the folder.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("httpx")

import httpx
from helpers.serving import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
ROLES = {"server": "", "client": ".client", "compiler": ".compiler"}
# CPython of Debian 12, and of Debian 13 and of the images.
VERSIONS = ("3.11", "3.13")
MODEL = """
import torch
net = torch.nn.Linear(4, 2).eval()
net.weight.data, net.bias.data = torch.arange(8.0).reshape(2, 4) / 8, torch.tensor([1.0, -1.0])
"""
CLIENT = """
import sys
import numpy as np
import heliograph as hg
folder, url, token = sys.argv[1:]
with hg.load_client(folder).connect(url, token) as model:
    np.save(f"{folder}/y.npy", model(np.load(f"{folder}/x.npy")))
"""


def interpreter(version: str) -> Path | None:
    """A CPython of that version on this machine, if there is one."""
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    on_path = shutil.which(f"python{version}")
    return found[-1] if found else Path(on_path) if on_path else None


@dataclass(frozen=True)
class Root:
    """A role in an empty folder."""

    folder: Path
    dockerfile: str

    @property
    def environment(self) -> dict[str, str]:
        """That of an image: nothing of ours but where packages come from."""
        kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        path = f"{self.folder / 'opt/bin'}:/usr/bin:/bin"
        return {**kept, "PATH": path, "HOME": str(self.folder), "NUMBA_CACHE_DIR": str(self.folder / "cache")}

    def run(self, arguments: Sequence[str | Path] | str) -> str:
        shell = isinstance(arguments, str)
        done = subprocess.run(
            arguments, shell=shell, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (arguments, done.stdout[-2000:], done.stderr[-4000:])
        return done.stdout

    @property
    def entry(self) -> list[str]:
        (entry,) = re.findall(r"(?m)^ENTRYPOINT (\[.*\])$", self.dockerfile)
        program, *arguments = json.loads(entry)
        return [str(self.folder / "opt/bin" / program), *arguments]


def installed(role: str, python: Path, folder: Path) -> Root:
    """The role, installed as its Dockerfile says."""
    ending = ROLES[role]
    root = Root(folder, (DEPLOY / f"Dockerfile{ending}").read_text())
    source = folder / "src"
    source.mkdir(parents=True)
    for line in (DEPLOY / f"Dockerfile{ending}.dockerignore").read_text().splitlines():
        if line.startswith("!"):
            kept = DEPLOY.parent / line[1:]
            made = source / line[1:]
            made.parent.mkdir(parents=True, exist_ok=True)
            if kept.is_dir():
                shutil.copytree(kept, made, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(kept, made)
    root.run([python, "-m", "venv", folder / "opt"])
    lines = [line for line in re.findall(r"(?m)^RUN (.*)$", root.dockerfile) if line.startswith("pip ")]
    assert lines
    for line in lines:
        root.run(line.replace("/src", str(source)))
    assert not source.exists()
    return root


@functools.cache
def comment(text: str, words: str) -> list[str]:
    """What follows these words in the command that a Dockerfile starts its image with."""
    (line,) = (line for line in text.splitlines() if line.startswith("#") and "docker run" in line and words in line)
    return shlex.split(line[line.index(words) + len(words) :])


def moved(arguments: Sequence[str], folder: Path, port: int) -> list[str]:
    """The command of a server with this folder for its paths, and this port."""
    made = []
    for each in arguments:
        each = re.sub(r"^(0\.0\.0\.0|127\.0\.0\.1):8100$", f"127.0.0.1:{port}", each)
        made.append(each.replace("/opt/heliograph/bin", "opt/bin").replace("/opt/heliograph/", "").lstrip("/"))
    return [str(folder / each) if each in ("data", "var/lib/heliograph", "model.helio", "opt/bin/heliograph") else each
            for each in made]  # fmt: skip


def started_by_image(root: Root, port: int) -> list[str]:
    run = comment(root.dockerfile.replace("\\\n#", ""), "docker run -d ")
    arguments = run[run.index("heliograph", run.index("--memory")) + 1 :]
    program, *given = root.entry
    return [program, *moved([*given, *arguments], root.folder, port)]


def started_by_unit(root: Root, port: int) -> list[str]:
    text = (DEPLOY / "heliograph.service").read_text().replace("\\\n", " ")
    (command,) = re.findall(r"(?m)^ExecStart=(.*)$", text)
    return moved(shlex.split(command), root.folder, port)


def until_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 600
    while time.monotonic() < end:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{url}/health/ready", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("version", VERSIONS)
def test_three_roles_in_empty_roots(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"CPython {version} is not here")
    with ThreadPoolExecutor() as pool:
        roots = dict(zip(ROLES, pool.map(lambda role: installed(role, python, tmp_path / role), ROLES), strict=True))
    server, client, compiler = (roots[role] for role in ROLES)
    samples = np.random.default_rng(0).uniform(-1, 1, (64, 4)).astype(np.float32)
    (compiler.folder / "model.py").write_text(MODEL)
    np.save(compiler.folder / "samples.npy", samples)
    made = comment(compiler.dockerfile, "heliograph-compiler ")
    compiler.run([*compiler.entry, *made, "--public", "model.public"])
    shutil.copy(compiler.folder / "model.helio", server.folder)
    shutil.copy(compiler.folder / "model.public", client.folder)
    keygen = [each for each in comment(client.dockerfile, "heliograph-client ") if each != "--passphrase"]
    client.run([*client.entry, *keygen])
    np.save(client.folder / "x.npy", samples[:2])
    wanted = samples[:2] @ (np.arange(8.0).reshape(2, 4) / 8).T + [1.0, -1.0]
    for command_of in (started_by_image, started_by_unit):
        port = free_port()
        command = command_of(server, port)
        data, log = Path(command[command.index("--data") + 1]), server.folder / f"{command_of.__name__}.log"
        data.mkdir(parents=True)
        with log.open("wb") as written:
            process = subprocess.Popen(command, cwd=server.folder, env=server.environment, stderr=written)
        try:
            until_ready(f"http://127.0.0.1:{port}", process, log)
            token = server.run([server.entry[0], "token", "alice", "--data", data]).split()[-1]
            client.run(
                [client.folder / "opt/bin/python", "-c", CLIENT, client.folder, f"http://127.0.0.1:{port}", token]
            )
            assert np.abs(np.load(client.folder / "y.npy") - wanted).max() < 1e-3
            (client.folder / "y.npy").unlink()
        finally:
            process.terminate()
            process.wait(60)
