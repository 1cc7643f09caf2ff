"""Public artifacts for bench.mjs: `python clients/js/bench/make.py FOLDER`.

Weights are random; they change no time of a client.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import heliograph as hg
from heliograph.ir import Builder, Location, Program, Stage

SIZES = {"mnist-mlp": (784, 128, 10), "digits-mlp": (64, 64, 10)}


def network(name: str) -> Program:
    """linear, relu, linear."""
    inputs, hidden, outputs = SIZES[name]
    random = np.random.default_rng(0)
    builder = Builder(name, Stage.TENSOR)

    def linear(x: object, size: int, before: int, layer: str) -> object:
        weight = builder.constant(random.normal(size=(size, before)) / np.sqrt(before), f"{layer}.weight")
        return builder.op("linear", (x,), Location("model.py", 1, 1, layer), weight=weight)  # type: ignore[arg-type]

    x = builder.input("x", Location("model.py", 1, 1, ""), shape=(inputs,), low=0.0, high=1.0)
    active = builder.op("relu", (linear(x, hidden, inputs, "fc1"),), Location("model.py", 1, 1, "act"))  # type: ignore[arg-type]
    return builder.finish({"y": linear(active, outputs, hidden, "fc2")})  # type: ignore[dict-item]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in SIZES:
        artifact = hg.compile(network(name))
        artifact.save(folder / f"{name}.helio")
        artifact.public().save(folder / f"{name}.public")
        print(artifact.public())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
