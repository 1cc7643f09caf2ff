"""Programs back to torch: the same values, gradients, names; and training that recovers what polynomials lost."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from frontends import models
from helpers.own_functions import forgotten
from sklearn.datasets import load_digits
from support import Fn, inputs
from torch import nn

import heliograph as hg
from heliograph.compiler.pipeline import front_passes
from heliograph.errors import UnsupportedError
from heliograph.frontends.torch.training.modules import to_torch
from heliograph.frontends.torch.training.polynomial import polynomial, sparse_map
from heliograph.interpret import interpret_batch
from heliograph.ir import Program

A, B = (torch.linspace(-1, 1, n, dtype=torch.float64) for n in (12, 4))


def same(program: Program, *shapes: tuple[int, ...], again: bool = True) -> nn.Module:
    """Module and program agree to rounding, and so does the program that the module gives."""
    module = to_torch(program, dtype=torch.float64)
    samples = [x.abs() + 0.1 for x in inputs(shapes, 5)]
    expected = interpret_batch(program, *(x.numpy() for x in samples))
    with torch.no_grad():
        got = module(*samples)
    found = list(got.values()) if isinstance(got, dict) else [got]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-10)
    if again:
        traced = hg.trace(module, tuple(samples))
        for ours, theirs in zip(interpret_batch(traced, *(x.numpy() for x in samples)), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)
    return module


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, y: x + y[:, 1:, None] * 2 - x.mean((1, 2), keepdim=True), [(3, 4), (4,)]),
        (lambda x: F.pad(x[:, 1:, ::2], (1, 2, 0, 1)).permute(0, 2, 1).flatten(1), [(3, 4)]),
        (lambda x: torch.cat([x, 1 / x, x**3, torch.sqrt(x)], 1).sum(1), [(3, 4)]),
        (lambda x: x @ A.reshape(4, 3) + A[:3], [(2, 4)]),
        (lambda x: A.reshape(3, 4) @ x, [(4, 2)]),
        (lambda x: x @ A.reshape(4, 3), [(4,)]),
        (lambda x: torch.softmax(x, -1) + torch.maximum(x, B) - torch.clamp(x, -0.5, 0.5), [(3, 4)]),
        (lambda x: F.layer_norm(x, (4,), B, B) + F.leaky_relu(x, 0.2) + F.gelu(x, approximate="tanh"), [(3, 4)]),
        (lambda x: F.max_pool2d(x, 2, 1) + F.avg_pool2d(x, 2, 1, 0), [(2, 5, 5)]),
        (lambda x: F.adaptive_avg_pool2d(F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), 2), [(2, 5, 5)]),
        (lambda x: F.conv1d(x, A.reshape(4, 1, 3), B, 2, 1, 1, 2), [(2, 9)]),
        (lambda x: {"first": torch.relu(x), "second": F.softplus(x, 2.0) + torch.sigmoid(x) * torch.tanh(x)}, [(4,)]),
    ],
)
def test_every_op_means_the_same(function: Callable[..., Any], shapes: list[tuple[int, ...]]) -> None:
    same(hg.trace(Fn(function).double(), inputs(shapes, 1)), *shapes)


def test_a_registered_function_comes_back_as_the_op_that_it_was() -> None:
    with forgotten():
        hg.register_function("own_mish", lambda x: x * np.tanh(np.logaddexp(0.0, x)), torch_op="aten.mish")
        program = hg.trace(nn.Mish().double(), inputs([(4,)], 1)[0])
        assert "own_mish" in {node.op for node in program.nodes}
        same(program, (4,))


def test_a_network_keeps_its_names() -> None:
    model = models.fill(models.ResNet()).double()
    x = inputs([(3, 8, 8)], 2)[0]
    program = hg.trace(model, x)
    module = same(program, (3, 8, 8))
    assert {name for name, _ in model.named_parameters()} == {name for name, _ in module.named_parameters()}
    again = hg.trace(module, x)
    assert [(n.op, n.loc.layer) for n in again.nodes[1:]] == [(n.op, n.loc.layer) for n in program.nodes[1:]]
    # In training mode the norms take the batch's statistics, as in torch.
    model.train(), module.train()
    torch.testing.assert_close(module(x), model(x))


def test_gradients() -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.rand(3, 5, generator=random, dtype=torch.float64, requires_grad=True)
    series = torch.randn(8, generator=random, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, c: polynomial(x, c, -0.5, 2.0), (x, series))
    assert torch.autograd.gradcheck(lambda x: polynomial(x, torch.ones(1).double(), -0.5, 2.0), (x,))
    values = torch.randn(6, generator=random, dtype=torch.float64, requires_grad=True)
    starts, columns = torch.tensor([0, 2, 2, 6]), torch.tensor([0, 3, 0, 1, 2, 4])
    assert torch.autograd.gradcheck(lambda x, v: sparse_map(x, v, starts, columns), (x, values))


def test_programs_of_sparse_maps() -> None:
    program = hg.trace(models.fill(models.ResNet()).double(), inputs([(3, 8, 8)], 1)[0], input_range=(0, 3))
    made = front_passes(program, hg.Options(degree=7))[-1].program
    module = same(made, (3, 8, 8))
    trained = [name for name, _ in module.named_parameters()]
    assert any(name.endswith("values0") for name in trained)
    assert not any("coefficients" in name for name in trained)
    with_them = to_torch(made, train_coefficients=True)
    assert sum("coefficients" in name for name, _ in with_them.named_parameters()) == 5
    with_them(torch.rand(2, 3, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in with_them.parameters())


def test_approximate_has_the_polynomials_of_compile() -> None:
    model = models.fill(models.ResNet()).double()
    samples = inputs([(3, 8, 8)], 60)[0]
    program = hg.trace(model, samples[:1], calibration=samples.numpy())
    for options in (hg.Options(degree=5, margin=0.5), hg.Options(degrees=[3, 5, 7, 9, 11], method="minimax")):
        made = hg.approximate(program, options)
        polys = [made.array(node.attrs["coefficients"]).size - 1 for node in made.nodes if node.op == "poly"]
        assert polys == ([5] * 5 if options.degree else [3, 5, 7, 9, 11])
        assert sum(node.op == "conv" for node in made.nodes) == 5
        same(made, (3, 8, 8))
        lowered = front_passes(program, options)[-1].program
        x = samples[:10].numpy()
        np.testing.assert_allclose(interpret_batch(made, x)[0], interpret_batch(lowered, x)[0], rtol=1e-7)


@pytest.mark.parametrize(
    "options", [hg.Options(degree=9), hg.Options(degree=9, errors={"a": 0.01})], ids=["large", "composed"]
)
def test_approximate_goes_the_way_of_compile(options: hg.Options) -> None:
    """Compile divides large outputs, behind which a ReLU has ranges by unit, and composes a ReLU for an error."""
    samples = np.random.default_rng(0).uniform(-1, 1, (64, 8)) * np.linspace(0.2, 1.0, 8)
    text = "program p\ninput x: secret tensor[8]\na = relu(2 * x + 0.3)\nb = relu(400000 * a - 100000)\noutput y = b\n"
    program = replace(hg.parse(text), calibration=(samples,))
    lowered = front_passes(program, options)[-1].program
    assert lowered.interface.scales[0] > 1.0
    made = hg.approximate(program, options)
    # What compile composes stays as it is.
    assert sum(node.op == "relu" for node in made.nodes) == len(options.errors)
    if not options.errors:
        (found,), (wanted,) = interpret_batch(made, samples), interpret_batch(lowered, samples)
        np.testing.assert_allclose(found, wanted * lowered.interface.scales[0], rtol=1e-7, atol=1e-4)


def test_refusals() -> None:
    program = hg.trace(Fn(lambda x: torch.argmax(x, 1)), inputs([(4,)], 1))
    with pytest.raises(UnsupportedError, match="argmax has no counterpart"):
        to_torch(program)
    linear = hg.trace(nn.Linear(4, 2), torch.zeros(1, 4), input_range=(-1, 1))
    artifact = hg.compile(linear, hg.Options(security_bits=None, log_ring=11))
    with pytest.raises(UnsupportedError, match="slots of ciphertexts"):
        to_torch(artifact.program)


def test_training_recovers_what_low_degrees_lost() -> None:
    digits = load_digits()
    images = torch.from_numpy((digits.images[:, None] / 16).astype(np.float32))
    labels = torch.from_numpy(digits.target)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip

    def train(module: nn.Module, steps: int, rate: float, penalty: Callable[[], Any] = lambda: 0.0) -> nn.Module:
        optimizer = torch.optim.Adam(module.parameters(), lr=rate)
        module.train()
        for _ in range(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(module(images[:800]), labels[:800])
            (loss + 10 * penalty()).backward()
            optimizer.step()
        return module.eval()

    def accuracy(program: Program) -> float:
        (scores,) = interpret_batch(program, images[800:].numpy())
        return float((scores.argmax(1) == labels[800:].numpy()).mean())

    train(model, 100, 0.01)
    program = hg.trace(model, images[:1], calibration=images[:300])
    low = hg.approximate(program, hg.Options(degree=2, margin=2.0))
    module = to_torch(low, train_coefficients=True)
    assert float(module.range_penalty()) == 0.0
    train(module, 60, 0.002, module.range_penalty)
    copy.deepcopy(module)  # nothing of the training's graph is kept
    tuned = hg.trace(module, images[:1], calibration=images[:300])
    assert accuracy(low) < accuracy(program) - 0.03
    assert accuracy(tuned) > accuracy(program) - 0.02
    # The tuned program compiles with the polynomials that it was trained with.
    made = front_passes(tuned, hg.Options())[-1].program
    assert [entry.method for entry in made.ranges] == ["given"] * 3
    assert [entry.degree for entry in made.ranges] == [2] * 3
    np.testing.assert_allclose(
        interpret_batch(made, images[:20].numpy())[0], interpret_batch(tuned, images[:20].numpy())[0], atol=1e-4
    )
