"""Products of two secrets, masks before a softmax, and models that merge the batch axis with others: against torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from frontends.support import Fn, agree, inputs, ops
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import heliograph as hg
from heliograph.errors import UnsupportedError
from heliograph.frontends.torch.export import trace
from heliograph.interpret import interpret_batch

SEEN = torch.ones(4, 4, dtype=torch.bool).tril()
ADDED = torch.zeros(4, 4, dtype=torch.float64).masked_fill(~SEEN, -math.inf)
PART = torch.tensor([True, True, False, True])
MIXED = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

Case = tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]


def fn(function: Callable[..., Any], *shapes: tuple[int, ...], **tensors: torch.Tensor) -> Case:
    return (lambda: Fn(function, **tensors)), shapes


class Itself(nn.Module):
    """Attention of a sequence to itself, the masks as users give them."""

    def __init__(self, layer: nn.Module, **masks: Any) -> None:
        super().__init__()
        self.layer, self.masks = layer, masks

    def forward(self, x: torch.Tensor) -> Any:
        if isinstance(self.layer, nn.MultiheadAttention):
            out, weights = self.layer(x, x, x, **self.masks)
            return out if weights is None else (out, weights)
        return self.layer(x, **self.masks)


def heads(**options: Any) -> nn.Module:
    return nn.MultiheadAttention(4, 2, batch_first=True, **options)


class PaddedEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, src_key_padding_mask=~PART[None].expand(x.size(0), 4))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(4, 2, 8, batch_first=True)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return self.layer(x, memory, tgt_mask=nn.Transformer.generate_square_subsequent_mask(4))


def product(q: torch.Tensor, **options: Any) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, q, q, **options)


CASES: dict[str, Case] = {
    "causal": fn(lambda q: product(q, is_causal=True), (4, 2)),
    "places": fn(lambda q: product(q, attn_mask=PART[None].expand(4, 4)), (4, 2)),
    "added": fn(lambda q: product(q, attn_mask=ADDED), (2, 4, 2)),
    "bias": fn(lambda q: product(q, attn_mask=torch.linspace(-1, 1, 16, dtype=q.dtype).view(4, 4)), (4, 2)),
    "filled": fn(lambda x: (x @ x.mT).masked_fill(~SEEN, -1e9).softmax(-1), (4, 3)),
    "filled_with_infinity": fn(lambda x: (x @ x.mT).masked_fill(~SEEN, float("-inf")).softmax(-1), (4, 3)),
    "chosen": fn(lambda x: torch.where(SEEN, x @ x.mT, torch.finfo(x.dtype).min).softmax(-1), (4, 3)),
    "chosen_otherwise": fn(lambda x: torch.where(~SEEN, -torch.inf, x @ x.mT).softmax(-1), (4, 3)),
    "subtracted": fn(lambda x: (x @ x.mT - 1e9 * (~SEEN).to(x.dtype)).unsqueeze(1).softmax(-1).squeeze(1), (4, 3)),
    "added_twice": fn(lambda x: (x @ x.mT + ADDED + ADDED.T.flip(0, 1)).softmax(-1) @ x, (4, 3)),
    "added_below": fn(lambda x: ((x @ x.mT + ADDED).view(-1, 1, 4, 4) + x[:, :1, :1, None]).softmax(-1), (4, 3)),
    "over_columns": fn(lambda x: (x @ x.mT).masked_fill(~SEEN, -1e9).softmax(-2), (4, 3)),
    "bounded_below": fn(
        lambda x: torch.max((x @ x.mT) + ADDED, torch.tensor(-1e30, dtype=x.dtype)).softmax(-1), (4, 3)
    ),
    "finite_constants_stay": fn(lambda x: (x + torch.tensor([-100.0, 0, 0], dtype=x.dtype)) * 2, (3,)),
    "multi_head": (lambda: Itself(heads()), ((4, 4),)),
    "multi_head_mask": (lambda: Itself(heads(bias=False), attn_mask=~SEEN), ((4, 4),)),
    "multi_head_without_weights": (lambda: Itself(heads(), need_weights=False, attn_mask=~SEEN), ((4, 4),)),
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), ((3, 4),)),
    "encoder_padded": (PaddedEncoder, ((4, 4),)),
    "decoder": (Decoder, ((4, 4), (3, 4))),
    "shared_keys": fn(lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), (4, 3, 2), (2, 3, 2)),
    "learned_queries": fn(
        lambda k: F.scaled_dot_product_attention(torch.ones(2, 2, dtype=k.dtype).expand(k.size(0), 2, 2), k, k), (3, 2)
    ),
    "einsum_dots": fn(lambda x: torch.einsum("...i,...i->...", x, x), (3, 4)),
    "einsum_dots_linear": fn(
        lambda x, w: torch.einsum("b...i,oi->b...o", x, w), (3, 4), w=MIXED[0, :, :].T.contiguous()
    ),
    "einsum_trace": fn(lambda x: torch.einsum("bii->b", x)[:, None], (4, 4)),
    "einsum_diagonal": fn(lambda x, w: torch.einsum("bii,ij->bij", x, w), (4, 4), w=SEEN.double()),
    "einsum_heads": fn(lambda x: torch.einsum("bhqd,bhkd->bhqk", x, x), (2, 4, 3)),
    "einsum_many": fn(lambda x: torch.einsum("bhqd,bhkd->bhqk", x, x), (2, 20, 12)),
    "einsum_three": fn(lambda x, y, v: torch.einsum("bi,bj,ij->b", x, y, v)[:, None], (4,), (3,), v=MIXED[:, :, 0].T),
    "einsum_four": fn(lambda x, y: torch.einsum("bi,bj,bi,bj->bij", x, y, x, y), (3,), (2,)),
    "einsum_sum": fn(lambda x: torch.einsum("bij->b", x)[:, None], (3, 4)),
    "gram": fn(lambda x: torch.einsum("bcn,bdn->bcd", x, x) / 4, (3, 4)),
    "one_matrix_each": fn(lambda x, w: torch.einsum("bnd,ndk->bnk", x, w), (3, 4), w=MIXED),
    # The batch axis merged with others.
    "heads_in_the_batch": fn(lambda x: x.view(x.size(0) * 2, 3, 4).softmax(-1).view(-1, 2, 3, 4), (2, 3, 4)),
    "windows": fn(
        lambda x: (
            (x.view(-1, 2, 2, 2, 2, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 3) @ torch.ones(3, 3, dtype=x.dtype))
            .view(-1, 2, 2, 2, 2, 3)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(-1, 4, 4, 3)
        ),
        (4, 4, 3),
    ),
    "stack_of_products": fn(
        lambda x: torch.bmm(x.reshape(-1, 3, 4), x.reshape(-1, 3, 4).transpose(1, 2)).view(-1, 2, 3, 3), (2, 3, 4)
    ),
    "frames": (lambda: Frames(), ((3, 2, 4, 4),)),
    "merged_and_pieces": fn(
        lambda x: torch.stack(torch.cat([x.reshape(-1, 4), x.reshape(-1, 4).flip(1)], 1).chunk(2, -1), 1).view(
            -1, 3, 8
        ),
        (3, 4),
    ),
    "scaled_behind_the_mask": fn(
        lambda x: ((x @ x.mT).masked_fill(~SEEN, -torch.inf) / 2).softmax(-1) @ (x * torch.tensor(3.0)), (4, 3)
    ),
    "mask_of_merged_heads": fn(
        lambda x: (x.view(-1, 4, 3) @ x.view(-1, 4, 3).mT).masked_fill(~SEEN, -1e4).view(-1, 2, 4, 4).softmax(-1),
        (2, 4, 3),
    ),
    "mask_before_heads_are_merged": fn(
        lambda x: ((x @ x.mT + ADDED).view(-1, 4, 4).softmax(-1) @ x.view(-1, 4, 3)).view(-1, 2, 4, 3), (2, 4, 3)
    ),
    "mask_between_merged_heads": fn(
        lambda x: (
            ((x.view(-1, 4, 3) @ x.view(-1, 4, 3).mT).view(-1, 2, 4, 4) + ADDED).view(-1, 4, 4).softmax(-1)
            @ x.view(-1, 4, 3)
        ).view(-1, 2, 4, 3),
        (2, 4, 3),
    ),
    "mask_of_one_head": fn(
        lambda x: (
            ((x.view(-1, 4, 3) @ x.view(-1, 4, 3).mT) + ADDED).view(-1, 2, 4, 4)[:, 0]
            + x.view(-1, 4, 3).sum(-1).view(-1, 2, 4)[:, :1]
        ).softmax(-1),
        (2, 4, 3),
    ),
    "learned_query": (lambda: Pooled(), ((3, 4),)),
    "merged_repeats": fn(lambda x: x.reshape(-1, 4)[:, None].expand(-1, 2, -1).reshape(-1, 24), (3, 4)),
}


class Frames(nn.Module):
    """Each frame of a video by one network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length = x.shape[:2]
        y = F.relu(self.norm(self.conv(x.view(count * length, *x.shape[2:]))))
        return F.max_pool2d(y, 2).view(count, length, -1).mean(1)


class Pooled(nn.Module):
    """Attention of one query of the model's own: there are axes of one beside the batch axis of one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.attention = nn.Parameter(torch.randn(1, 1, 4)), nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(self.query.expand(x.shape[0], -1, -1), x, x, need_weights=False)[0].squeeze(1)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_torch(name: str, batch: int) -> None:
    module, shapes = CASES[name]
    agree(module(), *shapes, batch=batch)


@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    rows=st.integers(1, 4),
    batch=st.sampled_from([1, 3]),
    fill=st.sampled_from([-math.inf, -1e9, -1e4, -65504.0, torch.finfo(torch.float32).min]),
)
def test_any_mask_means_what_torch_means(data: st.DataObject, rows: int, batch: int, fill: float) -> None:
    seen = torch.tensor(
        data.draw(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=rows, max_size=rows))
    )
    seen[:, data.draw(st.integers(0, 2))] = True
    agree(Fn(lambda x: x.masked_fill(~seen, fill).softmax(-1)), (rows, 3), batch=batch, tolerance=1e-7)


@settings(max_examples=20, deadline=None)
@given(data=st.data(), batch=st.sampled_from([1, 3]))
def test_any_einsum_agrees(data: st.DataObject, batch: int) -> None:
    sizes = {letter: data.draw(st.integers(1, 3)) for letter in "ijk"}
    term = st.text("ijk", max_size=3).map(lambda text: "".join(dict.fromkeys(text)))
    first, second = data.draw(term), data.draw(term)
    kept = [c for c in dict.fromkeys(first + second) if data.draw(st.booleans())]
    equation = f"b{first},b{second}->b{''.join(kept)}"
    shapes = [tuple(sizes[c] for c in letters) for letters in (first, second)]
    agree(Fn(lambda x, y: torch.einsum(equation, x, y)), *shapes, batch=batch)


def test_a_mask_is_no_end_of_a_range() -> None:
    """Minus infinity reaches no number of the program: scores keep their range, and the answer its error."""
    net = Fn(lambda x: (x @ x.mT).masked_fill(~SEEN, -1e9).softmax(-1) @ x).eval()
    samples = torch.rand(200, 4, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
    artifact = hg.compile(hg.trace(net, samples[:1], calibration=samples), hg.Options(security_bits=None, log_ring=12))
    assert all(max(abs(entry.low), abs(entry.high)) < 100 for entry in artifact.program.ranges)
    found = np.stack([hg.simulate(artifact, sample) for sample in samples[:5]])
    np.testing.assert_allclose(found, net(samples[:5]).numpy(), atol=1e-2)


def test_a_row_that_is_hidden_whole_is_what_torch_makes_of_it() -> None:
    """Equal weights for a number that was written there, zeros in attention, and no answer where torch gives NaN."""
    hidden = torch.tensor([[True, True, True], [False, True, False]])
    x = torch.randn(1, 2, 3, dtype=torch.float64)
    program = trace(Fn(lambda x: x.masked_fill(hidden, -1e9).softmax(-1)), x)
    np.testing.assert_allclose(interpret_batch(program, x.numpy())[0][0, 0], [1 / 3] * 3, atol=1e-12)
    program = trace(Fn(lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=~hidden[:, :2])), x)
    np.testing.assert_allclose(interpret_batch(program, x.numpy())[0][0, 0], 0, atol=1e-12)
    with pytest.raises(UnsupportedError, match=r"all places of row 0 \(of 2\) hold minus infinity"):
        trace(Fn(lambda x: x.masked_fill(hidden, -torch.inf).softmax(-1)), x)


def test_samples_that_meet_through_a_merged_axis_are_refused() -> None:
    for function in (
        lambda x: (x.view(-1, 2).softmax(0)).view(-1, 4),  # over samples too
        lambda x: (x.reshape(2, -1) - x.reshape(2, -1).mean(0)).view(-1, 4),
        lambda x: x - x.view(-1, 2).exp().view(-1, 4).mean(0, keepdim=True),
    ):
        line = function.__code__.co_firstlineno
        with pytest.raises(UnsupportedError, match="mixes samples") as caught:
            trace(Fn(function), torch.zeros(1, 4))
        assert f"test_torch_products.py:{line}" in str(caught.value)


def test_a_stack_of_products_is_one_op() -> None:
    module, shapes = CASES["einsum_many"]
    program = trace(module().double(), inputs(shapes, 1))
    assert ops(program).count("matmul") == 1
