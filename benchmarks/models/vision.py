"""Small networks of images and their blocks. Part of the table of `model_coverage.py`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from models.entries import IMG, Fn, add, conv, seq
from torch import nn

S = "vision"


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
