"""Outputs of any size (finding F18)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from reading import Case, Fn, rand
from torch import nn

_WEIGHT = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
_FIRST = (0.25, 0.5, 0.75, 1.0)


def _positive() -> torch.Tensor:
    """Samples in [0, 1), the first of them given."""
    return torch.cat([torch.tensor([_FIRST]), rand(63, 4)])


def _of(function: Callable[[torch.Tensor], Any]) -> Callable[[], nn.Module]:
    return lambda: Fn(function)


class _Priced(nn.Module):
    """A perceptron whose answer is an energy: a mean of 3e8, a deviation of 2e8."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        with torch.no_grad():
            self.first.weight.copy_(torch.linspace(-1, 1, 32).reshape(8, 4))
            self.first.bias.zero_()
            self.last.weight.copy_(torch.linspace(-0.5, 1, 8).reshape(1, 8))
            self.last.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x))) * 2e8 + 3e8


def _large(name: str, function: Callable[[torch.Tensor], Any], right: Sequence[float], compiled: float = 1e-3) -> Case:
    return Case(name, "F18", _of(function), _positive, right=right, compiled=compiled)


# 0.25 + 1 + 2.25 + 4 = 7.5; the sum of the first sample is 2.5.
CASES: tuple[Case, ...] = (
    _large("x @ w * 1e4, just above what stays", lambda x: x @ _WEIGHT * 1e4, [7.5e4]),
    _large("x @ w * 1e7", lambda x: x @ _WEIGHT * 1e7, [7.5e7]),
    _large("x @ w * -1e7", lambda x: x @ _WEIGHT * -1e7, [-7.5e7]),
    _large("x @ w * 1e12", lambda x: x @ _WEIGHT * 1e12, [7.5e12]),
    _large("x @ w * 1e20 + 1e21", lambda x: x @ _WEIGHT * 1e20 + 1e21, [1.75e21]),
    _large("a product of two that are large", lambda x: (x @ _WEIGHT * 1e4) * (x.sum(1, keepdim=True) * 1e4), [1.875e9]),
    _large("a square of a sum", lambda x: (1e5 * x.sum(1)) ** 2, [6.25e10]),
    _large("a ReLU at the end", lambda x: torch.relu(x @ _WEIGHT * 1e6 - 3e6), [4.5e6], compiled=0.1),
    _large("several elements of different sizes", lambda x: x * torch.tensor([1e9, 1e8, 1e9, -1e9]), [
        2.5e8, 5e7, 7.5e8, -1e9,
    ]),
    _large("two outputs, one of them small", lambda x: (x @ _WEIGHT * 1e9, x.sum(1)), [7.5e9, 2.5]),
    _large("two outputs, both large", lambda x: (x @ _WEIGHT * 1e9, x.sum(1) * -1e6), [7.5e9, -2.5e6]),
    _large("one output twice", lambda x: (lambda y: (y, y))(x.sum(1) * 1e8), [2.5e8, 2.5e8]),
    _large("an input as it is", lambda x: x * 1.0, _FIRST),
    Case("inputs that are large themselves", "F18", _of(lambda x: x * 2), lambda: _positive() * 1e8, right=[
        5e7, 1e8, 1.5e8, 2e8,
    ], compiled=1e-3),
    # Worked out by torch.
    Case("a perceptron of energies", "F18", _Priced, _positive, right=[1.182488e9], compiled=0.03),
    Case(
        "a log_softmax of large scores, which the client takes", "F18", _of(lambda x: F.log_softmax(x * 1e6, 1)), _positive,
        right=[-7.5e5, -5e5, -2.5e5, 0.0], compiled=1e-3,
    ),
)  # fmt: skip
