"""Random architectures: what torch computes and what the program means are the same."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from frontends.support import agree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": F.softplus,
    "square": torch.square,
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-0.3, 0.7),
    "softmax": lambda x: F.softmax(x, -1),
    "norm_last": lambda x: F.layer_norm(x, x.shape[-1:]),
    "root": lambda x: torch.sqrt(x * x + 1),
    "inverse": lambda x: x / (1 + x.abs()),
    "choose": lambda x: torch.where((x > -0.1234) & ~(x >= 0.4321), x, 0.5 * x),
    "largest": lambda x: torch.maximum(x, 0.1 - x),
}
OPTIONS = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


class RandomNet(nn.Module):
    """An image through a list of drawn steps; a step that does not fit the shape is left out."""

    def __init__(self, steps: list[tuple[str, int]], channels: int, size: int) -> None:
        super().__init__()
        self.steps: list[tuple[str, int]] = []
        self.layers = nn.ModuleDict()
        shape: tuple[int, ...] = (channels, size, size)
        for index, (kind, number) in enumerate(steps):
            layer = self.layer(kind, number, shape)
            key = f"{kind}{index}"
            if layer is not None:
                self.layers[key] = layer
            self.steps.append((key if layer is not None else kind, number))
            with torch.no_grad():
                shape = tuple(self.eval().run(torch.zeros(1, channels, size, size)).shape[1:])

    @staticmethod
    def layer(kind: str, number: int, shape: tuple[int, ...]) -> nn.Module | None:
        if kind == "linear":
            return nn.Linear(shape[-1], number + 1)
        if kind == "norm" and len(shape) in (1, 3):
            norm = nn.BatchNorm2d(shape[0]) if len(shape) == 3 else nn.BatchNorm1d(shape[0])
            nn.init.uniform_(norm.running_mean, -1, 1)
            nn.init.uniform_(norm.running_var, 0.5, 2)
            return norm
        if len(shape) != 3:
            return None
        if kind == "conv" and min(shape[1:]) >= 3:
            return nn.Conv2d(shape[0], number + 1, 3, stride=1 + number % 2, padding=number % 3)
        if kind == "conv_same":
            return nn.Conv2d(shape[0], shape[0], (2, 3), padding="same", groups=shape[0])
        if kind == "pool" and min(shape[1:]) >= 2:
            return nn.AvgPool2d(2, stride=1 + number % 2)
        if kind == "max_pool" and min(shape[1:]) >= 2:
            return nn.MaxPool2d(2, stride=1 + number % 2, padding=number // 2)
        if kind == "adaptive":
            return nn.AdaptiveAvgPool2d(1 + number % 3)
        return None

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for key, number in self.steps:
            if key in self.layers:
                x = self.layers[key](x)
            elif key in ACTIVATIONS:
                x = ACTIVATIONS[key](x)
            elif key == "residual":
                x = x + 0.5 * torch.tanh(x)
            elif key == "flatten":
                x = x.flatten(1)
            elif key == "transpose" and x.ndim > 2:
                x = x.transpose(1, 2 + number % (x.ndim - 2))
            elif key == "cat":
                x = torch.cat([x, x[:, :1] * number], 1)
            elif key == "slice":
                x = x[..., :: 1 + number % 2]
            elif key == "split":
                first, *rest = x.split(1 + number, dim=1)
                x = torch.cat([*rest, first], dim=1)
            elif key == "pad":
                x = F.pad(x, (number % 2, 1))
            elif key == "mean" and x.ndim > 2:
                x = x.mean(-1)
            elif key == "amax" and x.ndim > 2:
                x = x.amax(tuple(range(1 + number % (x.ndim - 1), x.ndim)), keepdim=True)
            elif key == "max" and x.ndim > 2:
                x = x.max(1).values - x.min(-1, keepdim=True).values.sum(1)
            elif key == "matmul" and x.ndim > 2:
                x = torch.linspace(-1, 1, 2 * x.shape[-2], dtype=x.dtype).reshape(2, -1) @ x
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(x)


KINDS = [
    *("linear", "norm", "conv", "conv_same", "pool", "adaptive", "residual", "flatten", "transpose"),
    *("cat", "slice", "split", "pad", "mean", "matmul", "max_pool", "amax", "max", *ACTIVATIONS),
]


@OPTIONS
@given(
    steps=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3)), min_size=1, max_size=8),
    channels=st.integers(1, 3),
    size=st.integers(2, 6),
    batch=st.sampled_from([1, 2]),
)
def test_random_architecture(steps: list[tuple[str, int]], channels: int, size: int, batch: int) -> None:
    torch.manual_seed(0)
    agree(RandomNet(steps, channels, size), (channels, size, size), batch=batch, tolerance=1e-6)
