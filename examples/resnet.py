"""ResNet-20 and ResNet-32 for CIFAR-10 (He et al. 2016, option-A shortcuts), as ordinary PyTorch modules.

Nothing here knows of encryption: `benchmarks/resnets.py` traces these networks as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, and the shortcut around them.

    Where the block halves the image, the shortcut takes every second pixel and pads the channels with zeros: option A,
    without weights.
    """

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.padding = (channels - channels_in) // 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.stride != 1:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.padding, self.padding))
        return torch.relu(out + x)


class ResNet(nn.Module):
    """Three groups of `blocks` blocks with 16, 32 and 64 channels, on 3x32x32 images: 6 * blocks + 2 layers."""

    def __init__(self, blocks: int, classes: int = 10, block: type[BasicBlock] = BasicBlock) -> None:
        super().__init__()
        self.block = block
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._group(16, 16, blocks, 1)
        self.layer2 = self._group(16, 32, blocks, 2)
        self.layer3 = self._group(32, 64, blocks, 2)
        self.linear = nn.Linear(64, classes)

    def _group(self, channels_in: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
        first = self.block(channels_in, channels, stride)
        return nn.Sequential(first, *(self.block(channels, channels, 1) for _ in range(blocks - 1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(F.avg_pool2d(x, x.shape[3]).flatten(1))


def resnet20() -> ResNet:
    return ResNet(3)


def resnet32() -> ResNet:
    return ResNet(5)


def load(module: ResNet, weights: Mapping[str, Any]) -> ResNet:
    """The module with the arrays of a state dict (an `.npz` file serves), in evaluation mode."""
    module.load_state_dict({name: torch.from_numpy(np.array(weights[name])) for name in weights})
    return module.eval()
