"""The example networks: what the shared weights give, and that their programs mean what torch computes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.data import absent, folder

import heliograph as hg
from heliograph.compiler.pipeline import linear_passes, polynomial_passes
from heliograph.compiler.reporting.held_out import approximate_pass
from heliograph.interpret import interpret_batch
from heliograph.passes.ranges.calibrate import Calibrate

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))
from residual_gelu import ResidualGELU, Wide64, doubled, train  # noqa: E402
from resnet import ResNet, load, resnet20, resnet32  # noqa: E402

FOLDER = folder()
NETWORKS = {20: resnet20, 32: resnet32}


def arrays(name: str) -> Any:
    if not (FOLDER / name).exists():
        pytest.skip(absent(FOLDER / name))
    return np.load(FOLDER / name, allow_pickle=False)


def cifar10() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first 512 training images, the 500 test images, their labels."""
    with arrays("cifar10_subset.npz") as file:
        mean, std = (file[name].astype(np.float32) for name in ("norm_mean", "norm_std"))
        train, test = (((x / np.float32(255) - mean) / std).transpose(0, 3, 1, 2) for x in
                       (file["x_train"][:512], file["x_test"]))  # fmt: skip
        return np.ascontiguousarray(train), np.ascontiguousarray(test), file["y_test"]


@pytest.mark.parametrize("depth", [20, 32])
def test_resnets_give_the_reference_logits(depth: int) -> None:
    with arrays(f"cifar10_resnet{depth}_akamaster.npz") as weights:
        module = load(NETWORKS[depth](), weights)
    _, test, _ = cifar10()
    with torch.no_grad(), arrays("cifar10_reference_logits.npz") as reference:
        scores = module(torch.from_numpy(test[:100])).numpy()
        np.testing.assert_allclose(scores, reference[f"logits_resnet{depth}"][:100], atol=1e-4)


@pytest.mark.parametrize(("name", "right"), [("ace-resnet20", 0.928), ("ace-resnet44", 0.924)])
def test_networks_with_convolutions_as_shortcuts_are_as_right_as_measured(name: str, right: float) -> None:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from models import cifar

    for file in ("cifar10_subset.npz", cifar.NETWORKS[name].weights):
        arrays(file)
    images = cifar.cifar10(name)
    with torch.no_grad():
        scores = cifar.pretrained(name)(torch.from_numpy(images.test)).numpy()
    assert float((scores.argmax(1) == images.test_labels).mean()) == pytest.approx(right)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "agreement"), [(20, 0.98), (32, 0.97)])
def test_degree_31_keeps_the_accuracy_of_resnets(depth: int, agreement: float) -> None:
    with arrays(f"cifar10_resnet{depth}_akamaster.npz") as weights:
        module = load(NETWORKS[depth](), weights)
    samples, test, labels = cifar10()
    program = hg.trace(module, torch.from_numpy(test[:1]), calibration=samples)
    fused = linear_passes(program)[-1].program
    options = hg.Options(degree=31, margin=0.6, spread=1.5)
    made = polynomial_passes(approximate_pass(options, Calibrate().run(fused)).table(fused))[-1].program
    assert all(entry.units is not None for entry in made.ranges)
    with torch.no_grad():
        clear = module(torch.from_numpy(test)).numpy()
    scores = np.concatenate([interpret_batch(made, part)[0] for part in np.array_split(test, 10)])
    right, wanted = (float((x.argmax(1) == labels).mean()) for x in (scores, clear))
    assert right >= wanted - 0.005
    assert float((scores.argmax(1) == clear.argmax(1)).mean()) >= agreement


@pytest.mark.parametrize(
    ("module", "size"), [(ResNet(1), 16), (ResidualGELU(4), 16), (Wide64(2), 32)], ids=["resnet", "gelu", "wide"]
)
def test_their_programs_compute_what_torch_does(module: torch.nn.Module, size: int) -> None:
    torch.manual_seed(0)
    x = torch.rand(3, 3, size, size)
    program = hg.trace(module.eval(), x)
    with torch.no_grad():
        np.testing.assert_allclose(interpret_batch(program, x.numpy())[0], module(x).numpy(), rtol=0, atol=1e-4)


def test_training_is_the_same_for_the_same_seed() -> None:
    images, labels = np.random.default_rng(0).normal(size=(256, 3, 16, 16)).astype(np.float32), np.arange(256) % 10
    weights = []
    for _ in range(2):
        torch.manual_seed(1)
        module = ResidualGELU(4)
        train(module, images, labels, 1)
        weights.append(module.head.weight.detach().numpy())
    assert (weights[0] == weights[1]).all()
    assert doubled(images).shape == (256, 3, 32, 32)
