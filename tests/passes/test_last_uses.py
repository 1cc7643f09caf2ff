"""What passes compute of a value on the way is dropped after the value's last use."""

from __future__ import annotations

import pytest
import torch
from helpers.random_programs import random_program
from passes.test_split_heads import Attention
from torch import nn

import heliograph as hg
from heliograph.compiler.pipeline import linear_passes
from heliograph.ir import Program
from heliograph.passes.polynomials.approximate import Approximate, _Approximator
from heliograph.passes.ranges.calibrate import Calibrate
from heliograph.passes.ranges.intervals import hull, program_bounds, program_intervals
from heliograph.passes.tensors import fuse_linear


@pytest.mark.parametrize("seed", range(5))
def test_intervals_are_those_of_all_bounds(seed: int) -> None:
    program = random_program(seed)
    assert program_intervals(program, {}) == {
        node: hull(bounds) for node, bounds in program_bounds(program, {}).items()
    }


class Layers(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention(2) for _ in range(count))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


def attention(layers: int) -> Program:
    torch.manual_seed(0)
    x, mask = torch.rand(8, 20, 8), torch.rand(8, 20)
    return hg.trace(Layers(layers).eval(), (x[:1], mask[:1]), calibration=(x.numpy(), mask.numpy()))


def test_deeper_attention_keeps_no_more_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    # Products of heads by turns, as for many tokens.
    monkeypatch.setattr(fuse_linear, "_FEW_PRODUCTS", 16)
    held = []
    for layers in (1, 3):
        program = attention(layers)
        fuser = fuse_linear._Fuser(program)
        fuser.run()
        fused = linear_passes(program, {})[-1].program
        approximator = _Approximator(Approximate(observed=Calibrate().run(fused)), fused)
        approximator.table()
        assert len(fused.nodes) > 25 * layers
        held.append((len(fuser.forms), len(approximator.bounds)))
    assert held[0] == held[1]
    assert max(held[0]) <= 10
