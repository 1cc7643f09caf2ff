"""The unit and the Dockerfile of deploy/: what they start is a command that exists, and systemd reads the unit."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from heliograph.cli.serve import serve_command, token_command

DEPLOY = Path(__file__).parents[2] / "deploy"


def directives(text: str) -> dict[str, list[str]]:
    """The values of each directive of a unit, in order; those of several lines are joined."""
    found: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if "=" in line and not line.startswith("#"):
            name, value = line.split("=", 1)
            found.setdefault(name, []).append(value)
    return found


def parsed(command: click.Command, arguments: list[str]) -> dict[str, object]:
    return command.make_context(command.name, arguments).params


def test_the_unit_starts_a_server() -> None:
    unit = directives((DEPLOY / "heliograph.service").read_text())
    program, name, *arguments = shlex.split(unit["ExecStart"][0])
    assert (Path(program).name, name) == ("heliograph", "serve")
    given = parsed(serve_command, arguments)
    assert given["artifacts"] == ("/opt/heliograph/model.helio",)
    # What it writes to is there for it although the rest of the system is read-only.
    assert given["data"] == f"/var/lib/{unit['StateDirectory'][0]}"
    assert f"NUMBA_CACHE_DIR=/var/cache/{unit['CacheDirectory'][0]}" in unit["Environment"][0]
    assert int(unit["MemoryMax"][0].removesuffix("G")) * 2**30 > int(str(given["memory_bytes"]))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    """With what is here in the place of the program and the user: systemd looks for both."""
    text = (DEPLOY / "heliograph.service").read_text()
    text = text.replace("/opt/heliograph/bin/heliograph", sys.executable).replace("User=heliograph", "User=root")
    (tmp_path / "heliograph.service").write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "heliograph.service")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "heliograph.service" not in checked.stderr, checked.stderr


def test_the_dockerfile_starts_a_server() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    entry = json.loads(re.findall(r"(?m)^ENTRYPOINT (\[.*\])$", text)[0])
    run = next(line for line in text.replace("\\\n", " ").replace("#", "").splitlines() if "docker run" in line)
    image = shlex.split(run).index("heliograph", shlex.split(run).index("--memory"))
    given = parsed(serve_command, [*entry[2:], *shlex.split(run)[image + 1 :]])
    assert (given["artifacts"], given["data"], given["plain_http"]) == (("/model.helio",), "/data", True)
    assert f"EXPOSE {str(given['listen']).rpartition(':')[2]}\n" in text
    token = next(line for line in text.splitlines() if "docker exec" in line)
    assert parsed(token_command, shlex.split(token)[shlex.split(token).index("token") + 1 :])["data"] == "/data"


def test_the_image_takes_what_the_build_needs() -> None:
    """Files that pyproject.toml names are among those that are copied."""
    kept = [line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    assert {"heliograph", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"} == set(kept)
    assert all((DEPLOY.parent / name).exists() for name in kept)
