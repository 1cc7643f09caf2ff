"""`heliograph keygen`: the secret key first, so that a kill costs no more than evaluation keys; large ones one by one."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import run, run_json
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.runtime.wire.keyfolder import load_keys

# Killed while it makes the second evaluation key.
_KILLED = """
    import os, signal, sys
    from heliograph.cli.main import main
    from heliograph.runtime.client.cryptor.cryptor import Cryptor
    made, original = [], Cryptor.evaluation_key_bytes
    def evaluation_key_bytes(self, key):
        if made:
            os.kill(os.getpid(), signal.SIGKILL)
        made.append(key)
        return original(self, key)
    Cryptor.evaluation_key_bytes = evaluation_key_bytes
    main(sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder but for an artifact's public part, to work in."""
    toy_artifact().public().save(tmp_path / "public")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(keys: str) -> None:
    """The two keys belong together."""
    client, x = hg.Client.load("client.key", allow_insecure=True), sample()
    with hg.Server(toy_artifact(), load_keys(keys), allow_insecure=True) as server:
        found = client.decrypt(server.run(client.encrypt(x)))
    np.testing.assert_allclose(found, hg.simulate(toy_artifact(), x, noisy=False), atol=1e-4)


def test_a_crash_with_the_secret_key_leaves_no_core_file(folder: Path) -> None:
    """Each command that has the secret key, in a process of its own that asks for core files."""
    resource = pytest.importorskip("resource", reason="this system has no core files")
    code = (
        "import resource, sys\nfrom heliograph.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit as exit:\n    assert not exit.code\n"
        "print('limit', resource.getrlimit(resource.RLIMIT_CORE)[0])\n"
    )
    if not resource.getrlimit(resource.RLIMIT_CORE)[1]:
        pytest.skip("core files are forbidden here")
    np.save("x.npy", sample())
    commands = (
        ["keygen", "public", "--insecure", "--quiet"],
        ["encrypt", "client.key", "x.npy", "--insecure", "--quiet"],
    )
    for command in commands:
        done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "limit 0"


@pytest.mark.parametrize("keys", ["eval.keys", "keys/"])
def test_a_kill_leaves_the_secret_key_and_the_same_command_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str], keys: str
) -> None:
    command = ["keygen", "--insecure", "public", "--keys", keys]
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_KILLED), *command],
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(hg.__file__).parents[1])},
    )
    assert killed.returncode == -signal.SIGKILL
    secret = folder / "client.key"
    before = secret.read_bytes()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert not (folder / "eval.keys").exists()
    code, out, err = run(capsys, *command)
    assert code == 0, err
    assert "the secret key that was there" in out
    assert secret.read_bytes() == before
    check(keys)


def test_keys_that_take_much_are_written_one_by_one(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the name that was given: the commands after it are the same."""
    monkeypatch.setattr("heliograph.execution.memory.FOLDER_KEY_BYTES", 1000)
    (folder / "eval.keys").write_bytes(b"of another artifact")
    code, _, err = run(capsys, "keygen", "--insecure", "public")
    assert code == 2
    assert "eval.keys is a file" in err
    assert "--keys keys/" in err
    assert not (folder / "client.key").exists()
    (folder / "eval.keys").unlink()
    made = run_json(capsys, "keygen", "--insecure", "public")
    names = [key.name for key in toy_artifact().evaluation_keys]
    assert len(list((folder / "eval.keys").glob("*.key"))) == len(names)
    assert made["evaluation_key_bytes"] > 1000
    check("eval.keys")
    # What is there is kept, also the secret key.
    lost = folder / "eval.keys" / (names[0].replace("/", "-") + ".key")
    lost.unlink()
    assert run_json(capsys, "keygen", "--insecure", "public") == made
    assert lost.exists()


def test_what_memory_has_no_room_for_leaves_no_secret_key(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.runtime.memory.available_bytes", lambda: 1000)
    for keys, folders in (("eval.keys", True), ("keys/", False)):
        code, _, err = run(capsys, "keygen", "--insecure", "public", "--keys", keys)
        assert code == 2
        assert "making the evaluation keys needs" in err
        assert ("--keys keys/" in err) == folders
        assert [path.name for path in folder.iterdir()] == ["public"]
    assert run(capsys, "keygen", "--insecure", "public", "--no-memory-check")[0] == 0
    # With both there, nothing is replaced.
    assert "client.key already exists" in run(capsys, "keygen", "--insecure", "public", "--no-memory-check")[2]


def test_what_the_disk_has_no_room_for_leaves_no_secret_key(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the keys' file is looked at, not that of temporary files."""
    usage = namedtuple("usage", "free")
    (folder / "small").mkdir()
    monkeypatch.setattr(
        "shutil.disk_usage", lambda path: usage(1000 if Path(path).name.startswith("small") else 1 << 40)
    )
    code, _, err = run(capsys, "keygen", "--insecure", "public", "--keys", "small/eval.keys")
    assert code == 2
    assert "MB in small, and 0 MB are free" in err
    assert not (folder / "client.key").exists()
    assert run(capsys, "keygen", "--insecure", "public", "--keys", "eval.keys")[0] == 0
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    code, _, err = run(capsys, "keygen", "--insecure", "public", "-o", "other.key", "--keys", "nowhere/eval.keys")
    assert code == 2
    assert "nowhere cannot be written" in err
    assert not (folder / "other.key").exists()
