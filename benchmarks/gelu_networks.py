"""A residual network with GELU on CIFAR-10, or one for 64x64 images (`--network wide64`), trained here, encrypted."""

from __future__ import annotations

import deep_network  # first: it imports heliograph before torch

import sys
from pathlib import Path
from typing import Any

import torch
from common import hg, once
from harness import ROOT, Run, benchmark
from models.cifar import Images, cifar10

sys.path.insert(0, str(ROOT / "examples"))
from residual_gelu import ResidualGELU, Wide64, doubled, train

EPOCHS = {"gelu": 12, "wide64": 6}


def network(given: dict[str, Any]) -> tuple[torch.nn.Module, Images]:
    """The network that is named, trained once, and its images."""
    images, name = cifar10(), given["network"]
    torch.manual_seed(0)
    module = ResidualGELU() if name == "gelu" else Wide64()
    if name == "wide64":
        images = images._replace(train=doubled(images.train), test=doubled(images.test))
    weights = Path(given["folder"]) / f"{name}-weights.npz"
    return once(weights, module, lambda: train(module, images.train, images.train_labels, EPOCHS[name])), images


def compiled(given: dict[str, Any]) -> deep_network.Compiled:
    module, images = network(given)
    return deep_network.compiled(
        given["network"], module, images, hg.Options(degree=given["degree"], margin=0.6), given
    )


@benchmark(
    *deep_network.options(15, tuple(EPOCHS)),
    columns=deep_network.COLUMNS,
    data=("cifar10_subset.npz",),
    memory_gb=12,
    minutes=8,
    runs=((), ("--network", "wide64")),
)
def gelu_networks(run: Run) -> None:
    _, images = network(vars(run.options))
    deep_network.measure(run, "gelu_networks:compiled", images)


if __name__ == "__main__":
    gelu_networks.main()
