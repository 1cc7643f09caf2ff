"""Whole numbers that choose rows of tables: lookups by what is computed from them, bags, tables that are computed."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from reading import Case, Fn, ids, randn
from torch import nn


def _table(rows: int, width: int = 2) -> nn.Embedding:
    """Row i holds i + 1 and its square: what was looked up can be seen."""
    made = nn.Embedding(rows, width)
    numbers = torch.arange(1.0, rows + 1)
    made.weight.data = torch.stack([numbers**power for power in range(1, width + 1)], 1)
    return made


def _case(name: str, function: Any, right: Any, numbers: Any, rows: int = 9, says: Any = (), **more: Any) -> Case:
    return Case(name, "F13", lambda: Fn(function, e=_table(rows)), lambda: numbers, right, says, **more)


_TWO = torch.cat([torch.tensor([[1, 2]]), ids(4, 31, 2)])
_FIVE = torch.cat([torch.tensor([[1, 2, 0, 3, 4]]), ids(9, 31, 5)])
_OFFSETS = torch.tensor([0, 4])


class Factorization(nn.Module):
    """A factorization machine over columns that share one table by offsets."""

    def __init__(self, fields: tuple[int, ...] = (4, 5, 3), width: int = 3) -> None:
        super().__init__()
        starts = [sum(fields[:place]) for place in range(len(fields))]
        self.register_buffer("starts", torch.tensor(starts), persistent=False)
        self.first, self.pairs = nn.Embedding(sum(fields), 1), nn.Embedding(sum(fields), width)
        self.bias = nn.Parameter(torch.zeros(1))
        self.mlp = nn.Sequential(nn.Linear(width * len(fields), 4), nn.ReLU(), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.starts.unsqueeze(0)
        vectors = self.pairs(x)
        crossed = (vectors.sum(1) ** 2 - (vectors**2).sum(1)).sum(1, keepdim=True) / 2
        linear = self.first(x).sum(1) + self.bias
        return torch.sigmoid((linear + crossed + self.mlp(vectors.view(x.size(0), -1))).squeeze(1))


class TableTransformer(nn.Module):
    """A transformer over columns: categories by offsets beside numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.tensor([2, 5]))
        self.table, self.weights = nn.Embedding(9, 4), nn.Parameter(torch.randn(2, 4))
        self.biases, self.start = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(1, 1, 4))
        self.out = nn.Linear(4, 1)

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        known = self.table(categories + self.offset)
        given = numbers.unsqueeze(-1) * self.weights + self.biases
        tokens = torch.cat([self.start.expand(categories.shape[0], -1, -1), known, given], 1)
        return self.out(F.scaled_dot_product_attention(tokens, tokens, tokens)[:, 0])


class Bag(nn.Module):
    """A bag of words under a linear layer."""

    def __init__(self, mode: str, **more: Any) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(9, 2, mode=mode, **more)
        self.bag.weight.data = _table(9).weight.data

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.bag(x)


CASES: tuple[Case, ...] = (
    _case("numbers plus offsets", lambda x, e: e(x + _OFFSETS).sum(1), (9, 53), _TWO, compiled=0.01),
    _case("numbers less one", lambda x, e: e(x - 1).sum(1), (3, 5), _TWO + (_TWO == 0)),
    _case("a number less the numbers", lambda x, e: e(8 - x).sum(1), (15, 113), _TWO),
    _case("numbers times two", lambda x, e: e(x * 2).sum(1), (8, 34), _TWO),
    _case("remainders", lambda x, e: e(x % 3).sum(1), (9, 19), _FIVE),
    _case("whole quotients", lambda x, e: e(x // 2).sum(1), (9, 19), _FIVE),
    _case("quotients rounded down", lambda x, e: e(torch.div(x, 2, rounding_mode="floor")).sum(1), (9, 19), _FIVE),
    _case("bounds", lambda x, e: e(x.clamp(1, 3)).sum(1), (15, 49), _FIVE),
    _case("bounds below", lambda x, e: e(x.clamp(min=2)).sum(1), (18, 68), _FIVE),
    _case("the smaller of two", lambda x, e: e(torch.minimum(x, torch.tensor(2))).sum(1), (12, 32), _FIVE),
    _case("numbers without their signs", lambda x, e: e((x - 2).abs()).sum(1), (11, 27), _FIVE),
    _case("the table itself, by numbers", lambda x, e: e.weight[x].sum(1), (15, 55), _FIVE),
    _case("the table itself, from its end", lambda x, e: e.weight[x - 9].sum(1), (15, 55), _FIVE),
    _case("rows picked from the table", lambda x, e: e.weight.index_select(0, x), (2, 4), _FIVE[:, 0].contiguous()),
    _case("a part of a table", lambda x, e: F.embedding(x, e.weight[2:6]).sum(1), (9, 41), _TWO),
    _case("a table twice", lambda x, e: F.embedding(x, e.weight * 2).sum(1), (10, 26), _TWO),
    _case("the sum of two tables", lambda x, e: F.embedding(x, e.weight + e.weight.flip(0)).sum(1), (20, 126), _TWO),
    _case("a table under a map", lambda x, e: F.embedding(x, e.weight @ torch.ones(2, 1)).sum((1, 2)), (18,), _TWO),
    _case("numbers as such beside a lookup", lambda x, e: e(x).sum((1, 2)) + x.float().sum(1) * 10, (48,), _TWO),
    _case(
        "numbers as such, by columns",
        lambda x, e: e(x).sum((1, 2)) + (x * torch.tensor([1, 10])).float().sum(1),
        (39,),
        _TWO,
    ),
    _case("a comparison of sums", lambda x, e: e(x).sum((1, 2)) * (x + 1 > 2).float().sum(1), (18,), _TWO),
    _case("one behind the other", lambda x, e: e(x.view(-1)).view(x.shape[0], -1), (2, 4, 3, 9), _TWO),
    _case("columns by themselves", lambda x, e: e(x[:, 0]) + 10 * e(x[:, 1] + 1), (42, 164), _TWO),
    _case("turned around", lambda x, e: e(x.flip(1) + _OFFSETS)[:, 0], (3, 9), _TWO),
    _case(
        "with a first number", lambda x, e: e(torch.cat([torch.full((x.shape[0], 1), 8), x], 1)).sum(1), (14, 94), _TWO
    ),
    _case(
        "one-hot vectors of sums",
        lambda x, e: F.one_hot(x + 1, 6).float().sum(1) + e(x)[:, 0, :1] * 0,
        (0, 0, 1, 1, 0, 0),
        _TWO,
    ),
    _case("numbers stacked", lambda x, e: e(torch.stack([x, x + 1], 1)).sum((1, 2)), (12, 38), _TWO),
    Case("a bag, summed", "F13", lambda: Bag("sum"), lambda: _FIVE, (15, 55), compiled=0.01),
    Case("a bag, averaged", "F13", lambda: Bag("mean"), lambda: _FIVE, (3, 11)),
    Case("a bag without padding", "F13", lambda: Bag("sum", padding_idx=4), lambda: _FIVE, (10, 30)),
    Case("the largest of a bag", "F13", lambda: Bag("max"), lambda: _FIVE, says=("embedding_bag", 'mode="sum"')),
    Case(
        "a table of bounded rows",
        "F13",
        lambda: Fn(lambda x, e: e(x).sum(1), e=nn.Embedding(9, 2, max_norm=1.0, _weight=_table(9).weight.data)),
        lambda: _TWO,
        (0.7634432, 1.8429660),
    ),
    Case(
        "factorization machine",
        "F13",
        Factorization,
        lambda: torch.cat([ids(4, 64, 1), ids(5, 64, 1, seed=1), ids(3, 64, 1, seed=2)], 1),
        (0.820919,),
        compiled=0.02,
    ),
    Case(
        "columns with numbers, by attention",
        "F13",
        TableTransformer,
        lambda: (torch.cat([ids(3, 64, 1), ids(4, 64, 1, seed=1)], 1), randn(64, 2)),
        (0.155682,),
    ),
    Case(
        "a lookup in an encrypted table",
        "F13",
        lambda: Fn(lambda x, y: y[:, :1] * 0 + x.float()[:, 0].long().float()[:, None]),
        lambda: (randn(8, 2), randn(8, 2)),
        says=("torch.int64", "floating point"),
    ),
    Case(
        "an activation of numbers that meets a lookup in between",
        "F13",
        lambda: Fn(lambda x, y, e: e(x + (y > 0).long()), e=_table(9)),
        lambda: (_TWO, randn(32, 2)),
        says=("whole numbers", "an input of its own"),
    ),
)
