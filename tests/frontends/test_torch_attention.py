"""Products of two encrypted matrices from PyTorch: an attention head, compiled and simulated, and what a hint says."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from frontends.support import agree
from torch import nn
from torch.nn import functional as F

import heliograph as hg
from heliograph.frontends.torch.inputs.examples import Example
from heliograph.frontends.torch.rules.attention import fast_path_hint


class Head(nn.Module):
    """One head of self-attention over rows of features, as tutorials write it."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, inner, bias=False) for _ in range(3))
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.query(x), self.key(x), self.value(x)
        weights = torch.softmax(q @ k.transpose(-2, -1) * self.inner**-0.5, dim=-1)
        return weights @ v


class Heads(nn.Module):
    """Self-attention in several heads, written out as the refusal of nn.MultiheadAttention says."""

    def __init__(self, layer: nn.MultiheadAttention) -> None:
        super().__init__()
        width = layer.embed_dim
        self.heads = layer.num_heads
        self.queries, self.keys, self.values, self.out = (nn.Linear(width, width) for _ in range(4))
        with torch.no_grad():
            for part, weight, bias in zip(
                (self.queries, self.keys, self.values),
                layer.in_proj_weight.chunk(3),
                layer.in_proj_bias.chunk(3),
                strict=True,
            ):
                part.weight.copy_(weight)
                part.bias.copy_(bias)
            self.out.load_state_dict(layer.out_proj.state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part(x).reshape(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.queries, self.keys, self.values)
        )
        together = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        return self.out(together)


def test_an_attention_head_is_compiled_and_near_torch() -> None:
    torch.manual_seed(0)
    head, samples = Head(4, 4).eval(), torch.rand(64, 3, 4)
    program = hg.trace(head, samples[:1], input_range=(0, 1), calibration=samples)
    artifact = hg.compile(program, hg.Options(security_bits=None))
    worst = artifact.report.values["predicted_max_abs_error"]
    assert worst < 0.05
    with torch.no_grad():
        expected = head.double()(samples[:2].double()).numpy()
    for sample, wanted in zip(samples[:2], expected, strict=True):
        np.testing.assert_allclose(hg.simulate(artifact, sample.numpy()), wanted, rtol=0, atol=1.5 * worst)


@pytest.mark.parametrize("batch", [1, 3])
def test_attention_written_as_its_hint_says_is_the_same_and_traces(batch: int) -> None:
    torch.manual_seed(1)
    layer = nn.MultiheadAttention(6, 2, batch_first=True).double().eval()
    written = Heads(layer).double()
    x = torch.randn(batch, 4, 6, dtype=torch.float64)
    torch.testing.assert_close(written(x), layer(x, x, x)[0])
    agree(written, (4, 6), batch=batch)


def test_a_whole_transformer_with_a_mask_of_its_own() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, batch_first=True)

        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(target.size(1), dtype=target.dtype)
            return self.net(source, target, tgt_mask=mask)

    looks = nn.modules.transformer._detect_is_causal_mask
    agree(Pair(), (3, 4), (2, 4), tolerance=1e-6)
    # torch is left as it was.
    assert nn.modules.transformer._detect_is_causal_mask is looks


class Padded(nn.Module):
    """A transformer encoder over samples whose last places are padding."""

    def __init__(self, hidden: list[bool], band: bool = False, **options: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(4), **options)
        self.hidden = torch.tensor([hidden])
        self.band = ~torch.eye(len(hidden), dtype=torch.bool) if band else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x, mask=self.band, src_key_padding_mask=self.hidden.expand(x.size(0), -1)).mean(1)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: Padded([False, False, True]), "enable_nested_tensor=False"),
        (lambda: Padded([False, False, True], band=True), "set_fastpath_enabled(False)"),
        (lambda: Padded([False, False, True], enable_nested_tensor=False), ""),
        (lambda: Padded([False, False, False]), ""),
        # torch does not pack what is not at the end.
        (lambda: Padded([False, True, False]), ""),
        (lambda: nn.Linear(4, 4), ""),
    ],
)
def test_a_difference_by_torchs_fast_path_is_told(model: Callable[[], nn.Module], says: str) -> None:
    torch.manual_seed(0)
    kernel = torch._nested_tensor_from_mask
    hint = fast_path_hint(model().eval(), Example((torch.randn(2, 3, 4),), {}))
    assert (says in hint) if says else not hint
    # torch is left as it was.
    assert torch._nested_tensor_from_mask is kernel
    assert torch.backends.mha.get_fastpath_enabled()
