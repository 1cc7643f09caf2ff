"""A residual network with GELU on CIFAR-10, or one for 64x64 images (`--network wide64`), trained here, encrypted."""

from __future__ import annotations

from deep_network import ROOT, arguments, benchmark, cifar10, hg, once  # first: it imports heliograph

import sys

import torch

sys.path.insert(0, str(ROOT / "examples"))
from residual_gelu import ResidualGELU, Wide64, doubled, train

EPOCHS = {"gelu": 12, "wide64": 6}


def main() -> None:
    options = arguments(__doc__ or "", 15, tuple(EPOCHS))
    images = cifar10()
    torch.manual_seed(0)
    module = ResidualGELU() if options.network == "gelu" else Wide64()
    if options.network == "wide64":
        images = images._replace(train=doubled(images.train), test=doubled(images.test))
    weights = options.folder / f"{options.network}-weights.npz"
    once(weights, module, lambda: train(module, images.train, images.train_labels, EPOCHS[options.network]))
    benchmark(options.network, module.eval(), images, hg.Options(degree=options.degree, margin=0.6), options)


if __name__ == "__main__":
    main()
