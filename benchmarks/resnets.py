"""ResNet-20 and ResNet-32 on CIFAR-10, pretrained, encrypted at 128 bits."""

from __future__ import annotations

import deep_network  # first: it imports heliograph before torch

from typing import Any

from harness import Run, benchmark
from models.cifar import DEGREE, NETWORKS, chosen, cifar10, pretrained


def compiled(given: dict[str, Any]) -> deep_network.Compiled:
    name = given["network"]
    return deep_network.compiled(name, pretrained(name), cifar10(), chosen(given["degree"]), given)


@benchmark(
    *deep_network.options(DEGREE, tuple(NETWORKS)),
    columns=deep_network.COLUMNS,
    data=("cifar10_subset.npz", "cifar10_resnet20_akamaster.npz", "cifar10_resnet32_akamaster.npz"),
    memory_gb=8,
    minutes=3,
    runs=((), ("--network", "resnet32")),
)
def resnets(run: Run) -> None:
    deep_network.measure(run, "resnets:compiled", cifar10())


if __name__ == "__main__":
    resnets.main()
