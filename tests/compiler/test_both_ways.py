"""The same network as a PyTorch module and in the language compiles to the same circuit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from heliograph.compiler.driver import compile  # noqa: E402
from heliograph.compiler.options import Options  # noqa: E402
from heliograph.dsl.parse import parse  # noqa: E402
from heliograph.dsl.print import circuit, to_language  # noqa: E402
from heliograph.frontends.torch.export import trace  # noqa: E402
from heliograph.ir import Program  # noqa: E402

TOY = Options(security_bits=None, degree=5)


class MLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(6, 5)
        self.act = torch.nn.Tanh()
        self.fc2 = torch.nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(x)))


MLP_TEXT = """program MLP
input x: secret tensor[6] in [-1, 1]
param weight1: tensor[5, 6] = given("fc1.weight")
param bias1: tensor[5] = given("fc1.bias")
param weight2: tensor[3, 5] = given("fc2.weight")
param bias2: tensor[3] = given("fc2.bias")
fn dense(x: tensor[k], weight: tensor[n, k], bias: tensor[n]) -> tensor[n] {
  return weight @ x + bias
}
output linear = dense(tanh(dense(x, weight1, bias1)), weight2, bias2)
"""


class CNN(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 2, 3, stride=2, padding=1)
        self.pool = torch.nn.AvgPool2d(2)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(torch.nn.functional.gelu(self.conv(x))).flatten(1))


CNN_TEXT = """program CNN
input x: secret tensor[1, 8, 8] in [-1, 1]
param kernel: tensor[2, 1, 3, 3] = given("conv.weight")
param shift: tensor[2] = given("conv.bias")
param head: tensor[3, 8] = given("head.weight")
param bias: tensor[3] = given("head.bias")
h = conv(x, weight=kernel, bias=shift, stride=[2, 2], padding=[1, 1], dilation=[1, 1], groups=1)
h = avg_pool(gelu(h), kernel=[2, 2], stride=[2, 2], padding=[0, 0], count_include_pad=true)
output linear_1 = linear(flatten(h), weight=head, bias=bias)
"""


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x + self.second(torch.sigmoid(self.first(x)))
        return (h * y).sum(-1) - 0.5 * h.mean(-1) ** 2


RESIDUAL_TEXT = """program Residual
input x: secret tensor[4] in [-1, 1]
input y: secret tensor[4] in [-1, 1]
param w1: tensor[4, 4] = given("first.weight")
param b1: tensor[4] = given("first.bias")
param w2: tensor[4, 4] = given("second.weight")
h = x + w2 @ sigmoid(w1 @ x + b1)
output score = sum(h * y) - 0.5 * mean(h)**2
"""


def build(module: Callable[[], torch.nn.Module], shapes: list[tuple[int, ...]]) -> tuple[torch.nn.Module, Program]:
    torch.manual_seed(0)
    model = module().eval()
    example = tuple(torch.zeros((1, *shape)) for shape in shapes)
    ranges = (-1, 1) if len(shapes) == 1 else tuple((-1, 1) for _ in shapes)
    return model, trace(model, example[0] if len(shapes) == 1 else example, input_range=ranges)


@pytest.mark.parametrize(
    ("module", "shapes", "text"),
    [(MLP, [(6,)], MLP_TEXT), (CNN, [(1, 8, 8)], CNN_TEXT), (Residual, [(4,), (4,)], RESIDUAL_TEXT)],
)
def test_both_ways_compile_to_one_circuit(
    module: Callable[[], torch.nn.Module], shapes: list[tuple[int, ...]], text: str
) -> None:
    model, traced = build(module, shapes)
    written = parse(text, parameters={name: value.numpy() for name, value in model.state_dict().items()})
    left, right = (
        compile(program, TOY).program for program in (traced, replace(written, output_names=traced.output_names))
    )
    assert circuit(left) == circuit(right)
    # The comparison sees the contents of constants: another weight is another circuit.
    with torch.no_grad():
        next(iter(model.parameters())).mul_(1.01)
    other = compile(build(functools.partial(lambda: model), shapes)[1], TOY).program
    assert circuit(other) != circuit(left)


def test_a_traced_program_prints_itself_in_the_language() -> None:
    _, traced = build(MLP, [(6,)])
    again = parse(to_language(traced), parameters=traced.constants)
    assert circuit(compile(again, TOY).program) == circuit(compile(traced, TOY).program)


class Scorer(torch.nn.Module):
    def forward(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (x * torch.relu(weights)).sum(-1)


def test_a_traced_argument_may_be_the_servers_own() -> None:
    example = (torch.zeros(1, 3), torch.zeros(1, 3))
    program = trace(Scorer(), example, input_range=((-1, 1), (-2, 2)), plain=("weights",))
    text = """program Scorer
input x: secret tensor[3] in [-1, 1]
input weights: plain tensor[3] in [-2, 2]
output y = sum(x * relu(weights))
"""
    written = replace(parse(text), output_names=program.output_names)
    assert circuit(compile(program, TOY).program) == circuit(compile(written, TOY).program)
    with pytest.raises(Exception, match="plain names 'w', which is not an input"):
        trace(Scorer(), example, plain=("w",))
    assert np.isclose(float(torch.as_tensor(Scorer()(torch.ones(1, 3), torch.ones(1, 3)))), 3.0)
