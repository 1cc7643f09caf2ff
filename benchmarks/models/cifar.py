"""CIFAR-10 as networks take it, and pretrained ResNets: two of akamaster, six of the package ace-fhe.

The package has no weights of the shortcuts' kind that He et al. chose for CIFAR-10 (option A), but convolutions in them, and
its own normalization. One of its networks is for CIFAR-100, of whose images there are none here: it is given CIFAR-10's, and
only its classes are compared.
"""

from __future__ import annotations

from common import data, hg  # first: it imports heliograph before torch

import sys
from typing import Any, NamedTuple

import numpy as np
import torch
from harness import ROOT

sys.path.insert(0, str(ROOT / "examples"))
from resnet import BasicBlock, ResNet, load


# Found on training images: the lowest degree, and the margin and weight, that lose nothing (docs/approximation.md).
DEGREE, MARGIN, SPREAD = 31, 0.6, 1.5
# The polynomials err by a tenth of the largest logit; encryption may add a hundredth of it: 2^-6.6.
PRECISION_BITS = 6.6
# The training images that calibrate.
CALIBRATION = 512


class Pretrained(NamedTuple):
    """A network of 6 * `blocks` + 2 layers and the file of its weights.

    `mean`, `std`: of the images' channels as the network takes them; None for those that the images' file has.
    `labelled`: whether its classes are CIFAR-10's. `degree`: of its activations. `precision_bits`: of its largest logit.
    `log_ring`: None for the planner's choice. `correct`: whether its linear maps are corrected.
    """

    blocks: int
    weights: str
    classes: int = 10
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    labelled: bool = True
    degree: int = DEGREE
    precision_bits: float = PRECISION_BITS
    log_ring: int | None = None
    correct: bool = False


_ACE: dict[str, Any] = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010), "degree": 63}
_CIFAR_100: dict[str, Any] = {
    "classes": 100, "mean": (0.5071, 0.4867, 0.4408), "std": (0.2675, 0.2565, 0.2761), "labelled": False, "degree": 255,
    "correct": True, "log_ring": 16,
}  # fmt: skip
NETWORKS = {
    "resnet20": Pretrained(3, "cifar10_resnet20_akamaster.npz"),
    "resnet32": Pretrained(5, "cifar10_resnet32_akamaster.npz"),
    "ace-resnet20": Pretrained(3, "cifar10_resnet20_ace.npz", **_ACE),
    "ace-resnet32": Pretrained(5, "cifar10_resnet32_ace.npz", correct=True, **_ACE),
    "ace-resnet44": Pretrained(7, "cifar10_resnet44_ace.npz", correct=True, **_ACE),
    "ace-resnet56": Pretrained(9, "cifar10_resnet56_ace.npz", **_ACE),
    # At 6.6 bits its plan just misses levels of 30 bits, and longer ones take twice as long.
    "ace-resnet110": Pretrained(18, "cifar10_resnet110_ace.npz", correct=True, precision_bits=6.2, **_ACE),
    "ace-cifar100-resnet32": Pretrained(5, "cifar100_resnet32_ace.npz", **_CIFAR_100),
}


class Images(NamedTuple):
    """Images normalized, (n, 3, 32, 32) float32, or other samples; `interval` holds every input there can be."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    interval: tuple[float, float]


def cifar10(network: str = "resnet20") -> Images:
    """7,728 training images and the first 500 test images, as a network takes them."""
    known = NETWORKS[network]
    with np.load(data("cifar10_subset.npz"), allow_pickle=False) as file:
        mean = np.asarray(known.mean or file["norm_mean"], dtype=np.float32)
        std = np.asarray(known.std or file["norm_std"], dtype=np.float32)
        images = []
        for name in ("x_train", "x_test"):
            scaled = (file[name].astype(np.float32) / 255 - mean) / std
            images.append(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)))
        labels = [file[name].astype(np.int64) for name in ("y_train", "y_test")]
    if not known.labelled:
        # No label is the right one.
        labels = [np.full(len(values), -1) for values in labels]
    interval = float((-mean / std).min()) - 1e-6, float(((1 - mean) / std).max()) + 1e-6
    return Images(images[0], labels[0], images[1], labels[1], interval)


class ProjectedBlock(BasicBlock):
    """A block whose shortcut, where the image is halved, is a convolution."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__(channels_in, channels, stride)
        self.downsample: torch.nn.Module = torch.nn.Identity()
        if stride != 1:
            self.downsample = torch.nn.Sequential(
                torch.nn.Conv2d(channels_in, channels, 1, stride, bias=False), torch.nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(out + self.downsample(x))


def pretrained(name: str) -> torch.nn.Module:
    """A ResNet with its weights."""
    known = NETWORKS[name]
    block = ProjectedBlock if known.mean else BasicBlock
    with np.load(data(known.weights), allow_pickle=False) as file:
        weights = {"linear" + key[2:] if key.startswith("fc.") else key: file[key] for key in file.files}
    return load(ResNet(known.blocks, known.classes, block), weights).eval()


def traced(name: str, module: torch.nn.Module, images: Images) -> hg.Program:
    """The program of a network of these images."""
    return hg.trace(
        module, torch.from_numpy(images.test[:1]), input_range=images.interval,
        calibration=images.train[:CALIBRATION], name=name,
    )  # fmt: skip


def chosen(network: Pretrained) -> hg.Options:
    """How a ResNet is compiled."""
    return hg.Options(
        degree=network.degree, log_ring=network.log_ring, margin=MARGIN, spread=SPREAD,
        precision_bits=network.precision_bits, correct=network.correct,
    )  # fmt: skip


def compiled(name: str) -> hg.Artifact:
    """The artifact of a ResNet."""
    return hg.compile(traced(name, pretrained(name), cifar10(name)), chosen(NETWORKS[name]))
