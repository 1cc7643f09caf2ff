"""Processes that are killed at random moments (kill -9), and what may be found afterwards.

Each scenario runs one command over and over in an empty folder. After every kill what stands under a proper name is whole;
after the next run that ends, the results are right and nothing is left of the killed ones: no part of a file beside its
place, nothing in the folder for temporary files.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import runtime.bootstrapped as bootstrapped
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.runtime.client.client import Client
from heliograph.runtime.server.server import Server
from heliograph.runtime.wire.keyfolder import KeyFolder, load_keys
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput

# Killed from the moment on when all is imported.
_COMMAND = """
import sys
import heliograph.runtime.client.client, heliograph.runtime.server.server, heliograph.runtime.native.backend
from heliograph.cli.main import main
print("ready", flush=True)
main(sys.argv[1:])
"""
_PROGRAM = """program largest
input x: secret tensor[6] in [-1, 1]
output y = argmax(x, gap=0.05)
"""
_INPUTS = 12
# This many kills in a row before a run is let to its end.
_IN_A_ROW = 3


@dataclass
class Tally:
    """What happened; `wrong` must stay empty."""

    kills: int = 0
    ended: int = 0
    begun_over: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass
class Scenario:
    """A command in a folder, the check after each kill, and that after a run that ended."""

    folder: Path
    arguments: list[str]
    results: list[str]
    check_killed: Callable[[], None]
    check_ended: Callable[[], None]
    environment: dict[str, str] = field(default_factory=dict)
    # Whether all was there when the last one was killed, so that the command would refuse to do it again.
    finished: Callable[[], bool] = lambda: False

    def run(self, after: float | None) -> float | None:
        """Run the command, killed after this many seconds; the seconds that it took, None where it was killed."""
        if self.finished():
            return 0.0
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        child = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *self.arguments],
            cwd=self.folder,
            env={**os.environ, "TMPDIR": str(temporary), **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        begun = time.monotonic()
        try:
            _, errors = child.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGKILL)
            child.communicate()
            assert child.returncode in (0, -signal.SIGKILL)
            return None if child.returncode else time.monotonic() - begun
        assert child.returncode == 0, errors
        return time.monotonic() - begun

    def clear(self) -> None:
        for name in self.results:
            path = self.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def left_behind(self) -> list[str]:
        """Parts of files, and whatever is in the folder for temporary files."""
        return [
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if path.name.endswith((".part", ".tmp")) or path.parent.name == "tmp"
        ]


def kill(scenario: Scenario, kills: int, seed: int) -> Tally:
    """Kill the scenario's command this many times, at moments spread over all of its run."""
    rng, tally = random.Random(seed), Tally()
    whole = scenario.run(None)
    assert whole is not None
    scenario.check_ended()
    while tally.kills < kills:
        scenario.clear()
        tally.begun_over += 1
        for _ in range(_IN_A_ROW):
            if tally.kills == kills:
                break
            if scenario.run(rng.uniform(0, whole)) is not None:
                tally.ended += 1
                break
            tally.kills += 1
            _note(tally, "after a kill", scenario.check_killed)
        try:
            scenario.run(None)
        except AssertionError as error:
            tally.wrong.append(f"the next run failed: {error}")
            continue
        _note(tally, "after the next run", scenario.check_ended)
        tally.wrong += [f"left behind: {name}" for name in scenario.left_behind()]
    return tally


def _note(tally: Tally, when: str, check: Callable[[], None]) -> None:
    try:
        check()
    except Exception as error:
        tally.wrong.append(f"{when}: {type(error).__name__}: {str(error)[:200]}")


def keygen(folder: Path, keys: str) -> Scenario:
    """Keys of a program that bootstraps; `keys` is a file, or a folder with a / at its end."""
    artifact = bootstrapped.artifact()
    artifact.public().save(folder / "public")

    def check_killed() -> None:
        if (folder / "client.key").exists():
            Client.load(folder / "client.key", allow_insecure=True)
        if not keys.endswith("/"):
            assert not (folder / keys).exists() or load_keys(folder / keys).names()
        elif (folder / keys / "index.keys").exists():
            found = KeyFolder(folder / keys)
            for name in found.names():
                found.blob(name)

    def check_ended() -> None:
        client, x = Client.load(folder / "client.key", allow_insecure=True), bootstrapped.sample(1)
        with Server(artifact, load_keys(folder / keys), allow_insecure=True) as server:
            found = client.decrypt(server.run(client.encrypt(x)))
        for values, expected in zip(found, bootstrapped.meaning(x), strict=True):
            np.testing.assert_allclose(values, expected, atol=2.0**-16)

    command = ["keygen", "--insecure", "public", "-o", "client.key", "--keys", keys, "--quiet"]
    scenario = Scenario(folder, command, ["client.key", keys.rstrip("/")], check_killed, check_ended)
    if not keys.endswith("/"):
        scenario.finished = lambda: (folder / "client.key").exists() and (folder / keys).exists()
    return scenario


def batch(folder: Path) -> Scenario:
    """Several inputs, of which each has an answer of its own."""
    artifact, names = toy_artifact(), [f"{number}.ct" for number in range(_INPUTS)]
    client = Client(artifact, allow_insecure=True)
    artifact.save(folder / "artifact")
    client.evaluation_keys().save(folder / "eval.keys")
    for number, name in enumerate(names):
        client.encrypt(sample(number)).save(folder / name)
    expected = [hg.simulate(artifact, sample(number), noisy=False) for number in range(_INPUTS)]

    def check_killed() -> None:
        for path in (folder / "outputs").glob("[!.]*"):
            answer = client.decrypt(EncryptedOutput.load(path), of=EncryptedInput.load(folder / path.name))
            np.testing.assert_allclose(answer, expected[int(path.stem)], atol=1e-6)

    def check_ended() -> None:
        check_killed()
        assert sorted(path.name for path in (folder / "outputs").glob("[!.]*")) == sorted(names)

    command = ["evaluate", "--insecure", "artifact", *names, "--keys", "eval.keys", "-o", "outputs", "--quiet"]
    return Scenario(folder, command, ["outputs"], check_killed, check_ended)


def compilation(folder: Path) -> Scenario:
    """A compile that keeps what it searched for in a cache."""
    (folder / "program.hg").write_text(_PROGRAM)
    first: list[bytes] = []

    def check_killed() -> None:
        if (folder / "artifact").exists():
            assert (folder / "artifact").read_bytes() == first[0]
        for path in (folder / "cache").glob("*.json"):
            json.loads(path.read_text())

    def check_ended() -> None:
        first.append((folder / "artifact").read_bytes())
        check_killed()
        assert list((folder / "cache").glob("*.json"))

    command = ["compile", "program.hg", "--insecure", "-o", "artifact", "--quiet"]
    environment = {"HELIOGRAPH_CACHE": str(folder / "cache")}
    scenario = Scenario(folder, command, ["artifact", "cache"], check_killed, check_ended, environment)
    # Killed after the artifact had its name: all was done.
    scenario.finished = lambda: (folder / "artifact").exists()
    return scenario


SCENARIOS: dict[str, Callable[[Path], Scenario]] = {
    "keygen into a folder": lambda folder: keygen(folder, "keys/"),
    "keygen into a file": lambda folder: keygen(folder, "eval.keys"),
    "batch": batch,
    "compile with a cache": compilation,
}
