"""The unit and the Dockerfile of deploy/: what they start is a command that exists, and systemd reads the unit."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from heliograph.cli.main import cli
from heliograph.cli.serve import serve_command, token_command

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LOCK = DEPLOY / "requirements.txt"
# The endings of the Dockerfiles; that of a server has none.
ROLES = ("", ".client", ".compiler")


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
    assert unit["CapabilityBoundingSet"] == [""]
    assert unit["SystemCallFilter"] == ["@system-service", "~@privileged"]
    assert unit["LimitCORE"] == ["0"]
    # There are 1,000 connections; a process that may open fewer files than that stops accepting.
    assert int(unit["LimitNOFILE"][0]) > 4 * 1000
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
    run = next(line for line in text.replace("\\\n", " ").replace("#", "").splitlines() if "docker run -d" in line)
    image = shlex.split(run).index("heliograph", shlex.split(run).index("--memory"))
    given = parsed(serve_command, [*entry[2:], *shlex.split(run)[image + 1 :]])
    assert (given["artifacts"], given["data"], given["plain_http"]) == (("/model.helio",), "/data", True)
    assert f"EXPOSE {str(given['listen']).rpartition(':')[2]}\n" in text
    token = next(line for line in text.splitlines() if "docker exec" in line)
    assert parsed(token_command, shlex.split(token)[shlex.split(token).index("token") + 1 :])["data"] == "/data"


@pytest.mark.parametrize("role", ROLES)
def test_the_image_takes_what_the_build_needs(role: str) -> None:
    """Files that pyproject.toml names are among those that are copied."""
    text = (DEPLOY / f"Dockerfile{role}.dockerignore").read_text()
    kept = {line[1:] for line in text.splitlines() if line.startswith("!")}
    versions = "constraints.txt" if role == ".compiler" else "deploy/requirements.txt"
    assert kept == {"heliograph", "pyproject.toml", versions, "README.md", "LICENSE"}
    assert all((DEPLOY.parent / name).exists() for name in kept)


@pytest.mark.parametrize("role", [".client", ".compiler"])
def test_the_commands_of_an_image_exist(role: str) -> None:
    text = (DEPLOY / f"Dockerfile{role}").read_text()
    assert json.loads(re.findall(r"(?m)^ENTRYPOINT (\[.*\])$", text)[0]) == ["heliograph"]
    (run,) = (line for line in text.replace("#", "").splitlines() if "docker run --rm" in line)
    name, *arguments = run.partition(f" heliograph-{role[1:]} ")[2].split()
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    parsed(command, arguments)


def test_compose_starts_a_server_behind_a_proxy() -> None:
    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    server, proxy = found["services"]["server"], found["services"]["proxy"]
    assert (ROOT / server["build"]["dockerfile"]).exists()
    entry = json.loads(re.findall(r"(?m)^ENTRYPOINT (\[.*\])$", (ROOT / server["build"]["dockerfile"]).read_text())[0])
    given = parsed(serve_command, [*entry[2:], *server["command"]])
    assert given["artifacts"] == (server["volumes"][1].split(":")[1],)
    assert given["data"] == server["volumes"][0].split(":")[1]
    assert int(server["mem_limit"].removesuffix("g")) * 2**30 > int(str(given["memory_bytes"]))
    # No port of the server is reachable but through the proxy.
    assert "ports" not in server
    assert proxy["command"][-1] == f"server:{str(given['listen']).rpartition(':')[2]}"
    assert set(found["volumes"]) == {volume.split(":")[0] for volume in (server["volumes"][0], proxy["volumes"][0])}
    # What the image writes to although its file system is read-only.
    written = re.findall(r"(?m)^ENV NUMBA_CACHE_DIR=(\S+)$", (DEPLOY / "Dockerfile").read_text())
    assert {each.partition(":")[0] for each in server["tmpfs"]} == {"/tmp", *written}


def test_compiled_kernels_are_not_in_the_data() -> None:
    """They are pickles: a data folder that is restored would run code."""
    text = (DEPLOY / "Dockerfile").read_text()
    kernels, volume = (re.findall(rf"(?m)^{word}[ =](\S+)$", text)[0] for word in ("ENV NUMBA_CACHE_DIR", "VOLUME"))
    unit = directives((DEPLOY / "heliograph.service").read_text())
    (cache,) = re.findall(r"NUMBA_CACHE_DIR=(\S+)", " ".join(unit["Environment"]))
    for folder, data in ((kernels, volume), (cache, f"/var/lib/{unit['StateDirectory'][0]}")):
        assert not Path(folder).is_relative_to(data)


def locked() -> dict[tuple[str, str], list[str]]:
    """The hashes of each (package, version) that an installation may take; nothing else may stand in the file."""
    found = {}
    for line in LOCK.read_text().replace("\\\n", " ").splitlines():
        if not line.startswith("#"):
            requirement, *hashes = re.split(r"\s+--hash=sha256:", line.strip())
            parsed = Requirement(requirement)
            (version,) = parsed.specifier
            assert (version.operator, parsed.url, parsed.extras) == ("==", None, set()), line
            found[canonicalize_name(parsed.name), version.version] = hashes
    return found


def test_the_lock_has_hashes_of_the_versions_that_tests_run_with() -> None:
    pinned = {Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    tested = {(canonicalize_name(each.name), str(each.specifier).removeprefix("==")) for each in pinned}
    for package, hashes in locked().items():
        assert package in tested
        assert hashes, package
        assert all(re.fullmatch(r"[0-9a-f]{64}", each) for each in hashes), package


def test_the_lock_has_all_that_a_server_takes() -> None:
    """What heliograph[serve] and its build need, and what those need, on this Python."""
    waiting = [Requirement(f"heliograph[serve] @ file://{ROOT}"), Requirement("hatchling")]
    names, seen = {name for name, _ in locked()}, set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                wanted = [Requirement(each) for each in metadata.requires(name) or ()]
                waiting += [each for each in wanted if not each.marker or each.marker.evaluate({"extra": extra})]
    assert {name for name, _ in seen} - {"heliograph"} <= names


@pytest.mark.parametrize("role", ["", ".client"])
def test_the_image_installs_nothing_that_is_not_locked(role: str) -> None:
    lines = (DEPLOY / f"Dockerfile{role}").read_text().replace("\\\n", " ").splitlines()
    installs = [line.split("pip install", 1)[1] for line in lines if line.startswith("RUN pip install")]
    assert len(installs) == 2
    for options in installs:
        assert {"--require-hashes", "--only-binary"} <= set(options.split()) or "--no-deps" in options
        assert "--no-deps" not in options or "--no-build-isolation" in options
