"""The server alone: another process with the artifact, the key file and the ciphertext file, and without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from runtime.support import mlp, sample

import heliograph as hg
from heliograph.artifact.artifact import Artifact
from heliograph.runtime.client.client import Client
from heliograph.runtime.wire.messages import EncryptedOutput

_SERVER = """
import sys
sys.modules["torch"] = None  # an import of torch fails from here on
import gc, json
import heliograph as hg

folder = sys.argv[1]
artifact = hg.Artifact.load(folder + "/model.helio")
keys = hg.EvaluationKeys.load(folder + "/eval.keys")
encrypted = hg.EncryptedInput.load(folder + "/input.ct")
with hg.Server(artifact, keys, allow_insecure=True) as server:
    server.run(encrypted).save(folder + "/output.ct")
    loaded = sorted(name for name in sys.modules if name.split(".")[0] == "openfhe" or "runtime.openfhe" in name)
    try:
        from openfhe import PrivateKey
    except ImportError:
        class PrivateKey: pass
    named = sorted(
        f"{type(owner).__name__}.{name}"
        for owner in (server, server.evaluator, artifact, keys, encrypted)
        for name in dir(owner)
        if "secret" in name.lower() or "private" in name.lower()
    )
    held = sum(isinstance(thing, PrivateKey) for thing in gc.get_objects())
    held += sum(isinstance(value, PrivateKey) for value in vars(server).values())
    print(json.dumps({
        "named": named,
        "held": held,
        "modules": sorted(name for name in sys.modules if name.startswith("heliograph.runtime")),
        "rooms": sorted({name.split(".")[1] for name in sys.modules if name.startswith("heliograph.")}),
        "torch": sys.modules["torch"] is not None,
        "openfhe": loaded,
    }))
"""


def serve(artifact: Artifact, folder: Path) -> tuple[Client, dict[str, object]]:
    """The client that stayed here, and what the server process said of itself."""
    client = Client(artifact.public(), allow_insecure=True)
    served = folder / "server"
    served.mkdir()
    client.save(folder / "client.key")
    artifact.save(served / "model.helio")
    client.evaluation_keys().save(served / "eval.keys")
    client.encrypt(sample()).save(served / "input.ct")
    done = subprocess.run(
        [sys.executable, "-c", _SERVER, str(served)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return client, json.loads(done.stdout)


def test_server_in_another_process(artifact: Artifact, tmp_path: Path) -> None:
    client, told = serve(artifact, tmp_path)
    assert told["named"] == []
    assert told["held"] == 0
    assert told["torch"] is False
    # Nor is OpenFHE, which only its own evaluator needs.
    assert told["openfhe"] == []
    # The code that makes and keeps secret keys is not even loaded there.
    modules = told["modules"]
    assert isinstance(modules, list)
    for name in ("client", "client.client", "client.keyfile", "openfhe.cryptor"):
        assert f"heliograph.runtime.{name}" not in modules
    # Nor is anything that compiles.
    rooms = told["rooms"]
    assert isinstance(rooms, list)
    assert not {"passes", "compiler", "approx", "interpret", "dsl", "frontends", "tools"} & set(rooms), rooms
    secret = client._cryptor.secret_bytes()
    piece = secret[len(secret) // 2 : len(secret) // 2 + 64]
    assert piece in (tmp_path / "client.key").read_bytes()
    files = list((tmp_path / "server").iterdir())
    assert sorted(file.name for file in files) == ["eval.keys", "input.ct", "model.helio", "output.ct"]
    assert not any(piece in file.read_bytes() for file in files)
    result = Client.load(tmp_path / "client.key", allow_insecure=True).decrypt(
        EncryptedOutput.load(tmp_path / "server/output.ct")
    )
    assert np.abs(result - hg.simulate(artifact, sample(), noisy=False)).max() < 1e-6


def test_at_real_security(tmp_path: Path) -> None:
    """128 bits: the files have the sizes that the report says, and the answer is right."""
    artifact = hg.compile(mlp(), hg.Options(security_bits=128, degree=3))
    assert artifact.ring.secure
    assert artifact.ring.security_bits == 128
    client, _ = serve(artifact, tmp_path)
    values = artifact.report.values
    ring = artifact.ring
    size = (tmp_path / "server/input.ct").stat().st_size
    assert 2 * ring.words(ring.levels) * ring.ring_dim * 4 == values["ciphertext_bytes"]
    assert values["sent_input_bytes"] <= size <= 1.05 * values["sent_input_bytes"]
    assert values["sent_input_bytes"] < 0.45 * values["ciphertext_bytes"]
    size = (tmp_path / "server/eval.keys").stat().st_size
    assert values["sent_key_bytes"] <= size <= 1.05 * values["sent_key_bytes"]
    assert values["sent_key_bytes"] < 0.5 * values["evaluation_key_bytes"]
    result = client.decrypt(EncryptedOutput.load(tmp_path / "server/output.ct"))
    error = np.abs(result - hg.simulate(artifact, sample(), noisy=False)).max()
    assert error < 8 * values["scheme_error"] + 1e-9
    assert error > 0


@pytest.mark.parametrize(
    ("code", "seconds"),
    [
        ("import heliograph", 0.3),
        ("import sys; from heliograph.cli.main import main; main(['--help'])", 0.5),
    ],
)
def test_imports_are_light(code: str, seconds: float) -> None:
    check = (
        "import time, sys, atexit\n"
        "begun = time.perf_counter()\n"
        "def tell():\n"
        "    heavy = [m for m in ('torch', 'openfhe', 'scipy', 'networkx', 'lark') if m in sys.modules]\n"
        "    print('took', time.perf_counter() - begun, heavy, file=sys.stderr)\n"
        "atexit.register(tell)\n" + code
    )
    best = 9.0
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
        words = done.stderr.split()
        assert words[-1] == "[]", done.stderr
        best = min(best, float(words[1]))
    assert best < seconds
