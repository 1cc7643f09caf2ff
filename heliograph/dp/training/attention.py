"""`nn.MultiheadAttention`, unrolled, with the user's own modules and their parameters, dropout included.

The module keeps its projections in parameters of its own and calls no layers, so it is one part; torch.func could
differentiate it record by record, but would draw dropout's mask once more. So, while gradients are taken, such a module
runs here: the projections of queries, keys and values are one tensor with one gradient, the output projection another,
and the gradient uses the same mask as the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear, scaled_dot_product_attention

from heliograph.dp.training.factors import Dense, Outer
from heliograph.dp.training.layers import Factors, Record
from heliograph.errors import UnsupportedError


def unrolls(layer: nn.MultiheadAttention) -> bool:
    """Whether a module is torch's own attention: one with its own forward, or with learned rows for keys, is not."""
    return (
        type(layer).forward is nn.MultiheadAttention.forward
        and type(layer.out_proj).forward is nn.Linear.forward
        and layer.bias_k is None
        and not layer.add_zero_attn
    )


def unrolled(layer: nn.MultiheadAttention, record: Record) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """A forward function for the module that calls `record` for its projections.

    Same arguments and results as the module's own forward, for tensors with a dimension of records.
    """

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if query.dim() != 3:
            raise UnsupportedError(
                "no per-record gradients for this attention",
                where=type(layer).__name__,
                why="the input has no dimension of records",
                hint="pass tensors of three dimensions",
            )
        same = query is key and key is value
        if not layer.batch_first:
            query, key, value = (each.transpose(0, 1) for each in (query, key, value))
        projected = _projected(layer, query, key, value)
        seen = (query.detach(), key.detach(), value.detach())
        record(layer, projected, seen, lambda gradient: _inward(layer, seen, gradient, same))
        counts = (query.shape[1], key.shape[1], value.shape[1])
        q, k, v = (_heads(each, layer.num_heads) for each in projected.split(counts, 1))
        mask = _mask(attn_mask, key_padding_mask, q, counts[1])
        share = layer.dropout if layer.training else 0.0
        weights = None
        if need_weights:
            scores = q @ k.mT / math.sqrt(q.shape[3])
            weights = dropout((scores if mask is None else scores + mask).softmax(3), share)
            mixed = weights @ v
        else:
            mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=share)
        context = mixed.transpose(1, 2).flatten(2)
        out = linear(context, layer.out_proj.weight, layer.out_proj.bias)
        kept = context.detach()
        record(layer, out, (kept,), lambda gradient: _outward(layer, kept, gradient))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        return out if layer.batch_first else out.transpose(0, 1), weights

    return forward


def _weights(layer: nn.MultiheadAttention) -> Sequence[Tensor]:
    whole: Tensor | None = layer.in_proj_weight
    return (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight) if whole is None else whole.chunk(3)


def _projected(layer: nn.MultiheadAttention, *inputs: Tensor) -> Tensor:
    """Queries, keys and values [B, positions of all three, width], one after the other: one gradient for all."""
    biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    parts = [linear(x, w, b) for x, w, b in zip(inputs, _weights(layer), biases, strict=True)]
    return torch.cat(parts, 1)


def _inward(layer: nn.MultiheadAttention, inputs: tuple[Tensor, ...], gradient: Tensor, same: bool) -> Factors:
    parts = gradient.split([x.shape[1] for x in inputs], 1)
    found: Factors
    whole: Tensor | None = layer.in_proj_weight
    if whole is None:
        found = [(w, Outer(x, b)) for w, x, b in zip(_weights(layer), inputs, parts, strict=True)]
    elif same:
        found = [(whole, Outer(inputs[0], torch.cat(parts, 2)))]
    else:
        # Each input uses only its own rows of the weight: its gradient is zero in the other rows.
        width = gradient.shape[2]
        rows = [nn.functional.pad(part, (n * width, (2 - n) * width)) for n, part in enumerate(parts)]
        found = [(whole, Outer(torch.cat(inputs, 1), torch.cat(rows, 1)))]
    return [*found, (layer.in_proj_bias, Dense(torch.cat([part.sum(1) for part in parts], 1)))]


def _outward(layer: nn.MultiheadAttention, context: Tensor, gradient: Tensor) -> Factors:
    return [(layer.out_proj.weight, Outer(context, gradient)), (layer.out_proj.bias, Dense(gradient.sum(1)))]


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def _mask(attention: Tensor | None, padding: Tensor | None, q: Tensor, keys: int) -> Tensor | None:
    """The summand of the scores [B, heads, queries, keys]; a boolean mask is true at hidden positions."""
    added = None
    if attention is not None:
        whole = attention.unsqueeze(0) if attention.dim() == 2 else attention
        added = _added(whole.view(1 if len(whole) == 1 else len(q), -1, *whole.shape[1:]), q)
    if padding is not None:
        rows = _added(padding, q).view(len(q), 1, 1, keys)
        added = rows if added is None else added + rows
    return added


def _added(mask: Tensor, like: Tensor) -> Tensor:
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf) if mask.dtype == torch.bool else mask
