"""Small compiled programs for the tests of the runtime; they are written by hand, so that torch is not needed."""

from __future__ import annotations

import functools

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.compiler.driver import compile as compile_program
from heliograph.compiler.options import Options
from heliograph.ir import Builder, Location, Program, Stage

INPUTS, HIDDEN, OUTPUTS = 8, 6, 3


def mlp(seed: int = 0) -> Program:
    """linear, relu, linear on x (8) in [-1, 1]."""
    random = np.random.default_rng(seed)
    builder = Builder("mlp", Stage.TENSOR)
    x = builder.input("x", Location("model.py", 3, 1, ""), shape=(INPUTS,), low=-1.0, high=1.0)
    weight = builder.constant(random.normal(size=(HIDDEN, INPUTS)) / 3, "fc1.weight")
    bias = builder.constant(random.normal(size=HIDDEN) / 3, "fc1.bias")
    hidden = builder.op("linear", (x,), Location("model.py", 4, 5, "fc1"), weight=weight, bias=bias)
    active = builder.op("relu", (hidden,), Location("model.py", 5, 5, "act"))
    weight = builder.constant(random.normal(size=(OUTPUTS, HIDDEN)) / 3, "fc2.weight")
    out = builder.op("linear", (active,), Location("model.py", 6, 5, "fc2"), weight=weight)
    return builder.finish({"y": out})


@functools.cache
def toy_artifact(seed: int = 0) -> Artifact:
    """The network on a ring of dimension 2^10 or a little more, without security."""
    return compile_program(mlp(seed), Options(security_bits=None, degree=5))


def sample(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, INPUTS)
