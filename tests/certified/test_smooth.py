"""The smoothed program: what it means is what the procedure in the clear does, for every layout and kind of noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import heliograph as hg
from heliograph.certified.certify import exact_network
from heliograph.certified.clear import Smoothed, by_mean
from heliograph.certified.copies import averages
from heliograph.certified.smooth import Columns, Range, columns_of, smooth
from heliograph.certified.train import Square, perceptron
from heliograph.errors import ProgramError, UnsupportedError
from heliograph.interpret import interpret
from heliograph.ir import Program, shape_of

CLASSES = 4


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return perceptron(6, 5, CLASSES)


def linear() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(6, CLASSES)


def deep() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), Square(5), nn.Linear(5, 5), Square(5), nn.Linear(5, CLASSES))


def residual() -> nn.Module:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(4)
            self.first, self.last = nn.Linear(6, 6), nn.Linear(6, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(x - self.first(x) * self.first(x) + x * self.first(x))  # type: ignore[no-any-return]

    return Residual()


def convolution() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 3), nn.Flatten(), Square(12), nn.Linear(12, CLASSES))


NETWORKS = {"mlp": mlp, "linear": linear, "deep": deep, "residual": residual, "convolution": convolution}
CERTIFICATES = {
    "l2": hg.Certificate("l2", sigma=0.5, tau=0.7, n=11, n0=4, alpha=0.1),
    "l1": hg.Certificate("l1", eta=0.5, tau=0.7, n=16, n0=2, alpha=0.1),
    "fair": hg.Certificate("fair", theta=[0.5, 0.2, 0.1, 0.3, 0.4, 0.6], n=20, n0=8, alpha=0.1),
}


def traced(name: str) -> Program:
    model = NETWORKS[name]()
    # Logits around zero, so that answers are not always the same class.
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        last.bias -= model(torch.rand(500, 6, generator=torch.Generator().manual_seed(0)) * 2 - 1).mean(dim=0)
    return hg.trace(model, torch.zeros(1, 6), input_range=(-1.0, 1.0), name=name)


@pytest.mark.parametrize("kind", CERTIFICATES)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("joined", [True, False])
def test_the_answer_is_that_of_the_procedure_in_the_clear(name: str, kind: str, joined: bool) -> None:
    certificate, program = CERTIFICATES[kind], traced(name)
    network = exact_network(program)
    columns = replace(columns_of(network, certificate), joined=joined)
    smoothed = smooth(network, certificate, Range(100.0, 1e-3), columns, {})
    clear = Smoothed(program, certificate)
    clear._columns = columns
    rng = np.random.default_rng(6)
    seen = set()
    for _ in range(12):
        x = rng.uniform(-1.0, 1.0, 6)
        values: dict[str, Any] = {
            node.attrs["name"]: draw(node, rng) for node in smoothed.inputs if not node.type.secret
        }
        answer = interpret(smoothed, x, *(values[node.attrs["name"]] for node in smoothed.inputs[1:]))
        expected = clear.with_noise(x, values, by_mean)
        wanted = np.zeros(CLASSES)
        wanted[expected.label] = expected.votes - (certificate.target - 1)
        np.testing.assert_allclose(answer, wanted, atol=1e-6)
        seen.add(expected.label)
    assert len(seen) > 1, "answers that are always the same class would show little"


def draw(node: Any, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    shape = shape_of(node)
    return rng.standard_normal(shape) if node.attrs["drawn"] == "normal" else rng.uniform(-1.0, 1.0, shape)


def test_noise_does_not_meet_the_input_before_it_has_to() -> None:
    certificate = CERTIFICATES["l2"]
    network = exact_network(traced("mlp"))
    smoothed = smooth(network, certificate, Range(100.0, 1e-3), columns_of(network, certificate), {})
    fused = hg.compile(smoothed, hg.Options(security_bits=None, log_ring=11, precision_bits=4, samples_apart=1)).program
    encrypted = [node for node in fused.nodes if node.op == "linear_transform"]
    # The first layer once, its copies, the other layer with the differences of classes, the guess.
    assert len(encrypted) == 4
    assert sum(node.op == "mul_ct" and node.loc.layer.startswith("1") for node in fused.nodes) == 1


def test_a_mean_of_copies_is_one_copy_where_products_are_of_what_is_linear() -> None:
    found = {name: averages(exact_network(traced(name))) for name in NETWORKS}
    assert found == {"mlp": True, "linear": True, "deep": False, "residual": True, "convolution": True}


@pytest.mark.parametrize(
    ("columns", "width", "unused"),
    [
        (Columns(128, 32, True, True), 256, 127),
        (Columns(127, 32, True, True), 128, 0),
        (Columns(128, 32, True, False), 256, 127),
        (Columns(100, 32, True, False), 256, 155),
        (Columns(4096, 32, False, True), 4096, 0),
    ],
)
def test_columns_are_a_power_of_two(columns: Columns, width: int, unused: int) -> None:
    assert (columns.width, columns.unused) == (width, unused)


def test_few_copies_share_an_argmax_with_the_guess_and_many_do_not() -> None:
    network = exact_network(hg.trace(perceptron(6, 5, 10), torch.zeros(1, 6), input_range=(0.0, 1.0)))
    few, many = (hg.Certificate("l2", sigma=0.5, tau=0.76, n=n, n0=32) for n in (128, 4096))
    assert columns_of(network, few).joined
    assert not columns_of(network, many).joined


def test_what_is_no_classifier_is_refused() -> None:
    program = hg.trace(nn.Linear(6, 1), torch.zeros(1, 6), input_range=(0.0, 1.0), calibration=np.zeros((4, 6)))
    with pytest.raises(ProgramError, match="takes logits, at least two"):
        hg.certify(program, CERTIFICATES["l2"])


def test_functions_without_one_polynomial_are_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (1, 8)), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(4, 3))
    program = hg.trace(
        model, torch.zeros(1, 6), input_range=(0.0, 1.0), calibration=np.random.default_rng(0).random((8, 6))
    )
    with pytest.raises(UnsupportedError, match="no proof for max_rows inside a network"):
        hg.certify(program, CERTIFICATES["l2"])


def test_a_network_without_training_inputs_is_refused() -> None:
    with pytest.raises(ProgramError, match="no calibration samples"):
        hg.certify(traced("mlp"), CERTIFICATES["l2"])
