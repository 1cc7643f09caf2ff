"""CIFAR-10 as networks take it, and the pretrained ResNet-20 and ResNet-32."""

from __future__ import annotations

from common import data, hg  # first: it imports heliograph before torch

import sys
from typing import NamedTuple

import numpy as np
import torch
from harness import ROOT

sys.path.insert(0, str(ROOT / "examples"))
from resnet import load, resnet20, resnet32

NETWORKS = {"resnet20": resnet20, "resnet32": resnet32}
# Found on training images: the lowest degree, and the margin and weight, that lose nothing (docs/approximation.md).
DEGREE, MARGIN, SPREAD = 31, 0.6, 1.5
# The polynomials err by a tenth of the largest logit; encryption may add a hundredth of it: 2^-6.6.
PRECISION_BITS = 6.6
# The training images that calibrate.
CALIBRATION = 512


class Images(NamedTuple):
    """Images normalized, (n, 3, 32, 32) float32, or other samples; `interval` holds every input there can be."""

    train: np.ndarray
    train_labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    interval: tuple[float, float]


def cifar10() -> Images:
    """7,728 training images and the first 500 test images."""
    with np.load(data("cifar10_subset.npz"), allow_pickle=False) as file:
        mean, std = (file[name].astype(np.float32) for name in ("norm_mean", "norm_std"))
        images = []
        for name in ("x_train", "x_test"):
            scaled = (file[name].astype(np.float32) / 255 - mean) / std
            images.append(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)))
        labels = [file[name].astype(np.int64) for name in ("y_train", "y_test")]
    interval = float((-mean / std).min()) - 1e-6, float(((1 - mean) / std).max()) + 1e-6
    return Images(images[0], labels[0], images[1], labels[1], interval)


def pretrained(name: str) -> torch.nn.Module:
    """ResNet-20 or ResNet-32 with its weights."""
    with np.load(data(f"cifar10_{name}_akamaster.npz"), allow_pickle=False) as weights:
        return load(NETWORKS[name](), weights).eval()


def traced(name: str, module: torch.nn.Module, images: Images) -> hg.Program:
    """The program of a network of these images."""
    return hg.trace(
        module, torch.from_numpy(images.test[:1]), input_range=images.interval,
        calibration=images.train[:CALIBRATION], name=name,
    )  # fmt: skip


def chosen(degree: int = DEGREE) -> hg.Options:
    """How the ResNets are compiled."""
    return hg.Options(degree=degree, margin=MARGIN, spread=SPREAD, precision_bits=PRECISION_BITS)


def compiled(name: str) -> hg.Artifact:
    """The artifact of a ResNet."""
    return hg.compile(traced(name, pretrained(name), cifar10()), chosen())
