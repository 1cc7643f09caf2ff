"""Heliograph, native backend: the networks as modules of torch, compiled with default options."""

from __future__ import annotations

import heliograph as hg  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

import tempfile
from pathlib import Path
from typing import Any

import bootstraps
import numpy as np
import torch
from job import BOOTSTRAPS, evaluate, main, refreshed, secret, tell, timed
from squares import Squares, filled

from heliograph.ckks.ring import Ring
from heliograph.compiler.planning.chains import bootstrapping_rings


def secrets_of(ring: Ring) -> list[dict[str, Any]]:
    """The dense secret, and with bootstraps the sparse one of their encapsulation."""
    sparse = [secret(ring.log_ring, ring.sparse_log_q, 32)] if ring.bootstrap else []
    return [secret(ring.log_ring, ring.log_pq), *sparse]


def network(module: Squares, given: dict[str, np.ndarray]) -> None:
    samples = given["samples"].astype(np.float32)
    low = 0.0 if samples.min() >= 0 else -1.0
    program = hg.trace(
        module, torch.from_numpy(samples[:1]), input_range=(low, 1.0), calibration=given["calibration"].astype(np.float32),
        name="network",
    )  # fmt: skip
    artifact, seconds = timed(hg.compile, program)
    tell("made", compile_s=seconds.clock, secrets=secrets_of(artifact.ring))
    client = hg.Client(artifact.public())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "evaluation.keys")
        keys, seconds = timed(client.evaluation_keys)
        keys.save(path)
        tell("keys", keys_s=seconds.clock, keys_cpu_s=seconds.cores, key_bytes=path.stat().st_size)

        def size(sent: hg.EncryptedInput) -> int:
            sent.save(file := Path(folder, "sent"))
            return file.stat().st_size

        with hg.Server(artifact, keys) as server:
            evaluate(samples, client.encrypt, server.run, client.decrypt, size)


def dot(given: dict[str, np.ndarray]) -> None:
    network(filled([torch.nn.Linear(1024, 1, bias=False)], given), given)


def perceptron(given: dict[str, np.ndarray]) -> None:
    network(filled([torch.nn.Linear(784, 128), torch.nn.Linear(128, 10)], given), given)


def lenet(given: dict[str, np.ndarray]) -> None:
    convolutions = [torch.nn.Conv2d(*sizes, 5, stride=2, padding=2) for sizes in ((1, 32), (32, 64))]
    network(filled([*convolutions, torch.nn.Linear(3136, 512), torch.nn.Linear(512, 10)], given), given)


def bootstrap(log_ring: int) -> None:
    """One bootstrap of all slots, of the most precise ring with as many levels as OpenFHE's for transforms and after it."""
    budget, left = BOOTSTRAPS[log_ring]
    rings = bootstrapping_rings(log_ring, hg.Options())
    possible = [
        ring for ring in rings if ring.bootstrap == budget and ring.bootstrap_level - ring.bootstrap_input_level == left
    ]
    ring = max(possible, key=lambda ring: (ring.scale_bits, -ring.digits))
    tell("made", secrets=secrets_of(ring), setting=f"{ring.scale_bits} bits a level, {ring.digits} digits")
    refreshed(bootstraps.ours(ring, ring.slots, 1, 5, ()))


if __name__ == "__main__":
    main(
        {
            "dot": dot,
            "perceptron": perceptron,
            "lenet": lenet,
            "bootstrap-15": lambda _: bootstrap(15),
            "bootstrap-16": lambda _: bootstrap(16),
        }
    )
