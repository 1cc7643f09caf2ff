"""Whole numbers that choose rows of tables: more of what may be computed from them, bags, models, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from reading import Case, Fn, ids, randn
from torch import nn

# A table of which every number of a row is known: row r is [r, r * r, 10 - r].
ROWS = torch.arange(9.0)
TABLE = torch.stack([ROWS, ROWS * ROWS, 10 - ROWS], 1)
# Two columns of ids below 4, five of them below 9.
PAIRS = torch.cat([torch.tensor([[3, 1]]), ids(4, 31, 2)])
FIVE = torch.cat([torch.tensor([[0, 8, 3, 3, 1]]), ids(9, 31, 5)])


def table(**keywords: Any) -> nn.Embedding:
    """An embedding of the table above."""
    made = nn.Embedding(9, 3, **keywords)
    made.weight.data = TABLE.clone()
    return made


def of(function: Callable[..., Any]) -> Callable[[], nn.Module]:
    """A module that computes a function of ids and of the table's layer."""
    return lambda: Fn(function, e=table())


def bag(mode: str, **keywords: Any) -> nn.EmbeddingBag:
    """A bag of the table above."""
    made = nn.EmbeddingBag(9, 3, mode=mode, **keywords)
    made.weight.data = TABLE.clone()
    return made


class Offsets(nn.Module):
    """Fields that share one table, each from its own row on."""

    def __init__(self, sizes: list[int], width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(sum(sizes), width)
        nn.init.normal_(self.table.weight, std=0.5)
        starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.register_buffer("starts", starts)

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        return self.table(fields + self.starts.unsqueeze(0))  # type: ignore[operator, no-any-return]


class Interactions(nn.Module):
    """A factorization machine, with a perceptron beside it where `deep`: one number for each row of fields."""

    def __init__(self, deep: bool) -> None:
        super().__init__()
        sizes = [4, 3, 6]
        self.vectors, self.single = Offsets(sizes, 4), Offsets(sizes, 1)
        self.bias = nn.Parameter(torch.zeros(1))
        self.deep = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)) if deep else None

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        vectors = self.vectors(fields)
        of_sum, sum_of = vectors.sum(1) ** 2, (vectors**2).sum(1)
        score = self.single(fields).sum(1) + self.bias + 0.5 * (of_sum - sum_of).sum(1, keepdim=True)
        if self.deep is not None:
            score = score + self.deep(vectors.flatten(1))
        return torch.sigmoid(score.squeeze(1))


class Crossed(nn.Module):
    """Products of all pairs of fields, compressed by a convolution: one layer of xDeepFM's."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = Offsets([4, 3, 6], 4)
        self.mix, self.head = nn.Conv1d(9, 5, 1), nn.Linear(5, 1)

    def forward(self, fields: torch.Tensor) -> torch.Tensor:
        x = self.vectors(fields)
        pairs = (x.unsqueeze(2) * x.unsqueeze(1)).view(x.size(0), 9, 4)
        return self.head(self.mix(pairs).sum(2)).squeeze(1)  # type: ignore[no-any-return]


class Tabular(nn.Module):
    """Categories behind special tokens, numbers as tokens of their own, one layer of attention over both."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [4, 3, 6]
        self.register_buffer("starts", torch.tensor([0, *sizes[:-1]]).cumsum(0) + 2)
        self.words = nn.Embedding(sum(sizes) + 2, 4)
        self.scale, self.shift = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(2, 4))
        self.first = nn.Parameter(torch.randn(1, 1, 4))
        self.queries, self.head = nn.Linear(4, 12, bias=False), nn.Linear(4, 1)

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        words = self.words(categories + self.starts)  # type: ignore[operator]
        numeric = numbers.unsqueeze(-1) * self.scale + self.shift
        x = torch.cat([self.first.expand(words.shape[0], -1, -1), words, numeric], dim=1)
        q, k, v = self.queries(x).chunk(3, dim=-1)
        x = x + (q @ k.transpose(1, 2) / 2.0).softmax(-1) @ v
        return self.head(x[:, 0])  # type: ignore[no-any-return]


class Words(nn.Module):
    """Word and position vectors; positions behind padding, as some language models count them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = table(padding_idx=0), nn.Embedding(5, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = words != 0
        x = self.words(words) + self.places(torch.arange(words.shape[1]).expand_as(words))
        return (x * mask.unsqueeze(-1)).sum(1) / 5


FIELDS = torch.stack([ids(4, 64), ids(3, 64, seed=1), ids(6, 64, seed=2)], 1)

# name, function of ids and the layer, samples, the right value of the first sample
SIMPLE: tuple[tuple[str, Callable[..., Any], torch.Tensor, list[float]], ...] = (
    ("ids % n", lambda t, e: e(t % 5)[:, 1], FIVE, [3, 9, 7]),
    ("a hash", lambda t, e: e((t * 7 + 3) % 9)[:, 1], FIVE, [5, 25, 5]),
    ("where ids are rare", lambda t, e: e(torch.where(t > 5, 0, t))[:, 1], FIVE, [0, 0, 10]),
    ("masked_fill of ids", lambda t, e: e(t.masked_fill(t == 8, 1))[:, 1], FIVE, [1, 1, 9]),
    ("bits of ids", lambda t, e: e(t & 3)[:, 2], FIVE, [3, 9, 7]),
    ("ids through a known list", lambda t, e: e(torch.tensor([8, 7, 6, 5, 4, 3, 2, 1, 0])[t])[:, 1], FIVE, [0, 0, 10]),
    ("weight[:, ids]", lambda t, e: e.weight.t()[:, t].sum(2).t(), FIVE, [15, 83, 35]),
    ("weight[ids, 1]", lambda t, e: e.weight[t, 1], FIVE, [0, 64, 9, 9, 1]),
    ("columns of the table", lambda t, e: F.embedding(t, e.weight[:, 1:] @ torch.ones(2, 1)).sum(1), PAIRS, [26]),
    ("a column, moved", lambda t, e: e(t[:, 1] + 3) + e(t[:, :1].squeeze(1)), PAIRS, [7, 25, 13]),
    ("ids turned and joined", lambda t, e: e(torch.cat([t.flip(1), t[:, :1] + 1], 1))[:, 2], PAIRS, [4, 16, 6]),
    ("ids with a first token", lambda t, e: e(F.pad(t, (1, 0), value=7)).sum(1), PAIRS, [11, 59, 19]),
    (
        "columns stacked",
        lambda t, e: e(torch.stack([t[:, 1], t[:, 0]], 1) + torch.tensor([0, 5]))[:, 1],
        PAIRS,
        [8, 64, 2],
    ),
    ("known ids beside", lambda t, e: e(torch.cat([torch.full((t.shape[0], 1), 6), t], 1)).sum(1), PAIRS, [10, 46, 20]),
    ("tokens unfolded", lambda t, e: e(t.unfold(1, 2, 1)).sum((1, 2)), FIVE, [29, 165, 51]),
    ("ids.float() beside", lambda t, e: e(t).sum(1) + t.float().mean(1, keepdim=True), PAIRS, [6, 12, 18]),
    ("a function of ids beside", lambda t, e: e(t).sum(1) * torch.log2(t[:, :1].float() + 1), PAIRS, [8, 20, 32]),
    ("a sum of ids beside", lambda t, e: e(t).sum(1) + t.sum(1, keepdim=True), PAIRS, [8, 14, 20]),
    ("flags of ids", lambda t, e: e(t).sum(1) + ((t > 0) & (t < 3)).float().sum(1, keepdim=True), PAIRS, [5, 11, 17]),
    ("one_hot of ids + 1", lambda t, e: F.one_hot(t + 1, 5).float().sum(1) + e(t)[:, :1, 0], PAIRS, [3, 3, 4, 3, 4]),
)

CASES: tuple[Case, ...] = (
    *(
        Case(name, "F13", of(function), lambda samples=samples: samples, right)  # type: ignore[misc]
        for name, function, samples, right in SIMPLE
    ),
    Case(
        "EmbeddingBag, known weights",
        "F13",
        lambda: Fn(
            lambda t, e: F.embedding_bag(
                t, e.weight, mode="sum", per_sample_weights=torch.tensor([[1.0, 2, 0, 3, 0]]).expand(t.shape[0], -1)
            ),
            e=table(),
        ),
        lambda: FIVE,
        [25, 155, 35],
    ),
    Case(
        "EmbeddingBag, weights of an input",
        "F13",
        lambda: Fn(lambda t, w, e: F.embedding_bag(t, e.weight, mode="sum", per_sample_weights=w), e=table()),
        lambda: (FIVE, torch.cat([torch.tensor([[1.0, 2, 0, 3, 0]]), randn(31, 5)])),
        [25, 155, 35],
    ),
    Case(
        "bags of a matrix of bags",
        "F13",
        of(lambda t, e: F.embedding_bag(t.reshape(-1, 2), e.weight, mode="sum").view(t.shape[0], -1)),
        lambda: FIVE[:, :4],
        [8, 64, 12, 6, 18, 14],
    ),
    Case(
        "lookups in one row",
        "F13",
        of(lambda t, e: e(t.reshape(-1)).view(t.shape[0], -1)),
        lambda: PAIRS,
        [3, 9, 7, 1, 1, 9],
    ),
    Case("ids turned around", "F13", of(lambda t, e: e(t.t()).sum(0)), lambda: FIVE, [15, 83, 35]),
    Case(
        "ids turned around, one sample",
        "F13",
        of(lambda t, e: e(t.t()).sum(0)),
        lambda: FIVE,
        [15, 83, 35],
        keywords={"example_input": FIVE[:1]},
    ),
    Case("one id", "F13", of(lambda t, e: e(t)), lambda: PAIRS[:, 0], [3, 9, 7]),
    Case(
        "columns that are inputs of their own",
        "F13",
        lambda: Fn(lambda a, b, e: e(torch.stack([a, b], 1) + torch.tensor([0, 4])).sum(1), e=table()),
        lambda: (PAIRS[:, 0], PAIRS[:, 1]),
        [8, 34, 12],
    ),
    Case(
        "an age beside a category",
        "F13",
        of(lambda t, e: e(t[:, 0]) * t[:, 1:].float()),
        lambda: torch.cat([torch.tensor([[3, 80]]), torch.stack([ids(9, 31), ids(90, 31, seed=1)], 1)]),
        [240, 720, 560],
    ),
    Case("bytes as ids", "F13", of(lambda t, e: e(t.long()).sum(1)), lambda: PAIRS.to(torch.uint8), [4, 10, 16]),
    Case("flags as an output", "F13", of(lambda t, e: (e(t).sum(1), t > 2)), lambda: PAIRS, [4, 10, 16, 1, 0]),
    Case(
        "numbers of two hash functions",
        "F13",
        lambda: Fn(lambda t, e, h: e(h[t]).sum((1, 2)), e=table(), h=torch.stack([ROWS.long(), 8 - ROWS.long()], 1)),
        lambda: PAIRS,
        [16, 84, 24],
    ),
    Case("torch.take", "F13", of(lambda t, e: torch.take(e.weight, t * 3 + 1) + e(t)[:, :, 0]), lambda: PAIRS, [12, 2]),
    Case(
        "numbers in sets",
        "F13",
        of(lambda t, e: e(t)[..., 0] * torch.isin(t, torch.tensor([0, 3]))),
        lambda: PAIRS,
        [3, 0],
    ),
    Case(
        "numbers in buckets",
        "F13",
        of(lambda t, e: e(torch.bucketize(t, torch.tensor([1, 2])))[:, 0]),
        lambda: PAIRS,
        [2, 4, 8],
    ),
    Case(
        "offsets in every step of a sequence",
        "F13",
        of(lambda t, e: e(t + torch.tensor([0, 4])).sum((1, 2))),
        lambda: torch.stack([PAIRS, PAIRS.flip(1)], 1),
        [16, 84, 24],
    ),
    Case(
        "max_norm",
        "F13",
        lambda: Fn(lambda t, e: e(t).sum(1), e=table(max_norm=5.0)),
        lambda: PAIRS,
        [1.8211, 4.3657, 7.9081],
    ),
    Case("padding_idx and a mask", "F13", Words, lambda: FIVE, [3.2949, 16.399, 5.27]),
    Case("a factorization machine", "F13", lambda: Interactions(False), lambda: FIELDS, [0.5459], compiled=0.05),
    Case(
        "a factorization machine and a perceptron",
        "F13",
        lambda: Interactions(True),
        lambda: FIELDS,
        [0.4727],
        compiled=0.1,
    ),
    Case("products of all fields", "F13", Crossed, lambda: FIELDS, [0.3989], compiled=0.05),
    Case("categories and numbers as tokens", "F13", Tabular, lambda: (FIELDS, randn(64, 2)), [-0.2801]),
    Case(
        "EmbeddingBag, max",
        "F13",
        lambda: bag("max"),
        lambda: FIVE,
        says=("embedding_bag", "the largest of each column", ".amax(1)"),
    ),
    Case(
        "EmbeddingBag, a mean without padding",
        "F13",
        lambda: bag("mean", padding_idx=3),
        lambda: FIVE,
        says=("embedding_bag", "divides by a number of ids", 'mode="sum"'),
    ),
    Case(
        "EmbeddingBag, offsets",
        "F13",
        lambda: bag("sum"),
        lambda: (ids(9, 10), torch.tensor([0, 3, 5, 8])),
        says=("embedding_bag", "where each bag begins is an input", "(batch, length)"),
        keywords={"example_input": (ids(9, 10), torch.tensor([0, 3, 5, 8]))},
    ),
    Case(
        "two ids in one row number",
        "F13",
        of(lambda t, e: e(t[:, 0] * 2 + t[:, 1])),
        lambda: PAIRS,
        says=("embedding", "several whole numbers together", "an input of its own", "cases_tokens.py"),
    ),
    Case(
        "ids in order",
        "F13",
        of(lambda t, e: e(t.sort(1).values)),
        lambda: FIVE,
        says=("several whole numbers together", "an input of its own", "cases_tokens.py"),
    ),
    Case(
        "ids out of a float matrix",
        "F13",
        of(lambda t, e: e(t[:, 0].long()) + t[:, 1:]),
        lambda: torch.cat([FIVE[:, :1].float(), randn(32, 3)], 1),
        says=("torch.int64", "an input of whole numbers of their own", "cases_tokens.py"),
    ),
    Case(
        "whole numbers that no table reads",
        "F13",
        lambda: Fn(lambda t: (t * 2).float()),
        lambda: FIVE,
        says=("int64", "no table is looked up", "example_input.float()"),
        keywords={"example_input": FIVE[:2]},
    ),
    Case(
        "a table too large",
        "F13",
        lambda: nn.Embedding(300_000, 1),
        lambda: FIVE,
        says=("300000", "one-hot vectors", "look the vectors up on the client"),
    ),
    Case(
        "calibration outside of a column's rows",
        "F13",
        of(lambda t, e: e(t + torch.tensor([0, 4])).sum(1)),
        lambda: torch.cat([PAIRS, torch.tensor([[0, 5]])]),
        says=("holds 5 in sample 32, element (1,)", "no row of a table"),
    ),
)
