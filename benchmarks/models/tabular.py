"""Small networks of rows. Part of the table of `model_coverage.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from models.entries import Fn, add
from torch import nn

T = "tabular"
ROW = (12,)


def mlp(
    *sizes: int, act: Callable[[], nn.Module] = nn.ReLU, norm: Callable[[int], nn.Module] | None = None
) -> nn.Module:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes[:-1]):
        layers += [nn.Linear(a, b), *([norm(b)] if norm else []), act(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


add(T, "logistic", lambda: nn.Sequential(nn.Linear(12, 1), nn.Sigmoid()), ROW)
add(T, "softmax_regression", lambda: nn.Sequential(nn.Linear(12, 4), nn.Softmax(-1)), ROW)
add(T, "mlp", lambda: mlp(12, 16, 16, 3), ROW)
add(T, "mlp_elu", lambda: mlp(12, 16, 16, 3, act=nn.ELU), ROW)
add(T, "mlp_selu", lambda: mlp(12, 16, 16, 3, act=nn.SELU), ROW)
add(T, "mlp_batch_norm", lambda: mlp(12, 16, 3, norm=nn.BatchNorm1d), ROW)
add(T, "mlp_layer_norm", lambda: mlp(12, 16, 3, norm=nn.LayerNorm), ROW)
add(T, "mlp_rms_norm", lambda: mlp(12, 16, 3, norm=nn.RMSNorm), ROW)
add(T, "mlp_mish", lambda: mlp(12, 16, 3, act=nn.Mish), ROW)
add(T, "wide_and_deep", lambda: Fn(lambda x, w, d: w(x) + d(x), w=nn.Linear(12, 1), d=mlp(12, 8, 1)), ROW)
add(
    T,
    "factorisation_machine",
    lambda: Fn(
        lambda x, w, v: w(x) + 0.5 * (v(x) ** 2 - F.linear(x**2, v.weight**2)).sum(1, keepdim=True),
        w=nn.Linear(12, 1),
        v=nn.Linear(12, 4, bias=False),
    ),
    ROW,
)
add(
    T,
    "cross_network",
    lambda: Fn(lambda x, a, b: (lambda h: x * b(h) + h)(x * a(x) + x), a=nn.Linear(12, 1), b=nn.Linear(12, 1)),
    ROW,
)
add(
    T,
    "gated_residual",
    lambda: Fn(
        lambda x, a, g, n: n(x + a(x) * torch.sigmoid(g(x))),
        a=nn.Linear(12, 12),
        g=nn.Linear(12, 12),
        n=nn.LayerNorm(12),
    ),
    ROW,
)
add(
    T,
    "mixture_of_experts",
    lambda: Fn(
        lambda x, g, e: (g(x).softmax(1)[:, :, None] * e(x).view(-1, 3, 4)).sum(1),
        g=nn.Linear(12, 3),
        e=nn.Linear(12, 12),
    ),
    ROW,
)
add(T, "siamese", lambda: Fn(lambda x, y, e: (e(x) - e(y)).abs().sum(1, keepdim=True), e=mlp(12, 8, 4)), ROW, ROW)
add(
    T,
    "two_towers",
    lambda: Fn(
        lambda x, y, a, b: (F.normalize(a(x), dim=1) * F.normalize(b(y), dim=1)).sum(1, keepdim=True),
        a=mlp(12, 8, 4),
        b=mlp(12, 8, 4),
    ),
    ROW,
    ROW,
)
add(T, "bilinear", lambda: nn.Bilinear(12, 12, 3), ROW, ROW)
add(
    T,
    "vae_encoder",
    lambda: Fn(
        lambda x, e, m, s: (m(F.relu(e(x))), F.softplus(s(F.relu(e(x))))),
        e=nn.Linear(12, 8),
        m=nn.Linear(8, 2),
        s=nn.Linear(8, 2),
    ),
    ROW,
)
add(T, "poisson", lambda: Fn(lambda x, a: torch.exp(a(x).clamp(-3, 3)), a=nn.Linear(12, 1)), ROW)
add(
    T,
    "rbf_network",
    lambda: Fn(
        lambda x, c, o: o(torch.exp(-(torch.cdist(x, c.weight) ** 2) / 24)), c=nn.Linear(12, 5), o=nn.Linear(5, 2)
    ),
    ROW,
)
add(
    T,
    "highway",
    lambda: Fn(
        lambda x, h, t: (lambda g: g * F.relu(h(x)) + (1 - g) * x)(torch.sigmoid(t(x))),
        h=nn.Linear(12, 12),
        t=nn.Linear(12, 12),
    ),
    ROW,
)
add(
    T,
    "swiglu",
    lambda: Fn(lambda x, a, b, c: c(F.silu(a(x)) * b(x)), a=nn.Linear(12, 16), b=nn.Linear(12, 16), c=nn.Linear(16, 3)),
    ROW,
)
add(
    T,
    "dropout_monte_carlo_off",
    lambda: nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5), nn.GLU(), nn.Linear(4, 2)),
    ROW,
)
add(T, "prototypes", lambda: Fn(lambda x, e: -torch.cdist(e(x), torch.eye(4)), e=mlp(12, 8, 4)), ROW)
add(T, "argmax_label", lambda: Fn(lambda x, e: e(x).argmax(-1), e=mlp(12, 8, 4)), ROW)
