"""The networks of benchmarks/ola.py: two pretrained ResNets, and two that are trained here, once."""

from __future__ import annotations

from common import data, once  # first: it imports heliograph before torch

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from harness import ROOT
from models.cifar import MARGIN, SPREAD, Images, pretrained
from torch import Tensor, nn

sys.path.insert(0, str(ROOT / "examples"))
from residual_gelu import ResidualGELU, train


class Mixer(nn.Module):
    """ConvNeXt's blocks with batch norms: patches of 4x4 pixels; a depthwise convolution, two pointwise ones with a GELU
    between, added to what came in; the mean and a linear layer.
    """

    def __init__(self, channels: int = 32, blocks: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, channels, 4, 4, bias=False), nn.BatchNorm2d(channels))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(channels, channels, 5, padding=2, groups=channels, bias=False), nn.BatchNorm2d(channels),
                nn.Conv2d(channels, 2 * channels, 1), nn.GELU(), nn.Conv2d(2 * channels, channels, 1),
            )
            for _ in range(blocks)
        )  # fmt: skip
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


@dataclass(frozen=True, slots=True)
class Network:
    """A network, its uniform degree, the options that all ways of allocating share, and how it is refined.

    `degrees` are those of the refined network, one for all activations or by layer, trained for `epochs`.
    """

    name: str
    module: Callable[[Path, Images], nn.Module]
    degree: int
    options: dict[str, float]
    degrees: int | dict[str, int]
    epochs: int
    rate: float = 5e-4


def _pretrained(name: str) -> Callable[[Path, Images], nn.Module]:
    return lambda folder, images: pretrained(name)


def _trained(name: str, build: Callable[[], nn.Module], epochs: int) -> Callable[[Path, Images], nn.Module]:
    def made(folder: Path, images: Images) -> nn.Module:
        torch.manual_seed(0)
        module = build()
        return once(
            folder / f"{name}-weights.npz", module, lambda: train(module, images.train, images.train_labels, epochs)
        )

    return made


RESNET = {"margin": MARGIN, "spread": SPREAD}
# Polynomials err by far more than a hundredth of the largest score: encryption may add that much (as in models/cifar.py).
PRECISION_BITS = 7
NETWORKS = {
    each.name: each
    for each in (
        Network("resnet20", _pretrained("resnet20"), 31, RESNET, 3, 28, 4e-4),
        Network("resnet32", _pretrained("resnet32"), 31, RESNET, 3, 20, 3e-4),
        Network("gelu", _trained("gelu", ResidualGELU, 12), 15, {"margin": 0.6}, 7, 40),
        Network("mixer", _trained("mixer", Mixer, 12), 15, {"margin": 0.6}, 7, 40),
    )
}


class Augment:
    """Crops of images moved by up to four pixels, black beyond their edges, half of them mirrored.

    Of one in five the contrast is changed, mostly upwards: such images are where polynomials leave their intervals. Three in
    ten are mixed with another one: the float network says what they are, and there are more of them than of images.
    """

    def __init__(self) -> None:
        with np.load(data("cifar10_subset.npz"), allow_pickle=False) as file:
            mean, std = (torch.from_numpy(file[name].astype(np.float32)) for name in ("norm_mean", "norm_std"))
        self.black, self.white = (((edge - mean) / std).reshape(1, 3, 1, 1) for edge in (0.0, 1.0))

    def __call__(self, batch: Tensor) -> Tensor:
        count, _, height, width = batch.shape
        wide = self.black.expand(count, 3, height + 8, width + 8).clone()
        wide[:, :, 4:-4, 4:-4] = batch
        down, right = torch.randint(0, 9, (2, count)).tolist()
        moved = torch.stack(
            [one[:, i : i + height, j : j + width] for one, i, j in zip(wide, down, right, strict=True)]
        )
        moved = torch.where(torch.rand(count, 1, 1, 1) < 0.5, moved, moved.flip(3))
        share = torch.where(torch.rand(count, 1, 1, 1) < 0.3, 0.5 + 0.5 * torch.rand(count, 1, 1, 1), torch.ones(()))
        moved = share * moved + (1 - share) * moved[torch.randperm(count)]
        contrast = torch.where(torch.rand(count, 1, 1, 1) < 0.2, 0.9 + 0.6 * torch.rand(count, 1, 1, 1), torch.ones(()))
        middle = moved.mean((1, 2, 3), keepdim=True)
        return torch.clamp(middle + contrast * (moved - middle), self.black, self.white)
