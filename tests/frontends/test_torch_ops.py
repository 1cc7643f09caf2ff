"""Every op and module form against torch: one case a form, at batch sizes 1 and 3."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from frontends.support import Fn, agree
from torch import nn

torch.manual_seed(7)

W = torch.randn(5, 4, dtype=torch.float64)
V = torch.randn(4, dtype=torch.float64)
T = torch.randn(3, 4, 2, dtype=torch.float64)

Case = tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]


def bn(kind: type[nn.Module], channels: int, **options: bool) -> nn.Module:
    """A batch norm whose statistics and parameters are not the initial ones."""
    layer = kind(channels, **options)
    for tensor in (layer.weight, layer.bias, layer.running_mean):
        if tensor is not None:
            nn.init.uniform_(tensor, -1, 1)
    nn.init.uniform_(layer.running_var, 0.5, 2)
    return layer


def shifted(layer: nn.Module) -> nn.Module:
    """A layer with parameters that are not the initial ones."""
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -1, 1)
    return layer


def case(module: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Case:
    return module, shapes


def fn(function: Callable[..., object], *shapes: tuple[int, ...], **tensors: torch.Tensor) -> Case:
    return (lambda: Fn(function, **tensors)), shapes


LAYERS: dict[str, Case] = {
    "linear": case(lambda: nn.Linear(4, 3), (4,)),
    "linear_no_bias": case(lambda: nn.Linear(4, 3, bias=False), (4,)),
    "linear_of_matrix": case(lambda: nn.Linear(4, 3), (5, 4)),
    "linear_function": fn(lambda x, w: F.linear(x, w), (4,), w=W),
    "conv1d": case(lambda: nn.Conv1d(2, 3, 3), (2, 8)),
    "conv1d_same": case(lambda: nn.Conv1d(2, 3, 4, padding="same"), (2, 8)),
    "conv2d": case(lambda: nn.Conv2d(2, 3, 3), (2, 6, 5)),
    "conv2d_stride": case(lambda: nn.Conv2d(2, 3, 3, stride=(2, 1), padding=(1, 2)), (2, 6, 5)),
    "conv2d_same_even": case(lambda: nn.Conv2d(2, 3, (2, 3), padding="same"), (2, 6, 5)),
    "conv2d_same_dilated": case(lambda: nn.Conv2d(2, 3, 2, padding="same", dilation=3, bias=False), (2, 6, 5)),
    "conv2d_valid": case(lambda: nn.Conv2d(2, 3, 2, padding="valid"), (2, 4, 4)),
    "conv2d_groups": case(lambda: nn.Conv2d(4, 6, 3, groups=2, dilation=2), (4, 7, 6)),
    "conv2d_depthwise": case(lambda: nn.Conv2d(3, 3, 3, groups=3, padding=1), (3, 4, 4)),
    "conv2d_function": fn(lambda x, w: F.conv2d(x, w, padding=1), (2, 4, 4), w=torch.randn(3, 2, 3, 3)),
    "conv3d": case(lambda: nn.Conv3d(1, 2, 2, stride=2), (1, 4, 4, 4)),
    "batch_norm1d": case(lambda: bn(nn.BatchNorm1d, 4), (4,)),
    "batch_norm1d_length": case(lambda: bn(nn.BatchNorm1d, 4), (4, 5)),
    "batch_norm2d": case(lambda: bn(nn.BatchNorm2d, 3), (3, 4, 5)),
    "batch_norm2d_plain": case(lambda: bn(nn.BatchNorm2d, 3, affine=False), (3, 4, 5)),
    "avg_pool1d": case(lambda: nn.AvgPool1d(3, stride=2, padding=1), (2, 8)),
    "avg_pool2d": case(lambda: nn.AvgPool2d(2), (2, 4, 6)),
    "avg_pool2d_padding": case(lambda: nn.AvgPool2d((3, 2), stride=(2, 1), padding=1), (2, 5, 6)),
    "avg_pool2d_without_pad": case(lambda: nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), (2, 5, 6)),
    "avg_pool2d_divisor": case(lambda: nn.AvgPool2d(2, divisor_override=3), (2, 4, 4)),
    "avg_pool2d_ceil_fits": case(lambda: nn.AvgPool2d(2, ceil_mode=True), (2, 4, 4)),
    "adaptive_pool1d": case(lambda: nn.AdaptiveAvgPool1d(3), (2, 7)),
    "adaptive_pool2d": case(lambda: nn.AdaptiveAvgPool2d((2, 3)), (2, 5, 7)),
    "adaptive_pool2d_one": case(lambda: nn.AdaptiveAvgPool2d(1), (2, 5, 7)),
    "adaptive_pool2d_none": case(lambda: nn.AdaptiveAvgPool2d((None, 1)), (2, 5, 7)),
    "adaptive_pool2d_function": fn(lambda x: F.adaptive_avg_pool2d(x, 2), (2, 4, 4)),
    "group_norm": case(lambda: shifted(nn.GroupNorm(2, 6)), (6, 2, 3)),
    "group_norm_of_vectors": case(lambda: nn.GroupNorm(3, 6, affine=False), (6,)),
    "instance_norm": case(lambda: shifted(nn.InstanceNorm2d(3, affine=True)), (3, 4, 4)),
    "instance_norm_plain": case(lambda: nn.InstanceNorm1d(3), (3, 8)),
    "relu": case(nn.ReLU, (4,)),
    "relu_inplace": case(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), (4,)),
    "relu_method": fn(lambda x: x.relu() + F.relu(x) + torch.relu(x), (4,)),
    "leaky_relu": case(lambda: nn.LeakyReLU(0.2), (4,)),
    "prelu_single": case(lambda: nn.PReLU(), (4,)),
    "gelu": case(nn.GELU, (4,)),
    "gelu_tanh": case(lambda: nn.GELU(approximate="tanh"), (4,)),
    "silu": case(nn.SiLU, (4,)),
    "silu_function": fn(lambda x: F.silu(x), (4,)),
    "sigmoid": case(nn.Sigmoid, (4,)),
    "sigmoid_method": fn(lambda x: x.sigmoid(), (4,)),
    "tanh": case(nn.Tanh, (4,)),
    "softplus": case(lambda: nn.Softplus(beta=2.0, threshold=3.0), (4,)),
    "dropout": case(lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3), nn.Dropout1d(0.2)), (4,)),
    "dropout2d": case(lambda: nn.Dropout2d(0.5), (2, 3, 3)),
    "identity": case(lambda: nn.Sequential(nn.Identity(), nn.Tanh()), (4,)),
    "no_ops": fn(lambda x: x.contiguous().clone().detach().to(torch.float64).double().requires_grad_(False) * 2, (4,)),
    "flatten_module": case(nn.Flatten, (2, 3)),
    "unflatten": case(lambda: nn.Unflatten(1, (2, 3)), (6,)),
    "pixel_shuffle": case(lambda: nn.PixelShuffle(2), (8, 3, 2)),
    "zero_pad": case(lambda: nn.ZeroPad2d((1, 2, 0, 3)), (2, 3, 3)),
    "constant_pad": case(lambda: nn.ConstantPad1d(2, 0.0), (2, 3)),
}

ARITHMETIC: dict[str, Case] = {
    "add": fn(lambda x, y: x + y, (4,), (4,)),
    "add_alpha": fn(lambda x, y: torch.add(x, y, alpha=3), (4,), (4,)),
    "add_scalar": fn(lambda x: 2.5 + x + 1, (4,)),
    "add_constant": fn(lambda x, v: x + v, (3, 4), v=V),
    "add_itself": fn(lambda x: x + x, (4,)),
    "add_inplace": fn(lambda x: (x * 1).add_(2).mul_(x), (4,)),
    "iadd": case(lambda: Residual(), (4,)),
    "broadcast": fn(lambda x, y: x.unsqueeze(1) * y.unsqueeze(2), (4,), (3,)),
    "constant_with_batch_axis": fn(lambda x, v: x + v[None] - torch.ones(x.size(0), 4, dtype=torch.float64), (4,), v=V),
    "constant_larger": fn(lambda x, v: x[:, None, None] * v, (4,), v=T.transpose(1, 2).contiguous()),
    "sub": fn(lambda x, y: x - y, (4,), (4,)),
    "sub_alpha": fn(lambda x, y: torch.sub(x, y, alpha=0.5), (4,), (4,)),
    "rsub": fn(lambda x, v: (1 - x) + (v - x), (4,), v=V),
    "rsub_alpha": fn(lambda x, y: torch.rsub(x, y, alpha=2), (4,), (4,)),
    "neg": fn(lambda x: -x, (4,)),
    "mul_scalar": fn(lambda x: 0.5 * x, (4,)),
    "mul_constant": fn(lambda x, v: v * x, (4,), v=V),
    "mul_secrets": fn(lambda x, y: x * y, (4,), (4,)),
    "mul_secrets_broadcast": fn(lambda x, y: x * y[:, None], (3, 4), (4,)),
    "div_scalar": fn(lambda x: x / 3, (4,)),
    "div_constant": fn(lambda x, v: x / v, (4,), v=V + 5),
    "addcmul": fn(lambda x, y, v: torch.addcmul(x, y, v, value=0.5), (4,), (4,), v=V),
    "lerp": fn(lambda x, y: torch.lerp(x, y, 0.25), (4,), (4,)),
    "power": fn(lambda x: x**3 + x**2.0 + torch.pow(x, 1) + x**0, (4,)),
    "square": fn(lambda x: torch.square(x), (4,)),
    "matmul_right": fn(lambda x, w: x @ w.t(), (4,), w=W),
    "matmul_right_matrix": fn(lambda x, w: x @ w.t(), (3, 4), w=W),
    "matmul_right_vector": fn(lambda x, v: (x @ v).unsqueeze(-1), (3, 4), v=V),
    "matmul_right_stack": fn(lambda x, w: x @ w, (3, 2, 4), w=T),
    "matmul_right_stack_of_rows": fn(lambda x, w: (x @ w).transpose(0, 1), (4,), w=T),
    "matmul_of_secrets": fn(lambda x, y: x @ y, (2, 3), (3, 4)),
    "matmul_of_secret_stacks": fn(lambda x, y: torch.matmul(x, y.unsqueeze(1)), (2, 2, 3), (3, 2)),
    "matmul_with_itself": fn(lambda x: x @ x.transpose(-1, -2) + torch.bmm(x, x.mT), (3, 4)),
    "matmul_of_turned_secrets": fn(
        lambda x, y: (x.transpose(0, 1).unsqueeze(-2) @ y.transpose(0, 1).unsqueeze(-1)).transpose(0, 1), (2, 3), (2, 3)
    ),
    "baddbmm_of_secrets": fn(lambda x, y: torch.baddbmm(x, x, y, beta=0.5, alpha=2), (3, 3), (3, 3)),
    "attention": fn(lambda q, k, v: F.scaled_dot_product_attention(q, k, v), (3, 2), (4, 2), (4, 5)),
    "attention_heads": fn(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), *[(2, 3, 2)] * 3),
    "einsum_matmul": fn(lambda x, y: torch.einsum("bij,bjk->bik", x, y), (2, 3), (3, 4)),
    "einsum_heads": fn(lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k), (2, 3, 2), (2, 4, 2)),
    "einsum_linear": fn(lambda x, w: torch.einsum("bi,oi->bo", x, w), (4,), w=W),
    "einsum_stack": fn(lambda x, w: torch.einsum("nik,bkj->bnij", w, x), (2, 3), w=T),
    "einsum_three": fn(lambda x, y, v: torch.einsum("bi,bj,i->bji", x, y, v), (4,), (3,), v=V),
    "einsum_inner": fn(lambda x, y: torch.einsum("bi,bi->b", x, y).unsqueeze(-1), (4,), (4,)),
    "einsum_implicit": fn(lambda x, y: torch.einsum("bi, bi -> b i", x, y) + torch.einsum("ba", x).t(), (4,), (4,)),
    "einsum_turned": fn(lambda x: torch.einsum("bij->jbi", x).transpose(0, 1), (2, 3)),
    "matmul_left": fn(lambda x, w: w @ x, (4, 3), w=W),
    "matmul_left_vector": fn(lambda x, v: v @ x, (4, 3), v=V),
    "matmul_left_stack": fn(lambda x, w: w @ x, (3, 2, 6), w=T),
    "matmul_left_columns": fn(lambda x, w: (w @ x.t()).t(), (4,), w=W),
    "matmul_left_columns_vector": fn(lambda x, v: (v @ x.permute(1, 2, 0)).t(), (3, 4), v=V),
    "matmul_left_columns_stack": fn(lambda x, w: (w @ x.t()).permute(2, 0, 1), (2,), w=T),
    "mm": fn(lambda x, w: torch.mm(x, w.t()), (4,), w=W),
    "mv": fn(lambda x, v: torch.mv(x, v)[:, None], (4,), v=V),
    "bmm": fn(lambda x, w: torch.bmm(x, w.t().expand(x.size(0), 4, 5)), (3, 4), w=W),
    "addmm": fn(lambda x, w: torch.addmm(torch.ones(5, dtype=torch.float64), x, w.t()), (4,), w=W),
    "addmm_scaled": fn(lambda x, y, w: torch.addmm(y, x, w.t(), beta=0.5, alpha=2), (4,), (5,), w=W),
    "baddbmm": fn(lambda x, w: torch.baddbmm(x[..., :1], x, w.t().expand(x.size(0), 4, 5)), (3, 4), w=W),
    "mean": fn(lambda x: x.mean(1), (3, 4)),
    "mean_axes": fn(lambda x: x.mean((-1, -2), keepdim=True), (2, 3, 4)),
    "sum": fn(lambda x: x.sum(-1) + x.sum(2, keepdim=True).squeeze(2), (3, 4)),
    "sum_axes": fn(lambda x: torch.sum(x, dim=[1, 3]), (2, 3, 4)),
}

STRUCTURE: dict[str, Case] = {
    "view": fn(lambda x: x.view(x.size(0), -1) + x.view(x.shape[0], 6), (2, 3)),
    "view_like_one_sample": fn(lambda x: x.view(-1, 2, 3).view(-1, 1, 6), (6,)),
    "reshape": fn(lambda x: x.reshape(-1, 3, 2), (2, 3)),
    "flatten": fn(lambda x: torch.flatten(x, 1, 2), (2, 3, 4)),
    "permute": fn(lambda x: x.permute(0, 3, 1, 2), (2, 3, 4)),
    "transpose": fn(lambda x: x.transpose(1, -1) + x.swapaxes(1, 3), (2, 3, 2)),
    "transpose_through_batch": fn(lambda x: (x.transpose(0, 1) * 2).transpose(0, 1), (3, 4)),
    "mT": fn(lambda x: x.mT, (3, 4)),
    "T": fn(lambda x: (x.T + 1).T, (4,)),
    "movedim": fn(lambda x: x.movedim(1, -1), (2, 3, 4)),
    "nothing_left": fn(lambda x: torch.cat([-x[..., :4], x[..., 4:] * 2, x[..., 4:]], -1), (3, 4)),
    "random_numbers_that_nothing_reads": fn(lambda x: (torch.rand(2) < 0.5, 2 * x)[1], (3,)),
    "squeeze": fn(lambda x: x.squeeze(1).squeeze(-2).squeeze(1), (1, 3, 1, 2)),
    "squeeze_dims": fn(lambda x: torch.squeeze(x, (1, 3)), (1, 3, 1, 2)),
    "unsqueeze": fn(lambda x: x.unsqueeze(1).unsqueeze(-1), (3,)),
    "unsqueeze_front": fn(lambda x: x.unsqueeze(0).squeeze(0) if x.size(0) > 1 else x, (3,)),
    "slice": fn(lambda x: x[:, 1:, ::2], (3, 5)),
    "slice_negative": fn(lambda x: x[..., -3:-1], (5,)),
    "narrow": fn(lambda x: x.narrow(1, 1, 2), (5,)),
    "select": fn(lambda x: x[:, 1] + x[:, -1], (3, 4)),
    "index_list": fn(lambda x: x[:, [2, 0, 1]], (4, 2)),
    "index_select": fn(lambda x: torch.index_select(x, 2, torch.tensor([3, 1])), (2, 4)),
    "flip": fn(lambda x: x.flip(1, 2), (2, 3)),
    "roll": fn(lambda x: torch.roll(x, 1, dims=1), (4,)),
    "cat": fn(lambda x, y: torch.cat([x, y, x], 1), (2, 3), (1, 3)),
    "cat_constant": fn(lambda x: torch.cat([x, torch.zeros_like(x), x.new_ones(x.size(0), 1, 2)], dim=1), (2, 2)),
    "stack": fn(lambda x, y: torch.stack([x, y], 1), (3,), (3,)),
    "stack_last": fn(lambda x, y: torch.stack((x, y), -1), (2, 3), (2, 3)),
    "expand": fn(lambda x: x[:, None].expand(-1, 3, -1), (4,)),
    "expand_as": fn(lambda x, y: x.expand_as(y), (1, 4), (3, 4)),
    "repeat": fn(lambda x: x.repeat(1, 2, 3), (2, 2)),
    "pad": fn(lambda x: F.pad(x, (1, 2, 0, 1)), (2, 3)),
    "pad_crop": fn(lambda x: F.pad(x, (-1, 2, 1, -1)), (3, 4)),
    "split": fn(lambda x: torch.split(x, 2, dim=1), (5,)),
    "split_sizes": fn(lambda x: x.split([1, 3], -1)[::-1], (4,)),
    "chunk": fn(lambda x: list(x.chunk(3, dim=1)), (5, 2)),
    "tensor_split": fn(lambda x: torch.tensor_split(x, 2, dim=1), (5,)),
    "unbind": fn(lambda x: x.unbind(1), (3, 2)),
    "tuple_assignment": fn(lambda x: sum(x.unbind(-1)), (2, 3)),
    "write_column": case(lambda: Writer(), (4,)),
    "no_grad_block": case(lambda: NoGrad(), (4,)),
}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        y += x
        y *= 0.5
        return y


class Writer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[:, 0] = x[:, 1] * 2
        y[:, 1:3] = 0.5
        y[:, ::3] += x[:, :2]
        return y


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = torch.tanh(self.fc(x))
        return y * 2


CASES = {**LAYERS, **ARITHMETIC, **STRUCTURE}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_torch(name: str, batch: int) -> None:
    module, shapes = CASES[name]
    agree(module(), *shapes, batch=batch)
