"""Peaks of real processes beside those predicted: keys in one file and in a folder, with bootstraps and without."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import heliograph as hg
from heliograph.compiler.memory import memory_bytes
from heliograph.runtime import client as client_module
from heliograph.runtime import server as server_module
from heliograph.runtime.memory import TooLittleMemoryError

REFRESHED = """program refreshed
input x: secret slots[64] in [-1, 1]
y = bootstrap(x * x - rotate(x, 3))
z = bootstrap(y * y - rotate(y, 9) + rotate(y, 4))
output w = z * z - rotate(z, 1)
"""
PLAIN = """program plain
input x: secret slots[64] in [-1, 1]
y = x * x - rotate(x, 3) + rotate(x, 5) + rotate(x, 17)
output w = y * y - rotate(y, 1) + rotate(y, 11)
"""
# One process each, as they are used: no torch, no other work.
_ROLES = """
    import sys
    from pathlib import Path
    import numpy as np
    from heliograph.compiler.artifact import Artifact, PublicArtifact
    from heliograph.runtime.measure import peak_rss_bytes
    role, ways, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    keys = folder / ways
    if role == "client":
        from heliograph.runtime.client import Client
        client = Client(PublicArtifact.load(folder / "public"))
        if ways == "folder":
            client.write_evaluation_keys(keys)
        else:
            client.evaluation_keys().save(keys)
        client.encrypt(np.load(folder / "x.npy")).save(folder / f"{ways}-input")
    else:
        from heliograph.runtime.keyfolder import load_keys
        from heliograph.runtime.messages import EncryptedInput
        from heliograph.runtime.server import Server
        with Server(Artifact.load(folder / "artifact"), load_keys(keys)) as server:
            for _ in range(2):
                server.run(EncryptedInput.load(folder / f"{ways}-input"))
    print(peak_rss_bytes())
"""


def peak(role: str, ways: str, folder: Path) -> int:
    command = [sys.executable, "-c", textwrap.dedent(_ROLES), role, ways, str(folder)]
    return int(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


@pytest.fixture(scope="module")
def artifact() -> hg.Artifact:
    return hg.compile(hg.parse(REFRESHED), hg.Options(security_bits=None, log_ring=12))


@pytest.mark.parametrize(("source", "log_ring"), [(REFRESHED, 12), (REFRESHED, 11), (PLAIN, 13)])
def test_peaks_are_as_predicted(source: str, log_ring: int, tmp_path: Path) -> None:
    artifact = hg.compile(hg.parse(source), hg.Options(security_bits=None, log_ring=log_ring))
    artifact.save(tmp_path / "artifact")
    artifact.public().save(tmp_path / "public")
    np.save(tmp_path / "x.npy", np.linspace(-0.5, 0.5, 64))
    predicted = memory_bytes(artifact.program, artifact.ring)
    for ways in ("file", "folder"):
        for role in ("client", "server"):
            measured = peak(role, ways, tmp_path)
            assert 1 / 1.3 < measured / predicted[f"{role}_{ways}"] < 1.3, (role, ways, measured, predicted)


def test_what_does_not_fit_is_refused_before_it_is_begun(
    artifact: hg.Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder needs less than a file; both are refused where even that is not there."""
    client = hg.Client(artifact.public())
    total = client.evaluation_key_bytes
    made: list[object] = []
    original = client_module.OpenFHECryptor.evaluation_key
    monkeypatch.setattr(
        client_module.OpenFHECryptor, "evaluation_key", lambda self, key: made.append(key) or original(self, key)
    )

    def leave(count: int) -> None:
        monkeypatch.setattr("heliograph.runtime.memory.available_bytes", lambda: count)

    leave(int(1.2 * total))
    with pytest.raises(TooLittleMemoryError, match="making the evaluation keys"):
        client.evaluation_keys()
    assert not made
    folder = client.write_evaluation_keys(tmp_path)
    assert len(made) == len(artifact.evaluation_keys)
    leave(10_000_000)
    with pytest.raises(TooLittleMemoryError, match="making an evaluation key"):
        client.write_evaluation_keys(tmp_path)
    monkeypatch.setattr(server_module.serial, "install_key", lambda *_: pytest.fail("a key was loaded"))
    with pytest.raises(TooLittleMemoryError, match="the server"):
        hg.Server(artifact, folder)
