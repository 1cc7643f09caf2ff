"""A small residual network with GELU for CIFAR-10, and one for 64x64 images whose tensors take several ciphertexts.

Nothing here knows of encryption. `train` fits either in a minute or two on one core; `benchmarks/gelu_networks.py` compiles
both.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class ResidualGELU(nn.Module):
    """A strided stem, two residual blocks at 16x16, a strided convolution, one block at 8x8, a mean and a linear layer."""

    def __init__(self, channels: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.block1 = Block(channels)
        self.block2 = Block(channels)
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.block3 = Block(2 * channels)
        self.head = nn.Linear(2 * channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block2(self.block1(F.gelu(self.stem(x))))
        x = self.block3(F.gelu(self.down(x)))
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    """Two convolutions with batch norm and GELU, added to what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.bn2(self.conv2(F.gelu(self.bn1(self.conv1(x))))))


class Wide64(nn.Module):
    """For 64x64 images: 16 channels of 64x64 are 65,536 numbers, two ciphertexts of a ring of dimension 2^16."""

    def __init__(self, channels: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, stride=4, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * channels)
        self.conv3 = nn.Conv2d(2 * channels, 4 * channels, 3, stride=2, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        self.head = nn.Linear(4 * channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        x = torch.relu(self.bn3(self.conv3(x)))
        return self.head(x.mean((2, 3)))


def doubled(images: np.ndarray) -> np.ndarray:
    """Images (n, 3, 32, 32) at twice the size, every pixel four times."""
    return images.repeat(2, axis=2).repeat(2, axis=3)


def train(module: nn.Module, images: np.ndarray, labels: np.ndarray, epochs: int, seed: int = 0) -> None:
    """Adam with one rise and fall of the rate, images mirrored at random, in place; the same result for the same seed."""
    torch.manual_seed(seed)
    inputs, targets = torch.from_numpy(images), torch.from_numpy(labels)
    batches = len(inputs) // 128
    optimizer = torch.optim.AdamW(module.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=epochs * batches)
    module.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs))[: 128 * batches].reshape(batches, 128):
            x = inputs[batch]
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x, x.flip(3))
            optimizer.zero_grad()
            F.cross_entropy(module(x), targets[batch]).backward()
            optimizer.step()
            schedule.step()
    module.eval()
