"""ResNet-18 with weights that are drawn."""

from __future__ import annotations

import torch


class Block(torch.nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(out)
        self.relu1 = torch.nn.ReLU()
        self.conv2 = torch.nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(out)
        self.relu2 = torch.nn.ReLU()
        self.shortcut: torch.nn.Module = torch.nn.Identity()
        if stride > 1 or channels != out:
            self.shortcut = torch.nn.Sequential(
                torch.nn.Conv2d(channels, out, 1, stride, bias=False), torch.nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        result: torch.Tensor = self.relu2(inner + self.shortcut(x))
        return result


def network(width: int, stem: bool, classes: int = 200) -> torch.nn.Sequential:
    """With a first convolution of 3x3 and no pooling behind it, as for small images, or with the `stem` for large ones: a
    convolution of 7x7 in steps of two, and a pooling, here of means.
    """
    first = torch.nn.Conv2d(3, width, 7, 2, 3, bias=False) if stem else torch.nn.Conv2d(3, width, 3, 1, 1, bias=False)
    layers: list[torch.nn.Module] = [first, torch.nn.BatchNorm2d(width), torch.nn.ReLU()]
    if stem:
        layers.append(torch.nn.AvgPool2d(2))
    channels = width
    for stage in range(4):
        out = width << stage
        layers += [Block(channels, out, 1 if stage == 0 else 2), Block(out, out, 1)]
        channels = out
    head = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(channels, classes)]
    return torch.nn.Sequential(*layers, *head)


def drawn(size: int, width: int, stem: bool) -> tuple[torch.nn.Sequential, torch.Tensor]:
    """The network with weights that are drawn, and 64 images, drawn too; the first 32 calibrate."""
    torch.manual_seed(0)
    module = network(width, stem)
    images = torch.randn(64, 3, size, size).clamp(-2, 2)
    module.train()
    with torch.no_grad():
        for _ in range(8):
            module(images[:32])
    return module.eval(), images
