"""Pretrained ResNets of 20 to 110 layers on CIFAR-10, encrypted at 128 bits."""

from __future__ import annotations

import deep_network  # first: it imports heliograph before torch

from typing import Any

from harness import Run, benchmark, option
from models.cifar import NETWORKS, chosen, cifar10, pretrained


def compiled(given: dict[str, Any]) -> deep_network.Compiled:
    name = given["network"]
    known = NETWORKS[name]
    asked = known._replace(degree=given["degree"] or known.degree, log_ring=given["log_ring"] or known.log_ring)
    return deep_network.compiled(name, pretrained(name), cifar10(name), chosen(asked), given)


@benchmark(
    *deep_network.options(None, tuple(NETWORKS)),
    option("--log-ring", type=int, default=None, help="logarithm of the ring dimension (default: the network's own)"),
    columns=deep_network.COLUMNS,
    data=("cifar10_subset.npz", *(each.weights for each in NETWORKS.values())),
    memory_gb=8,
    minutes=3,
    runs=((), ("--network", "resnet32")),
)
def resnets(run: Run) -> None:
    name = run.options.network
    more = {"weights": "ace-fhe"} if name.startswith("ace-") else {}
    deep_network.measure(run, "resnets:compiled", cifar10(name), **more)


if __name__ == "__main__":
    resnets.main()
