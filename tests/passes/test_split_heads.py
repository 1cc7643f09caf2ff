"""Attention whose scores take more than one ciphertext: in groups of heads, with the same values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import heliograph as hg
from heliograph.compiler.pipeline import linear_passes
from heliograph.interpret import interpret_many
from heliograph.ir import Program, shape_of
from heliograph.passes.base import apply
from heliograph.passes.tensors import split_heads
from heliograph.passes.tensors.split_heads import SplitHeads, has_many_heads


class Attention(nn.Module):
    """Attention of some heads with an added mask; `bare` returns the shares instead of the mean of values."""

    def __init__(self, heads: int, bare: bool = False) -> None:
        super().__init__()
        self.heads, self.bare = heads, bare
        self.q, self.k, self.v = (nn.Linear(4 * heads, 4 * heads) for _ in range(3))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = (each(x).view(batch, tokens, self.heads, -1).transpose(1, 2) for each in (self.q, self.k, self.v))
        shares = torch.softmax(q @ k.transpose(-1, -2) / 2 + mask[:, None, None, :], -1)
        return shares if self.bare else (shares @ v).transpose(1, 2).reshape(batch, tokens, width)


def traced(heads: int, tokens: int, bare: bool = False) -> tuple[Program, list[np.ndarray], np.ndarray]:
    torch.manual_seed(0)
    module = Attention(heads, bare).eval()
    x, mask = torch.rand(32, tokens, 4 * heads), torch.rand(32, tokens)
    program = hg.trace(module, (x[:1], mask[:1]), calibration=(x.numpy(), mask.numpy()))
    with torch.no_grad():
        return program, [x.numpy().astype(float), mask.numpy().astype(float)], module(x, mask).numpy()


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize(("heads", "slots", "groups"), [(5, 128, [2, 2, 1]), (4, 64, [1, 1, 1, 1]), (6, 256, [4, 2])])
def test_groups_have_the_same_values(
    heads: int, slots: int, groups: list[int], bare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, inputs, exact = traced(heads, 7, bare)
    assert not has_many_heads(program)
    monkeypatch.setattr(split_heads, "_SLOTS", slots)
    made = apply(SplitHeads(), program)
    assert [shape_of(node)[0] for node in made.nodes if node.op == "softmax"] == groups
    # Each group has products of its own heads alone.
    assert {shape_of(node)[0] for node in made.nodes if node.op == "matmul"} == set(groups)
    (found,) = interpret_many(made, inputs)
    np.testing.assert_allclose(found, exact, atol=1e-5)


def test_rows_that_no_ciphertext_holds_stay_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _, _ = traced(2, 7)
    monkeypatch.setattr(split_heads, "_SLOTS", 32)
    assert not has_many_heads(program)
    assert SplitHeads.name not in [step.name for step in linear_passes(program)]


def test_scores_beyond_a_ciphertext_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    program, inputs, exact = traced(3, 17)
    options = hg.Options(log_ring=11, security_bits=None, bootstrap=False)
    with pytest.raises(hg.HeliographError, match="slots; a ciphertext has 1024"):
        hg.compile(program, options)
    monkeypatch.setattr(split_heads, "_SLOTS", 1024)
    artifact = hg.compile(program, options)
    for number in range(2):
        found = hg.simulate(artifact, *(array[number] for array in inputs))
        np.testing.assert_allclose(found, exact[number], atol=0.01)
