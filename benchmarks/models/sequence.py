"""Small networks of sequences: recurrent, attention, convolutions. Part of the table of `model_coverage.py`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from models.entries import Fn, add
from torch import nn

Q = "sequence"
SEQ = (4, 3)


class Recurrent(nn.Module):
    """A recurrent layer whose last state is classified."""

    def __init__(self, layer: nn.Module, width: int, whole: bool = False) -> None:
        super().__init__()
        self.layer, self.head, self.whole = layer, nn.Linear(width, 2), whole

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.layer(x)
        return self.head(out if self.whole else out[:, -1])


class LastState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, (state, _) = self.layer(x)
        return self.head(state[-1])


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(3, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(x.size(0), 4)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


class Encoder(nn.Module):
    def __init__(self, layers: int = 1, **options: Any) -> None:
        super().__init__()
        self.up, self.head = nn.Linear(3, 8), nn.Linear(8, 2)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.up(x)).mean(1))


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (p.view(b, t, 2, 4).transpose(1, 2) for p in self.qkv(x).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class HandMade(nn.Module):
    """Attention as tutorials write it."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))
        self.register_buffer("mask", torch.tril(torch.ones(4, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.q(x) @ self.k(x).transpose(-2, -1) * 8**-0.5
        w = w.masked_fill(self.mask[:4, :4] == 0, float("-inf"))
        return F.softmax(w, dim=-1) @ self.v(x)


class SelfAttention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> Any:
        return self.attention(x, x, x)


class CrossAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.attention(x, y, y, need_weights=False)[0]


class TextCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(4, 4, k) for k in (2, 3))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.transpose(1, 2)
        return self.head(torch.cat([F.relu(conv(x)).max(2).values for conv in self.convs], 1))


class AttentionPool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score, self.head = nn.Linear(4, 1), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(self.score(torch.tanh(x)), 1)
        return self.head((weights * x).sum(1))


class Fourier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real / 5)


class Rotary(nn.Module):
    """Rotary positions and RMS norm, as in LLaMA."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qk, self.v = nn.RMSNorm(8), nn.Linear(8, 16, bias=False), nn.Linear(8, 8, bias=False)
        angle = torch.arange(4)[:, None] / 10 ** (torch.arange(4) / 4)
        self.register_buffer("cos", torch.cat([angle, angle], -1).cos())
        self.register_buffer("sin", torch.cat([angle, angle], -1).sin())

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        q, k = self.qk(h).chunk(2, -1)
        return x + F.scaled_dot_product_attention(self.turn(q), self.turn(k), self.v(h), is_causal=True)


class LinearAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
        top = torch.einsum("bnd,bnm->bdm", k, v)
        return torch.einsum("bnd,bdm->bnm", q, top) / torch.einsum("bnd,bd->bn", q, k.sum(1))[..., None]


add(Q, "rnn", lambda: Recurrent(nn.RNN(3, 4, batch_first=True), 4), SEQ)
add(Q, "gru", lambda: Recurrent(nn.GRU(3, 4, batch_first=True), 4), SEQ)
add(Q, "lstm", lambda: Recurrent(nn.LSTM(3, 4, batch_first=True), 4), SEQ)
add(Q, "lstm_state", LastState, SEQ)
add(Q, "bidirectional_gru", lambda: Recurrent(nn.GRU(3, 4, batch_first=True, bidirectional=True), 8, True), (3, 3))
add(Q, "bidirectional_lstm", lambda: Recurrent(nn.LSTM(3, 3, batch_first=True, bidirectional=True), 6), (3, 3))
add(Q, "gru_cells", Cells, SEQ)
add(Q, "rnn_two_layers", lambda: Recurrent(nn.RNN(3, 4, 2, batch_first=True), 4), (3, 3))
add(
    Q,
    "conv_gru",
    lambda: Fn(
        lambda x, c, g: g(c(x).transpose(1, 2))[0][:, -1],
        c=nn.Conv1d(2, 3, 3, stride=2),
        g=nn.GRU(3, 4, batch_first=True),
    ),
    (2, 9),
)
add(Q, "attention", SelfAttention, (4, 8))
add(
    Q,
    "attention_no_weights",
    lambda: Fn(lambda x, a: a(x, x, x, need_weights=False)[0], a=nn.MultiheadAttention(8, 2, batch_first=True)),
    (4, 8),
)
add(Q, "cross_attention", CrossAttention, (3, 8), (4, 8))
add(Q, "encoder_layer", lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (4, 8))
add(Q, "encoder_norm_first", lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), (4, 8))
add(Q, "encoder_classifier", Encoder, SEQ)
add(Q, "encoder_two_layers", lambda: Encoder(2, activation="gelu"), SEQ)
add(
    Q,
    "decoder_layer",
    lambda: Fn(lambda x, y, d: d(x, y), d=nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)),
    (3, 8),
    (4, 8),
)
add(Q, "causal_attention", Causal, (4, 8))
add(Q, "attention_by_hand", HandMade, (4, 8))
add(Q, "rotary", Rotary, (4, 8))
add(Q, "linear_attention", LinearAttention, (4, 4))
add(Q, "text_cnn", TextCNN, (8, 4))
add(Q, "attention_pool", AttentionPool, (6, 4))
add(Q, "fourier_mixing", Fourier, (4, 4))
add(
    Q,
    "temporal_conv",
    lambda: nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=2, dilation=2),
        nn.ReLU(),
        nn.Conv1d(4, 4, 3, padding=4, dilation=4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 2),
    ),
    (2, 16),
)
add(
    Q,
    "embedding_mean",
    lambda: Fn(lambda x, e, h: h(e(x).mean(1)), e=nn.Embedding(10, 4), h=nn.Linear(4, 2)),
    (6,),
    kind="tokens",
)
add(
    Q,
    "positional_sine",
    lambda: Fn(
        lambda x, h: h(x + torch.sin(torch.arange(4)[:, None] / 10 ** (torch.arange(4) / 4))), h=nn.Linear(4, 2)
    ),
    (4, 4),
)
add(
    Q,
    "ema_smoothing",
    lambda: Fn(lambda x: torch.stack([(x[:, : i + 1] * 0.5 ** torch.arange(i, -1, -1)).sum(1) for i in range(6)], 1)),
    (6,),
)
