"""The three general ways in, on random operands: what torch decomposes, what is linear, functions of one value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from frontends.support import Fn, agree, ops
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from heliograph import functions
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.errors import UnsupportedError
from heliograph.frontends.torch import export as torch_export
from heliograph.frontends.torch.values import RULES
from heliograph.frontends.torch.ways.decompose import decompositions
from heliograph.frontends.torch.ways.linear import LINEAR
from heliograph.frontends.torch.ways.pointwise import POINTWISE, corners
from heliograph.interpret import interpret_batch
from heliograph.ir import Stage
from heliograph.ir.maps.kronecker import KroneckerMatrix
from heliograph.tools.simulate import simulate

BATCHES = st.sampled_from([1, 3])
Draw = Callable[[Any], Any]

# ---------------------------------------------------------------------------------------------- linear in one operand


def _places(draw: Draw, count: int, of: int) -> torch.Tensor:
    return torch.tensor(draw(st.lists(st.integers(0, of - 1), min_size=count, max_size=count)))


def _image(draw: Draw, low: int = 2, high: int = 5) -> tuple[int, int, int]:
    return draw(st.integers(1, 3)), draw(st.integers(low, high)), draw(st.integers(low, high))


def _padded(mode: str) -> Callable[[Draw], tuple[Any, tuple[int, ...]]]:
    def case(draw: Draw) -> tuple[Any, tuple[int, ...]]:
        widths = draw(st.lists(st.integers(0, 1), min_size=4, max_size=4))
        return (lambda x: F.pad(x, widths, mode=mode)), _image(draw)

    return case


def _upsampled(mode: str, **options: Any) -> Callable[[Draw], tuple[Any, tuple[int, ...]]]:
    def case(draw: Draw) -> tuple[Any, tuple[int, ...]]:
        size = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
        return (lambda x: F.interpolate(x, size=size, mode=mode, **options)), _image(draw)

    return case


def _gathered(draw: Draw) -> tuple[Any, tuple[int, ...]]:
    rows, columns, taken = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    index = _places(draw, rows * taken, columns).reshape(1, rows, taken)
    return (lambda x: x.gather(2, index.expand(x.size(0), -1, -1))), (rows, columns)


def _indexed(draw: Draw) -> tuple[Any, tuple[int, ...]]:
    rows, columns, taken = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    first, second = _places(draw, taken, rows), _places(draw, taken, columns)
    return (lambda x: x[:, first, second]), (rows, columns)


def _windows(draw: Draw) -> tuple[Any, tuple[int, ...]]:
    size, step, length = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(3, 9))
    return (lambda x: x.unfold(2, size, step)), (2, length)


def _shuffled(draw: Draw) -> tuple[Any, tuple[int, ...]]:
    return nn.ChannelShuffle(2), (4, draw(st.integers(1, 3)), draw(st.integers(1, 3)))


def _transposed(draw: Draw) -> tuple[Any, tuple[int, ...]]:
    groups, stride = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    layer = nn.ConvTranspose2d(
        2 * groups,
        3 * groups,
        draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        stride=stride,
        padding=draw(st.integers(0, 1)),
        output_padding=draw(st.integers(0, stride - 1)),
        groups=groups,
        bias=draw(st.booleans()),
    )
    return layer, (2 * groups, draw(st.integers(3, 4)), draw(st.integers(3, 4)))


def _pooled(draw: Draw) -> tuple[Any, tuple[int, ...]]:
    kernel = draw(st.integers(2, 3))
    counts = draw(st.booleans())
    layer = nn.AvgPool2d(kernel, draw(st.integers(1, 3)), kernel // 2, ceil_mode=True, count_include_pad=counts)
    return layer, _image(draw, 3, 6)


def _along(function: Callable[..., Any]) -> Callable[[Draw], tuple[Any, tuple[int, ...]]]:
    return lambda draw: ((lambda x: function(x)), (draw(st.integers(1, 4)), draw(st.integers(2, 9))))


LINEAR_CASES: dict[str, Callable[[Draw], tuple[Any, tuple[int, ...]]]] = {
    "reflect": _padded("reflect"),
    "replicate": _padded("replicate"),
    "circular": _padded("circular"),
    "constant": lambda draw: (nn.ConstantPad2d(draw(st.integers(0, 2)), draw(st.floats(-3, 3))), _image(draw)),
    "nearest": _upsampled("nearest"),
    "nearest_exact": _upsampled("nearest-exact"),
    "bilinear": _upsampled("bilinear"),
    "bilinear_corners": _upsampled("bilinear", align_corners=True),
    "bicubic": _upsampled("bicubic"),
    "gather": _gathered,
    "index": _indexed,
    "windows": _windows,
    "unfold": lambda draw: (nn.Unfold(2, padding=draw(st.integers(0, 1))), _image(draw)),
    "fold": lambda draw: (nn.Fold((4, 6), 2, stride=draw(st.sampled_from([2]))), (4 * draw(st.integers(1, 2)), 6)),
    "cumsum": _along(lambda x: x.cumsum(-1)),
    "diff": _along(lambda x: x.diff(dim=-1)),
    "flip": _along(lambda x: x.flip(1, 2)),
    "roll": _along(lambda x: torch.roll(x, (1, -2), (1, 2))),
    "tril": _along(lambda x: x.tril() + x.triu(1)),
    "diagonal": _along(lambda x: x.diagonal(dim1=-2, dim2=-1)),
    "diagonal_matrix": _along(lambda x: torch.diag_embed(x)),
    "trace": lambda draw: ((lambda x: torch.einsum("bii->b", x)[:, None]), (draw(st.integers(1, 4)),) * 2),
    "rotate": _along(lambda x: x.rot90(1, (1, 2))),
    "repeat_each": _along(lambda x: x.repeat_interleave(3, -1)),
    "scatter": _along(lambda x: torch.zeros_like(x).scatter_add(2, torch.zeros_like(x).long(), x)),
    "pixel_shuffle": lambda draw: (nn.PixelShuffle(2), (4 * draw(st.integers(1, 2)), draw(st.integers(1, 3)), 2)),
    "pixel_unshuffle": lambda draw: (nn.PixelUnshuffle(2), (draw(st.integers(1, 2)), 2 * draw(st.integers(1, 2)), 4)),
    "channel_shuffle": _shuffled,
    "transposed": _transposed,
    "ceil_pool": _pooled,
    "adaptive_pool": lambda draw: (nn.AdaptiveAvgPool2d(draw(st.integers(1, 4))), _image(draw)),
}


@pytest.mark.parametrize("name", LINEAR_CASES)
@settings(max_examples=8, deadline=None)
@given(data=st.data(), batch=BATCHES)
def test_what_is_linear_agrees_with_torch(name: str, data: st.DataObject, batch: int) -> None:
    module, shape = LINEAR_CASES[name](data.draw)
    agree(module if isinstance(module, nn.Module) else Fn(module), shape, batch=batch)


def test_maps_of_images_keep_their_small_form() -> None:
    for module in (
        nn.ReflectionPad2d(2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AvgPool2d(3, 2, ceil_mode=True),
    ):
        program = agree(module, (3, 8, 8))
        (name,) = program.nodes[-1].attrs["matrices"]
        assert isinstance(program.constants[name], KroneckerMatrix)


def test_samples_that_an_op_would_mix_are_refused() -> None:
    index = torch.tensor([[0, 1], [2, 3], [3, 2]])
    with pytest.raises(UnsupportedError, match="mixes samples") as caught:
        torch_export.trace(Fn(lambda x: x.gather(1, index)), torch.zeros(3, 4))
    assert f"test_torch_general.py:{test_samples_that_an_op_would_mix_are_refused.__code__.co_firstlineno + 3}" in str(
        caught.value
    )


def test_what_is_not_linear_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.frontends.torch.ways.linear import linear_by_units

    monkeypatch.setitem(RULES, "aten.square", linear_by_units)
    with pytest.raises(UnsupportedError, match="it is not linear") as caught:
        torch_export.trace(Fn(lambda x: torch.square(x)), torch.zeros(1, 4))
    assert "test_torch_general.py" in str(caught.value)


# ---------------------------------------------------------------------------------------------- functions of one value

ONE_VALUE: dict[str, Callable[..., Any]] = {
    "elu": lambda x, a: F.elu(x, alpha=a),
    "selu": lambda x, a: torch.selu(x),
    "celu": lambda x, a: F.celu(x, alpha=a),
    "mish": lambda x, a: F.mish(x),
    "hardswish": lambda x, a: F.hardswish(x),
    "hardsigmoid": lambda x, a: F.hardsigmoid(x),
    "log_sigmoid": lambda x, a: F.logsigmoid(x),
    "softsign": lambda x, a: F.softsign(x),
    "tanhshrink": lambda x, a: F.tanhshrink(x),
    "hardshrink": lambda x, a: F.hardshrink(x, a),
    "softshrink": lambda x, a: F.softshrink(x, a),
    "threshold": lambda x, a: F.threshold(x, a, -a),
    "threshold_without_jump": lambda x, a: F.threshold(x, a, a),
    "rrelu": lambda x, a: F.rrelu(x),
    "glu": lambda x, a: F.glu(x, 1),
    "prelu": lambda x, a: F.prelu(x, torch.tensor([a, -a, 0.5, 1.0], dtype=x.dtype)),
    "expm1": lambda x, a: torch.expm1(x),
    "exp2": lambda x, a: torch.exp2(x),
    "log1p": lambda x, a: torch.log1p(x * x),
    "log2": lambda x, a: torch.log2(x * x + a),
    "atan": lambda x, a: torch.atan(x),
    "sinh": lambda x, a: torch.sinh(x),
    "erfc": lambda x, a: torch.erfc(x),
    "ndtr": lambda x, a: torch.special.ndtr(x),
    "bessel": lambda x, a: torch.special.bessel_j0(x),
    "airy": lambda x, a: torch.special.airy_ai(x),  # in no table: torch says that it works element by element
    "power": lambda x, a: (x * x + 1) ** a,
    "of_base": lambda x, a: (1 + a) ** x,
    "written_out": lambda x, a: a * x * torch.tanh(F.softplus(x)),
    "chosen": lambda x, a: torch.where(x > 0, x, a * (torch.exp(x) - 1)),
}


@pytest.mark.parametrize("name", ONE_VALUE)
@settings(max_examples=5, deadline=None)
@given(number=st.floats(0.1, 2.0).map(lambda x: round(x, 3)), batch=BATCHES)
def test_functions_of_one_value_agree_with_torch(name: str, number: float, batch: int) -> None:
    agree(Fn(lambda x: ONE_VALUE[name](x, number)), (4,), batch=batch)


@pytest.mark.parametrize("name", POINTWISE)
def test_every_function_of_the_table_is_that_of_torch(name: str) -> None:
    target = getattr(torch.ops.aten, name)
    x = torch.rand(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.5 + 0.4
    x = x + 1 if name == "acosh" else x
    module = Fn(target)
    program = torch_export.trace(module, x[:1], input_range=(0, 2))
    np.testing.assert_allclose(interpret_batch(program, x.numpy())[0], target(x), rtol=1e-12)


# Functions with poles, and such that torch makes of two pieces which do not quite meet.
UNEVEN = {"tan", "lgamma", "digamma", "special_bessel_j0", "special_bessel_j1", "rrelu"}


@pytest.mark.parametrize(
    "name", [name for name, points in POINTWISE.items() if points is not None and name not in UNEVEN]
)
def test_corners_of_the_table_are_those_that_are_found(name: str) -> None:
    target = getattr(torch.ops.aten, name)

    def evaluate(x: Any) -> Any:
        return target(torch.tensor(x, dtype=torch.float64)).numpy()

    boundary = POINTWISE[name]
    assert boundary is not None
    expected = sorted(boundary())
    reach = 32.0 if np.isfinite(evaluate(np.linspace(-32, 32, 65))).all() else 0.9
    assert corners(evaluate, reach) == (pytest.approx(expected, abs=1e-3), False)


@pytest.mark.parametrize("module", [torch.nn.Hardshrink(0.5), torch.nn.Threshold(0.25, -1.0)])
def test_functions_that_jump_are_comparisons(module: torch.nn.Module) -> None:
    x = torch.linspace(-3, 3, 256).reshape(32, 8)
    # A comparison is undecided near its threshold.
    x = torch.where(((x.abs() - 0.5).abs() > 0.08) & ((x - 0.25).abs() > 0.08), x, 1.0)
    program = torch_export.trace(module, x[:1], calibration=x)
    assert {node.op for node in program.nodes} & {"gt", "lt"}
    polynomial: list[Any] = []
    compile(program, Options(security_bits=None), watch=lambda _, made: polynomial.append(made))
    made = next(program for program in reversed(polynomial) if program.stage is Stage.POLYNOMIAL)
    error = interpret_batch(made, x.double().numpy())[0] - module(x).numpy()
    assert np.abs(error).max() < 1e-2


def test_a_logarithm_of_a_sum_stays_above_zero() -> None:
    x = torch.randn(128, 8, generator=torch.Generator().manual_seed(1))
    program = torch_export.trace(Fn(lambda x: torch.logsumexp(x, 1)), x[:1], calibration=x)
    artifact = compile(program, Options(security_bits=None))
    assert simulate(artifact, x[0]) == pytest.approx(float(torch.logsumexp(x[0], 0)), abs=1e-2)


def test_a_cusp_takes_a_higher_degree() -> None:
    x = torch.randn(128, 8, generator=torch.Generator().manual_seed(1))
    degrees = []
    for function in (lambda x: (x.abs() + 0.1) ** 0.3, torch.relu):
        program = torch_export.trace(Fn(function), x[:1], calibration=x)
        artifact = compile(program, Options(security_bits=None))
        degrees += [entry["degree"] for entry in artifact.report.to_dict()["ranges"]]
    assert degrees == [31, 15]


@settings(max_examples=30, deadline=None)
@given(point=st.floats(-20, 20), jump=st.floats(0.05, 5))
def test_corners_are_found(point: float, jump: float) -> None:
    found = corners(lambda x: np.sin(x) + jump * np.maximum(x - point, 0.0))
    assert found == (pytest.approx([point], abs=1e-3), False)
    assert corners(np.sin) == corners(np.tanh) == ((), False)


@settings(max_examples=30, deadline=None)
@given(point=st.floats(-9e3, 9e3), jump=st.floats(10, 1e3), bend=st.floats(-2, 2))
def test_jumps_are_found_as_far_as_values_reach(point: float, jump: float, bend: float) -> None:
    found, jumps = corners(lambda x: np.sin(x) + (jump + bend * (x - point)) * (x > point), 16384.0)
    assert jumps
    assert min(abs(place - point) for place in found) < 1e-3


def test_jumps_close_to_each_other_are_found() -> None:
    found, jumps = corners(lambda x: 1.0 * (x > 1e-3) + 1.0 * (x > 2e-3))
    assert jumps
    assert found == pytest.approx((1e-3, 2e-3), abs=1e-6)


def test_a_function_of_several_ops_is_one_activation() -> None:
    class Gate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * torch.tanh(F.softplus(x))

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient

    for function in (lambda x: Gate.apply(x), lambda x: x * torch.tanh(F.softplus(x))):
        (name,) = ops(agree(Fn(function), (4,)))
        assert name.startswith("torch_function_")
        assert functions.known(name) is not None
    same = ops(agree(Fn(lambda x: x * torch.tanh(F.softplus(x))), (7,)))
    assert same == [name]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: torch.where(x > 0, 1.0, -1.0), ["gt", "where"]),  # it jumps
        (lambda x: x + torch.relu(x), ["relu", "add"]),  # one function, no product
        (lambda x: x / (x + 5), ["add", "div"]),  # not finite everywhere
        (lambda x: (lambda h: h * h + h)(torch.relu(x)).sum(-1, keepdim=True) + torch.relu(x), None),
    ],
)
def test_what_is_better_left_alone(function: Callable[..., Any], expected: list[str] | None) -> None:
    found = ops(agree(Fn(function), (4,)))
    assert found == expected if expected else sum(name.startswith("torch_function") for name in found) <= 1


def test_a_part_that_others_read_is_not_computed_twice() -> None:
    found = ops(agree(Fn(lambda x: (lambda h: (h, h * h))(torch.tanh(x))), (4,)))
    assert found == ["tanh", "mul"]


# ---------------------------------------------------------------------------------------------- decompositions


class First(nn.Module):
    """What a layer returns first, as users of recurrent layers write it."""

    def __init__(self, layer: nn.Module, last: bool = False) -> None:
        super().__init__()
        self.layer, self.last = layer, last

    def forward(self, *args: torch.Tensor) -> Any:
        out = self.layer(*args)[0]
        return out[:, -1] if self.last else out


DECOMPOSED: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "rms_norm": (lambda: nn.RMSNorm(4), ((3, 4),)),
    "normalize": (lambda: Fn(lambda x: F.normalize(x, dim=-1)), ((3, 4),)),
    "cosine": (lambda: Fn(lambda x, y: F.cosine_similarity(x, y, dim=-1)), ((3, 4), (3, 4))),
    "pairwise": (lambda: nn.PairwiseDistance(), ((4,), (4,))),
    "rnn": (lambda: First(nn.RNN(3, 4, batch_first=True)), ((3, 3),)),
    "rnn_relu": (lambda: First(nn.RNN(3, 4, 2, nonlinearity="relu", batch_first=True), last=True), ((3, 3),)),
    "lstm": (lambda: First(nn.LSTM(3, 4, batch_first=True)), ((3, 3),)),
    "lstm_both_ways": (lambda: First(nn.LSTM(3, 4, batch_first=True, bidirectional=True), last=True), ((3, 3),)),
    "gru": (lambda: First(nn.GRU(3, 4, 2, batch_first=True, bidirectional=True)), ((3, 3),)),
    "gru_state": (lambda: Fn(lambda x, h: torch.gru_cell(x, h, *GRU)), ((3,), (4,))),
    "gru_cell": (lambda: nn.GRUCell(3, 4), ((3,),)),
    "lstm_cell": (lambda: First(nn.LSTMCell(3, 4)), ((3,),)),
    "bilinear": (lambda: nn.Bilinear(3, 4, 2), ((3,), (4,))),
    "tensordot": (lambda: Fn(lambda x: torch.tensordot(x, torch.ones(4, 3, dtype=x.dtype), 1)), ((3, 4),)),
    "local_response": (lambda: nn.LocalResponseNorm(2), ((4, 3, 3),)),
}
GRU = tuple(
    torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for shape in ((12, 3), (12, 4), (12,), (12,))
)


FILTER = torch.randn(5, generator=torch.Generator().manual_seed(2), dtype=torch.complex128)
TURNS = torch.polar(torch.ones(4, 1, dtype=torch.float64), torch.arange(4.0, dtype=torch.float64)[:, None])

COMPLEX: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "real": (lambda x: torch.fft.fft(x).real, ((8,),)),
    "imag": (lambda x: torch.fft.ifft(x).imag, ((8,),)),
    "over_two_axes": (lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real, ((4, 3),)),
    "images": (lambda x: torch.fft.fft2(x).real, ((2, 4, 4),)),
    "power": (lambda x: torch.fft.rfft(x).abs() ** 2, ((8,),)),
    "size": (lambda x: torch.fft.rfft(x).abs(), ((8,),)),
    "filtered": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * FILTER, n=8), ((8,),)),
    "convolved": (lambda x, y: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(y), n=8), ((8,), (8,))),
    "scaled": (lambda x: (torch.fft.fft(x) * x).real, ((8,),)),
    "parts": (lambda x: torch.view_as_real(torch.fft.rfft(x)).flatten(1), ((8,),)),
    "conjugate": (lambda x: (torch.fft.fft(x).conj() * 2).imag, ((4,),)),
    "turned": (
        lambda x: torch.view_as_real(torch.view_as_complex(x.reshape(x.size(0), 4, 1, 2)) * TURNS).flatten(2),
        ((4, 2),),
    ),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_values_within_a_model_agree(name: str, batch: int) -> None:
    function, shapes = COMPLEX[name]
    agree(Fn(function), *shapes, batch=batch)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", DECOMPOSED)
def test_what_torch_decomposes_agrees(name: str, batch: int) -> None:
    module, shapes = DECOMPOSED[name]
    agree(module(), *shapes, batch=batch)


@settings(max_examples=12, deadline=None)
@given(
    kind=st.sampled_from([nn.RNN, nn.GRU, nn.LSTM]),
    width=st.integers(1, 4),
    hidden=st.integers(1, 4),
    layers=st.integers(1, 2),
    both=st.booleans(),
    biased=st.booleans(),
    length=st.integers(1, 3),
    batch=BATCHES,
)
def test_recurrent_layers_agree(
    kind: type[nn.Module], width: int, hidden: int, layers: int, both: bool, biased: bool, length: int, batch: int
) -> None:
    layer = kind(width, hidden, layers, batch_first=True, bidirectional=both, bias=biased)
    agree(First(layer), (length, width), batch=batch)


def test_a_decomposed_call_keeps_its_line_and_layer() -> None:
    program = agree(First(nn.RNN(3, 4, batch_first=True)), (2, 3))
    places = {node.loc.layer for node in program.nodes if node.op == "tanh"}
    assert all(layer.startswith("layer") for layer in places)
    assert all("test_torch_general.py" in str(node.loc) for node in program.nodes if node.op == "tanh")


# ---------------------------------------------------------------------------------------------- the tables


def test_no_op_is_in_two_tables() -> None:
    assert not set(LINEAR) & set(POINTWISE)
    known = {str(op).split(".")[1] for op in decompositions()}
    assert {"lstm", "gru", "rms_norm", "var"} <= known


class FourierLayer(nn.Module):
    """A layer of a Fourier neural operator: complex weights of single precision on the lowest frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.rand(2, 2, 3, dtype=torch.cfloat))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        transformed = torch.fft.rfft(x)
        out = torch.zeros(x.size(0), 2, x.size(-1) // 2 + 1, dtype=torch.cfloat)
        out[:, :, :3] = torch.einsum("bix,iox->box", transformed[:, :, :3], self.weights)
        return torch.fft.irfft(out, n=x.size(-1))


@pytest.mark.parametrize("batch", [1, 3])
def test_complex_weights_of_single_precision(batch: int) -> None:
    torch.manual_seed(0)
    net, x = FourierLayer().eval(), torch.randn(6, 2, 8)
    program = torch_export.trace(net, x[:batch])
    np.testing.assert_allclose(interpret_batch(program, x.numpy())[0], net(x).detach().numpy(), atol=1e-5)


def test_sparse_weights() -> None:
    adjacency = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]])
    net = Fn(lambda x, a: torch.sparse.mm(a, x.t()).t(), a=adjacency.to_sparse()).eval()
    x = torch.randn(4, 3)
    program = torch_export.trace(net, x)
    np.testing.assert_allclose(interpret_batch(program, x.numpy())[0], (x @ adjacency.t()).numpy(), atol=1e-6)
