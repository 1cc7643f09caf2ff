"""The models and settings of benchmarks/dpis.py: those of Wei et al. 2022, table 1 and section 5, on the shared data.

MNIST and Fashion-MNIST: scattering features (81 x 7 x 7, group norm over 27 groups of one record's channels, no statistics
of the data) under the small CNN of Tramer and Boneh 2021, with their rates, clipping bound and batch sizes (rounded, so that
they divide the data). They use means and variances of the training set on MNIST, released with noise; we do not. IMDb: the
last 80 words, an embedding of width 100, dense 32, a bidirectional LSTM of 32, dense 16, dense 2. The paper loads GloVe
vectors, which are not among the shared data: our embedding is random and frozen, so that its accuracies are not comparable
with the paper's; the methods are with each other. Batch size, rate and clipping bound are not given for IMDb; ours were
chosen by a few runs of DP-SGD. A record is a candidate with twice the probability of its last norm; the paper allows five times.

`-small`: a perceptron (784-64-10) on the pixels of 20,000 images, a bag of embeddings (10,000 x 8, mean) under a linear layer
on 20,000 reviews, so that many runs take minutes. Batch size, rates and clipping bound are the same for all methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from common import data, mnist
from scattering import normalised, scattering


@dataclass(frozen=True)
class Setting:
    """What is trained how. `epochs` is for the scale at which the run should take minutes, not for the best accuracy."""

    model: Callable[[], nn.Module]
    load: Callable[[Path, int], tuple[Tensor, Tensor, Tensor, Tensor]]
    """Training and test data, at most so many training records."""
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    batch_size: int
    max_grad_norm: float
    epochs: int
    size: int
    """Training records."""
    importance: dict[str, Any]
    """What DPIS's options are, but for the planned mode."""
    planned_norm_share: float = 0.5
    """K~ as a share of N C, in the planned mode."""
    published: dict[float, tuple[float, float]] = field(default_factory=dict)
    """Accuracy of DPIS and of the paper's best DP-SGD on the same features, by epsilon (table 3)."""
    physical: int = 250
    """Records that are computed at once."""
    scale: str = "full"
    rate_without_noise: float | None = None
    """The rate of SGD without privacy, if it is another one."""


def scattering_cnn() -> nn.Module:
    """Two convolutions and two dense layers on scattering features: Tramer and Boneh 2021."""
    return nn.Sequential(
        nn.Conv2d(81, 16, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


class ReviewRNN(nn.Module):
    """Wei et al. 2022, table 1. `lstm` makes the recurrent layer: Opacus cannot take nn.LSTM and brings its own."""

    def __init__(self, lstm: Callable[..., nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 100)
        self.embedding.weight.requires_grad_(False)
        self.dense = nn.Linear(100, 32)
        self.lstm = lstm(32, 32, batch_first=True, bidirectional=True)
        self.hidden, self.out = nn.Linear(64, 16), nn.Linear(16, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        _, (last, _) = self.lstm(torch.relu(self.dense(self.embedding(tokens))))
        return self.out(torch.relu(self.hidden(torch.cat((last[0], last[1]), 1))))


def _images(name: str) -> Callable[[Path, int], tuple[Tensor, Tensor, Tensor, Tensor]]:
    def load(cache: Path, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with np.load(data(f"{name}.npz"), allow_pickle=False) as file:
            found = []
            for part in ("train", "test"):
                kept = cache / f"{name}_{part}_scattering.npy"
                if not kept.exists():
                    features = normalised(scattering(torch.from_numpy(file[f"x_{part}"].astype(np.float32) / 255)))
                    cache.mkdir(parents=True, exist_ok=True)
                    np.save(kept, features.numpy().astype(np.float16))
                stored = np.load(kept, mmap_mode="r", allow_pickle=False)[: most if part == "train" else None]
                features = torch.from_numpy(stored.astype(np.float32))
                found += [features, torch.from_numpy(file[f"y_{part}"][: len(features)].astype(np.int64))]
        return found[0], found[1], found[2], found[3]

    return load


def _reviews(_: Path, most: int, words: int = 80) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The last words of each review, padded in front with 0."""
    with np.load(data("imdb_tokens_top10k.npz"), allow_pickle=False) as file:
        tokens, offsets, y, test = (file[name] for name in ("tokens", "offsets", "y", "is_test"))
    rows = np.zeros((len(y), words), dtype=np.int64)
    for n in range(len(y)):
        last = tokens[max(offsets[n], offsets[n + 1] - words) : offsets[n + 1]]
        if len(last):
            rows[n, -len(last) :] = last
    x, labels, held = torch.from_numpy(rows), torch.from_numpy(y.astype(np.int64)), torch.from_numpy(test.astype(bool))
    # They come sorted by label: a part of them is drawn, the same for every run.
    drawn = torch.randperm(int((~held).sum()), generator=torch.Generator().manual_seed(0))[:most]
    return x[~held][drawn], labels[~held][drawn], x[held], labels[held]


def _pixels(name: str) -> Callable[[Path, int], tuple[Tensor, Tensor, Tensor, Tensor]]:
    def load(_: Path, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x, y, x_test, y_test = mnist(name)
        x, y = x[: min(most, 20_000)].reshape(-1, 784), y[: min(most, 20_000)]
        found = [torch.from_numpy(each) for each in (x, y, x_test.reshape(-1, 784), y_test)]
        return found[0], found[1], found[2], found[3]

    return load


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def bag() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(10_000, 8, mode="mean", padding_idx=0), nn.Linear(8, 2))


def _small(model: Callable[[], nn.Module], load: Any, optimizer: Any, plain_rate: float | None = None) -> Setting:
    # Above nearly every batch: each is computed at once.
    return Setting(
        model=model, load=load, optimizer=optimizer, batch_size=256, max_grad_norm=1.0, epochs=3, size=20_000,
        importance={}, physical=400, scale="small", rate_without_noise=plain_rate,
    )  # fmt: skip


def _sgd(rate: float) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.SGD(parameters, lr=rate, momentum=0.9)


def _adam(rate: float) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    return lambda parameters: torch.optim.Adam(parameters, lr=rate)


SETTINGS = {
    "mnist": Setting(
        model=scattering_cnn,
        load=_images("mnist"),
        optimizer=_sgd(1.0),
        batch_size=1000,
        max_grad_norm=0.1,
        epochs=5,
        size=60_000,
        importance={"worst_case_share": 0.8, "adapt_clipping": False},
        published={0.5: (96.8, 96.1), 1.0: (97.7, 97.2), 2.0: (98.6, 98.3), 4.0: (98.9, 98.5)},
    ),
    "fmnist": Setting(
        model=scattering_cnn,
        load=_images("fashion_mnist"),
        optimizer=_sgd(4.0),
        batch_size=2000,
        max_grad_norm=0.1,
        epochs=5,
        size=60_000,
        importance={"worst_case_share": 1.0, "adapt_clipping": False},
        published={0.5: (84.6, 83.9), 1.0: (86.6, 86.0), 2.0: (88.3, 87.8), 4.0: (89.4, 88.7)},
    ),
    "imdb": Setting(
        model=ReviewRNN,
        load=_reviews,
        optimizer=_adam(1e-2),
        batch_size=500,
        max_grad_norm=1.0,
        epochs=4,
        size=25_000,
        importance={"worst_case_share": 0.8, "adapt_clipping": True},
        published={0.5: (59.1, 56.4), 1.0: (62.1, 60.3), 2.0: (65.9, 63.5), 4.0: (70.2, 67.4)},
    ),
    "mnist-small": _small(perceptron, _pixels("mnist"), _sgd(0.5), 0.05),
    "fmnist-small": _small(perceptron, _pixels("fashion_mnist"), _sgd(0.5), 0.05),
    "imdb-small": _small(bag, _reviews, _adam(1e-2)),
}
