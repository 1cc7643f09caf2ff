"""`Options.correct`: linear maps behind polynomials, nearest to the exact network's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import heliograph as hg
from heliograph.compiler.pipeline import front_passes, fused_program
from heliograph.compiler.reporting.held_out import observe
from heliograph.errors import ProgramError
from heliograph.interpret import interpret_many
from heliograph.ir import Array, Node, Program
from heliograph.passes.polynomials.approximation import Approximations
from heliograph.passes.polynomials.corrections import Correction, corrections

CORRECTED = hg.Options(degree=7, margin=0.3, correct=True)
PLAIN = replace(CORRECTED, correct=False)


class Dense(torch.nn.Module):
    """A residual network of dense layers."""

    def __init__(self, depth: int, activation: Callable[[torch.Tensor], torch.Tensor], size: int = 6) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(size, size) for _ in range(depth))
        self.out, self.activation = torch.nn.Linear(size, 3), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.activation(1.5 * layer(x) + x)
        return self.out(x)


class Images(torch.nn.Module):
    """Convolutions with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (torch.nn.Conv2d(i, 3, 3, padding=1) for i in (1, 3, 3))
        self.out = torch.nn.Linear(48, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(2 * self.first(x))
        x = torch.relu(2 * self.third(torch.relu(2 * self.second(x))) + x)
        return self.out(torch.flatten(x, 1))


def samples(count: int, shape: tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, *shape))


def traced(module: torch.nn.Module, shape: tuple[int, ...] = (6,), count: int = 256) -> Program:
    return hg.trace(module.eval(), torch.zeros(1, *shape), calibration=samples(count, shape), input_range=(-9, 9))


def dense(activation: str = "relu", depth: int = 5) -> Program:
    torch.manual_seed(0)
    return traced(Dense(depth, getattr(torch.nn.functional, activation)))


def images() -> Program:
    torch.manual_seed(0)
    return traced(Images(), (1, 4, 4))


def distance(program: Program, options: hg.Options) -> float:
    """The root mean square error of the polynomial program on samples that nothing has seen."""
    unseen = [samples(512, program.calibration[0].shape[1:], seed=9)]
    (exact,), (made,) = (interpret_many(of, unseen) for of in (program, front_passes(program, options)[-1].program))
    return float(np.sqrt(np.square(made - exact).mean()))


@pytest.mark.parametrize(
    ("program", "most"),
    [(lambda: dense(depth=10), 0.75), (lambda: dense("gelu"), 0.95), (lambda: dense("tanh", 10), 0.95), (images, 0.98)],
    ids=["relu", "gelu", "tanh", "images"],
)
def test_outputs_of_unseen_samples_come_nearer(program: Callable[[], Program], most: float) -> None:
    made = program()
    assert distance(made, CORRECTED) < most * distance(made, PLAIN)


def test_nothing_is_added_and_the_price_is_the_same() -> None:
    chosen = replace(CORRECTED, margin=None, security_bits=None)
    plain, made = (hg.compile(images(), replace(chosen, correct=correct)) for correct in (False, True))
    assert made.report.figures.predicted.evaluate_ms == plain.report.figures.predicted.evaluate_ms
    assert [node.op for node in made.program.nodes] == [node.op for node in plain.program.nodes]
    assert made.report.figures.options["correct"] is True
    assert "correct" not in plain.report.figures.options
    assert made.report.figures.approximation_error < plain.report.figures.approximation_error


def by_layer(table: Approximations, found: dict[Node, Correction]) -> dict[str, Correction]:
    return {each.exact.loc.layer: found[each.exact] for each in table.linear if each.exact in found}


@pytest.mark.parametrize("units", [True, False])
def test_each_unit_gets_its_least_squares_fit(units: bool) -> None:
    """For the second of two maps, by numpy's fit of a line; the first is exact."""
    torch.manual_seed(0)
    function = torch.relu if units else torch.tanh
    module = torch.nn.Sequential(
        torch.nn.Linear(6, 4), torch.nn.ReLU() if units else torch.nn.Tanh(), torch.nn.Linear(4, 3)
    ).double()
    program = traced(module)
    fused = fused_program(program, PLAIN)
    table = observe(fused, PLAIN).known
    found = by_layer(table, corrections(table, fused.calibration))
    assert len(found) == 1
    (correction,) = found.values()
    (activation,) = table.activations.values()
    given = torch.tensor(program.calibration[0])
    with torch.no_grad():
        first = module[0](given)
        sizes = np.ones(4) if activation.sizes is None else activation.sizes
        hidden = np.polynomial.Chebyshev(activation.polynomial.coefficients, (activation.low, activation.high))(
            first.numpy() / sizes
        )
        value = module[2](torch.tensor(hidden * sizes)).numpy()
        exact = module[2](function(first)).numpy()
    for unit in range(3):
        assert np.polyfit(value[:, unit], exact[:, unit], 1) == pytest.approx(
            [correction.factor[unit], correction.offset[unit]], rel=1e-6, abs=1e-9
        )


def test_a_channel_is_one_unit_and_exact_maps_are_left_alone() -> None:
    fused = fused_program(images(), PLAIN)
    table = observe(fused, PLAIN).known
    found = by_layer(table, corrections(table, fused.calibration))
    assert not any(layer.startswith("first") for layer in found)
    (second,) = (each for layer, each in found.items() if layer.startswith("second"))
    assert second.factor.shape == second.offset.shape == (48,)
    for part in (second.factor, second.offset):
        assert len(set(part)) == 3
        assert all(len(set(channel)) == 1 for channel in part.reshape(3, 16))


def test_a_unit_that_hardly_varies_gets_an_offset_alone() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3)).double()
    with torch.no_grad():
        module[0].weight[0] *= 1e-9
        module[0].bias[0] = 0.3
        module[2].weight[0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    program = traced(module)
    fused = fused_program(program, PLAIN)
    table = observe(fused, PLAIN).known
    (correction,) = corrections(table, fused.calibration).values()
    assert correction.factor[0] == 1.0
    assert correction.offset[0] != 0.0
    assert np.isfinite(correction.offset).all()


def test_held_out_samples_correct_nothing_of_what_is_measured_on_them() -> None:
    program = dense()
    others = program.calibration[0].copy()
    others[1::2] = samples(128, (6,), seed=3)
    trials = [observe(fused_program(each, CORRECTED), CORRECTED).trial
              for each in (program, replace(program, calibration=(others,)))]  # fmt: skip
    first, second = (by_layer(trial, trial.choice.corrections) for trial in trials)  # type: ignore[arg-type, union-attr]
    assert first.keys() == second.keys()
    for layer, correction in first.items():
        np.testing.assert_array_equal(correction.factor, second[layer].factor)


def test_the_same_samples_give_the_same_corrections_again() -> None:
    """`debug` and `savings` make the table again from the options."""
    program = dense()
    assert (
        hg.compile(program, replace(CORRECTED, security_bits=None)).fingerprint
        == hg.compile(program, replace(CORRECTED, security_bits=None)).fingerprint
    )


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (lambda: traced(Dense(2, torch.relu), count=31), "too few"),
        (lambda: replace(dense(), calibration=()), "too few"),
        (lambda: hg.parse("program p\ninput x: secret slots[8] in [-1, 1]\noutput y = x * x\n"), "on slots"),
    ],
)
def test_it_is_refused_where_there_is_nothing_to_correct_by(program: Callable[[], Program], why: str) -> None:
    with pytest.raises(ProgramError, match=why) as caught:
        hg.compile(program(), CORRECTED)
    assert caught.value.where == "Options.correct"
