"""Small networks with fixed weights, and their artifacts."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import nn

import heliograph as hg


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 12), nn.Linear(12, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.fc1(x))
        x = torch.sigmoid(self.fc2(x))
        return self.fc3(x)


class TwoOutputs(nn.Module):
    """`fc1` is an output, so that its map and that of `fc2` stay two."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 12), nn.Linear(12, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.fc1(x)
        return y, self.fc3(torch.tanh(self.fc2(y)))


class Branches(nn.Module):
    """Two longest paths side by side: no single change saves a level."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 12), nn.Linear(16, 12), nn.Linear(12, 4)
        self.left, self.right = nn.Tanh(), nn.Sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc3(self.left(self.fc1(x)) + self.right(self.fc2(x)))


class SmallConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.fc = nn.Conv2d(1, 3, 3, padding=1), nn.SiLU(), nn.Linear(3 * 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.avg_pool2d(self.act(self.conv(x)), 2)
        return self.fc(torch.relu(x).flatten(1))


def weighted(module: nn.Module, seed: int = 0) -> nn.Module:
    """The module with weights from numpy's generator, which no version of torch changes."""
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            bound = 1.0 / np.sqrt(parameter.shape[-1])
            parameter.copy_(torch.from_numpy(random.uniform(-bound, bound, parameter.shape)).float())
    return module.eval()


def samples(shape: tuple[int, ...] = (16,), count: int = 64, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.0, 1.0, (count, *shape))


@functools.cache
def program(kind: type[nn.Module] = Net, shape: tuple[int, ...] = (16,), calibrated: bool = True) -> Any:
    calibration = samples(shape) if calibrated else None
    return hg.trace(
        weighted(kind()), torch.zeros((1, *shape)), input_range=(0.0, 1.0), calibration=calibration, name="net"
    )


@functools.cache
def artifact(
    kind: type[nn.Module] = Net,
    shape: tuple[int, ...] = (16,),
    calibrated: bool = True,
    degree: int = 7,
    sigmoid: int | None = None,
    precision_bits: float = 10.0,
    margin: float | None = None,
) -> Any:
    degrees = {} if sigmoid is None else {"sigmoid": sigmoid}
    options = hg.Options(
        degree=degree, degrees=degrees, security_bits=None, log_ring=11, precision_bits=precision_bits, margin=margin
    )
    return hg.compile(program(kind, shape, calibrated), options)
