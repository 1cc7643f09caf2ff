"""The batch axis: what depends on its size, samples that meet and part again, samples that mix, outputs without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from reading import Case, Fn, ids, rand, randn
from torch import nn

_X = torch.cat([torch.tensor([[1.0, -2.0, 3.0, 0.5]]), randn(31, 4)])


def _sized(name: str, function: Callable[..., Any], says: str = "") -> Case:
    return Case(name, "F6", lambda: Fn(function), lambda: _X, says=("depends on the batch", says))


def _mixed(name: str, function: Callable[..., Any], samples: Any = None, **parts: Any) -> Case:
    return Case(
        name, "F6", lambda: Fn(function, **parts), lambda: _X if samples is None else samples, says=("mixes samples",)
    )


def _ones(rows: int) -> nn.Linear:
    made = nn.Linear(4, rows, bias=False)
    made.weight.data = torch.arange(1.0, rows + 1)[:, None].expand(rows, 4).clone()
    return made


def _apart(name: str, function: Callable[..., Any], right: Any, fault: str = "F15") -> Case:
    return Case(name, fault, lambda: Fn(function, c=_ones(2)), lambda: _X, right)


class Merged(nn.Module):
    """Attention over the words of all samples at once."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        batch, length = words.shape
        h = self.table(words).view(1, batch * length, 4)
        return F.scaled_dot_product_attention(h, h, h).view(batch, length, 4).mean(1)


class Heads(nn.Module):
    """Attention whose heads are stacked along the batch axis, as set transformers do."""

    def __init__(self, width: int = 4, heads: int = 2) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.part, self.width = width // heads, width

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (torch.cat(layer(x).split(self.part, 2), 0) for layer in (self.q, self.k, self.v))
        weights = torch.softmax(q.bmm(k.transpose(1, 2)) / self.width**0.5, 2)
        return torch.cat((q + weights.bmm(v)).split(x.size(0), 0), 2)


class Siamese(nn.Module):
    """One pass of a convolution over both inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 2, bias=False)
        self.conv.weight.data = torch.tensor([[[1.0, 2.0]]])

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        both = self.conv(torch.cat([a, b], 0).unsqueeze(1)).flatten(1)
        return (both[: a.size(0)] - both[a.size(0) :]) ** 2


_HEADS = (
    *(0.748953, -0.330851, -1.221286, 0.702229, 1.851786, -1.072916),
    *(-0.713953, -0.925245, 0.189241, -0.30357, -1.482874, -0.027371),
)

CASES: tuple[Case, ...] = (
    _sized("x / len(x)", lambda x: x / len(x), "torch.div"),
    _sized("x / torch.tensor(len(x))", lambda x: x / torch.tensor(float(len(x)))),
    _sized("full", lambda x: x * torch.full((1,), 1 / len(x)), "torch.full"),
    _sized("new_full", lambda x: x * x.new_full((1,), len(x)), "new_full"),
    _sized("ones that are summed", lambda x: x * torch.ones(len(x)).sum(), "torch.sum"),
    _sized("a bound", lambda x: x.clamp(max=0.1 * len(x)), "clamp"),
    _sized("eps of a layer norm", lambda x: F.layer_norm(x, (4,), eps=len(x)), "layer_norm"),
    _sized("a slope", lambda x: F.leaky_relu(x, 1 / len(x)), "leaky_relu"),
    _sized("alpha", lambda x: F.elu(x, alpha=len(x)), "elu"),
    _sized("the number of each sample", lambda x: x + torch.arange(len(x))[:, None]),
    _sized("a place in the batch", lambda x: x + torch.linspace(0, 1, len(x))[:, None], "linspace"),
    _sized("a loop", lambda x: sum(x for _ in range(len(x))), "torch.add"),
    _sized("padding", lambda x: F.pad(x, (0, len(x))), "pad"),
    _sized("a slice", lambda x: x[:, : len(x)]),
    _sized("a branch", lambda x: x * 2 if len(x) > 1 else x, "torch.mul"),
    _sized("a power", lambda x: x ** len(x), "torch.pow"),
    Case(
        "words of all samples",
        "F6",
        Merged,
        lambda: ids(7, 32, 5),
        says=("scaled_dot_product_attention mixes samples",),
    ),
    Case(
        "rows of all samples",
        "F6",
        lambda: Fn(
            lambda x: F.scaled_dot_product_attention(*(x.reshape(1, -1, 4),) * 3).view(x.size(0), -1, 4).mean(1)
        ),
        lambda: randn(32, 5, 4),
        says=("scaled_dot_product_attention mixes samples",),
    ),
    _mixed("the mean of samples", lambda x: x - x.mean(0)),
    _mixed("the largest of samples", lambda x: x / x.abs().amax()),
    _mixed("running sums over samples", lambda x: x.cumsum(0)),
    _mixed("samples turned around", lambda x: x.flip(0)),
    _mixed("products of samples", lambda x: x @ x.T),
    _mixed("a softmax over samples", lambda x: torch.softmax(x, 0)),
    _mixed("the first sample", lambda x: x - x[0]),
    _mixed("the sum of what was stacked", lambda x: torch.stack([x, 2 * x]).mean((0, 1)) + x),
    _apart("both ways round, one pass", lambda x, c: sum(c(torch.cat([x, x.flip(-1)], 0)).chunk(2)), (5, 10)),
    _apart("stacked in front", lambda x, c: c(torch.stack([x, 2 * x])).mean(0), (3.75, 7.5)),
    _apart("repeated", lambda x, c: c(x.repeat(3, 1)).view(3, -1, 2).sum(0), (7.5, 15)),
    _apart("repeated one by one", lambda x, c: c(x.repeat_interleave(3, 0)).view(-1, 3, 2).sum(1), (7.5, 15)),
    _apart("a loop over samples", lambda x, c: torch.stack([c(one) for one in x]), (2.5, 5)),
    _apart("samples unbound", lambda x, c: torch.stack([c(one) * 2 for one in x.unbind(0)]), (5, 10)),
    _apart("vmap", lambda x, c: torch.vmap(lambda one: c(one))(x), (2.5, 5)),
    _apart("split and joined", lambda x, c: torch.cat([c(one) for one in x.split(1)]), (2.5, 5)),
    Case(
        "two inputs in one pass",
        "F15",
        Siamese,
        lambda: (
            torch.cat([torch.tensor([[1.0, 2.0, 3.0]]), rand(7, 3)]),
            rand(8, 3, seed=1) + torch.arange(8.0)[:, None],
        ),
        (13.569989, 47.811012),
    ),
    Case("heads along the batch axis", "F15", Heads, lambda: randn(32, 3, 4), _HEADS),
    _apart("squeezed at the end", lambda x, c: c(x)[:, :1].squeeze(), (2.5,), "F16"),
    _apart("squeezed in between", lambda x, c: c(x.unsqueeze(1)).squeeze(), (2.5, 5), "F16"),
    Case(
        "squeezed, of one sample",
        "F16",
        lambda: Fn(lambda x, c: c(x).squeeze(), c=_ones(1)),
        lambda: _X[:1],
        (2.5,),
    ),
    Case("flattened whole", "F16", lambda: Fn(lambda x: x.flatten()), lambda: _X, (1, -2, 3, 0.5)),
)
