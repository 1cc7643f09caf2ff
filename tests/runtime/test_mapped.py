"""Keys in one file that processes map: the same results, made once, held once, made anew where they are others."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from runtime import bootstrapped
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.errors import ProgramError, TooLittleDiskError, WireError
from heliograph.runtime.client.client import Client
from heliograph.runtime.native import mapped
from heliograph.runtime.server.server import Server
from heliograph.runtime.wire.keyfolder import KeyFolder

pytest.importorskip("numba")


@pytest.fixture(scope="module")
def client() -> Client:
    return Client(toy_artifact(), allow_insecure=True)


@pytest.fixture
def folder(client: Client, tmp_path: Path) -> KeyFolder:
    return client.write_evaluation_keys(tmp_path / "keys")


def files(folder: KeyFolder) -> list[Path]:
    return sorted(folder.path.glob("mapped-*"))


def serve(folder: KeyFolder, client: Client, seed: int = 0) -> bytes:
    """One run with mapped keys, checked; the answer's ciphertext."""
    artifact, x = toy_artifact(), sample()
    with Server(artifact, folder, mapped=True, allow_insecure=True) as server:
        answer = server.run(client.encrypt(x))
    np.testing.assert_allclose(client.decrypt(answer), hg.simulate(artifact, x, noisy=False), atol=1e-6)
    return bytes(answer.blob("0"))


@pytest.mark.parametrize("of", ["network", "bootstraps"])
def test_results_are_those_of_keys_in_memory(of: str, tmp_path: Path) -> None:
    artifact, x = (toy_artifact(), sample()) if of == "network" else (bootstrapped.artifact(), bootstrapped.sample(2))
    client = Client(artifact, allow_insecure=True)
    keys, sent = client.write_evaluation_keys(tmp_path), client.encrypt(x)
    answers = []
    for way in (False, True, True):
        with Server(artifact, keys, backend="native", mapped=way, allow_insecure=True) as server:
            answer = server.run(sent)
            answers.append([bytes(answer.blob(name)) for name in answer.names()])
    assert answers[0] == answers[1] == answers[2]
    (file,) = files(keys)
    size = sum(key.bytes for key in artifact.evaluation_keys)
    assert size <= file.stat().st_size <= size + 4096 * len(keys.names())
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_file_is_made_once_and_anew_for_other_keys(client: Client, folder: KeyFolder, tmp_path: Path) -> None:
    serve(folder, client)
    (file,) = files(folder)
    before = file.stat()
    serve(folder, client)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    # Another key in the place of one: another file, and the old one goes.
    folder.file("rotation/1").unlink()
    client.write_evaluation_keys(folder.path)
    with Server(toy_artifact(), folder, mapped=True, allow_insecure=True):
        (other,) = files(folder)
        assert other != file
    # One that another user could have written to is not taken, nor one of another length or a link.
    for spoil in (
        lambda: other.chmod(0o622),
        lambda: os.truncate(other, 4096),
        lambda: (shutil.copy(other, tmp_path / "copy"), other.unlink(), other.symlink_to(tmp_path / "copy")),
    ):
        spoil()
        serve(folder, client)
        assert files(folder) == [other]
        assert other.stat().st_mode & 0o777 == 0o600
        assert not other.is_symlink()


def test_malformed_keys_leave_no_file(client: Client, folder: KeyFolder) -> None:
    path = folder.file("rotation/1")
    data = path.read_bytes()
    path.write_bytes(data[:-1000])
    with pytest.raises(WireError, match="truncated"):
        serve(folder, client)
    assert not files(folder)
    assert not [name for name in os.listdir(folder.path) if name.endswith(".part")]
    path.write_bytes(data)
    serve(folder, client)


def test_what_cannot_be_mapped_is_refused(client: Client, folder: KeyFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = toy_artifact()
    with pytest.raises(ProgramError, match="in a folder"):
        Server(artifact, client.evaluation_keys(), mapped=True, allow_insecure=True)
    with pytest.raises(ProgramError, match="in a folder"):
        Server(artifact, folder, mapped=True, key_bytes=1 << 30, allow_insecure=True)
    with pytest.raises(ProgramError, match="cannot be mapped"):
        Server(artifact, folder, mapped=True, backend="openfhe", allow_insecure=True)
    usage = shutil.disk_usage(folder.path)
    monkeypatch.setattr(mapped.shutil, "disk_usage", lambda path: usage._replace(free=mapped._FREE_BYTES + 1000))
    with pytest.raises(TooLittleDiskError, match="are free"):
        serve(folder, client)
    assert not files(folder)


def test_the_disk_has_room_for_the_file_before_it_is_mapped(
    client: Client, folder: KeyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write into a mapped file with holes ends the process where the disk is full by then (SIGBUS)."""
    real, held = KeyFolder.blob, list[tuple[int, int]]()

    def blob(self: KeyFolder, name: str) -> object:
        (part,) = folder.path.glob(".mapped-*.part")
        found = part.stat()
        held.append((512 * found.st_blocks, found.st_size))
        return real(self, name)

    monkeypatch.setattr(KeyFolder, "blob", blob)
    serve(folder, client)
    # Also where the system reserves nothing.
    files(folder)[0].unlink()
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    serve(folder, client)
    assert len(held) == 2 * len(folder.names())
    assert all(blocks >= size > 0 for blocks, size in held)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_meanwhile_is_told_as_too_little(
    client: Client, folder: KeyFolder, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(handle: int, begin: int, size: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(TooLittleDiskError, match=os.strerror(number)):
        serve(folder, client)
    assert not [name for name in os.listdir(folder.path) if name.startswith(("mapped-", ".mapped-"))]


def test_a_program_without_keys_has_nothing_to_map(tmp_path: Path) -> None:
    text = """program priced
        input x: secret tensor[4] in [-1, 1]
        input rates: plain tensor[4] in [-1, 1]
        output y = x * rates
        """
    artifact = hg.compile(hg.parse(text), hg.Options(security_bits=None, log_ring=11))
    assert artifact.evaluation_keys == ()
    client = Client(artifact, allow_insecure=True)
    x, rates = np.array([0.1, -0.2, 0.3, 1.0]), np.array([1.0, 0.5, -0.25, 0.0])
    keys = client.write_evaluation_keys(tmp_path)
    with Server(artifact, keys, mapped=True, allow_insecure=True) as server:
        answer = client.decrypt(server.run(client.encrypt(x), plain={"rates": rates}))
    np.testing.assert_allclose(answer, x * rates, atol=1e-4)


_WORKER = """
    import json, re, sys, warnings
    warnings.simplefilter("ignore")
    import heliograph as hg
    artifact, keys = hg.Artifact.load("artifact"), hg.KeyFolder("keys")
    print("ready", flush=True)
    sys.stdin.readline()
    server = hg.Server(artifact, keys, mapped=sys.argv[1] == "mapped", backend="native", allow_insecure=True)
    server.run(hg.EncryptedInput.load("input")).save(sys.argv[2])
    print("served", flush=True)
    sys.stdin.readline()
    found, inside = {"Rss": 0, "Pss": 0, "Private_Dirty": 0}, False
    for line in open("/proc/self/smaps"):
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = "/mapped-" in line
        elif inside and line.split(":")[0] in found:
            found[line.split(":")[0]] += int(line.split()[1]) * 1024
    whole = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in open("/proc/self/smaps_rollup") if "kB" in line}
    print(json.dumps({"mapping": found, "pss": whole["Pss"], "rss": whole["Rss"]}), flush=True)
    sys.stdin.readline()
"""


class Workers:
    """Processes that serve one folder, all at once, step by step."""

    def __init__(self, folder: Path, count: int, how: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(hg.__file__).parents[1]), "NUMBA_NUM_THREADS": "1"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(_WORKER), how, f"output{number}"],
                cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for number in range(count)
        ]  # fmt: skip

    def said(self) -> list[str]:
        return [process.stdout.readline().strip() for process in self.processes]  # type: ignore[union-attr]

    def go_on(self) -> None:
        for process in self.processes:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[Workers]]:
    made: list[Workers] = []
    yield made
    for each in made:
        each.end()


def test_four_processes_hold_the_keys_once(tmp_path: Path, workers: list[Workers]) -> None:
    """All begin at the same moment: one makes the file. Their shares of the mapping add up to one copy, none has its own."""
    bootstrapped.artifact().save(tmp_path / "artifact")
    artifact, x = hg.Artifact.load(tmp_path / "artifact"), bootstrapped.sample(1)
    client = Client(artifact, allow_insecure=True)
    keys = client.write_evaluation_keys(tmp_path / "keys")
    client.encrypt(x).save(tmp_path / "input")
    total = {}
    for how in ("own", "mapped"):
        workers.append(Workers(tmp_path, 4, how))
        assert workers[-1].said() == ["ready"] * 4
        workers[-1].go_on()
        assert workers[-1].said() == ["served"] * 4
        workers[-1].go_on()
        found = [json.loads(line) for line in workers[-1].said()]
        workers[-1].end()
        total[how] = sum(each["pss"] for each in found)
        outputs = {(tmp_path / f"output{number}").read_bytes() for number in range(4)}
        assert len(outputs) == 1
        answer = hg.EncryptedOutput.load(tmp_path / "output0")
        for part, expected, bits in zip(client.decrypt(answer), bootstrapped.meaning(x), (16, 33), strict=True):
            np.testing.assert_allclose(part, expected, atol=2.0**-bits)
    (file,) = files(keys)
    size = file.stat().st_size
    print(
        f"keys {size / 1e6:.1f} MB; four processes: {total['own'] / 1e6:.1f} MB, mapped {total['mapped'] / 1e6:.1f} MB"
    )
    shares = [each["mapping"] for each in found]
    assert all(share["Private_Dirty"] == 0 for share in shares)
    assert all(share["Rss"] > 0.5 * size for share in shares)
    assert sum(share["Pss"] for share in shares) <= 1.01 * size
    # Three copies less, and not much else differs.
    assert total["own"] - total["mapped"] > 2.5 * size


def test_a_kill_while_the_file_is_made_loses_nothing(
    client: Client, folder: KeyFolder, tmp_path: Path, workers: list[Workers]
) -> None:
    toy_artifact().save(tmp_path / "artifact")
    client.encrypt(sample()).save(tmp_path / "input")
    for wait in (0.0, 0.01, 0.03, 0.1):
        workers.append(Workers(tmp_path, 2, "mapped"))
        assert workers[-1].said() == ["ready"] * 2
        workers[-1].go_on()
        begun = time.monotonic()
        while not list(folder.path.glob(".mapped-*.part")) and not files(folder) and time.monotonic() - begun < 60:
            time.sleep(0.001)
        time.sleep(wait)
        for process in workers[-1].processes:
            process.send_signal(signal.SIGKILL)
            process.wait()
        serve(folder, client)
        assert len(files(folder)) == 1
        assert not list(folder.path.glob(".mapped-*.part"))
        files(folder)[0].unlink()
