"""Graphs of several samples, models of one sample or a fixed number of them, and what becomes of the batch axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from frontends.support import Fn, agree, inputs, ops
from torch import nn

from heliograph.errors import UnsupportedError
from heliograph.frontends.torch.export import trace
from heliograph.interpret import interpret_batch

W = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids).mean(1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), (4,)),
    "images": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2)
        ),
        (1, 6, 6),
    ),
    "interpolated": (lambda: nn.Sequential(nn.Upsample(scale_factor=2, mode="bilinear"), nn.AvgPool2d(2)), (2, 3, 3)),
    "running sums": (lambda: Fn(lambda x: torch.relu(x.cumsum(-1))), (3, 4)),
    "padded with numbers": (lambda: Fn(lambda x: F.pad(x, (1, 0), value=2.0)), (3, 4)),
    "attention": (lambda: Fn(lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)), (4, 2)),
    "time first": (lambda: Fn(lambda x: (x.transpose(0, 1) * 2).cumsum(0).transpose(0, 1)), (3, 4)),
    "norms": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Flatten(), nn.LayerNorm(12)), (4, 3)),
    "constants": (lambda: Fn(lambda x: torch.cat([x * 2, x.new_ones(x.size(0), 1)], 1)), (4,)),
    "squeezed": (lambda: Fn(lambda x: torch.softmax(x[:, None].squeeze(), 1)), (3,)),
    "recurrent": (lambda: Fn(lambda x, w: torch.tanh(x[:, 0] @ w) @ w.T + x[:, 1], w=W.T.contiguous()), (2, 4)),
}


@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_graph_of_several_samples_is_the_program_of_one(name: str, batch: int) -> None:
    torch.manual_seed(0)
    make, shape = MODELS[name]
    module = make().double().eval()
    program = trace(torch.export.export(module, inputs([shape], batch)))
    x = inputs([shape], 2 * batch, seed=1)[0]
    with torch.no_grad():
        wanted = module(x).numpy()
    np.testing.assert_allclose(interpret_batch(program, x.numpy())[0], wanted, atol=1e-9)
    if name != "squeezed":  # at one sample that drops the batch axis
        assert ops(program) == ops(trace(module, inputs([shape], batch)))


@pytest.mark.parametrize("batch", [1, 3])
def test_an_exported_graph_looks_ids_up(batch: int) -> None:
    torch.manual_seed(0)
    module, ids = Words().eval(), torch.arange(18).reshape(6, 3) % 7
    program = trace(torch.export.export(module, (ids[:batch],)))
    assert ops(program) == ["linear", "mean", "linear"]
    found = interpret_batch(program, np.eye(7)[ids.numpy()])[0]
    np.testing.assert_allclose(found, module(ids).detach().numpy(), atol=1e-6)


class Centred(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


@pytest.mark.parametrize("check", [True, False])
def test_an_exported_graph_that_mixes_samples_is_refused(check: bool) -> None:
    exported = torch.export.export(Centred(), (torch.rand(3, 4),))
    with pytest.raises(UnsupportedError, match=r"torch\.mean mixes samples of the batch") as caught:
        trace(exported, check=check)
    assert "test_torch_batches.py" in caught.value.where


class Stateless(nn.Module):
    """A recurrent layer whose first state was made for four samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 2, batch_first=True)
        self.register_buffer("first", torch.full((1, 4, 2), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, self.first)[0][:, -1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("module", [lambda: Fn(lambda x: x.view(4, 6) @ W.T.repeat(2, 1)[:6]), Stateless])
def test_a_model_of_a_fixed_number_of_samples(module: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    agree(module(), (2, 3), batch=4)


def test_a_model_that_is_inconsistent_in_its_fixed_batch_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"depends on the batch|mixes samples|first operation that differs"):
        trace(Fn(lambda x: x * torch.tensor([[1.0], [2.0]])), torch.rand(2, 4))


def test_a_model_for_one_sample_alone() -> None:
    program = trace(Fn(lambda x: F.layer_norm(x, (1, 4)) + x.view(1, -1)), torch.rand(1, 4))
    x = torch.randn(5, 4, dtype=torch.float64)
    wanted = torch.stack([F.layer_norm(one, (4,)) + one for one in x])
    np.testing.assert_allclose(interpret_batch(program, x.numpy())[0], wanted.numpy(), atol=1e-9)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x - x.mean(0), "torch.mean mixes samples"),
        (lambda x: x @ x.T, "torch.matmul mixes samples"),
        (lambda x: x.t(), "batch axis at position 1"),
        (lambda x: x.expand(3, 4), "mixes samples"),
    ],
)
def test_samples_are_kept_apart_without_the_comparison_too(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        trace(Fn(function), torch.rand(1, 4), check=False)


def test_inner_products() -> None:
    agree(Fn(lambda x, w: torch.inner(x, w), w=W), (2, 4))
    agree(Fn(lambda x: torch.stack([torch.inner(one, 2 * one) for one in x])), (3, 4))


def test_layers_of_one_sample_have_no_axis_of_their_own() -> None:
    weight = W.reshape(3, 2, 2)
    program = agree(Fn(lambda x: torch.stack([F.max_pool1d(F.conv1d(one, weight), 2) for one in x])), (2, 5))
    assert ops(program) == ["conv", "max_pool"]
