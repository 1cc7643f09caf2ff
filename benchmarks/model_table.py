"""Small modules as people write them: the table of `models.py`. Each has a factory and the shapes of one sample."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True, slots=True)
class Entry:
    """A model: how it is made, the shapes of its inputs without batch axis, the range its inputs are drawn from."""

    name: str
    group: str
    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    kind: str = "normal"


TABLE: list[Entry] = []


class Fn(nn.Module):
    """A function as a module; its layers as attributes."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args, **dict(self.named_children()))


def add(group: str, name: str, make: Callable[[], nn.Module], *shapes: tuple[int, ...], kind: str = "normal") -> None:
    TABLE.append(Entry(f"{group}.{name}", group, make, shapes, kind))


def fn(group: str, name: str, function: Callable[..., Any], *shapes: tuple[int, ...], **layers: Any) -> None:
    add(group, name, lambda: Fn(function, **{key: make() for key, make in layers.items()}), *shapes)


# ---------------------------------------------------------------------------------------------- idioms

I = "idioms"
V8, M4, IMG = (8,), (6, 4), (3, 8, 8)
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

# ---------------------------------------------------------------------------------------------- vision

S = "vision"


def seq(group: str, name: str, *layers: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    add(group, name, lambda: nn.Sequential(*(layer() for layer in layers)), shape)


def conv(i: int, o: int, k: int = 3, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(i, o, k, **options)


DIGIT = (1, 14, 14)
seq(
    S,
    "lenet_relu",
    conv(1, 4, 5),
    nn.ReLU,
    lambda: nn.AvgPool2d(2),
    nn.Flatten,
    lambda: nn.Linear(100, 10),
    shape=DIGIT,
)
seq(
    S, "lenet_max", conv(1, 4, 5), nn.ReLU, lambda: nn.MaxPool2d(2), nn.Flatten, lambda: nn.Linear(100, 10), shape=DIGIT
)
seq(
    S,
    "lenet_tanh",
    conv(1, 4, 5),
    nn.Tanh,
    lambda: nn.AvgPool2d(2),
    conv(4, 8, 3),
    nn.Tanh,
    nn.Flatten,
    lambda: nn.Linear(72, 10),
    shape=DIGIT,
)
seq(
    S,
    "max_pool_ceil",
    conv(1, 2),
    nn.ReLU,
    lambda: nn.MaxPool2d(3, 2, ceil_mode=True),
    nn.Flatten,
    lambda: nn.Linear(72, 4),
    shape=DIGIT,
)
seq(
    S,
    "adaptive_max",
    conv(1, 2),
    nn.ReLU,
    lambda: nn.AdaptiveMaxPool2d(3),
    nn.Flatten,
    lambda: nn.Linear(18, 4),
    shape=(1, 10, 10),
)
seq(
    S,
    "adaptive_avg",
    conv(1, 4),
    nn.ReLU,
    lambda: nn.AdaptiveAvgPool2d(1),
    nn.Flatten,
    lambda: nn.Linear(4, 4),
    shape=DIGIT,
)
seq(
    S,
    "avg_pool_ceil",
    conv(1, 2),
    nn.ReLU,
    lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True),
    nn.Flatten,
    lambda: nn.Linear(98, 4),
    shape=DIGIT,
)
seq(S, "group_norm", conv(3, 8), lambda: nn.GroupNorm(2, 8), nn.ReLU, nn.Flatten, lambda: nn.Linear(288, 4), shape=IMG)
seq(
    S,
    "instance_norm",
    conv(3, 4),
    lambda: nn.InstanceNorm2d(4),
    nn.ReLU,
    nn.Flatten,
    lambda: nn.Linear(144, 4),
    shape=IMG,
)
seq(S, "batch_norm", conv(3, 8), lambda: nn.BatchNorm2d(8), nn.ReLU, nn.Flatten, lambda: nn.Linear(288, 4), shape=IMG)
seq(
    S,
    "local_response_norm",
    conv(3, 4),
    nn.ReLU,
    lambda: nn.LocalResponseNorm(2),
    nn.Flatten,
    lambda: nn.Linear(144, 4),
    shape=IMG,
)
seq(
    S,
    "transposed",
    conv(3, 8, 3, stride=2, padding=1),
    nn.ReLU,
    lambda: nn.ConvTranspose2d(8, 3, 2, stride=2),
    shape=IMG,
)
seq(
    S,
    "upsample_nearest",
    conv(3, 4, 3, stride=2, padding=1),
    nn.ReLU,
    lambda: nn.Upsample(scale_factor=2),
    conv(4, 3, 3, padding=1),
    shape=IMG,
)
seq(
    S,
    "upsample_bilinear",
    conv(3, 4, 3, stride=2, padding=1),
    nn.ReLU,
    lambda: nn.UpsamplingBilinear2d(scale_factor=2),
    shape=IMG,
)
seq(S, "reflect_pad", lambda: nn.ReflectionPad2d(1), conv(3, 4), nn.ReLU, shape=IMG)
seq(S, "circular_conv", conv(3, 4, 3, padding=1, padding_mode="circular"), nn.ReLU, shape=IMG)
seq(S, "pixel_shuffle", conv(3, 12, 3, padding=1), nn.ReLU, lambda: nn.PixelShuffle(2), shape=(3, 6, 6))
seq(S, "space_to_depth", lambda: nn.PixelUnshuffle(2), conv(12, 8, 1), nn.ReLU, shape=IMG)
seq(S, "depthwise", conv(4, 4, 3, groups=4, padding=1), nn.ReLU6, conv(4, 8, 1), nn.ReLU6, shape=(4, 8, 8))
seq(S, "dilated", conv(3, 4, 3, dilation=2, padding=2), nn.SiLU, shape=IMG)
seq(
    S,
    "conv1d_ecg",
    lambda: nn.Conv1d(1, 4, 5, stride=2),
    nn.ReLU,
    lambda: nn.MaxPool1d(2),
    nn.Flatten,
    lambda: nn.Linear(28, 3),
    shape=(1, 32),
)
seq(S, "conv3d", lambda: nn.Conv3d(1, 2, 3), nn.ReLU, nn.Flatten, lambda: nn.Linear(54, 2), shape=(1, 5, 5, 5))
seq(
    S,
    "patches",
    lambda: nn.Unfold(4, stride=4),
    lambda: nn.Flatten(),
    lambda: nn.Linear(192, 16),
    nn.GELU,
    lambda: nn.Linear(16, 4),
    shape=IMG,
)


class Residual(nn.Module):
    def __init__(self, width: int, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width)
        self.c2, self.n2 = nn.Conv2d(width, width, 3, padding=1, bias=False), norm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.n2(self.c2(F.relu(self.n1(self.c1(x))))))


class SqueezeExcite(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(width, width // 2, 1), nn.Conv2d(width // 2, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * F.hardsigmoid(self.b(F.relu(self.a(F.adaptive_avg_pool2d(x, 1)))))


class UNetBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.mid = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(7, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.mid(F.relu(self.down(x))))
        return self.out(torch.cat([x, F.relu(self.up(h))], 1))


class Fire(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.s, self.a, self.b = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1), nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        s = F.relu(self.s(x))
        return torch.cat([F.relu(self.a(s)), F.relu(self.b(s))], 1)


class DenseBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(4 + 4 * i, 4, 3, padding=1) for i in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, F.relu(layer(x))], 1)
        return x.mean((2, 3))


class ConvNeXtBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.d, self.n = nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.LayerNorm(8)
        self.a, self.b, self.g = nn.Linear(8, 16), nn.Linear(16, 8), nn.Parameter(torch.full((8,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.n(self.d(x).permute(0, 2, 3, 1))
        return x + (self.g * self.b(F.gelu(self.a(h)))).permute(0, 3, 1, 2)


class MixerBlock(nn.Module):
    def __init__(self, tokens: int = 4, width: int = 8) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.token = nn.Sequential(nn.Linear(tokens, 8), nn.GELU(), nn.Linear(8, tokens))
        self.channel = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.token(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel(self.n2(x))


class ChannelAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = torch.sigmoid(self.f(x.mean((2, 3))) + self.f(x.amax((2, 3))))
        return x * weights[:, :, None, None]


add(S, "residual_block", lambda: Residual(4), (4, 8, 8))
add(S, "residual_group_norm", lambda: Residual(4, lambda c: nn.GroupNorm(2, c)), (4, 6, 6))
add(S, "squeeze_excite", lambda: SqueezeExcite(8), (8, 6, 6))
add(S, "unet_block", UNetBlock, IMG)
add(S, "fire", Fire, (4, 8, 8))
add(S, "dense_block", DenseBlock, (4, 6, 6))
add(S, "convnext_block", ConvNeXtBlock, (8, 7, 7))
add(S, "mixer_block", MixerBlock, (4, 8))
add(S, "channel_attention", ChannelAttention, (4, 4, 4))
add(S, "vit_patch", lambda: Patches(), IMG)
add(
    S,
    "autoencoder",
    lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 64), nn.Sigmoid()),
    (1, 8, 8),
)
add(
    S,
    "spatial_gate",
    lambda: Fn(
        lambda x, c: x * torch.sigmoid(c(torch.cat([x.mean(1, True), x.std(1, keepdim=True)], 1))),
        c=nn.Conv2d(2, 1, 3, padding=1),
    ),
    (4, 6, 6),
)
add(
    S,
    "bilinear_pool",
    lambda: Fn(lambda x, c: torch.einsum("bchw,bdhw->bcd", c(x), c(x)).flatten(1), c=nn.Conv2d(3, 4, 3)),
    (3, 6, 6),
)
add(
    S,
    "style_normalise",
    lambda: Fn(lambda x: (x - x.mean((2, 3), keepdim=True)) / (x.var((2, 3), keepdim=True) + 1e-5).sqrt()),
    IMG,
)
add(
    S,
    "cnn_gelu_head",
    lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, 2), nn.GELU(), nn.Conv2d(8, 8, 3), nn.GELU(), nn.Flatten(), nn.Linear(8, 5)
    ),
    IMG,
)
add(S, "vgg_small", lambda: nn.Sequential(*_vgg()), (3, 16, 16))


def _vgg() -> list[nn.Module]:
    layers: list[nn.Module] = []
    width = 3
    for count in (8, "M", 16, "M", 16, "M"):
        if isinstance(count, str):
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(width, count, 3, padding=1), nn.BatchNorm2d(count), nn.ReLU()]
            width = count
    return [*layers, nn.Flatten(), nn.Linear(64, 10)]


class Patches(nn.Module):
    """A small vision transformer of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, stride=4)
        self.token, self.place = nn.Parameter(torch.randn(1, 1, 8) * 0.1), nn.Parameter(torch.randn(1, 5, 8) * 0.1)
        self.layer = nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.size(0), -1, -1), x], 1) + self.place
        return self.head(self.layer(x)[:, 0])


# ---------------------------------------------------------------------------------------------- tabular

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

# ---------------------------------------------------------------------------------------------- sequence

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

TOKENS = 10
