"""Four kinds of models on real data, trained here and encrypted: `--network` names one of them.

gru: the rows of a digit as a sequence of 8. unet: a U-Net block that finds the strokes of a digit in noise, with transposed
convolutions. mixer: an MLP-Mixer block on patches of clothes. transformer: an encoder of two layers on words of reviews,
whose vectors the client looks up.
"""

from __future__ import annotations

import deep_network  # first: it imports heliograph before torch

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from common import data, hg, mnist, once, train
from harness import Run, benchmark
from models.cifar import Images
from torch import nn


class Rows(nn.Module):
    """A GRU whose last state is classified."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(8, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.gru(x)
        return self.head(states[:, -1])


class UNet(nn.Module):
    """Down twice, up twice by transposed convolutions, with what was there before at each size; two scores a pixel."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.down1 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.down2 = nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1)
        self.up1 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.mix = nn.Conv2d(4 * width, 2 * width, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Conv2d(2 * width, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        fine = F.relu(self.enter(x))
        middle = F.relu(self.down1(fine))
        coarse = F.relu(self.down2(middle))
        middle = F.relu(self.mix(torch.cat([middle, self.up1(coarse)], 1)))
        return self.out(torch.cat([fine, self.up2(middle)], 1))


class Mixer(nn.Module):
    """Patches, one block that mixes tokens and then channels, the mean of the tokens."""

    def __init__(self, tokens: int = 16, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, 4, stride=4)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.token = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.channel = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = x + self.token(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.channel(self.norm2(x))
        return self.head(x.mean(1))


class Encoder(nn.Module):
    """Two layers of attention on the vectors of words, the mean of the words."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.place = nn.Parameter(0.02 * torch.randn(words, width))
        layer = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x + self.place).mean(1))


class Reader(nn.Module):
    """The encoder behind its table of words; the table stays on the client."""

    def __init__(self, words: int = 8, width: int = 8, vocabulary: int = 10_000) -> None:
        super().__init__()
        self.table, self.encoder = nn.Embedding(vocabulary, width), Encoder(words, width)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.table(words))


def pixels(images: np.ndarray, size: int) -> np.ndarray:
    """Images of 28 x 28 as (n, 1, size, size): padded to 32 x 32, then means of squares. In [0, 1]."""
    padded, factor = np.pad(images, ((0, 0), (2, 2), (2, 2))), 32 // size
    return padded.reshape(-1, 1, size, factor, size, factor).mean((3, 5)).astype(np.float32)


def rows() -> Images:
    x_train, y_train, x_test, y_test = mnist()
    return Images(pixels(x_train, 8)[:, 0], y_train, pixels(x_test, 8)[:, 0], y_test, (0.0, 1.0))


def strokes() -> Images:
    """Digits of 16 x 16 under noise; the class of each pixel says whether a stroke is there."""
    x_train, _, x_test, _ = mnist()
    random = np.random.default_rng(0)
    noisy, labels = [], []
    for images in (x_train[:20_000], x_test[:1000]):
        clean = pixels(images, 16)
        noisy.append(np.clip(clean + 0.5 * random.standard_normal(clean.shape), -1, 2).astype(np.float32))
        labels.append((clean[:, 0] > 0.5).astype(np.int64))
    return Images(noisy[0], labels[0], noisy[1], labels[1], (-1.0, 2.0))


def clothes() -> Images:
    x_train, y_train, x_test, y_test = mnist("fashion_mnist")
    return Images(pixels(x_train, 16), y_train, pixels(x_test, 16), y_test, (0.0, 1.0))


def reviews(words: int = 8) -> Images:
    """IMDb reviews as the words that say most in the training reviews: `words` of each, in order, 0 where there are fewer.

    What a word says is the logarithm of how much oftener it is in good reviews than in bad ones, or the other way round.
    """
    with np.load(data("imdb_tokens_top10k.npz"), allow_pickle=False) as file:
        tokens, offsets, labels, apart = (file[name] for name in ("tokens", "offsets", "y", "is_test"))
    labels, apart = labels.astype(np.int64), apart.astype(bool)
    review = np.repeat(np.arange(len(labels)), np.diff(offsets))
    counts = np.ones((2, int(tokens.max()) + 1))
    for label in (0, 1):
        counts[label] += np.bincount(tokens[(labels[review] == label) & ~apart[review]], minlength=counts.shape[1])
    says = np.abs(np.log(counts[1] / counts[0]))
    says[:2] = -1.0  # padding, and all words that are not in the table
    made = np.zeros((len(labels), words), np.int64)
    for row, (start, end) in enumerate(itertools.pairwise(offsets)):
        of = tokens[start:end]
        chosen = np.sort(np.argsort(-says[of], kind="stable")[:words])
        made[row, : len(chosen)] = of[chosen]
    # In another order than the file's, in which all bad reviews come before all good ones.
    order = np.random.default_rng(0).permutation(np.flatnonzero(apart))
    return Images(made[~apart], labels[~apart], made[order], labels[order], (0.0, float(len(says))))


def looked_up(table: nn.Embedding, images: Images) -> Images:
    """The vectors of the words, as a client makes them."""
    vectors = table.weight.detach().numpy()
    interval = float(vectors.min()), float(vectors.max())
    return Images(
        vectors[images.train], images.train_labels, vectors[images.test[:5000]], images.test_labels[:5000], interval
    )


# The network, its data, epochs of training, and the bytes that a server may take: keys beyond are read again in each run.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Images], int, int]] = {
    "gru": (Rows, rows, 12, 11 * 10**9),
    "unet": (UNet, strokes, 3, 11 * 10**9),
    "mixer": (Mixer, clothes, 6, 11 * 10**9),
    "transformer": (Reader, reviews, 3, 15 * 10**9),
}


def network(given: dict[str, Any]) -> tuple[nn.Module, Images]:
    """The network that is named, trained once, and its samples."""
    make, read, epochs, _ = NETWORKS[given["network"]]
    images = read()
    torch.manual_seed(0)
    module = make()
    weights = Path(given["folder"]) / f"{given['network']}-weights.npz"
    once(weights, module, lambda: train(module, images.train, images.train_labels, epochs))
    if isinstance(module, Reader):
        return module.encoder.eval(), looked_up(module.table, images)
    return module, images


def compiled(given: dict[str, Any]) -> deep_network.Compiled:
    module, images = network(given)
    chosen = hg.Options(degree=given["degree"], memory_bytes=NETWORKS[given["network"]][3])
    return deep_network.compiled(given["network"], module, images, chosen, given)


@benchmark(
    *deep_network.options(None, tuple(NETWORKS)),
    columns=deep_network.COLUMNS,
    data=("mnist.npz", "fashion_mnist.npz", "imdb_tokens_top10k.npz"),
    memory_gb=16,
    minutes=5,
)
def encrypted_models(run: Run) -> None:
    _, images = network(vars(run.options))
    deep_network.measure(run, "encrypted_models:compiled", images)


if __name__ == "__main__":
    encrypted_models.main()
