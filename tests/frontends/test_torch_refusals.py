"""What cannot be traced: each error names the op, the user's line, the reason and what to do instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from frontends.support import Fn, agree, inputs, refusal
from torch import nn

from heliograph.errors import ProgramError, UnsupportedError
from heliograph.frontends.torch.export import trace

X4 = (torch.zeros(1, 4),)
HIDING = torch.tensor([-torch.inf, 0, 0, 0])
IMAGE = (torch.zeros(1, 2, 6, 6),)


# (function on its own line, example, what the text must say: op, cause or hint)
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...], list[str]]] = {
    "topk": (lambda x: x.topk(2).values, X4, ["torch.topk", "gives 2 elements", "k=1"]),
    "sort": (lambda x: x.sort(-1).values, X4, ["torch.sort", "client"]),
    "median": (lambda x: x.median(-1).values, X4, ["torch.median", "client"]),
    "equal": (lambda x: (x == 1).float(), X4, ["comparison (==)", "torch.abs(x - y) < gap"]),
    "not_equal": (lambda x: (x != 1).float(), X4, ["comparison (!=)", "torch.abs(x - y) > gap"]),
    "to_bool": (lambda x: x.bool(), X4, ["torch.bool", "x > threshold"]),
    "flag_to_byte": (lambda x: (x > 0).byte(), X4, ["torch.uint8", "wraps"]),
    "not_of_number": (lambda x: torch.logical_not(x), X4, ["true or false", "compare first"]),
    "and_of_number": (lambda x: torch.logical_and(x > 0, x), X4, ["torch.float32 values as true or false"]),
    "or_of_places": (lambda x: x.argmax(-1) | x.argmin(-1), X4, ["operator |", "torch.int64 values as true or false"]),
    "write_under_mask": (
        lambda x: (x * 1).index_put_((x > 0,), -x[x > 0]),
        X4,
        ["depends on the values of the input", "torch.where(mask, value, x)"],
    ),
    "write_into_flags": (
        lambda x: (x > 0).copy_(x),
        X4,
        ["writes torch.float32 values into a tensor of torch.bool", ".float()"],
    ),
    "lookup_at_maximum": (lambda x: torch.eye(4)[x.argmax(-1)], X4, ["index", "F.one_hot(x.argmax(dim), n)"]),
    "where_lists": (lambda x: torch.where(x > 0), X4, ["lists the places", "torch.where(condition, x, y)"]),
    "where_infinite": (lambda x: torch.where(x > 0, x, -torch.inf), X4, ["infinite", "finite number"]),
    "mask_secret": (lambda x: x.masked_fill(x > 0, -torch.inf), X4, ["infinite", "depends on an input"]),
    "mask_returned": (
        lambda x: x.masked_fill(torch.tensor([True, False, False, False]), -torch.inf),
        X4,
        ["holds minus infinity", "on the client"],
    ),
    "mask_read": (
        lambda x: (x + torch.tensor([-torch.inf, 0, 0, 0])) * 2,
        X4,
        ["minus infinity", "before a softmax only", "finite number"],
    ),
    **{
        f"mask_read_by_{name}": (function, X4, ["minus infinity", "before a softmax only"])
        for name, function in {
            "clamp": lambda x: (x + HIDING).clamp(min=-50),
            "fill": lambda x: (x + HIDING).masked_fill(HIDING < 0, 0.0),
            "where": lambda x: torch.where(HIDING < 0, x, x + HIDING),
            "maximum": lambda x: torch.maximum(x + HIDING, -x),
            "max": lambda x: (x + HIDING).max(1).values,
            "sum": lambda x: (x + HIDING).sum(1),
            "comparison": lambda x: ((x + HIDING) > 0).float(),
        }.items()
    },
    "attention_secret_mask": (
        lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=x > 0),
        (torch.zeros(1, 4, 4),),
        ["mask depends on an encrypted input"],
    ),
    "gather_secret": (lambda x: x.gather(1, x.argmax(-1, keepdim=True)), X4, ["torch.gather", "look the vectors up"]),
    "floor": (lambda x: x.floor(), X4, ["torch.floor", "client"]),
    "zeta_of_two": (lambda x: torch.special.zeta(x + 2, x + 3), X4, ["zeta"]),
    "window_with_infinity": (lambda x: F.pad(x, (1, 1), value=-torch.inf), X4, ["infinite", "finite number"]),
    "scatter_by_sample": (
        lambda x: x.gather(1, torch.tensor([[0], [1]])),
        (torch.zeros(2, 4),),
        ["mixes samples"],
    ),
    "variance_of_one": (lambda x: x[:, :1].var(1), X4, ["divides by 1 - 1", "correction=0"]),
    "norm_of_order": (lambda x: torch.linalg.vector_norm(x, 3, dim=1), X4, ["order 3", "order 2 or 1"]),
    "product_of_all": (lambda x: x.prod(), X4, ["mixes samples", "x.flatten(1).prod(1)", "axis 0"]),
    "one_hot_of_number": (lambda x: F.one_hot((x > 0).long(), 2), X4, ["one_hot", "not the result of an argmax"]),
    "one_hot_few_classes": (lambda x: F.one_hot(x.argmax(-1), 3), X4, ["3 classes", "num_classes=4"]),
    "max_pool_indices": (
        lambda x: F.max_pool2d(x, 2, return_indices=True),
        IMAGE,
        ["torch.nn.functional.max_pool2d", "return_indices=True", "return_indices=False"],
    ),
    "layer_norm_weights": (
        lambda x: F.layer_norm(torch.ones(1, 4), (4,), x[0]),
        X4,
        ["mixes samples"],
    ),
    "complex_output": (lambda x: torch.fft.fft(x), X4, ["output 'y' is complex", "real and imaginary parts"]),
    "angle": (lambda x: torch.fft.fft(x).angle(), X4, ["torch.angle", "not linear"]),
    "divide_by_zero": (lambda x: x / torch.tensor([1.0, 0.0, 1.0, 1.0]), X4, ["divisor holds a zero"]),
    "floor_divide": (lambda x: torch.div(x, 2, rounding_mode="floor"), X4, ["rounding_mode='floor'"]),
    "gram_of_samples": (lambda x: x @ x.t(), X4, ["torch.matmul", "mixes samples", "(x * y).sum(-1)"]),
    "inner_of_samples": (
        lambda x: torch.inner(x[:, 0], x[:, 0]),
        IMAGE,
        ["torch.inner", "mixes samples"],
    ),
    "einsum_of_samples": (
        lambda x: torch.einsum("bi,ci->bc", x, x),
        X4,
        ["torch.einsum", "mixes samples", "'bij,bjk->bik'"],
    ),
    "einsum_over_samples": (lambda x: torch.einsum("bi->i", x), X4, ["torch.einsum mixes samples", "axis 0"]),
    "outer_of_samples": (
        lambda x: x.unsqueeze(0) @ x.unsqueeze(2),
        X4,
        ["torch.matmul", "mixes samples", "(x * y).sum(-1)"],
    ),
    "secret_weights": (lambda x: F.linear(torch.ones(3, 4), x), X4, ["weights depend on an input"]),
    "dropout": (lambda x: F.dropout(x, 0.5, True), X4, ["training mode", "model.eval()"]),
    "random": (lambda x: x + torch.rand(4), X4, ["torch.rand", "random", "register_buffer"]),
    "to_int": (lambda x: x.to(torch.int64), X4, ["torch.int64", "floating point"]),
    "complex": (lambda x: x * torch.tensor(1j), X4, ["complex", "real numbers"]),
    # Samples of the batch must not meet.
    "mean_of_all": (lambda x: x.mean(), X4, ["torch.mean mixes samples", "x.flatten(1).mean(1)", "axis 0"]),
    "max_of_all": (lambda x: x.max(), X4, ["torch.max mixes samples", "x.flatten(1).max(1)", "axis 0"]),
    "amax_over_batch": (lambda x: x.amax((0, 1)), X4, ["torch.amax mixes samples"]),
    "argmax_of_all": (lambda x: x.argmax(), X4, ["torch.argmax mixes samples", "x.flatten(1).argmax(1)"]),
    "argmin_over_batch": (lambda x: x.argmin(0), X4, ["torch.argmin mixes samples"]),
    "softmax_over_batch": (
        lambda x: torch.softmax(x, 0),
        X4,
        ["torch.softmax mixes samples", "torch.softmax(x, dim=-1)"],
    ),
    "where_misaligned": (
        lambda x: torch.where(x > 0, x.unsqueeze(1), x),
        X4,
        ["torch.where", "mixes samples", "unsqueeze(1)"],
    ),
    "sum_over_batch": (lambda x: x.sum(0), X4, ["mixes samples", "batch axis"]),
    "swallow": (lambda x: x.view(12, 6), IMAGE, ["mixes samples", "(12, 6)", "[12, 6]"]),
    "first_sample": (lambda x: x[0], X4, ["torch.select mixes samples", "x[:, 0]"]),
    "cat_batch": (lambda x: torch.cat([x, x]), X4, ["mixes samples", "(14, 4) for 7 samples"]),
    "gram": (lambda x: x.t() @ torch.ones(1, 3), X4, ["mixes samples", "reduction dim"]),
    "expand_batch": (lambda x: x.expand(3, 4), X4, ["Tensor.expand depends on the batch"]),
    "repeat_batch": (lambda x: x.repeat(3, 1), X4, ["mixes samples"]),
    "pad_batch": (lambda x: F.pad(x, (0, 0, 1, 0)), X4, ["torch.nn.functional.pad mixes samples"]),
    "batch_broadcast": (lambda x: x + torch.ones(3, 4), X4, ["torch.add depends on the batch"]),
    "misaligned": (lambda x: x + x.unsqueeze(1), X4, ["torch.add mixes samples", "unsqueeze(1)"]),
    "flip_batch": (lambda x: x.flip(0), X4, ["mixes samples"]),
    "batch_last": (lambda x: x.t(), X4, ["batch axis at position 1", "permute"]),
    # Control flow and shapes that depend on data.
    "branch": (lambda x: x if x.sum() > 0 else -x, X4, ["control flow depends on the values"]),
    "item": (lambda x: x * x[0, 0].item(), X4, ["mixes samples"]),
    "float": (lambda x: x * float(x.sum(-1)), X4, ["control flow depends on the values", "known only in a run"]),
    "mask": (lambda x: x[x.detach() * 0 == 0], X4, ["comparison (==)"]),
    "cond": (
        lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
        X4,
        ["control flow depends on the values"],
    ),
    # State.
    "write_input": (lambda x: x.mul_(2), X4, ["writes to an input in place", "x = x + 1"]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_is_refused_at_the_users_line(name: str) -> None:
    function, example, words = FUNCTIONS[name]
    error = refusal(Fn(function), *example)
    text = str(error)
    for word in words:
        assert word in text, text
    assert error.hint or "divisor" in text
    assert error.where.split(" ")[0].endswith(f"test_torch_refusals.py:{function.__code__.co_firstlineno}"), text


class WithLayer(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(layer)

    def forward(self, x: torch.Tensor) -> Any:
        return self.block(x)


FORWARD_LINE = inspect.getsourcelines(WithLayer.forward)[1] + 1

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], list[str]]] = {
    "untracked": (
        lambda: nn.BatchNorm1d(4, track_running_stats=False),
        (2, 4),
        ["statistics of the batch", "track_running_stats=True"],
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_module_is_refused_with_its_layer(name: str) -> None:
    layer, shape, words = MODULES[name]
    error = refusal(WithLayer(layer()).eval(), torch.zeros(shape))
    text = str(error)
    assert f"test_torch_refusals.py:{FORWARD_LINE} (block.0" in error.where
    for word in words:
        assert word in text, text
    assert error.hint


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_training_batch_norm(kind: type[nn.Module], batch: int) -> None:
    shape = (batch, 4) if kind is nn.BatchNorm1d else (batch, 4, 2, 2)
    module = WithLayer(kind(4))
    error = refusal(module, torch.zeros(shape))
    assert "training mode" in str(error)
    assert "statistics of the batch" in error.why
    assert "model.eval()" in error.hint
    assert "block.0" in str(error)
    assert f"test_torch_refusals.py:{FORWARD_LINE}" in error.where
    norm = module.block[0]
    assert int(norm.num_batches_tracked) == 0
    assert module.training


def test_training_dropout_module() -> None:
    error = refusal(WithLayer(nn.Dropout()), torch.zeros(1, 4))
    assert "it is in training mode" in error.why
    assert "(block.0)" in error.where


def test_training_flag_alone_does_not_matter() -> None:
    assert trace(WithLayer(nn.Linear(4, 2)), torch.zeros(1, 4)).nodes[-1].op == "linear"


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.count


def test_buffer_written_in_place() -> None:
    module = Counter()
    error = refusal(module, torch.zeros(1, 4))
    assert "writes to a buffer or parameter in place: 'count'" in str(error)
    assert f":{inspect.getsourcelines(Counter.forward)[1] + 1}" in error.where
    assert torch.equal(module.count, torch.zeros(4))


def test_integer_input() -> None:
    error = refusal(Fn(lambda x: (x * 2).float()), torch.zeros(1, 2, dtype=torch.int64))
    assert "input 'args_0' holds int64 values" in str(error)
    assert "client" in error.hint


def test_complex_input_and_constant() -> None:
    assert "input 'args_0' is complex" in str(refusal(Fn(lambda x: x), torch.zeros(1, 2, dtype=torch.complex64)))


def test_dynamic_shapes() -> None:
    exported = torch.export.export(
        nn.Linear(3, 2), (torch.zeros(2, 3),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    with pytest.raises(UnsupportedError, match="input 'input' has a dynamic shape") as caught:
        trace(exported, torch.zeros(2, 3))
    assert "dynamic_shapes" in caught.value.hint


def test_unknown_op_hints_at_rules() -> None:
    error = refusal(Fn(lambda x: torch.linalg.matrix_exp(x)), torch.zeros(1, 3, 3))
    assert "there is no rule for aten.linalg_matrix_exp" in error.why
    assert "register a rule" in error.hint


def test_no_batch_axis() -> None:
    error = refusal(nn.Conv2d(2, 3, 3), torch.zeros(2, 6, 6))
    assert "has no batch axis" in error.why
    assert "unsqueeze(0)" in error.hint
    assert "mixes samples" in str(refusal(nn.Linear(4, 2), torch.zeros(4)))
    error = refusal(nn.Linear(4, 2), torch.zeros(()), kind=ProgramError)
    assert "example_input 0 has no axes" in str(error)


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (None, "trace needs example_input"),
        ("text", "example_input 0 is str"),
        ((torch.zeros(1, 4), [1.0]), "example_input 1 is list"),
        (torch.zeros(0, 4), "holds no element"),
        (torch.zeros(1, 5), "the model cannot be run on example_input"),
        ((torch.zeros(1, 4), torch.zeros(1, 4)), "the model cannot be run on example_input"),
    ],
)
def test_bad_example(example: Any, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        trace(nn.Linear(4, 2), example)


@pytest.mark.parametrize("weights", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("given", [torch.float32, torch.float64, torch.float16])
def test_examples_take_the_precision_of_the_weights(weights: torch.dtype, given: torch.dtype) -> None:
    module = nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)).eval()
    wanted = trace(module, torch.zeros(1, 1, 4), input_range=(-1, 1))
    program = trace(module.to(weights), torch.zeros(1, 1, 4, dtype=given), input_range=(-1, 1))
    assert [node.op for node in program.nodes] == [node.op for node in wanted.nodes]


def test_examples_of_whole_numbers_are_refused_in_words() -> None:
    pixels = torch.zeros(1, 1, 4, 4, dtype=torch.uint8)
    for module in (nn.Linear(4, 2), nn.Conv2d(1, 1, 3), nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.ReLU())):
        error = refusal(module, pixels, kind=ProgramError)
        assert "uint8" in error.what
        assert "give floating-point values" in error.hint
    mixed = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 2).double())
    error = refusal(mixed, pixels, kind=ProgramError)
    assert "it holds uint8, the weights are float32 and float64" in error.what
    assert "model.float()" in error.hint


def test_calibration_may_hold_bytes() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 4), dtype=np.uint8)
    for samples in (pixels, torch.from_numpy(pixels)):
        program = trace(nn.Linear(4, 2), torch.zeros(1, 4), calibration=samples)
        assert program.inputs[0].attrs["high"] == pixels.max()


def test_missing_arguments_are_located_in_the_users_file() -> None:
    """Not in the module of Python that compares arguments with signatures."""
    with pytest.raises(ProgramError) as caught:
        trace(nn.Bilinear(4, 4, 2), X4)
    assert "missing a required argument" in caught.value.why
    assert "inspect.py" not in str(caught.value)
    assert "test_torch_refusals.py" in caught.value.where


def test_a_batch_size_used_as_a_number_is_refused() -> None:
    for function in (lambda x: x / x.size(0), lambda x: x * (0.5 * len(x)), lambda x: x.sum(1) + x.shape[0]):
        for batch in (1, 5):
            error = refusal(Fn(function), torch.zeros(batch, 4))
            assert "depends on the batch" in error.what
            assert "test_torch_refusals.py" in error.where
    kept = (
        lambda x: x / x.size(1) + 1,
        lambda x: (x.view(x.size(0), -1) - 1) * 0.5,
        lambda x: x + torch.zeros(x.size(0), 4, dtype=x.dtype) * 2,
    )
    for function in kept:
        agree(Fn(function), (4,))
    fixed = Fn(lambda x: x.view(1, 4) * 2)  # a model for one sample only
    assert trace(fixed, torch.zeros(1, 4), input_range=(-1, 1)).inputs


class Standardised(nn.Conv2d):
    """A convolution whose weights are normalized anew in each call, as in BiT and NFNet."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True, momentum=0.0, eps=1e-8).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias)


def test_standardised_weights_are_no_batch_norm_in_training() -> None:
    agree(nn.Sequential(Standardised(2, 3, 3), nn.ReLU()), (2, 4, 4))
    agree(nn.Sequential(Standardised(2, 3, 3), nn.ReLU(inplace=True)), (2, 4, 4))


def test_error_of_the_model_is_shown_with_its_line() -> None:
    error = refusal(Fn(lambda x: x.view(7)), *X4, kind=ProgramError)
    assert "shape '[7]' is invalid" in error.why
    assert f"test_torch_refusals.py:{inspect.currentframe().f_lineno - 2}" in error.where  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_torchscript() -> None:
    error = refusal(WithLayer(torch.jit.trace(nn.Linear(4, 2), X4[0])), *X4, kind=ProgramError)
    assert "TorchScript" in str(error)


def test_onnx() -> None:
    with pytest.raises(ProgramError, match="ONNX files are not read: trace the PyTorch module"):
        trace("model.onnx")  # type: ignore[arg-type]


def test_failures_leave_no_noise(capfd: pytest.CaptureFixture[str]) -> None:
    def loop(x: torch.Tensor) -> torch.Tensor:
        while x.sum() > 1:
            x = x / 2
        return x

    refusal(Fn(loop), *X4)
    refusal(nn.Linear(5, 2), *X4, kind=ProgramError)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_not_a_module() -> None:
    with pytest.raises(ProgramError, match=r"trace takes a torch\.nn\.Module"):
        trace(lambda x: x, torch.zeros(1, 3))  # type: ignore[arg-type]


def test_batch_sizes_differ() -> None:
    error = refusal(Fn(lambda x, y: (x, y)), torch.zeros(1, 3), torch.zeros(2, 3), kind=ProgramError)
    assert "different batch sizes" in str(error)


def test_constant_output() -> None:
    error = refusal(Fn(lambda x: (x, torch.ones(3))), torch.zeros(1, 3), kind=ProgramError)
    assert "output 'y1' does not depend on an input" in str(error)


# ---------------------------------------------------------------------------------------------- parameters, forms


def test_parameters_without_values() -> None:
    error = refusal(nn.Sequential(nn.LazyLinear(3)), *X4, kind=ProgramError)
    assert "parameter '0.weight' has no values yet" in str(error)
    with torch.device("meta"):
        module = nn.Linear(4, 2)
    assert "parameter 'weight' has no values yet" in str(refusal(module, *X4, kind=ProgramError))


def test_parameters_that_are_not_finite() -> None:
    module = WithLayer(nn.Linear(4, 2))
    nn.init.constant_(module.block[0].weight, float("nan"))
    error = refusal(module, *X4, kind=ProgramError)
    assert "constant block.0.weight holds NaN or infinity" in str(error)
    assert "diverged" in error.hint
    assert f":{FORWARD_LINE} (block.0)" in error.where


def test_decomposed_program_hints_at_the_module() -> None:
    exported = torch.export.export(Fn(lambda x: x.sort(-1).values), X4).run_decompositions()
    with pytest.raises(UnsupportedError, match="trace the module itself"):
        trace(exported)


# (what has no rule, what the hint says to write instead)
REWRITES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "lookup": (
        lambda x: torch.eye(6, dtype=x.dtype)[x.argmax(1)],
        lambda x: F.one_hot(x.argmax(1), 6).double() @ torch.eye(6, dtype=x.dtype),
    ),
    "write_under_mask": (
        lambda x: (x * 1).index_put_((x > 0,), -x[x > 0]),
        lambda x: torch.where(x > 0, -x, x * 1),
    ),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", REWRITES)
def test_what_a_hint_says_to_write_is_the_same_and_traces(name: str, batch: int) -> None:
    refused, rewritten = REWRITES[name]
    x = inputs([(6,)], batch)[0]
    assert refusal(Fn(refused), x).hint
    torch.testing.assert_close(rewritten(x), refused(x))
    agree(Fn(rewritten), (6,), batch=batch)


@dataclass
class Scores:
    scores: torch.Tensor


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: Scores(x * 2), ["type of its own", "tuple, list or dict"]),
        (lambda x: torch.from_numpy(x.detach().numpy() * 2), ["leaves torch for numpy", "torch's functions"]),
        (lambda x: x + torch.randn_like(x), ["draws random numbers", "register_buffer"]),
        (
            lambda x: torch.linalg.solve(x.reshape(-1, 2, 2), x[:, :2, None]).squeeze(-1),
            ["torch.linalg.solve", "on the client"],
        ),
    ],
)
def test_what_export_stops_at_is_refused_in_words(function: Callable[..., Any], words: list[str]) -> None:
    text = str(refusal(Fn(function), torch.ones(1, 4)))
    for word in words:
        assert word in text


# ---------------------------------------------------------------------------------------------- true reasons


REASONS: dict[str, tuple[Callable[..., Any], str, str]] = {
    "sum in int32": (lambda x: x.sum(1, dtype=torch.int32), "torch.sum", "rounds the values or wraps their sum"),
    "sum in int8": (lambda x: (x > 0).sum(1, dtype=torch.int8), "torch.sum", "wraps their sum around"),
    "generator": (
        lambda x: x + torch.randn(4, generator=torch.Generator().manual_seed(0)),
        "random numbers with a generator of its own",
        "the same answer each time",
    ),
    "atan2": (lambda x: torch.atan2(x[:, 0], x[:, 1]), "torch.atan2", "two of its operands depend on inputs"),
    "copysign": (lambda x: torch.copysign(x[:, 0], x[:, 1]), "torch.copysign", "two of its operands"),
    "covariance": (lambda x: torch.cov(x.T), "compares whole tensors", "equal"),
    "norm": (lambda x: torch.norm(x, p=3, dim=1), "torch.norm", "order 3"),
    "frexp": (lambda x: torch.frexp(x)[0], "torch.frexp", "several values for each element"),
}


@pytest.mark.parametrize("name", REASONS)
def test_refusals_name_the_true_reason(name: str) -> None:
    function, what, why = REASONS[name]
    with pytest.raises(UnsupportedError) as refused:
        trace(Fn(function), calibration=torch.randn(40, 4))
    assert what in refused.value.what
    assert why in refused.value.why
