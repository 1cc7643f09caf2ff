"""Gradients of single records in factored form: their norms and weighted sums without the gradients themselves.

A parameter of a layer meets each record through the layer's input a and the gradient b of the loss at the layer's
output; the record's gradient is a small expression of the two. Each class here is one such expression with three
results: squared norms of all records, a weighted sum over records, and the gradients one by one (tests, and parameters
that are used in several ways). Goodfellow 2015 (norms), Bu et al. 2022 (the cheaper of two ways per layer, the sum from
the intermediate results of the norms).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

# The size of one temporary in a norm, in numbers: 1 MiB of float32, which stays in a core's cache.
BLOCK = 1 << 18


class Factor(Protocol):
    """One parameter's gradients, record by record, unevaluated."""

    def square_norms(self) -> Tensor:
        """[B], of the parameter's dtype."""

    def weighted(self, weights: Tensor) -> Tensor:
        """Sum over records of weights[n] times gradient n, shaped like the parameter."""

    def per_sample(self) -> Tensor:
        """[B, *parameter shape]."""

    def of(self, rows: Tensor) -> Factor:
        """The factor of some of the records."""


def _blocks(records: int, each: int) -> Iterator[slice]:
    """Slices of the records such that a temporary of `each` numbers a record stays below BLOCK."""
    size = max(1, BLOCK // max(each, 1))
    return (slice(start, start + size) for start in range(0, records, size))


def _squares(rows: Tensor) -> Tensor:
    """Squared norms of rows, without a tensor of squares."""
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.square()


def pair_norms(a: Tensor, b: Tensor, gram: bool | None = None) -> Tensor:
    """Squared Frobenius norms [B] of `b[n]^T a[n]`; a is [B, T, d], b is [B, T, p].

    By Gram matrices (T^2 (d + p) operations a record) or by the product of the one layer, block by block (T p d); the
    cheaper one, unless `gram` is given. A Gram sum cancels where positions oppose each other, so a small multiple of
    the round-off of its terms is added: the norm errs to the large side, which clips more, not less.
    """
    records, positions, d = a.shape
    p = b.shape[2]
    if positions == 1:
        return _squares(a.flatten(1)) * _squares(b.flatten(1))
    if gram is None:
        gram = positions * (d + p) < d * p
    out = a.new_empty(records)
    for block in _blocks(records, 2 * positions * positions if gram else d * p):
        x, y = a[block], b[block]
        if gram:
            left, right = x @ x.mT, y @ y.mT
            terms = (left.diagonal(dim1=1, dim2=2) * right.diagonal(dim1=1, dim2=2)).sqrt().sum(1)
            total = (left * right).sum((1, 2)).clamp_min(0)
            out[block] = total + 8 * torch.finfo(a.dtype).eps * terms.square()
        else:
            out[block] = _squares((y.mT @ x).flatten(1))
    return out


@dataclass
class Outer:
    """Sum over positions of outer products: a linear map applied at T positions. a [B, T, d], b [B, T, p]."""

    a: Tensor
    b: Tensor

    def square_norms(self) -> Tensor:
        return pair_norms(self.a, self.b)

    def weighted(self, weights: Tensor) -> Tensor:
        scaled = (self.b * weights[:, None, None]).flatten(0, 1)
        return scaled.mT @ self.a.flatten(0, 1)

    def per_sample(self) -> Tensor:
        return self.b.mT @ self.a

    def of(self, rows: Tensor) -> Outer:
        return Outer(self.a[rows], self.b[rows])


@dataclass
class Convolved:
    """The weight of a convolution: its input, padded, and the gradient at its output; one or two dimensions of space."""

    x: Tensor
    b: Tensor
    layer: nn.Conv1d | nn.Conv2d

    def _pairs(self, block: slice) -> tuple[Tensor, Tensor]:
        """Linear maps at positions: [B G, L, (height, width, channel) of a patch] and [B G, L, channels out]."""
        layer, x, b = self.layer, self.x[block], self.b[block]
        sizes: list[tuple[int, ...]] = [layer.kernel_size, layer.dilation, layer.stride]
        if x.dim() == 3:
            x, b = x.unsqueeze(2), b.unsqueeze(2)
            sizes = [(1, *size) for size in sizes]
        (high, wide), (down, across), (below, beside) = sizes
        # Channels last: a row of a patch is contiguous in memory, which copies several times faster than im2col's order.
        x = x.permute(0, 2, 3, 1).contiguous()
        whole, row, pixel, _ = x.stride()
        groups, each = layer.groups, x.shape[3] // layer.groups
        patches = x.as_strided(
            (len(x), groups, b.shape[2], b.shape[3], high, wide, each),
            (whole, each, below * row, beside * pixel, down * row, across * pixel, 1),
        )
        positions = b.shape[2] * b.shape[3]
        a = patches.reshape(len(x) * groups, positions, high * wide * each)
        return a, b.reshape(len(x) * groups, -1, positions).mT

    def square_norms(self) -> Tensor:
        records, positions = len(self.x), self.b[0, 0].numel()
        groups = self.layer.groups
        out = self.x.new_empty(records)
        for block in _blocks(records, positions * self.layer.weight[0].numel() * groups):
            a, b = self._pairs(block)
            out[block] = pair_norms(a, b).view(-1, groups).sum(1)
        return out

    def weighted(self, weights: Tensor) -> Tensor:
        layer, dims = self.layer, self.x.dim() - 2
        scaled = self.b * weights.view(-1, *[1] * (dims + 1))
        # x is padded already; only the gradient of the weight is requested.
        summed: Tensor = torch.ops.aten.convolution_backward(
            scaled, self.x, layer.weight.detach(), None, layer.stride, [0] * dims, layer.dilation,
            False, [0] * dims, layer.groups, [False, True, False],
        )[1]  # fmt: skip
        return summed

    def per_sample(self) -> Tensor:
        a, b = self._pairs(slice(None))
        weight = self.layer.weight
        found = (b.mT @ a).view(len(self.x), len(weight), -1, weight.shape[1])
        return found.mT.reshape(len(self.x), *weight.shape)

    def of(self, rows: Tensor) -> Convolved:
        return Convolved(self.x[rows], self.b[rows], self.layer)


@dataclass
class Lookup:
    """Rows of a table: tokens [B, T] and the gradient b [B, T, p] at their rows. Row `ignored` has no gradient."""

    tokens: Tensor
    b: Tensor
    rows: int
    ignored: int | None

    def _kept(self) -> Tensor:
        if self.ignored is None:
            return self.b
        return self.b * (self.tokens != self.ignored).unsqueeze(2)

    def square_norms(self) -> Tensor:
        records = len(self.tokens)
        places = torch.arange(records, device=self.tokens.device).unsqueeze(1) * self.rows + self.tokens
        pairs, where = torch.unique(places, return_inverse=True)
        # One sum for each pair of a record and one of its tokens.
        sums = self.b.new_zeros(len(pairs), self.b.shape[2]).index_add_(0, where.flatten(), self._kept().flatten(0, 1))
        out = self.b.new_zeros(records)
        return out.index_add_(0, pairs // self.rows, _squares(sums))

    def weighted(self, weights: Tensor) -> Tensor:
        scaled = (self._kept() * weights[:, None, None]).flatten(0, 1)
        return self.b.new_zeros(self.rows, self.b.shape[2]).index_add_(0, self.tokens.flatten(), scaled)

    def per_sample(self) -> Tensor:
        records = len(self.tokens)
        places = torch.arange(records, device=self.tokens.device).unsqueeze(1) * self.rows + self.tokens
        out = self.b.new_zeros(records * self.rows, self.b.shape[2])
        return out.index_add_(0, places.flatten(), self._kept().flatten(0, 1)).view(records, self.rows, -1)

    def of(self, rows: Tensor) -> Lookup:
        return Lookup(self.tokens[rows], self.b[rows], self.rows, self.ignored)


@dataclass
class Dense:
    """Materialised gradients: biases, affine parameters of norms, layers without a rule. [B, *parameter shape]."""

    gradients: Tensor

    def square_norms(self) -> Tensor:
        return _squares(self.gradients.flatten(1))

    def weighted(self, weights: Tensor) -> Tensor:
        return torch.einsum("n,n...->...", weights, self.gradients)

    def per_sample(self) -> Tensor:
        return self.gradients

    def of(self, rows: Tensor) -> Dense:
        return Dense(self.gradients[rows])


def joined(uses: Sequence[Factor]) -> Factor:
    """One factor for a parameter that a forward pass used several times: gradients of uses add up before any norm."""
    if len(uses) == 1:
        return uses[0]
    outers = [use for use in uses if isinstance(use, Outer)]
    if len(outers) == len(uses):
        return Outer(torch.cat([use.a for use in outers], 1), torch.cat([use.b for use in outers], 1))
    return Dense(torch.stack([use.per_sample() for use in uses]).sum(0))
