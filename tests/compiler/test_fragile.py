"""Composed polynomials: plans that larger errors of encryption would destroy are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import heliograph as hg
from heliograph.compiler.planning import plan
from heliograph.execution.interface import pack_inputs
from heliograph.execution.loop import execute
from heliograph.execution.simulator import Simulator
from heliograph.ir import Array

TOY = hg.Options(security_bits=None)
COMPARED = "program compared\ninput x: secret tensor[4] in [-1, 1]\noutput y = sign(x, gap=0.02)\n"
SMOOTH = "program smooth\ninput x: secret tensor[4] in [-1, 1]\noutput y = sigmoid(x)\n"
SAMPLES = np.random.default_rng(0).choice([-0.9, -0.5, 0.5, 0.9], (8, 4))


def compiled(text: str) -> hg.Artifact:
    program = replace(hg.parse(text), calibration=(SAMPLES,))
    return hg.compile(program, TOY)


@pytest.fixture
def louder(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The scales at which a simulation with larger errors ran; it fails at the first."""
    seen: list[int] = []

    def fails_at_first(program: Any, *others: Any) -> float:
        seen.append(program.ring.scale_bits)
        return math.inf if seen[-1] == seen[0] else 0.0

    monkeypatch.setattr(plan, "_louder", fails_at_first)
    return seen


def test_a_plan_that_errors_would_destroy_gives_way_to_one_with_a_larger_scale(louder: list[int]) -> None:
    ring = compiled(COMPARED).public().ring
    assert louder[0] < ring.scale_bits == louder[-1]


def test_single_polynomials_are_not_tried(louder: list[int]) -> None:
    compiled(SMOOTH)
    assert not louder


def test_errors_are_as_much_larger_as_asked() -> None:
    program = compiled(SMOOTH).program

    def spread(factor: float) -> float:
        outputs: list[Array] = []
        for noisy in (False, True):
            simulator = Simulator(program, seed=3, noisy=noisy, louder=factor)
            results, _ = execute(program, simulator, simulator.encrypt_inputs(pack_inputs(program, [SAMPLES[0]])))
            outputs.append(np.real(results[0].slots))
        return float(np.std(outputs[1] - outputs[0]))

    assert spread(3.0) == pytest.approx(3.0 * spread(1.0), rel=0.05)
