"""The pretrained ResNets of resnet20.py and resnet32.py."""

from __future__ import annotations

from deep_network import (  # first: it imports heliograph
    CALIBRATION,
    ROOT,
    arguments,
    benchmark,
    cifar10,
    data,
    hg,
)

import sys

import numpy as np
import torch

sys.path.insert(0, str(ROOT / "examples"))
from resnet import load, resnet20, resnet32

NETWORKS = {20: resnet20, 32: resnet32}
# Found on training images: the lowest degree, and the margin and weight, that lose nothing (docs/approximation.md).
DEGREE, MARGIN, SPREAD = 31, 0.6, 1.5
# The polynomials err by a tenth of the largest logit; encryption may add a hundredth of it: 2^-6.6.
PRECISION_BITS = 6.6


def pretrained(depth: int) -> torch.nn.Module:
    """ResNet-20 or ResNet-32 with its weights."""
    with np.load(data(f"cifar10_resnet{depth}_akamaster.npz"), allow_pickle=False) as weights:
        return load(NETWORKS[depth](), weights)


def chosen(degree: int = DEGREE) -> hg.Options:
    """How these networks are compiled."""
    return hg.Options(degree=degree, margin=MARGIN, spread=SPREAD, precision_bits=PRECISION_BITS)


def compiled(depth: int) -> hg.Artifact:
    """The artifact of a network, as `main` compiles it."""
    images = cifar10()
    program = hg.trace(
        pretrained(depth),
        torch.from_numpy(images.test[:1]),
        input_range=images.interval,
        calibration=images.train[:CALIBRATION],
        name=f"resnet{depth}",
    )
    return hg.compile(program, chosen())


def main(depth: int) -> None:
    """ResNet-20 or ResNet-32, from the network as the example has it to the decrypted class."""
    options = arguments(f"ResNet-{depth} on CIFAR-10, pretrained", DEGREE)
    benchmark(f"resnet{depth}", pretrained(depth), cifar10(), chosen(options.degree), options)
