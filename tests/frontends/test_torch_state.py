"""Modules that keep state from one call to the next: refused where answers depend on it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from heliograph.errors import UnsupportedError
from heliograph.frontends.torch.export import trace


class Stateful(nn.Module):
    """A module whose `forward` is a function of itself and x, with a layer and what else it is given."""

    def __init__(self, function: Callable[..., Any], **held: Any) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(3, 3), function
        vars(self).update(held)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def _hidden(self: Any, x: torch.Tensor) -> Any:
    self.kept = torch.tanh(self.layer(x) + self.kept)
    return self.kept


def _counted(self: Any, x: torch.Tensor) -> Any:
    self.kept += 1
    return self.layer(x) * self.kept


def _previous(self: Any, x: torch.Tensor) -> Any:
    found, self.kept = self.layer(x) - self.kept, x[:1].clone()
    return found


def _appended(self: Any, x: torch.Tensor) -> Any:
    self.kept.append(1)
    return self.layer(x) * len(self.kept)


def _tallied(self: Any, x: torch.Tensor) -> Any:
    self.kept["calls"] = self.kept.get("calls", 0) + 1
    return self.layer(x) * self.kept["calls"]


@pytest.mark.parametrize(
    ("function", "kept"),
    [
        (_hidden, torch.zeros(3)),
        (_counted, 0),
        (_previous, torch.zeros(1, 3)),
        (_appended, []),
        (_tallied, {}),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_answers_that_depend_on_the_calls_before_are_refused(function: Any, kept: Any, inside: bool) -> None:
    torch.manual_seed(0)
    module: Any = Stateful(function, kept=kept)
    model = nn.Sequential(nn.Linear(3, 3), module) if inside else module
    before = copy.copy(kept)
    with pytest.raises(UnsupportedError, match="depends on the calls before it") as refused:
        trace(model, calibration=torch.randn(40, 3))
    assert f"it keeps '{'1.' * inside}kept' from one call to the next" in refused.value.why
    assert module.kept is kept
    assert torch.equal(kept, before) if isinstance(kept, torch.Tensor) else kept == before


def test_the_refusal_names_the_line_that_keeps_state() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.tanh(x)
            self.calls += 1
            return y * self.calls

    with pytest.raises(UnsupportedError) as refused:
        trace(Counting(), calibration=torch.randn(40, 3))
    line = int(refused.value.where.rpartition(":")[2])
    assert "self.calls += 1" in Path(__file__).read_text().splitlines()[line - 1]


def _looked_at(self: Any, x: torch.Tensor) -> Any:
    self.kept.append(torch.softmax(self.layer(x), -1))
    self.last, self.scale = self.kept[-1], 2.0
    return self.kept[-1] * self.scale


def _once(self: Any, x: torch.Tensor) -> Any:
    if self.kept is None:
        self.kept = self.layer.weight @ self.layer.weight.T
    return self.layer(x) @ self.kept


@pytest.mark.parametrize(("function", "kept"), [(_looked_at, []), (_once, None)])
def test_what_is_kept_to_be_looked_at_is_no_state(function: Any, kept: Any) -> None:
    module = Stateful(function, kept=kept)
    trace(module, calibration=torch.randn(40, 3))
    assert module.kept is kept
    assert kept in (None, [])
    assert not hasattr(module, "last")


def test_tensors_that_are_written_to_are_refused() -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        self.kept.add_(1)
        return self.layer(x) * self.kept

    with pytest.raises(UnsupportedError, match="writes to a tensor that it holds in place: 'kept'"):
        trace(Stateful(forward, kept=torch.ones(1)), calibration=torch.randn(40, 3))
