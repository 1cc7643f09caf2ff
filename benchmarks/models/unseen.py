"""The networks of benchmarks/unseen.py: small ones of the kinds that users bring, trained here for a minute or so each."""

from __future__ import annotations

from common import data, hg, mnist, once, train  # first: it sets OpenMP's waiting policy before torch loads  # isort: skip

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


def _block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )  # fmt: skip


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def resnet9() -> nn.Module:
    """ResNet-9 with a quarter of its channels and less."""
    return nn.Sequential(
        _block(3, 8), _block(8, 16), nn.AvgPool2d(2), Residual(nn.Sequential(_block(16, 16), _block(16, 16))),
        _block(16, 32), nn.AvgPool2d(2), _block(32, 32), nn.AvgPool2d(2),
        Residual(nn.Sequential(_block(32, 32), _block(32, 32))), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip


def _separable(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), nn.BatchNorm2d(inputs), nn.ReLU(),
        nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


def mobilenet_v1() -> nn.Module:
    """Depthwise separable blocks, eleven activations one behind the other."""
    return nn.Sequential(
        _block(3, 8, 2), _separable(8, 16, 1), _separable(16, 32, 2), _separable(32, 32, 1), _separable(32, 48, 2),
        _separable(48, 48, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10),
    )  # fmt: skip


def _inverted(channels: int, expand: int) -> nn.Module:
    wide = channels * expand
    return Residual(
        nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels),
        )
    )  # fmt: skip


def mobilenet_v2() -> nn.Module:
    """Inverted residual blocks with ReLU6."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(), _inverted(8, 4), _inverted(8, 4),
        nn.Conv2d(8, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU6(), _inverted(24, 3), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(24, 10),
    )  # fmt: skip


class Dense(nn.Module):
    """A DenseNet layer: batch norm and ReLU before its convolution, its input passed on beside the result."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, growth, 3, padding=1, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.inner(x)], 1)


def densenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False), Dense(8, 8), Dense(16, 8), Dense(24, 8), nn.AvgPool2d(2), Dense(32, 8),
        Dense(40, 8), nn.BatchNorm2d(48), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10),
    )  # fmt: skip


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip


def norm_mlp() -> nn.Module:
    """A multilayer perceptron with batch norm."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64),
        nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def gelu_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 96), nn.GELU(), Residual(nn.Sequential(nn.Linear(96, 96), nn.GELU())),
        Residual(nn.Sequential(nn.Linear(96, 96), nn.GELU())), nn.Linear(96, 10),
    )  # fmt: skip


def adult_mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(108, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 2)
    )


@dataclass(frozen=True)
class Split:
    """Samples to train on (the first of them calibrate), and samples that neither training nor calibration saw."""

    train: np.ndarray
    labels: np.ndarray
    unseen: np.ndarray
    input_range: tuple[float, float] | None


def cifar() -> Split:
    with np.load(data("cifar10_subset.npz"), allow_pickle=False) as file:
        mean, std = file["norm_mean"], file["norm_std"]
        train, test = (
            ((file[name].astype(np.float32) / 255 - mean) / std).transpose(0, 3, 1, 2).astype(np.float32)
            for name in ("x_train", "x_test")
        )
        labels = file["y_train"].astype(np.int64)
    return Split(train[:5000], labels[:5000], np.concatenate([train[5000:], test]), None)


def digits(name: str) -> Split:
    x, y, test, _ = mnist(name)
    return Split(x[:20000, None], y[:20000], test[:4000, None], (0.0, 1.0))


def adult() -> Split:
    """UCI Adult: standardised numbers, one column for each category; capital gains keep their long tail."""
    with np.load(data("adult.npz"), allow_pickle=False) as file:
        parts: dict[str, list[np.ndarray]] = {"train": [], "test": []}
        labels = file["train_income"].astype(np.int64)
        for column in file["columns"]:
            if column == "income":
                continue
            train = file[f"train_{column}"]
            for part in parts:
                values = file[f"{part}_{column}"]
                if f"cats_{column}" in file:
                    parts[part].append(np.eye(len(file[f"cats_{column}"]))[values])
                else:
                    parts[part].append(((values - train.mean()) / train.std())[:, None])
        train, test = (np.concatenate(parts[part], axis=1).astype(np.float32) for part in ("train", "test"))
    return Split(train, labels, test[:6000], None)


@dataclass(frozen=True)
class Network:
    """`calibration` is how many of the training samples the compiler gets."""

    name: str
    build: Callable[[], nn.Module]
    load: Callable[[], Split]
    epochs: int
    calibration: int


NETWORKS = (
    Network("ResNet-9, CIFAR", resnet9, cifar, 6, 256),
    Network("MobileNetV1 blocks, CIFAR", mobilenet_v1, cifar, 10, 256),
    Network("MobileNetV2 blocks, CIFAR", mobilenet_v2, cifar, 8, 256),
    Network("DenseNet block, CIFAR", densenet, cifar, 8, 256),
    Network("LeNet, Fashion-MNIST", lenet, lambda: digits("fashion_mnist"), 3, 256),
    Network("MLP with batch norm, MNIST", norm_mlp, lambda: digits("mnist"), 3, 256),
    Network("residual MLP with GELU, MNIST", gelu_mlp, lambda: digits("mnist"), 3, 256),
    Network("MLP, Adult", adult_mlp, adult, 4, 512),
)


def trained(network: Network, split: Split, folder: Path, seed: int = 0) -> nn.Module:
    """The network with its weights from the folder; trained and kept there where they are not."""
    torch.manual_seed(seed)
    module = network.build()
    weights = folder / f"{network.build.__name__}{seed or ''}.npz"
    return once(weights, module, lambda: train(module, split.train, split.labels, network.epochs, seed=None, peak=6e-3))


__all__ = ["NETWORKS", "Network", "Split", "hg", "trained"]
