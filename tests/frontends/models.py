"""Models as users write them, for the front end's tests; golden texts show the line numbers of this file."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def fill(module: nn.Module) -> nn.Module:
    """Parameters and buffers by a fixed rule, the same on every machine and version of torch."""
    with torch.no_grad():
        for position, tensor in enumerate([*module.parameters(), *module.buffers()]):
            if tensor.is_floating_point():
                values = torch.arange(tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
                tensor.copy_(((values * 7 + position * 3) % 11) / 16 + 1 / 16)
    return module.eval()


class SmallCNN(nn.Module):
    """Convolution, batch norm, pooling and two linear layers, with modules and functions mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3, stride=2)
        self.bn1 = nn.BatchNorm2d(2)
        self.act = nn.ReLU()
        self.features = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.GELU(), nn.AvgPool2d(2))
        self.fc1 = nn.Linear(2, 3)
        self.fc2 = nn.Linear(3, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.act(self.bn1(self.conv1(image)))
        x = self.act(self.features(x))
        x = F.silu(self.fc1(torch.flatten(x, 1)))
        return F.dropout(self.fc2(x), training=self.training)


class Shortcut(nn.Module):
    """The parameter-free shortcut (option A): every other pixel, channels padded with zeros."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra, self.extra), "constant", 0)


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut: nn.Module = nn.Sequential()
        if stride != 1 or channels != planes:
            self.shortcut = Shortcut((planes - channels) // 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return F.relu(out)


class ResNet(nn.Module):
    """A residual network of the CIFAR family: a stem, stages of `blocks` blocks, a mean, a linear layer."""

    def __init__(self, blocks: int = 1, widths: tuple[int, ...] = (2, 4), classes: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        channels = widths[0]
        for stage, width in enumerate(widths, start=1):
            layers = []
            for index in range(blocks):
                layers.append(BasicBlock(channels, width, 2 if stage > 1 and index == 0 else 1))
                channels = width
            setattr(self, f"layer{stage}", nn.Sequential(*layers))
        self.stages = len(widths)
        self.linear = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        for stage in range(1, self.stages + 1):
            out = getattr(self, f"layer{stage}")(out)
        out = F.avg_pool2d(out, out.size()[3])
        out = out.view(out.size(0), -1)
        return self.linear(out)


class GeluResidual(nn.Module):
    """A linear network whose GELU blocks share one layer and add their input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 4)
        self.mix = nn.Linear(4, 4)
        self.act = nn.GELU(approximate="tanh")
        self.scale = nn.Parameter(torch.ones(4))
        self.register_buffer("offset", torch.zeros(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for _ in range(2):
            h = h + self.act(self.mix(h)) * (self.scale / 2)
        return self.head(F.gelu(h) - self.offset)


class TwoInputs(nn.Module):
    """Two inputs of different shape, and outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
        self.vector = nn.Linear(5, 3)

    def forward(self, image: torch.Tensor, vector: torch.Tensor) -> dict[str, object]:
        left, right = self.image(image), torch.sigmoid(self.vector(vector))
        return {"product": left * right, "both": (left + right, [right])}
