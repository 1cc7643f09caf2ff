"""The example networks at rings without security, with real bootstraps: the same pipeline as at 128 bits."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.data import absent, folder

import heliograph as hg  # first: it sets OpenMP's waiting policy
from heliograph.ir.bootstraps.asked import paired_slots

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))
from residual_gelu import ResidualGELU, Wide64, doubled  # noqa: E402
from resnet import load, resnet20, resnet32  # noqa: E402

DATA = folder()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (DATA / "cifar10_subset.npz").exists(), reason=absent(DATA / "cifar10_subset.npz")),
]


def images(name: str, count: int) -> np.ndarray:
    with np.load(DATA / "cifar10_subset.npz", allow_pickle=False) as file:
        mean, std = (file[key].astype(np.float32) for key in ("norm_mean", "norm_std"))
        scaled = (file[name][:count].astype(np.float32) / 255 - mean) / std
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def encrypted(
    module: torch.nn.Module, train: np.ndarray, x: np.ndarray, options: hg.Options
) -> tuple[np.ndarray, hg.Artifact]:
    """What decryption gives for one image, and the artifact."""
    pytest.importorskip("openfhe")
    program = hg.trace(module, torch.from_numpy(x[np.newaxis]), calibration=train, name="network")
    artifact = hg.compile(program, options)
    client = hg.Client(artifact.public(), allow_insecure=True)
    with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        return np.asarray(client.decrypt(server.run(client.encrypt(x)))), artifact


@pytest.mark.parametrize(("depth", "make"), [(20, resnet20), (32, resnet32)])
def test_pretrained_resnets(depth: int, make: object) -> None:
    assert callable(make)
    with np.load(DATA / f"cifar10_resnet{depth}_akamaster.npz", allow_pickle=False) as weights:
        module = load(make(), weights)
    x = images("x_test", 1)[0]
    # Without security there is always a chain that is long enough: bootstraps have to be asked for.
    options = hg.Options(security_bits=None, log_ring=13, degree=31, margin=0.6, spread=1.5, bootstrap=True)
    scores, artifact = encrypted(module, images("x_train", 512), x, options)
    # 16 channels of 32 x 32 take four ciphertexts of 4,096 slots, which are bootstrapped two by two.
    assert paired_slots(artifact.program) == (4096,)
    assert artifact.report.to_dict()["bootstraps"] > depth
    with torch.no_grad():
        clear = module(torch.from_numpy(x[np.newaxis])).numpy()[0]
    assert scores.argmax() == clear.argmax()
    assert np.abs(scores - hg.simulate(artifact, x)).max() < max(0.01, 8 * artifact.report.to_dict()["scheme_error"])


def test_resnet20_at_128_bits_is_planned_within_its_bounds() -> None:
    """What the project is measured by, without running it: bootstraps, rotations, memory, security."""
    with np.load(DATA / "cifar10_resnet20_akamaster.npz", allow_pickle=False) as weights:
        module = load(resnet20(), weights)
    x = images("x_test", 1)
    program = hg.trace(module, torch.from_numpy(x), calibration=images("x_train", 512), name="resnet20")
    report = hg.compile(program, hg.Options(degree=31, margin=0.6, spread=1.5)).report.to_dict()
    assert report["security_bits"] == 128
    assert report["log_pq"] <= report["max_log_pq"]
    assert report["bootstraps"] <= 18
    assert report["rotations"] <= 650
    assert report["server_peak_bytes"] <= 20e9
    assert report["predicted_ms"] <= 240e3


@pytest.mark.parametrize("name", ["gelu", "wide64"])
def test_other_networks(name: str) -> None:
    torch.manual_seed(0)
    train, x = images("x_train", 128), images("x_test", 1)
    module: torch.nn.Module = ResidualGELU() if name == "gelu" else Wide64()
    if name == "wide64":
        train, x = doubled(train), doubled(x)
    module.train()
    with torch.no_grad():
        for part in np.array_split(train, 4):
            module(torch.from_numpy(part))
    options = hg.Options(security_bits=None, log_ring=13, degree=15, margin=0.6, bootstrap=True)
    scores, artifact = encrypted(module.eval(), train, x[0], options)
    report = artifact.report.to_dict()
    assert report["bootstraps"] > 0
    if name == "wide64":
        assert sum(node.type.secret for node in artifact.program.inputs) > 1, "the input fits one ciphertext"
    assert np.abs(scores - hg.simulate(artifact, x[0])).max() < max(0.02, 8 * report["scheme_error"])
