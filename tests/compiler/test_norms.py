"""Norms, lengths and maxima at the defaults: inverses near zero have a start, and scales that drift end no search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heliograph as hg


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def near_constant(count: int, *shape: int) -> torch.Tensor:
    """Rows some of which hardly vary: patches of the sky in an image."""
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(count, *shape, generator=random)
    scale = torch.logspace(-2.5, 0, count)[:, None]
    return rows * scale.reshape(count, *(1 for _ in shape)) + 0.5


def off(net: nn.Module, x: torch.Tensor) -> float:
    """The largest difference from torch on two samples of the middle, of what is simulated."""
    artifact = hg.compile(hg.trace(net, x[:1], calibration=x), hg.Options(security_bits=None, log_ring=13))
    with torch.no_grad():
        expected = net(x[60:62]).numpy()
    return float(np.abs(np.stack([hg.simulate(artifact, row) for row in x[60:62]]) - expected).max())


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (nn.LayerNorm(6), (2, 6)),
        (nn.RMSNorm(6), (2, 6)),
        pytest.param(nn.GroupNorm(2, 4), (4, 3), marks=pytest.mark.slow),
        pytest.param(nn.InstanceNorm1d(4), (4, 6), marks=pytest.mark.slow),
        (Of(lambda x: F.normalize(x, dim=-1)), (2, 4)),
        pytest.param(Of(lambda x: torch.linalg.vector_norm(x, dim=-1)), (2, 4), marks=pytest.mark.slow),
        (Of(lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)), (2, 6)),
    ],
)
def test_norms_of_what_hardly_varies_compile(net: nn.Module, shape: tuple[int, ...]) -> None:
    """The variance comes within a factor of ten of eps: the range that calibration gives has a start all the same."""
    assert off(net.eval(), near_constant(128, *shape)) < 0.05


def test_a_chain_on_which_scales_drift_is_not_the_last_one() -> None:
    """The finest scale of the first ring lets two summands of this maximum drift apart; a coarser one carries it."""
    x = torch.randn(128, 6, 4, generator=torch.Generator().manual_seed(0))
    net = Of(lambda x: torch.cat([x.mean(1), x.max(1).values], 1))
    program = hg.trace(net, x[:1], calibration=x)
    artifact = hg.compile(program)
    assert np.abs(hg.simulate(artifact, x[0]) - net(x[:1])[0].numpy()).max() < 0.3
