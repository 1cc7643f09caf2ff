"""Functions, views, indexing, containers as people write them, and the activations of torch.nn. Part of the table of `model_coverage.py`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from models.entries import IMG, M4, V8, add, fn
from torch import nn

I = "idioms"
fn(I, "normalize", lambda x, a: F.normalize(a(x), dim=1), V8, a=lambda: nn.Linear(8, 4))
fn(
    I,
    "cosine_to_prototypes",
    lambda x, a: F.cosine_similarity(a(x)[:, None], torch.eye(4)[None], -1),
    V8,
    a=lambda: nn.Linear(8, 4),
)
fn(I, "l2_distance", lambda x, y: torch.norm(x - y, dim=1, keepdim=True), V8, V8)
fn(I, "pairwise_distance", lambda x, y: F.pairwise_distance(x, y), V8, V8)
fn(
    I,
    "cdist_to_centres",
    lambda x: torch.cdist(x[:, None], torch.eye(8)[None, :4].expand(x.size(0), 4, 8)).squeeze(1),
    V8,
)
fn(I, "rbf", lambda x: torch.exp(-((x[:, None] - torch.eye(8)[:4]) ** 2).sum(-1)), V8)
fn(I, "gram", lambda x: torch.einsum("bcn,bdn->bcd", x, x) / x.shape[-1], M4)
fn(I, "gram_matmul", lambda x: x @ x.transpose(1, 2) / x.size(-1), M4)
fn(I, "bilinear_form", lambda x, a: (x[:, None] @ a.weight @ x[:, :, None]).flatten(1), V8, a=lambda: nn.Linear(8, 8))
fn(I, "outer", lambda x: torch.einsum("bi,bj->bij", x, x).flatten(1), (4,))
fn(I, "einsum_dots", lambda x, a: torch.einsum("...i,oi->...o", x, a.weight), M4, a=lambda: nn.Linear(4, 3))
fn(I, "einsum_trace", lambda x: torch.einsum("bii->b", x)[:, None], (4, 4))
fn(I, "bmm", lambda x, y: torch.bmm(x, y), (3, 4), (4, 3))
fn(I, "baddbmm", lambda x: torch.baddbmm(x, x, x), (4, 4))
fn(I, "tensordot", lambda x, a: torch.tensordot(x, a.weight, dims=([2], [1])), M4, a=lambda: nn.Linear(4, 3))
fn(I, "cumsum", lambda x, a: a(x.cumsum(1)), V8, a=lambda: nn.Linear(8, 3))
fn(I, "cumprod", lambda x: torch.sigmoid(x).cumprod(1), (4,))
fn(I, "diff", lambda x, a: a(x.diff(dim=1)), V8, a=lambda: nn.Linear(7, 3))
fn(I, "diagonal", lambda x: x.diagonal(dim1=1, dim2=2) * 2, (4, 4))
fn(I, "triu_flat", lambda x: (x @ x.mT)[(slice(None), *torch.triu_indices(4, 4))], (4, 3))
fn(I, "gather", lambda x: x.gather(1, torch.tensor([[0, 3, 1]]).expand(x.size(0), 3)) ** 2, V8)
fn(I, "index_lists", lambda x: x[:, [0, 1, 2], [2, 1, 0]], (4, 4))
fn(I, "boolean_mask", lambda x: x[:, [i % 2 == 0 for i in range(8)]] * 3, V8)
fn(I, "index_select", lambda x: torch.index_select(x, 1, torch.tensor([1, 5])), V8)
fn(I, "roll", lambda x, a: a(torch.roll(x, 1, 1)), V8, a=lambda: nn.Linear(8, 2))
fn(
    I,
    "flip_tta",
    lambda x, a: (a(x) + a(x.flip(-1))) / 2,
    IMG,
    a=lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
)
fn(I, "split_cat", lambda x, a: torch.cat([a(p) for p in x.split(4, 1)], 1), V8, a=lambda: nn.Linear(4, 2))
fn(I, "chunk_gate", lambda x: (lambda a, b: a * torch.sigmoid(b))(*x.chunk(2, 1)), V8)
fn(
    I,
    "stack_mean",
    lambda x, a, b: torch.stack([a(x), b(x)]).mean(0),
    V8,
    a=lambda: nn.Linear(8, 3),
    b=lambda: nn.Linear(8, 3),
)
fn(I, "unfold_windows", lambda x, a: a(x.unfold(1, 3, 1)).flatten(1), V8, a=lambda: nn.Linear(3, 2))
fn(I, "unflatten", lambda x: x.unflatten(1, (2, 4)).mean(1), V8)
fn(I, "repeat_interleave", lambda x: x.repeat_interleave(2, 1) * 0.5, V8)
fn(
    I,
    "meshgrid_positions",
    lambda x: torch.cat([x, torch.linspace(-1, 1, 8).expand(x.size(0), 1, 8, 8)], 1).mean(1),
    IMG,
)
fn(I, "softmax_temperature", lambda x, a: F.softmax(a(x) / 2.0, dim=-1), V8, a=lambda: nn.Linear(8, 4))
fn(I, "log_softmax", lambda x, a: F.log_softmax(a(x), dim=1), V8, a=lambda: nn.Linear(8, 4))
fn(I, "logsumexp", lambda x: torch.logsumexp(x, 1, keepdim=True), V8)
fn(I, "masked_softmax", lambda x: (x @ x.mT).masked_fill(torch.ones(6, 6).triu(1).bool(), -1e9).softmax(-1) @ x, M4)
fn(I, "standardise", lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5), V8)
fn(I, "variance_pool", lambda x: torch.cat([x.mean((2, 3)), x.var((2, 3))], 1), IMG)
fn(I, "std_pool", lambda x: torch.cat([x.mean(1), x.std(1)], 1), M4)
fn(I, "max_mean_pool", lambda x: torch.cat([x.mean(1), x.max(1).values], 1), M4)
fn(I, "topk_one", lambda x: x.topk(1, 1).values, V8)
fn(I, "argmax", lambda x, a: a(x).argmax(1), V8, a=lambda: nn.Linear(8, 4))
fn(I, "where_abs", lambda x: torch.where(x > 0, x, -0.5 * x), V8)
fn(I, "clamp", lambda x: x.clamp(-1, 1) + x.clamp(min=0), V8)
fn(I, "threshold_count", lambda x: (x > 0.5).float().mean(1, keepdim=True), V8)
fn(I, "huber", lambda x: torch.where(x.abs() < 1, 0.5 * x * x, x.abs() - 0.5), V8)
fn(I, "reciprocal_scale", lambda x: 1 / (1 + x.pow(2)), V8)
fn(I, "square_root", lambda x: torch.sqrt(x.pow(2).sum(1, keepdim=True) + 1), V8)
fn(I, "pow_fraction", lambda x: (x.abs() + 0.1) ** 0.3, V8)
fn(I, "log1p_abs", lambda x: torch.log1p(x.abs()), V8)
fn(I, "sin_features", lambda x, a: torch.cat([torch.sin(a(x)), torch.cos(a(x))], 1), V8, a=lambda: nn.Linear(8, 4))
fn(I, "prod", lambda x: torch.sigmoid(x).prod(1, keepdim=True), (4,))
fn(
    I,
    "dict_output",
    lambda x, a, b: {"mean": a(x), "log_var": b(x)},
    V8,
    a=lambda: nn.Linear(8, 2),
    b=lambda: nn.Linear(8, 2),
)
fn(
    I,
    "time_distributed",
    lambda x, a: a(x.reshape(-1, 4)).reshape(x.size(0), -1),
    M4,
    a=lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU()),
)
fn(
    I,
    "frames",
    lambda x, a: a(x.view(-1, 1, 6, 6)).view(x.size(0), 3, -1).mean(1),
    (3, 6, 6),
    a=lambda: nn.Conv2d(1, 2, 3),
)
fn(
    I,
    "view_as_windows",
    lambda x: (
        x.view(x.size(0), 3, 2, 4, 2, 4).permute(0, 2, 4, 1, 3, 5).reshape(-1, 48).view(x.size(0), 4, 48).mean(-1)
    ),
    IMG,
)
fn(I, "fourier", lambda x: torch.fft.fft(x, dim=-1).real, V8)
fn(I, "power_spectrum", lambda x: torch.fft.rfft(x).abs() ** 2, V8)
fn(I, "double_model", lambda x, a: a(x.double()).float(), V8, a=lambda: nn.Linear(8, 3).double())
fn(I, "weight_tied", lambda x, a: F.linear(torch.tanh(a(x)), a.weight.t()), V8, a=lambda: nn.Linear(8, 4))
fn(
    I,
    "checkpoint_like",
    lambda x, a: x + 0.1 * a(x),
    V8,
    a=lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)),
)
fn(
    I,
    "ensemble",
    lambda x, a, b, c: (a(x).softmax(1) + b(x).softmax(1) + c(x).softmax(1)) / 3,
    V8,
    a=lambda: nn.Linear(8, 3),
    b=lambda: nn.Linear(8, 3),
    c=lambda: nn.Linear(8, 3),
)

# ---------------------------------------------------------------------------------------------- activations

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    name: getattr(nn, name)
    for name in (
        *("ReLU", "LeakyReLU", "PReLU", "RReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Softplus", "Softsign"),
        *("Sigmoid", "LogSigmoid", "Tanh", "Tanhshrink", "Softshrink", "Hardshrink", "Hardtanh", "Hardswish"),
        *("Hardsigmoid", "ReLU6", "GLU", "Softmin"),
    )
}
_ACTIVATIONS |= {
    "PReLU_channels": lambda: nn.PReLU(8),
    "Threshold": lambda: nn.Threshold(0.1, 0.0),
    "Softmax": lambda: nn.Softmax(1),
    "LogSoftmax": lambda: nn.LogSoftmax(1),
    "ELU_half": lambda: nn.ELU(0.5),
}
for _name, _make in _ACTIVATIONS.items():
    add(
        "activations",
        _name,
        lambda make=_make, name=_name: (
            nn.Sequential(nn.Linear(8, 8), make(), nn.Linear(4 if name == "GLU" else 8, 3))
            if "Soft" not in name or name in ("Softplus", "Softsign", "Softshrink")
            else nn.Sequential(nn.Linear(8, 4), make())
        ),
        V8,
    )
