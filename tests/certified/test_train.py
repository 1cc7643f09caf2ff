"""Training with noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.blobs import Blobs
from torch import nn

import heliograph as hg
from heliograph.certified.clear import Smoothed
from heliograph.certified.train import Square, perceptron, train
from heliograph.errors import ProgramError

WIDE = hg.Certificate("l2", sigma=0.3, tau=0.7, n=64, n0=32, alpha=0.01)


def certified(model: nn.Module, blobs: Blobs) -> float:
    """The share of inputs that are certified for their class."""
    program = hg.trace(model, torch.zeros(1, 8), input_range=(0.0, 1.0))
    smoothed = Smoothed(program, WIDE)
    answers = [(smoothed(x), y) for x, y in zip(blobs.inputs[1500:1700], blobs.labels[1500:1700], strict=True)]
    return float(np.mean([answer.certified and answer.label == y for answer, y in answers]))


def test_a_plain_network_certifies_more_after_training_with_noise(blobs: Blobs) -> None:
    torch.manual_seed(0)
    model = perceptron(8, 6, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x, y = torch.tensor(blobs.inputs[:200], dtype=torch.float32), torch.tensor(blobs.labels[:200])
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    before = certified(model.eval(), blobs)
    trained = train(model, blobs.inputs[:1500], blobs.labels[:1500], WIDE, epochs=15, batch=64)
    assert trained is model
    assert not trained.training
    assert certified(trained, blobs) > before + 0.05


@pytest.mark.parametrize("consistency", [0.0, 1.0])
def test_the_same_seed_gives_the_same_network(blobs: Blobs, consistency: float) -> None:
    def made(seed: int) -> torch.Tensor:
        torch.manual_seed(0)
        model = perceptron(8, 4, 3)
        train(
            model, blobs.inputs[:256], blobs.labels[:256], WIDE, epochs=2, batch=64, consistency=consistency, seed=seed
        )
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    assert torch.equal(made(1), made(1))
    assert not torch.equal(made(1), made(2))


def test_uniform_noise_and_progress(blobs: Blobs) -> None:
    seen: list[tuple[str, int, int]] = []
    certificate = hg.Certificate("l1", eta=0.3, tau=0.7, n=32, n0=8, alpha=0.05)
    train(
        perceptron(8, 4, 3),
        blobs.inputs[:256],
        blobs.labels[:256],
        certificate,
        epochs=2,
        batch=100,
        progress=lambda *told: seen.append(told),
    )
    assert seen[-1] == ("training with noise", 6, 6)


def test_a_square_is_phoenix_quadratic_but_for_a_constant() -> None:
    square = Square(3)
    with torch.no_grad():
        square.scale.copy_(torch.tensor([0.1, -0.2, 0.5]))
        square.shift.copy_(torch.tensor([1.0, 2.0, -3.0]))
    x = torch.randn(10, 3)
    second, first = square.scale, 2 * square.scale * square.shift
    constant = square.scale * square.shift**2
    torch.testing.assert_close(square(x), second * x * x + first * x + constant)


def test_what_cannot_be_trained_on_is_refused(blobs: Blobs) -> None:
    with pytest.raises(ProgramError, match="do not go together"):
        train(perceptron(8, 4, 3), blobs.inputs[:10], blobs.labels[:9], WIDE)
    with pytest.raises(ProgramError, match=r"inputs are not an array of real numbers\n.* complex numbers"):
        train(perceptron(8, 4, 3), blobs.inputs[:10] + 5j, blobs.labels[:10], WIDE)
    with pytest.raises(ProgramError, match="no longer a number"):
        train(perceptron(8, 4, 3), blobs.inputs[:100], blobs.labels[:100], WIDE, epochs=20, rate=1e12)
