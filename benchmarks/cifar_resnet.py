"""The pretrained ResNets of resnet20.py and resnet32.py."""

from __future__ import annotations

from deep_network import ROOT, arguments, benchmark, cifar10, data, hg  # first: it imports heliograph

import sys

import numpy as np

sys.path.insert(0, str(ROOT / "examples"))
from resnet import load, resnet20, resnet32

NETWORKS = {20: resnet20, 32: resnet32}
# Found on training images: the lowest degree, and the margin and weight, that lose nothing (docs/approximation.md).
DEGREE, MARGIN, SPREAD = 31, 0.6, 1.5
# The polynomials err by a tenth of the largest logit; encryption may add a hundredth of it: 2^-6.6.
PRECISION_BITS = 6.6


def main(depth: int) -> None:
    """ResNet-20 or ResNet-32, from the network as the example has it to the decrypted class."""
    options = arguments(f"ResNet-{depth} on CIFAR-10, pretrained", DEGREE)
    images = cifar10()
    with np.load(data(f"cifar10_resnet{depth}_akamaster.npz"), allow_pickle=False) as weights:
        module = load(NETWORKS[depth](), weights)
    chosen = hg.Options(degree=options.degree, margin=MARGIN, spread=SPREAD, precision_bits=PRECISION_BITS)
    benchmark(f"resnet{depth}", module, images, chosen, options)
