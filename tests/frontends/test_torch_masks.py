"""What hides a place before a softmax where there are samples, ranges, or neither; and what is known of values then."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from frontends.support import Fn, ops
from torch import nn

from heliograph.frontends.torch.export import trace
from heliograph.frontends.torch.inputs import reach as torch_reach
from heliograph.frontends.torch.inputs.reach import Reach
from heliograph.interpret import interpret_batch
from heliograph.ir import Builder, Program, Stage

# A softmax that leaves places out takes the others (`affine`) and puts zeros back.
LEFT_OUT = ["affine", "softmax", "affine"]


def biased(bias: float, **known: Any) -> list[str]:
    """The ops of a softmax of three scores to whose last a number is added."""
    module = Fn(lambda x, b: F.softmax(x + b, -1), b=torch.tensor([0.0, 0.0, bias])).eval()
    return ops(trace(module, torch.zeros(1, 3), **known))


@pytest.mark.parametrize(
    ("bias", "known", "left_out"),
    [
        (-70.0, {}, False),
        (-9e3, {}, False),
        (-1e4, {}, True),
        (-math.inf, {}, True),
        (-40.0, {"input_range": (-4, 4)}, True),
        (-40.0, {"input_range": (-6, 6)}, False),
        (-1e3, {"input_range": (0, 900)}, True),
        (-1e3, {"input_range": (0, 980)}, False),
        (-70.0, {"calibration": torch.tensor([[0.0, 0.0, 35.0], [0.0, 1.0, 2.0]])}, True),
        (-70.0, {"calibration": torch.tensor([[0.0, 0.0, 45.0], [0.0, 1.0, 2.0]])}, False),
        # Samples know more than a range does.
        (-70.0, {"input_range": (0, 100), "calibration": torch.tensor([[0.0, 0.0, 35.0]])}, True),
        # What is seen in two samples may come together in another.
        (-70.0, {"calibration": torch.tensor([[30.0, 30.0, 60.0], [0.0, 0.0, 1.0]])}, False),
        (-1e4, {"calibration": torch.tensor([[0.0, 0.0, 1e4], [0.0, 1.0, 2.0]])}, False),
        # A softmax over scores that differ by more than a million is computed by nobody.
        (-1e9, {"calibration": torch.tensor([[0.0, 0.0, 1e4], [0.0, 1.0, 2.0]])}, True),
    ],
)
def test_a_place_is_left_out_where_no_score_comes_near(bias: float, known: dict[str, Any], left_out: bool) -> None:
    assert biased(bias, **known)[1:] == (LEFT_OUT if left_out else ["softmax"])


def test_of_some_places_that_are_low_only_those_are_left_out_that_are_far() -> None:
    torch.manual_seed(0)
    module = Fn(lambda x, b: F.softmax(x + b, -1), b=torch.tensor([0.0, -35.0, -100.0])).eval()
    samples = torch.rand(8, 3, dtype=torch.float64) * 10
    program = trace(module, calibration=samples)
    assert "affine" in ops(program)
    np.testing.assert_allclose(interpret_batch(program, samples)[0], module(samples).numpy(), atol=1e-12)


def network() -> Program:
    """Linear layers, a product and a softmax, with a range of the input."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Linear(3, 4), nn.ReLU(), Fn(lambda x: ((x @ x.mT) * 3 - x.sum(-1, keepdim=True)).softmax(-1))
    )
    return trace(module.double().eval(), torch.zeros(1, 2, 3, dtype=torch.float64), input_range=(-1, 2))


@pytest.mark.parametrize("kept", [torch_reach._KEPT_ELEMENTS, 0])
def test_values_on_samples_are_those_of_the_interpreter_whatever_is_kept(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_reach, "_KEPT_ELEMENTS", kept)
    program, samples = network(), np.random.default_rng(0).uniform(-1, 2, (7, 2, 3))
    builder = Builder("again", Stage.TENSOR, program)
    builder.inputs = list(program.inputs)
    reach = Reach(builder, (samples,))
    for node in program.nodes:
        found = reach.on_samples(node)
        assert found is not None
        low, high = reach.intervals(node) or (None, None)
        assert low is not None, node.op
        assert high is not None
        flat = found.reshape(found.shape[0], -1)
        assert (flat >= low - 1e-9).all()
        assert (flat <= high + 1e-9).all()
    np.testing.assert_array_equal(reach.on_samples(program.outputs[0]), interpret_batch(program, samples)[0])
    assert kept or not reach._values


def test_of_many_samples_some_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_reach, "_MOST_ELEMENTS", 400)
    program, samples = network(), np.random.default_rng(0).uniform(-1, 2, (500, 2, 3))
    builder = Builder("again", Stage.TENSOR, program)
    builder.inputs = list(program.inputs)
    found = Reach(builder, (samples,)).on_samples(program.outputs[0])
    assert found is not None
    assert found.shape == (50, 2, 2)
