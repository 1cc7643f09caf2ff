"""The output error of the bill is at least that of every sample that was given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import heliograph as hg
from heliograph.compiler.pipeline import front_passes
from heliograph.compiler.reporting.bill import given_error, given_outputs
from heliograph.interpret import interpret_batch
from heliograph.ir import Program, Stage
from heliograph.records import LARGEST


class Of(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.inner = kind, nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "tanh":
            return torch.tanh(3 * x)
        if self.kind == "gauss":
            return torch.exp(-x * x)
        if self.kind == "layers":
            return torch.relu(self.inner(torch.relu(x)))
        return torch.relu(x)


@pytest.mark.parametrize("kind", ["tanh", "gauss", "relu", "layers"])
@pytest.mark.parametrize("count", [1, 5, 128, 130])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_sample_that_was_given_errs_more_than_the_bill_says(kind: str, count: int) -> None:
    torch.manual_seed(3)
    model, x = Of(kind).eval(), 2 * torch.randn(count, 6)
    # The outermost sample is the first, which sets the ranges: it is not among those that are kept apart.
    x[0] *= 3
    program = hg.trace(model, x[:1], calibration=x)
    stages: dict[Stage, Program] = {}
    made = hg.compile(program, hg.Options(security_bits=None), watch=lambda _, one: stages.update({one.stage: one}))
    (found,) = interpret_batch(stages[Stage.POLYNOMIAL], x.double().numpy())
    with torch.no_grad():
        worst = float(np.abs(found - model(x).double().numpy()).max())
    figures = made.report.figures
    assert figures.predicted_max_abs_error >= (1 - 1e-6) * worst
    assert figures.given_error == pytest.approx(worst, rel=1e-3, abs=1e-6)
    assert figures.predicted_max_abs_error == pytest.approx(
        max(figures.given_error, figures.approximation_error) + figures.scheme_error
    )
    assert figures.given_samples == count
    text = " ".join(made.report.full().split())
    assert f"by {figures.given_error:.2g} at most on all {count} that were given" in text
    assert ("held-out samples, by" in text) == (count > 1)
    assert hg.Artifact.from_bytes(made.to_bytes()).report.figures == figures


def test_a_sample_far_outside_is_a_figure_and_no_infinity() -> None:
    """An interval that was given is too narrow for some samples."""
    x = np.concatenate([np.full((1, 4), 1e60), np.linspace(-1, 1, 400).reshape(100, 4)])
    program = hg.parse("program p\ninput x: secret tensor[4] in [-1, 1]\noutput y = tanh(x)\n")
    polynomial = front_passes(program, hg.Options())[-1].program
    source = replace(program, calibration=(x,))
    found = given_error(source, given_outputs(source), polynomial)
    assert found == LARGEST


def test_without_samples_nothing_is_said_of_them() -> None:
    made = hg.compile(
        hg.parse("program p\ninput x: secret tensor[4] in [-1, 1]\noutput y = tanh(x)\n"),
        hg.Options(security_bits=None),
    )
    assert (made.report.figures.given_error, made.report.figures.given_samples) == (None, None)
    assert "that were given" not in made.report.full()
