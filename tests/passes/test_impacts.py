"""Impacts of activations: by gradients and by finite differences, against autograd, formulas and each other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heliograph as hg
from heliograph.errors import ProgramError
from heliograph.frontends.torch.training.impacts import impacts
from heliograph.ir import Program
from heliograph.ir.analysis.loss import Loss
from heliograph.passes.degrees.impacts import differences, impacts_of
from heliograph.passes.tensors.expand import Expand
from heliograph.passes.tensors.simplify import Simplify


class Residual(nn.Module):
    """Convolutions with a shortcut, one activation that two branches read, and a small classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(3 * 9, 6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.a = torch.relu(self.conv1(x))
        self.b = F.silu(self.conv2(self.a))
        self.c = torch.tanh(self.fc1(F.avg_pool2d(self.b + self.a, 2).flatten(1)))
        return self.fc2(self.c)


def residual() -> tuple[Residual, np.ndarray]:
    torch.manual_seed(3)
    return Residual().eval(), np.random.default_rng(4).uniform(-1.0, 1.0, (40, 1, 6, 6))


def prepared(program: Program) -> Program:
    return Expand().run(Simplify().run(program))


def by_autograd(model: Residual, x: np.ndarray) -> list[float]:
    """A_i sample by sample, as the definition has it."""
    model = model.double()
    total = np.zeros(3)
    for sample in torch.from_numpy(x).double():
        logits = model(sample[None])
        loss = F.cross_entropy(logits, logits.argmax(1))
        total += [float(g.square().sum()) for g in torch.autograd.grad(loss, [model.a, model.b, model.c])]
    return [float(value) for value in total / len(x)]


@pytest.mark.parametrize("passes", [False, True])
def test_gradients_are_those_of_autograd(passes: bool) -> None:
    model, x = residual()
    program = hg.trace(model, torch.zeros(1, 1, 6, 6), calibration=x)
    program = prepared(program) if passes else program
    assert any(node.op == "conv" for node in program.nodes)
    assert program.gradients is impacts
    found = impacts_of(program, [x])
    np.testing.assert_allclose(found, by_autograd(model, x), rtol=1e-4)
    assert found == impacts_of(program, [x])


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = residual()
    program = hg.trace(nn.Sequential(model, nn.Linear(4, 1)).eval(), torch.zeros(1, 1, 6, 6))
    whole = impacts(program, [x]), differences(program, [x])
    monkeypatch.setattr("heliograph.frontends.torch.training.impacts._MOST_VALUES", 1500)
    np.testing.assert_allclose(impacts(program, [x]), whole[0], rtol=1e-5)
    monkeypatch.setattr("heliograph.passes.degrees.impacts._MOST_VALUES", 1500)
    # Other directions, and steps of other lengths.
    np.testing.assert_allclose(differences(program, [x]), whole[1], rtol=0.25)


def test_differences_agree_with_gradients() -> None:
    model, x = residual()
    program = prepared(hg.trace(model, torch.zeros(1, 1, 6, 6)))
    exact = impacts(program, [x])
    # 40 samples and 13 directions: a standard deviation of about sqrt(2 / 520) = 6 %, of which four are allowed.
    np.testing.assert_allclose(differences(program, [x]), exact, rtol=0.25)
    assert differences(program, [x]) == differences(program, [x])


def test_steps_are_not_biased() -> None:
    """With one element there is one direction but for its sign: nothing is left to chance."""
    program = hg.parse("program one\ninput x: secret tensor[1] in [-1, 1]\noutput y = exp(tanh(x)) * 3\n")
    x = np.linspace(-1.0, 1.0, 9).reshape(9, 1)
    y = 3 * np.exp(np.tanh(x))
    # Without classes the loss is y / std(y), up to its sign: the derivative by tanh is y / std(y), by exp 3 / std(y).
    expected = [float(np.mean(np.square(y / y.std()))), float(np.square(3 / y.std()))]
    np.testing.assert_allclose(impacts_of(program, [x]), expected, rtol=1e-6)


def test_a_linear_output_has_its_weights_as_derivative() -> None:
    random = np.random.default_rng(7)
    weights, x = random.normal(size=(5, 3)), random.uniform(-1, 1, (400, 3))
    with torch.no_grad():
        model = nn.Sequential(nn.Sigmoid(), nn.Linear(3, 5, bias=False), nn.Unflatten(1, (5, 1, 1)))
        model[1].weight.copy_(torch.from_numpy(weights))
    # 5 values in a tensor of rank 3 are one row still; two outputs of 15 values are not.
    program = hg.parse(
        "program two\ninput x: secret tensor[3] in [-1, 1]\nh = sigmoid(x)\noutput y = 2 * h, z = -3 * h\n"
    )
    h = 1 / (1 + np.exp(-x))
    expected = 3 * (2 / (2 * h).std()) ** 2 + 3 * (3 / (3 * h).std()) ** 2
    # Signs are drawn: (2 s / std + 3 t / std)^2 has the mean 4 / std^2 + 9 / std^2, over 1200 draws.
    np.testing.assert_allclose(impacts_of(program, [x]), [expected], rtol=0.15)
    classes = impacts_of(hg.trace(model.eval(), torch.zeros(1, 3)), [x])
    logits = h @ weights.T
    p = np.exp(logits - logits.max(1, keepdims=True))
    p = p / p.sum(1, keepdims=True) - (logits == logits.max(1, keepdims=True))
    np.testing.assert_allclose(classes, [float(np.square(p @ weights).sum(1).mean())], rtol=1e-4)


def test_a_network_that_is_sure_of_itself() -> None:
    """Cross entropies of 1e-65 in float32: the derivative has all its digits."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    with torch.no_grad():
        model[2].weight.mul_(300.0)
    x = np.random.default_rng(1).uniform(-1, 1, (30, 4))
    program = hg.trace(model, torch.zeros(1, 4))
    (found,) = impacts(program, [x])
    (close,) = differences(program, [x])
    assert found == pytest.approx(close, rel=0.3)
    for one in x[:10]:
        (found,) = impacts(program, [one[None]])
        assert found > 0.0


def test_several_and_plain_inputs() -> None:
    text = (
        "program scorer\ninput x: secret tensor[4] in [-1, 1]\ninput w: plain tensor[3, 4] in [-1, 1]\n"
        "input z: secret tensor[3] in [-1, 1]\nh = w @ x + relu(z)\noutput y = sigmoid(h) * relu(w[0:3, 0])\n"
    )
    program = hg.parse(text)
    random = np.random.default_rng(5)
    x, w, z = (random.uniform(-1, 1, (60, *shape)) for shape in ((4,), (3, 4), (3,)))
    found = impacts_of(prepared(program), [x, w, z])
    # The relu of plain values is none of the server's secrets, and takes no polynomial.
    assert len(found) == 2
    assert min(found) > 0
    np.testing.assert_allclose(found, impacts(program, [x, w, z]), rtol=0.25)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.max_pool2d(torch.relu(x), 2).flatten(1),
        lambda x: F.relu6(4 * x).flatten(1),
        lambda x: torch.maximum(torch.relu(x), x[:, :, :1]).flatten(1),
        lambda x: torch.softmax(torch.tanh(x).flatten(1), 1),
        lambda x: F.layer_norm(torch.relu(x) + 0.1 * x, (6,)).flatten(1),
    ],
)
def test_what_expand_makes(function: object) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.fc = nn.LazyLinear(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(function(x))  # type: ignore[operator]

    net = Net()
    net(torch.zeros(1, 1, 6, 6))
    x = np.random.default_rng(6).normal(size=(40, 1, 6, 6))
    program = prepared(hg.trace(net.eval(), torch.zeros(1, 1, 6, 6)))
    exact = impacts(program, [x])
    assert len(exact) == sum(node.op in ("relu", "relu6", "tanh", "abs", "rsqrt") for node in program.nodes)
    assert min(exact) > 0
    np.testing.assert_allclose(differences(program, [x]), exact, rtol=0.3)


def test_a_function_without_a_counterpart_in_torch() -> None:
    program = hg.parse(
        "program far\ninput x: secret tensor[4] in [-1, 1]\nh = tanh(x)\na = where(h > 0.1, h, 0.5 * h)\n"
        "output y = sigmoid(a)\n"
    )
    x = np.random.default_rng(8).uniform(-1, 1, (60, 4))
    expected = impacts_of(program, [x])
    assert min(expected) > 0
    # `gt` is none of torch's: gradients refuse, and differences serve.
    assert impacts_of(replace(program, gradients=impacts), [x]) == expected


def test_decisions_hide_nothing() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5)).eval()

    class Decides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.argmax(self.net(x), 1)

    x = np.random.default_rng(3).uniform(-1, 1, (50, 4))
    logits = impacts_of(hg.trace(model, torch.zeros(1, 4)), [x])
    decided = prepared(hg.trace(Decides(), torch.zeros(1, 4)))
    assert any(node.op == "argmax_rows" for node in decided.nodes)
    np.testing.assert_allclose(impacts_of(decided, [x]), logits, rtol=1e-5)
    # Two signs behind each other, and what reaches the output beside them.
    text = "program signs\ninput x: secret tensor[3] in [-1, 1]\na = tanh(x)\nb = sign(a)\noutput y = sign(2 * b + 1)\n"
    assert min(impacts_of(hg.parse(text), [x[:, :3]])) > 0


def test_refusals() -> None:
    program = hg.parse("program cut\ninput x: secret tensor[3] in [-1, 1]\noutput y = x + 0 * relu(x)\n")
    with pytest.raises(ProgramError, match="no activation of cut has an impact") as caught:
        impacts_of(program, [np.ones((4, 3))])
    assert all((caught.value.where, caught.value.why, caught.value.hint))
    for samples in ([np.ones((4, 2))], [], [np.ones((0, 3))], [np.ones((4, 3)), np.ones((4, 3))], [np.float64(1)]):
        with pytest.raises(ProgramError, match="are not those of the inputs"):
            impacts_of(program, samples)
    program = hg.parse("program log\ninput x: secret tensor[3] in [0, 1]\noutput y = log(relu(x))\n")
    with np.errstate(all="ignore"), pytest.raises(ProgramError, match="not finite"):
        impacts_of(program, [np.zeros((4, 3))])
    no_activation = hg.parse("program line\ninput x: secret tensor[3] in [0, 1]\noutput y = 2 * x\n")
    assert impacts_of(no_activation, [np.zeros((4, 3))]) == ()


def test_the_loss_and_its_slopes_are_one() -> None:
    random = np.random.default_rng(9)
    outputs = [random.normal(size=(6, 4)), random.normal(size=(6, 2, 2))]
    for loss, given in ((Loss(), outputs[:1]), (Loss.of_outputs(outputs), outputs)):
        slopes = loss.slopes(given, 3)
        for number, slope in enumerate(slopes):
            move = random.normal(size=slope.shape)
            ends = [
                loss.values([out + s * 1e-6 * move if i == number else out for i, out in enumerate(given)], 3)
                for s in (1, -1)
            ]
            np.testing.assert_allclose(
                (ends[0] - ends[1]) / 2e-6, (slope * move).reshape(6, -1).sum(1), rtol=1e-6, atol=1e-8
            )


def test_resnet20_in_seconds(data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "examples"))
    from resnet import load, resnet20

    with np.load(data("cifar10_resnet20_akamaster.npz"), allow_pickle=False) as weights:
        module = load(resnet20(), weights)
    with np.load(data("cifar10_subset.npz"), allow_pickle=False) as file:
        mean, std = (file[name].astype(np.float32) for name in ("norm_mean", "norm_std"))
        images = ((file["x_train"][:128].astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2)
    program = prepared(hg.trace(module, torch.zeros(1, 3, 32, 32)))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        start = time.perf_counter()
        found = impacts_of(program, [images])
        print(f"impacts of ResNet-20 on 128 samples: {time.perf_counter() - start:.2f} s")
        few = impacts_of(program, [images[:1]])
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 19
    # An error before a residual stage reaches further than the last, which only the mean reads.
    assert min(found[:18]) > 10 * found[18] > 0
    # Differences in float64, through the interpreter: 19 layers times 8 directions, a standard deviation of some 20 %.
    monkeypatch.setattr("heliograph.passes.degrees.impacts._MOST_DIRECTIONS", 8)
    np.testing.assert_allclose(np.sum(differences(program, [images[:1]])), np.sum(few), rtol=0.5)
