"""What passes compute of a value on the way is dropped after the value's last use."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.random_programs import random_program
from passes.test_split_heads import Attention
from torch import nn

import heliograph as hg
from heliograph.compiler.pipeline import linear_passes
from heliograph.ir import Node, Program
from heliograph.ir.ops.table import Bounds, Context
from heliograph.passes.polynomials.approximate import Approximate, _Approximator
from heliograph.passes.ranges.calibrate import Calibrate
from heliograph.passes.ranges.intervals import hull, program_intervals, transfer
from heliograph.passes.tensors import fuse_linear


@pytest.mark.parametrize("seed", range(5))
def test_intervals_are_those_of_all_bounds(seed: int) -> None:
    """Nothing is dropped that is read again."""
    program = random_program(seed)
    bounds: dict[Node, Bounds | None] = {}
    for node in program.nodes:
        bounds[node] = transfer(node, [bounds[operand] for operand in node.inputs], Context(program.constants), {})
    hulls = {node: hull(found) for node, found in bounds.items() if found is not None}
    finite = {node: found for node, found in hulls.items() if np.isfinite([found.low, found.high]).all()}
    assert finite
    assert program_intervals(program, {}) == finite


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
