"""Thresholds that samples meet exactly, and functions that jump or bend far from zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from reading import Case, Fn, ids, rand

_COUNTS = torch.cat([torch.tensor([[0.0, 1.0, 2.0, 3.0]]), ids(5, 255, 4).float()])
_FLAGS = torch.cat([torch.tensor([[1.0, 1.0, 0.0, 0.0]]), ids(2, 255, 4, seed=1).float()])
_AGES = torch.cat([torch.tensor([[39.0, 40.0, 41.0]]), (rand(255, 3) * 80).round()])
# The first sample is in the middle of a piece; all keep away from the threshold by a hundredth.
_WIDE = torch.cat([torch.tensor([[95.0, 105.0]]), rand(255, 2) * 200])
_WIDE = torch.where((_WIDE - 100).abs() < 2, _WIDE + 4, _WIDE)
_TINY = torch.cat([torch.tensor([[1.55e-3, 0.55e-3]]), (rand(255, 2) * 4e-3).round(decimals=4) + 5e-5])


def _case(
    name: str,
    function: Callable[..., Any],
    samples: torch.Tensor,
    right: Any,
    compiled: float = 0.01,
    fault: str = "F10",
) -> Case:
    return Case(name, fault, lambda: Fn(function), lambda: samples, right, compiled=compiled)


def _tree(x: torch.Tensor) -> torch.Tensor:
    left = torch.where(x[:, 1] > 1, 1.0, 2.0)
    right = torch.where(x[:, 2] <= 0, 3.0, 4.0)
    return torch.where(x[:, 0] >= 2, left, right)


CASES: tuple[Case, ...] = (
    _case("counts above zero", lambda x: (x > 0).float(), _COUNTS, (0, 1, 1, 1)),
    _case("counts of three and more", lambda x: (x >= 3).float(), _COUNTS, (0, 0, 0, 1)),
    _case("counts below three", lambda x: (x < 3).float(), _COUNTS, (1, 1, 1, 0)),
    _case("counts of zero at most", lambda x: (x <= 0).float(), _COUNTS, (1, 0, 0, 0)),
    _case("a choice by counts", lambda x: torch.where(x >= 3, 2 * x, x), _COUNTS, (0, 1, 2, 6)),
    _case("two flags and more", lambda x: (x.sum(1, keepdim=True) >= 2).float(), _FLAGS, (1,)),
    _case("votes", lambda x: ((x > 1.5).sum(1, keepdim=True) >= 2).float(), _COUNTS, (1,)),
    _case("tenths in single precision", lambda x: (x > 0.1).float(), _COUNTS / 10, (0, 0, 1, 1)),
    _case("two encrypted counts", lambda x: (x[:, :2] > x[:, 2:]).float(), _COUNTS, (0, 0)),
    _case("two encrypted counts, or equal", lambda x: (x[:, :2] >= x[:, 1:3]).float(), _COUNTS, (0, 0)),
    _case("a threshold with a value below", lambda x: F.threshold(x, 1.0, -1.0), _COUNTS, (-1, -1, 2, 3)),
    _case("a quarter at the step", lambda x: torch.heaviside(x - 2, torch.tensor(0.25)), _COUNTS, (0, 0, 0.25, 1)),
    _case("one at the step", lambda x: torch.heaviside(x - 2, torch.tensor(1.0)), _COUNTS, (0, 0, 1, 1)),
    _case("the sign, zero at zero", lambda x: torch.sign(x - 2), _COUNTS, (-1, -1, 0, 1)),
    _case("a hard shrinkage", lambda x: F.hardshrink(x - 2, 1.0), _COUNTS, (-2, 0, 0, 0)),
    _case("ages of forty and more", lambda x: (x >= 40).float(), _AGES, (0, 1, 1)),
    _case("ages in groups", lambda x: (x >= 18).float() + (x >= 40).float() + (x > 65).float(), _AGES, (1, 2, 2)),
    _case("a tree of three", _tree, _COUNTS, (4,)),
    _case("a flag that no sample has", lambda x: (x[:, :1] * 0 > 0).float() + x[:, 1:2], _COUNTS, (1,)),
    _case("twice beyond a hundred", lambda x: torch.where(x > 100, 2 * x, x), _WIDE, (95, 210), fault="F11"),
    _case("twice beyond ten", lambda x: torch.where(x > 10, 2 * x, x), _WIDE / 10, (9.5, 21), fault="F11"),
    _case("nothing beyond a hundred", lambda x: x.masked_fill(x > 100, 0.0), _WIDE, (95, 0), fault="F11"),
    _case("one or two by age", lambda x: torch.where(x < 40, 1.0, 2.0), _AGES, (1, 2, 2), fault="F11"),
    _case("a bend of a jump", lambda x: F.relu(torch.sign(x - 40.5) + 0.5), _AGES, (0, 0, 1.5), fault="F11"),
    _case(
        "three steps in a sum",
        lambda x: (x > 50).float() + (x > 100).float() + (x > 150).float(),
        _WIDE.round(),
        (1, 2),
        fault="F11",
    ),
    _case("beyond a thousand", lambda x: torch.where(x > 1e3, x - 300, x), _WIDE * 10, (950, 750), fault="F11"),
    _case("below forty, to the end", lambda x: (x < 39.5).float(), _AGES, (1, 0, 0), fault="F11"),
    _case(
        "a bend at fifty",
        lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none", delta=50.0),
        _WIDE,
        (3500, 4000),
        fault="F11",
    ),
    _case(
        "steps a thousandth apart",
        lambda x: (x > 1e-3).float() + (x > 2e-3).float(),
        _TINY,
        (1, 0),
        fault="F11",
    ),
)
