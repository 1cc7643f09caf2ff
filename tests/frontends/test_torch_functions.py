"""Functions that are not polynomials, from torch: one case a form against torch, and what each becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from frontends.support import Fn, agree, ops
from torch import nn

from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.dsl.parse import parse
from heliograph.dsl.print import circuit, to_language
from heliograph.errors import ProgramError, UnsupportedError
from heliograph.frontends.torch.export import trace

V = torch.tensor([0.5, -0.25, 1.5, 0.0], dtype=torch.float64)
MASK = torch.tensor([True, False, True, False])

Case = tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]


def case(module: Callable[[], nn.Module], *shapes: tuple[int, ...]) -> Case:
    return module, shapes


def fn(function: Callable[..., object], *shapes: tuple[int, ...], **tensors: torch.Tensor) -> Case:
    return (lambda: Fn(function, **tensors)), shapes


def normalized(shape: Any, **options: bool) -> nn.Module:
    """A layer norm whose parameters are not the initial ones."""
    layer = nn.LayerNorm(shape, **options)
    for tensor in layer.parameters():
        nn.init.uniform_(tensor, -1, 1)
    return layer


def positive(x: torch.Tensor) -> torch.Tensor:
    return x * x + 0.5


FUNCTIONS: dict[str, Case] = {
    "sign": fn(lambda x: torch.sign(x) + x.sgn(), (4,)),
    "abs": fn(lambda x: x.abs() + torch.absolute(x), (4,)),
    "exp": fn(lambda x: torch.exp(x), (4,)),
    "reciprocal": fn(lambda x: torch.reciprocal(positive(x)), (4,)),
    "one_over": fn(lambda x: 1 / positive(x) + 3 / positive(x), (4,)),
    "sqrt": fn(lambda x: positive(x).sqrt(), (4,)),
    "rsqrt": fn(lambda x: torch.rsqrt(positive(x)), (4,)),
    "powers": fn(lambda x: positive(x) ** -1 + positive(x) ** 0.5 + positive(x).pow(-0.5), (4,)),
    "float_power": fn(lambda x: torch.float_power(positive(x), 0.5), (4,)),
    "div": fn(lambda x, y: x / positive(y)[:, None], (3, 4), (4,)),
    "div_of_constant": fn(lambda x, v: v / positive(x), (4,), v=V),
    "log": fn(lambda x: torch.log(positive(x)) + positive(x).log(), (4,)),
    "sin_and_cos": fn(lambda x: torch.sin(3 * x) + x.cos(), (4,)),
    "erf": fn(lambda x: torch.erf(x) + torch.special.erf(2 * x), (4,)),
    "relu6": fn(lambda x: F.relu6(4 * x), (4,)),
    "relu6_module": case(lambda: nn.ReLU6(), (4,)),
    "hardtanh": case(lambda: nn.Hardtanh(-0.5, 0.75), (4,)),
    "hardtanh_by_default": case(lambda: nn.Hardtanh(), (4,)),
    "clamp": fn(lambda x: x.clamp(-0.5, 0.25) + torch.clip(x, 0, 1), (4,)),
    "clamp_one_side": fn(lambda x: x.clamp(max=0.5) + x.clamp(min=-0.5) + x.clamp(min=0), (4,)),
    "clamp_min_max": fn(lambda x: torch.clamp_min(x, -0.5) + torch.clamp_max(x, 0.5), (4,)),
    "clamp_inplace": fn(lambda x: (x * 2).clamp_(-1, 1), (4,)),
    "clamp_crossed": fn(lambda x: x.clamp(1, -1), (4,)),
    "clamp_tensor": fn(lambda x, v: torch.clamp(x, min=-v.abs(), max=v.abs()), (4,), v=V),
    "clamp_by_value": fn(lambda x, y, v: torch.clamp(v, min=y, max=x + 3), (4,), (4,), v=V),
    "softmax": fn(lambda x: torch.softmax(x, -1) + F.softmax(x, 1), (3, 4)),
    "softmax_module": case(lambda: nn.Softmax(dim=1), (4,)),
    "softmax_dtype": fn(lambda x: F.softmax(x, -1, dtype=torch.float64) + torch.special.softmax(x, 1), (4,)),
    "softmin": fn(lambda x: F.softmin(x, 1), (4,)),
    "softmax2d": case(lambda: nn.Softmax2d(), (3, 2, 2)),
    "layer_norm": case(lambda: normalized(4), (4,)),
    "layer_norm_of_rows": case(lambda: normalized(4), (3, 4)),
    "layer_norm_axes": case(lambda: normalized((3, 4)), (2, 3, 4)),
    "layer_norm_no_bias": case(lambda: normalized(4, bias=False), (4,)),
    "layer_norm_plain": fn(lambda x: F.layer_norm(x, (3, 4), eps=0.1), (3, 4)),
    "native_layer_norm": fn(lambda x, v: torch.native_layer_norm(x, (4,), v, None, 1e-3)[0], (4,), v=V),
}

DECISIONS: dict[str, Case] = {
    "gt": fn(lambda x: (x > 0.1).double(), (4,)),
    "compare": fn(lambda x, y: (x > y, x >= y, x < y, x <= y), (3, 4), (3, 1)),
    "compare_methods": fn(lambda x, y: (x.gt(y), torch.ge(x, y), torch.less(x, y), x.le(0.25)), (4,), (4,)),
    "compare_constant": fn(lambda x, v: [x > v, v > x, x <= 0.1], (4,), v=V),
    "times_a_flag": fn(lambda x: (x > 0) * x + x * (x < 0.5), (4,)),
    "flag_arithmetic": fn(lambda x: 1 - (x > 0).to(x.dtype) + 2 * (x > 0.5), (4,)),
    "flag_casts": fn(lambda x: (x > 0).bool().int().long().to(torch.float32).type_as(x), (4,)),
    "count": fn(lambda x: (x > 0).sum(-1), (3, 4)),
    "share": fn(lambda x: (x > 0).float().mean(1), (4,)),
    "and_or_not": fn(lambda x: (((x > -0.5) & (x < 0.5)) | ~(x < 1)).float(), (4,)),
    "logical": fn(
        lambda x: torch.logical_or(torch.logical_and(x > 0, x < 1), torch.logical_not(x > -1)).double(), (4,)
    ),
    "xor": fn(lambda x: (x > 0) ^ torch.logical_xor(x > 1, x > -1), (4,)),
    "and_constant": fn(lambda x, m: (x > 0) & m | ~m & (x < 0), (4,), m=MASK),
    "and_numbers": fn(lambda x, v: torch.logical_and(x > 0, v), (4,), v=V),
    "sum_of_flags": fn(lambda x: (x > 0) + (x > 0.5), (4,)),
    "and_inplace": fn(lambda x: (x > 0).logical_and_(x < 1), (4,)),
    "where": fn(lambda x, y: torch.where(x > y, x, -y), (4,), (4,)),
    "where_numbers": fn(lambda x: torch.where(x > 0, x, 0.0) + torch.where(x > 0.5, 1.0, 2.0), (4,)),
    "where_constants": fn(lambda x, v, m: torch.where(m, x, 2 * x) + torch.where(x > 0, v, 1 - v), (4,), v=V, m=MASK),
    "where_broadcast": fn(lambda x, y: torch.where((x > 0)[:, None], y, 0.0), (4,), (3, 4)),
    "masked_fill": fn(lambda x, m: x.masked_fill(x < 0, 0.0) + x.masked_fill(m, -1), (4,), m=MASK),
    "maximum": fn(lambda x, y: torch.maximum(x, y) - torch.minimum(x, y), (3, 4), (1, 4)),
    "maximum_constant": fn(lambda x, v: torch.max(x, v) + torch.min(v, x) + torch.fmax(x, v), (4,), v=V),
}

EXTREMA: dict[str, Case] = {
    "max": fn(lambda x: x.max(-1).values + x.min(1)[0].sum(-1, keepdim=True), (3, 4)),
    "max_with_place": fn(lambda x: tuple(x.max(1)), (4,)),
    "min_with_place": fn(lambda x: torch.min(x, 2, keepdim=True), (3, 4)),
    "max_of_one": fn(lambda x: x.max(1).values * (1 + x.argmin(1)), (1, 4)),
    "amax": fn(lambda x: x.amax(1) + torch.amin(x, -2), (3, 4)),
    "amax_axes": fn(lambda x: (x.amax((1, 2)), x.amin((1, 3), keepdim=True), x.amax((-1, -2))), (2, 3, 4)),
    "aminmax": fn(lambda x: torch.aminmax(x, dim=1), (3, 4)),
    "amax_of_flags": fn(lambda x: (x > 1).amax(1), (4,)),
    "argmax": fn(lambda x: (x.argmax(-1), x.argmin(1), x.argmax(1, keepdim=True)), (3, 4)),
    "argmax_through_batch": fn(lambda x: x.transpose(0, 1).argmax(0), (4,)),
    "one_hot": fn(lambda x: F.one_hot(x.argmax(-1), 4), (4,)),
    "one_hot_first_axis": fn(lambda x: F.one_hot(x.argmax(1), 3).double() * 2, (3, 4)),
    "one_hot_keepdim": fn(lambda x: F.one_hot(x.argmax(1, keepdim=True), 3), (3, 4)),
    "one_hot_more_classes": fn(lambda x: F.one_hot(x.max(-1).indices, 6), (3, 4)),
    "one_hot_of_smallest": fn(lambda x: F.one_hot(x.argmin(-1), 4).to(x.dtype) * x, (4,)),
    "topk": fn(lambda x: x.topk(1).values + torch.topk(x, 1, dim=1, largest=False)[0].sum(-1, keepdim=True), (3, 4)),
    "topk_places": fn(lambda x: tuple(x.topk(1, 1)), (3, 4)),
    "max_pool1d": case(lambda: nn.MaxPool1d(3, stride=2, padding=1), (2, 8)),
    "max_pool2d": case(lambda: nn.MaxPool2d(2), (2, 4, 6)),
    "max_pool2d_dilated": case(lambda: nn.MaxPool2d((3, 2), stride=(2, 1), padding=1, dilation=(1, 2)), (2, 5, 6)),
    "max_pool2d_ceil_fits": case(lambda: nn.MaxPool2d(2, ceil_mode=True), (2, 4, 4)),
    "max_pool2d_values_of_two": fn(lambda x: F.max_pool2d(x, 2, return_indices=True)[0], (2, 4, 4)),
    "max_pool3d": case(lambda: nn.MaxPool3d(2), (1, 4, 2, 2)),
    "adaptive_max_pool1d": case(lambda: nn.AdaptiveMaxPool1d(3), (2, 6)),
    "adaptive_max_pool2d": case(lambda: nn.AdaptiveMaxPool2d((2, None)), (2, 3, 5)),
    "global_max_pool": case(lambda: nn.AdaptiveMaxPool2d(1), (2, 3, 5)),
}

CASES = {**FUNCTIONS, **DECISIONS, **EXTREMA}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_torch(name: str, batch: int) -> None:
    module, shapes = CASES[name]
    program = agree(module(), *shapes, batch=batch)
    # The language says the same.
    assert circuit(parse(to_language(program), parameters=program.constants)) == circuit(program)


# What a form becomes: one op where the table has one, and nothing of results that are not read.
FORMS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "reciprocal": (lambda x: 1 / x, ["reciprocal"]),
    "relu": (lambda x: x.clamp(min=0), ["relu"]),
    "relu6": (lambda x: F.hardtanh(x, 0, 6), ["relu6"]),
    "clamp": (lambda x: x.clamp(-1, 1), ["clamp"]),
    "hardtanh": (lambda x: F.hardtanh(x), ["hardtanh"]),
    "values": (lambda x: x.max(-1).values, ["max"]),
    "values_of_smallest": (lambda x: x.min(-1).values, ["min"]),
    "places": (lambda x: x.topk(1).indices, ["argmax", "reshape"]),
    "one_hot": (lambda x: F.one_hot(x.argmax(-1), 4).float(), ["argmax"]),
    "flag": (lambda x: (x > 0).float(), ["gt"]),
    "both": (lambda x: (x > 0) & (x < 1), ["gt", "lt", "mul"]),
    "divide": (lambda x: x / (x + 5), ["add", "div"]),
    "divide_by_number": (lambda x: x / 5, ["mul"]),
}


@pytest.mark.parametrize("name", FORMS)
def test_becomes(name: str) -> None:
    function, expected = FORMS[name]
    program = trace(Fn(function), torch.zeros(1, 4))
    assert ops(program) == expected
    if name == "one_hot":
        assert dict(program.nodes[-1].attrs) == {"axis": 0}


@pytest.mark.parametrize("read", [0, 1])
def test_only_what_has_no_rule_is_refused_of_two_results(read: int) -> None:
    """The maxima of a pooling have a rule, their places have none."""
    module = Fn(lambda x: F.max_pool2d(x, 2, return_indices=True)[read] * 1.0)
    if read == 0:
        assert ops(trace(module, torch.zeros(1, 2, 4, 4))) == ["max_pool"]
        return
    with pytest.raises(UnsupportedError, match="return_indices=True asks for the place"):
        trace(module, torch.zeros(1, 2, 4, 4))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.hypot(x[:, 0], x[:, 1]),
        lambda x: torch.logaddexp(x[:, 0], x[:, 1]),
        lambda x: torch.xlogy(x[:, 0], x[:, 1].abs() + 1),
    ],
    ids=["hypot", "logaddexp", "xlogy"],
)
def test_functions_of_two_values_written_out(function: Callable[..., Any]) -> None:
    agree(Fn(function), (4,), batch=2)


@pytest.mark.parametrize(
    "otherwise",
    [torch.zeros_like, lambda x: torch.full_like(x, 0.0), lambda x: torch.tensor(0.0, dtype=x.dtype), lambda x: 0.0],
    ids=["zeros_like", "full_like", "tensor", "number"],
)
def test_a_choice_of_a_function_and_a_number_is_one_function(otherwise: Callable[..., Any]) -> None:
    module = Fn(lambda x: torch.where(x > 0, torch.sqrt(x), otherwise(x)))
    assert len(ops(agree(module, (4,), batch=3))) == 1


def test_what_is_not_chosen_may_be_infinite() -> None:
    agree(Fn(lambda x: torch.where(x > 0.5, 1 / torch.relu(x), x)), (4,), batch=3)


def test_a_function_that_is_not_finite_where_it_is_not_chosen_is_refused_for_that() -> None:
    program = trace(Fn(lambda x: torch.where(x > 0, torch.sqrt(x), -1.0)), calibration=torch.randn(50, 4))
    with pytest.raises(ProgramError, match="sqrt gives NaN or infinity") as refused:
        compile(program, Options(security_bits=None))
    assert "also where another value is chosen" in refused.value.why
    clamped = Fn(lambda x: torch.where(x > 0, torch.sqrt(x.clamp(min=0.01)), -1.0))
    compile(trace(clamped, calibration=torch.randn(50, 4)), Options(security_bits=None))


@pytest.mark.parametrize(
    "function", [lambda x: torch.softmax(x, -1, dtype=torch.float16), lambda x: (x.half() * 2).float()]
)
def test_parts_in_half_precision_are_compared_by_that(function: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    program = trace(Fn(function), calibration=torch.randn(60, 4))
    assert program.comparison is not None
    assert 0 < program.comparison.difference <= 1e-3
