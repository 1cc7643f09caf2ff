"""Whole numbers as inputs: constants beside them, functions of them, and what is read from tables at them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import heliograph as hg
from heliograph.errors import UnsupportedError

TOY = hg.Options(security_bits=None)


class Model(nn.Module):
    """A function of a table of six rows and whole numbers."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.table, self.function = nn.Embedding(6, 3), function

    def forward(self, ids: torch.Tensor) -> Any:
        return self.function(self.table, ids)


CASES: dict[str, Callable[..., Any]] = {
    "largest": lambda table, ids: ids.max(1)[0].float(),
    "smallest": lambda table, ids: ids.min(1).values.float(),
    "rows and the largest": lambda table, ids: table(ids).sum(1) + ids.max(1)[0].unsqueeze(1).float(),
    "chosen with zeros": lambda table, ids: torch.where(ids > 3, ids, torch.zeros_like(ids)).float(),
    "chosen with a number": lambda table, ids: torch.where(ids > 3, ids, torch.full_like(ids, 2)).float(),
    "rows of chosen": lambda table, ids: table(torch.where(ids > 3, ids, torch.zeros_like(ids))).sum(1),
    "rows of the smaller": lambda table, ids: table(torch.minimum(ids, torch.full_like(ids, 3))).sum(1),
    "rows of the larger": lambda table, ids: table(torch.maximum(ids, torch.ones_like(ids))).sum(1),
    "new zeros": lambda table, ids: table(ids + ids.new_zeros(4)).sum(1),
    "mantissas": lambda table, ids: torch.frexp(ids.float())[0] + table(ids)[..., 0],
    "rows under a mask": lambda table, ids: table(ids) * (ids != 0).unsqueeze(-1),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_torch(name: str) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 6, (60, 4))
    model = Model(CASES[name])
    artifact = hg.compile(hg.trace(model, calibration=ids), TOY)
    bound = 1e-5 + 2 * artifact.report.figures.predicted.max_abs_error
    for sample in ids[:12]:
        with torch.no_grad():
            wanted = model(sample[None])[0]
        np.testing.assert_allclose(hg.simulate(artifact, sample), wanted, atol=bound)


def test_rows_that_several_numbers_choose_are_refused() -> None:
    with pytest.raises(UnsupportedError) as refused:
        hg.trace(Model(lambda table, ids: table(ids.max(1)[0])), calibration=torch.randint(0, 6, (60, 4)))
    assert "chosen by several whole numbers together" in refused.value.why
