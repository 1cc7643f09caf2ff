"""Masks before a softmax: what hides a place, what is only a number, and rows without a place (findings F1, F2, F7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from reading import Case, Fn, rand, randn
from torch import nn

from heliograph.frontends.torch.inputs.masks import Shown
from heliograph.frontends.torch.rules import attention as torch_attention


def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every constant of -60 or less hides, whatever the scores are, and a row without a place is taken as it is."""

    def shown(call: Any, x: Any, axis: int, zeros: bool) -> Shown:
        visible = np.moveaxis(np.broadcast_to(x.hidden.offsets.numpy() > -60, x.shape), axis, -1)
        visible = np.where(visible.any(-1, keepdims=True), visible, True)
        return Shown(x.hidden.node, visible, np.zeros(visible.shape[:-1], dtype=bool), np.zeros(visible.shape))

    monkeypatch.setattr(torch_attention, "shown", shown)


def _biased(*bias: float) -> Callable[[], nn.Module]:
    return lambda: Fn(lambda x, b: F.softmax(x + b, -1), b=nn.Parameter(torch.tensor(bias, dtype=torch.float32)))


def _scores(largest: float) -> Callable[[], torch.Tensor]:
    """Three scores, two of them in [0, 1) and the last up to that number; in the first sample it is that number."""

    def made() -> torch.Tensor:
        x = rand(64, 3) * torch.tensor([1.0, 1.0, largest])
        x[0] = torch.tensor([0.5, 0.25, largest])
        return x

    return made


def _fixed(*rows: Sequence[float], spread: float = 1.0) -> Callable[[], torch.Tensor]:
    """Samples of normal numbers, the first of them given."""

    def made() -> torch.Tensor:
        first = torch.tensor([rows])
        return torch.cat([first, randn(63, *first.shape[1:]) * spread])

    return made


def _fixed_row(*first: float) -> Callable[[], torch.Tensor]:
    """Samples of three scores from -300 to 0, the first of them given."""

    def made() -> torch.Tensor:
        return torch.cat([torch.tensor([first]), rand(63, 3) * -300.0])

    return made


# The places of two rows that are seen: of the first row one, of the second none.
_SEEN = torch.tensor([[True, False], [False, False]])
# Rows (1, 0) and (0, 2): their products with each other are 1, 0 and 4.
_TWO = _fixed((1.0, 0.0), (0.0, 2.0))
_KNOWN = torch.tensor([False, False, True])
_LOWEST = torch.finfo(torch.float32).min
_THREE = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
_LEFT = torch.tensor([[False, False], [True, False]])
_TWICE = torch.zeros(2, 2).masked_fill(~_SEEN, _LOWEST)
_BAND = torch.tensor([[False, True, True], [True, False, True], [True, True, False]])


def _products(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], nn.Module]:
    """The softmax of a sample's products of rows, changed in some way."""
    return lambda: Fn(lambda x: F.softmax(change(x @ x.mT), -1))


def _attention(mask: torch.Tensor | None = None, **options: Any) -> Callable[[], nn.Module]:
    return lambda: Fn(lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=mask, **options))


class _Heads(nn.Module):
    """Two heads of attention whose projections do nothing."""

    def __init__(self, weights: bool, **masks: torch.Tensor) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(2, 1, batch_first=True)
        self.weights, self.masks = weights, masks
        with torch.no_grad():
            self.heads.in_proj_weight.copy_(torch.eye(2).repeat(3, 1))
            self.heads.out_proj.weight.copy_(torch.eye(2))
            self.heads.out_proj.bias.copy_(torch.tensor([0.5, -0.5]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        masks = dict(self.masks)
        if "key_padding_mask" in masks:
            masks["key_padding_mask"] = masks["key_padding_mask"].expand(x.size(0), -1)
        made: torch.Tensor = self.heads(x, x, x, need_weights=self.weights, **masks)[0]
        return made


class _Learned(nn.Module):
    """Attention with a learned number for each pair of places."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.Parameter(torch.tensor([[0.0, 0.0], [-70.0, 0.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x * 3, x, x, attn_mask=self.pairs, scale=1.0)


class _Encoder(nn.Module):
    """The mean over all places of a transformer encoder whose last place is padding."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padding = torch.tensor([[False, False, True]]).expand(x.size(0), 3)
        made: torch.Tensor = self.encoder(x, src_key_padding_mask=padding).mean(1)
        return made


def _distances(slope: float, places: int = 4) -> torch.Tensor:
    """What ALiBi adds: the distance of two places times a slope."""
    at = torch.arange(float(places))
    return -slope * (at[None] - at[:, None]).abs()


# The softmax of 0.5 and 0.25, and a third place without weight.
_HALF = (0.562177, 0.437823, 0.0)

CASES: tuple[Case, ...] = (
    # A learned bias of -70 beside scores up to 100 decides nothing by itself: 100 - 70 = 30 is the largest here.
    Case(
        "bias of -70, scores to 100",
        "F1",
        _biased(0, 5, -70),
        _scores(100.0),
        (0.0, 0.0, 1.0),
        compiled=0.02,
        without=_as_before,
    ),
    Case("bias of -60, scores to 100", "F1", _biased(0, 5, -60), _scores(100.0), (0.0, 0.0, 1.0), without=_as_before),
    Case("bias of -59, scores to 100", "F1", _biased(0, 5, -59), _scores(100.0), (0.0, 0.0, 1.0)),
    Case("bias of -40, scores to 100", "F1", _biased(0, 5, -40), _scores(100.0), (0.0, 0.0, 1.0)),
    Case(
        "bias of -1e3, scores to 1010", "F1", _biased(0, 0, -1e3), _scores(1010.0), (0.0, 0.0, 1.0), without=_as_before
    ),
    Case(
        "bias of -1e4, scores to 10010",
        "F1",
        _biased(0, 0, -1e4),
        _scores(10010.0),
        (0.0, 0.0, 1.0),
        without=_as_before,
    ),
    Case(
        "bias of -100, scores to 100",
        "F1",
        _biased(0, 0, -100),
        _scores(100.0),
        (0.41923, 0.3265, 0.25428),
        without=_as_before,
    ),
    Case(
        "bias of -80, half of the scores near",
        "F1",
        _biased(-1, 0.5, -80),
        _scores(85.0),
        (0.00401, 0.01401, 0.98198),
        without=_as_before,
    ),
    # Where no score comes near, the place is left out.
    Case("bias of -40, scores to 1", "F1", _biased(0, 0, -40), _scores(1.0), _HALF, compiled=0.02),
    Case("bias of -70, scores to 1", "F1", _biased(0, 0, -70), _scores(1.0), _HALF, compiled=0.02),
    Case("bias of -1e3, scores to 100", "F1", _biased(0, 0, -1e3), _scores(100.0), _HALF, compiled=0.02),
    Case("bias of -1e9", "F1", _biased(0, 0, -1e9), _scores(100.0), _HALF, compiled=0.02),
    Case("bias of -65504", "F1", _biased(0, 0, -65504), _scores(100.0), _HALF),
    Case("bias of the lowest float", "F1", _biased(0, 0, _LOWEST), _scores(100.0), _HALF),
    Case("bias of minus infinity", "F1", _biased(0, 0, -math.inf), _scores(100.0), _HALF, compiled=0.02),
    # A number that is written over scores hides nothing where scores are lower than it.
    Case(
        "masked_fill with -100, scores down to -300",
        "F1",
        lambda: Fn(lambda x: x.masked_fill(_KNOWN, -100.0).softmax(-1)),
        _fixed_row(-200.0, -300.0, 5.0),
        (0.0, 0.0, 1.0),
        without=_as_before,
    ),
    Case(
        "where with -100, scores down to -300",
        "F1",
        lambda: Fn(lambda x: torch.where(_KNOWN, -100.0, x).softmax(-1)),
        _fixed_row(-101.0, -300.0, 5.0),
        (0.26894, 0.0, 0.73106),
        without=_as_before,
    ),
    Case(
        "where with a tensor of -100",
        "F1",
        lambda: Fn(lambda x: torch.where(_KNOWN, torch.full((3,), -100.0), x).softmax(-1)),
        _fixed_row(-101.0, -300.0, 5.0),
        (0.26894, 0.0, 0.73106),
        without=_as_before,
    ),
    Case(
        "masked_fill with -100, small scores",
        "F1",
        lambda: Fn(lambda x: x.masked_fill(_KNOWN, -100.0).softmax(-1)),
        _scores(1.0),
        _HALF,
        compiled=0.02,
    ),
    Case(
        "where with a tensor of -1e9",
        "F1",
        lambda: Fn(lambda x: torch.where(_KNOWN, torch.full((3,), -1e9), x).softmax(-1)),
        _scores(1.0),
        _HALF,
        compiled=0.02,
    ),
    Case(
        "masked_fill with -50, halved, more added",
        "F1",
        lambda: Fn(lambda x: (x.masked_fill(_KNOWN, -50.0) * 0.5 + x.flip(-1) * 26).softmax(-1)),
        _fixed_row(1.0, 0.0, 0.0),
        (0.3072, 0.18632, 0.50648),
    ),
    Case(
        "masked_fill with -1e4 behind a scale",
        "F1",
        lambda: Fn(lambda x: ((x.masked_fill(_KNOWN, -1e4) / 2)[:, None].transpose(1, 2) * 2).squeeze(2).softmax(-1)),
        _scores(1.0),
        _HALF,
        compiled=0.02,
    ),
    # Numbers that are no mask.
    Case(
        "every score of a row moved by -70",
        "F1",
        lambda: Fn(lambda x: (x + torch.tensor([-70.0])).softmax(-1)),
        _scores(1.0),
        (0.29176, 0.22722, 0.48102),
    ),
    Case(
        "bias of -70 and no softmax",
        "F1",
        lambda: Fn(lambda x: (x + torch.tensor([0.0, 0.0, -70.0])) * 2),
        _scores(100.0),
        (1.0, 0.5, 60.0),
    ),
    Case(
        "bias of -70 before log_softmax",
        "F1",
        lambda: Fn(lambda x: F.log_softmax(x + torch.tensor([0.0, 5.0, -70.0]), -1)),
        _scores(100.0),
        (-29.5, -24.75, -0.0),
    ),
    Case(
        "bias of -70 before argmax",
        "F1",
        lambda: Fn(lambda x: (x + torch.tensor([0.0, 5.0, -70.0])).argmax(-1).float()[:, None]),
        _scores(100.0),
        (2.0,),
    ),
    # Attention.
    Case(
        "learned additive mask of -70",
        "F1",
        lambda: _Learned(),
        _fixed((10.0, 0.0), (0.0, 1.0), spread=8.0),
        (10.0, 0.0, 0.0, 1.0),
        without=_as_before,
    ),
    Case(
        "ALiBi, steep",
        "F1",
        _attention(_distances(40.0)),
        _fixed((1.0, 0.0), (0.0, 2.0), (0.0, 0.0), (3.0, 0.0)),
        (1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 3.0, 0.0),
    ),
    Case(
        "ALiBi, steep, far scores",
        "F1",
        _attention(_distances(40.0)),
        _fixed((8.0, 0.0), (0.0, 2.0), (0.0, 0.0), (30.0, 0.0), spread=8.0),
        (29.74623, 0.0, 0.0, 2.0, 0.0, 0.0, 30.0, 0.0),
        without=_as_before,
    ),
    Case(
        "ALiBi and a causal mask",
        "F1",
        _attention(_distances(40.0).masked_fill(torch.ones(4, 4).triu(1) > 0, -math.inf)),
        _fixed((1.0, 0.0), (0.0, 2.0), (0.0, 0.0), (3.0, 0.0)),
        (1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 3.0, 0.0),
    ),
    Case(
        "mask times -10000",
        "F1",
        _products(lambda s: s + (1.0 - torch.tensor([[1.0, 0.0], [1.0, 1.0]])) * -10000.0),
        _TWO,
        (1.0, 0.0, 0.01799, 0.98201),
        compiled=0.02,
    ),
    Case("causal", "F1", _attention(is_causal=True), _TWO, (1.0, 0.0, 0.05581, 1.88838), compiled=0.02),
    # Rows without a place.
    Case(
        "attention with a row that sees nothing",
        "F2",
        _attention(_SEEN),
        _TWO,
        (1.0, 0.0, 0.0, 0.0),
        compiled=0.02,
        without=_as_before,
    ),
    Case(
        "attention, minus infinity everywhere in a row",
        "F2",
        _attention(torch.zeros(2, 2).masked_fill(~_SEEN, -math.inf)),
        _TWO,
        (1.0, 0.0, 0.0, 0.0),
        without=_as_before,
    ),
    Case(
        "attention, rows that see different places or nothing",
        "F2",
        _attention(torch.tensor([[True, False, False], [False, False, False], [True, True, False]])),
        _fixed((1.0, 0.0), (0.0, 2.0), (0.0, 1.0)),
        (1.0, 0.0, 0.0, 0.0, 0.19557, 1.60886),
        compiled=0.03,
        without=_as_before,
    ),
    Case(
        "attention, -1e9 everywhere in a row",
        "F2",
        _attention(torch.zeros(2, 2).masked_fill(~_SEEN, -1e9)),
        _TWO,
        (1.0, 0.0, 0.5, 1.0),
        without=_as_before,
    ),
    Case(
        "attention, the lowest float everywhere in a row",
        "F2",
        _attention(torch.zeros(2, 2).masked_fill(~_SEEN, _LOWEST)),
        _TWO,
        (1.0, 0.0, 0.5, 1.0),
        without=_as_before,
    ),
    Case(
        "attention, -100 everywhere in a row",
        "F2",
        _attention(torch.zeros(2, 2).masked_fill(~_SEEN, -100.0)),
        _TWO,
        (1.0, 0.0, 0.05581, 1.88838),
    ),
    Case(
        "attention, -1e7 everywhere in a row",
        "F2",
        _attention(torch.zeros(2, 2).masked_fill(~_SEEN, -1e7)),
        _TWO,
        says=("rounds the scores", "row 1", "cases_masks.py"),
    ),
    Case(
        "-1e9 written to a whole row",
        "F2",
        _products(lambda s: s.masked_fill(~_SEEN, -1e9)),
        _TWO,
        (1.0, 0.0, 0.5, 0.5),
        without=_as_before,
    ),
    Case(
        "-1e9 written to one row of three",
        "F2",
        _products(lambda s: s.masked_fill(~_THREE, -1e9)),
        _fixed((1.0, 0.0), (0.0, 2.0), (0.0, 1.0)),
        (0.73106, 0.26894, 0.0, 0.33333, 0.33333, 0.33333, 0.09003, 0.66524, 0.24473),
        compiled=0.03,
        without=_as_before,
    ),
    Case(
        "-70 written to a whole row",
        "F2",
        _products(lambda s: s.masked_fill(~_SEEN, -70.0)),
        _TWO,
        (1.0, 0.0, 0.5, 0.5),
        without=_as_before,
    ),
    Case(
        "the lowest float written to every row",
        "F2",
        _products(lambda s: s.masked_fill(_SEEN | ~_SEEN, _LOWEST) + s * 0),
        _TWO,
        (0.5, 0.5, 0.5, 0.5),
        without=_as_before,
    ),
    Case(
        "-1e9 and -2e9 in a row",
        "F2",
        _products(lambda s: s.masked_fill(~_SEEN, -1e9).masked_fill(_LEFT, -2e9)),
        _TWO,
        (1.0, 0.0, 0.0, 1.0),
        without=_as_before,
    ),
    Case(
        "minus infinity in a row, bounded below",
        "F2",
        _products(lambda s: torch.max(s.masked_fill(~_SEEN, -math.inf), torch.tensor(_LOWEST))),
        _TWO,
        (1.0, 0.0, 0.5, 0.5),
        without=_as_before,
    ),
    Case(
        "minus infinity in a row, clamped",
        "F2",
        _products(lambda s: s.masked_fill(~_SEEN, -math.inf).clamp(min=-1e9)),
        _TWO,
        (1.0, 0.0, 0.5, 0.5),
        without=_as_before,
    ),
    Case(
        "minus infinity written to a whole row",
        "F2",
        _products(lambda s: s.masked_fill(~_SEEN, -math.inf)),
        _TWO,
        says=("all places of row 1 (of 2)", "NaN", "cases_masks.py"),
    ),
    Case(
        "two masks of the lowest float in one row",
        "F2",
        _products(lambda s: s + _TWICE + _TWICE),
        _TWO,
        says=("all places of row 1 (of 2)", "NaN"),
    ),
    Case(
        "heads, every place padded",
        "F2",
        lambda: _Heads(False, key_padding_mask=torch.tensor([[True, True, True]])),
        _fixed((1.0, 0.0), (0.0, 2.0), (0.0, 1.0)),
        (0.5, -0.5) * 3,
        without=_as_before,
    ),
    Case(
        "heads, every place padded, with weights",
        "F2",
        lambda: _Heads(True, key_padding_mask=torch.tensor([[True, True, True]])),
        _fixed((1.0, 0.0), (0.0, 2.0), (0.0, 1.0)),
        says=("all places of rows", "need_weights=False"),
    ),
    Case(
        "heads, a band and padding",
        "F2",
        lambda: _Heads(False, attn_mask=_BAND, key_padding_mask=_KNOWN[None]),
        _fixed((1.0, 0.0), (0.0, 2.0), (0.0, 1.0)),
        (1.5, -0.5, 0.5, 1.5, 0.5, -0.5),
        without=_as_before,
    ),
    Case(
        "heads, a band and padding, with weights",
        "F2",
        lambda: _Heads(True, attn_mask=_BAND, key_padding_mask=_KNOWN[None]),
        _fixed((1.0, 0.0), (0.0, 2.0), (0.0, 1.0)),
        says=("all places of row", "need_weights=False"),
    ),
    # A padding mask, where torch has one answer alone.
    Case(
        "encoder with padding, not packed",
        "F7",
        _Encoder,
        _fixed((1.0, 0.0, 0.5, 0.0), (0.0, 2.0, 0.0, 1.0), (1.0, 1.0, 0.0, 0.0)),
        (0.47976, 0.52964, -0.76047, -0.24893),
    ),
)
