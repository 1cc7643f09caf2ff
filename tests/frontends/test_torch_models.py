"""Whole models: agreement with torch, golden texts, names, places, determinism, and the module left as it was."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from frontends.models import GeluResidual, ResNet, SmallCNN, TwoInputs, fill
from frontends.support import Fn, agree, inputs, ops
from torch import nn

import heliograph as hg
from heliograph.errors import HeliographError
from heliograph.frontends.torch.export import trace
from heliograph.interpret import interpret, interpret_batch
from heliograph.ir import Program, TensorType
from heliograph.ir.ops.table import OPS
from heliograph.ir.verify import verify

ROOT = Path(__file__).resolve().parents[2]
MODELS = "tests/frontends/models.py"


def line_of(owner: object, text: str) -> int:
    """The line of the models' file on which the text stands within the owner's source."""
    lines, start = inspect.getsourcelines(owner)  # type: ignore[arg-type]
    found = [start + i for i, line in enumerate(lines) if text in line]
    assert len(found) == 1, found
    return found[0]


def layers(program: Program, op: str) -> list[str]:
    return [node.loc.layer for node in program.nodes if node.op == op]


@pytest.mark.front
@pytest.mark.parametrize("batch", [1, 2])
def test_models_agree_with_torch(batch: int) -> None:
    agree(fill(SmallCNN()), (1, 7, 7), batch=batch)
    agree(fill(GeluResidual()), (6,), batch=batch)


@pytest.mark.parametrize("batch", [1, 3])
def test_resnet_with_parameter_free_shortcut(batch: int) -> None:
    torch.manual_seed(3)
    program = agree(ResNet(blocks=2, widths=(2, 4, 8)), (3, 8, 8), batch=batch)
    kinds = ops(program)
    assert kinds.count("conv") == 13
    assert kinds.count("relu") == 13
    assert kinds.count("pad") == 2
    assert kinds.count("slice") == 4
    names = layers(program, "relu")
    assert len(set(names)) == 13
    assert names[:3] == ["relu", "layer1.0.relu", "layer1.0.relu_1"]
    assert "layer3.1.relu_1" in names
    assert [n.loc.line for n in program.nodes if n.op == "pad"] == [
        line_of(type(ResNet(1).layer2[0].shortcut), "F.pad")
    ] * 2


def test_golden_cnn(golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    program = trace(fill(SmallCNN()), torch.zeros(1, 1, 7, 7), input_range=(0, 1))
    golden("small_cnn.ir", str(verify(program)))


def test_golden_gelu_residual(golden: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    golden("gelu_residual.ir", str(verify(trace(fill(GeluResidual()), torch.zeros(1, 6), name="residual"))))


def test_two_inputs_and_named_outputs() -> None:
    module = fill(TwoInputs())
    agree(module, (1, 4, 4), (5,), batch=2)
    program = trace(
        fill(TwoInputs()).float(), (torch.zeros(1, 1, 4, 4), torch.zeros(1, 5)), input_range=((0, 1), (-2, 2.5))
    )
    assert [node.attrs["name"] for node in program.inputs] == ["image", "vector"]
    assert [(node.attrs["low"], node.attrs["high"]) for node in program.inputs] == [(0.0, 1.0), (-2.0, 2.5)]
    assert program.output_names == ("product", "both.0", "both.1.0")
    assert program.outputs[2].op == "sigmoid"


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (lambda x: x + 1, ("y",)),
        (lambda x: [x + 1, x * 2], ("y0", "y1")),
        (lambda x: (x + 1,), ("y0",)),
        (lambda x: {"logits": x + 1}, ("logits",)),
        (lambda x: (x + 1, {"a": x, "b": None}), ("y0", "y1.a")),
    ],
)
def test_output_names(function: Callable[..., object], names: tuple[str, ...]) -> None:
    assert verify(trace(Fn(function), torch.zeros(1, 3))).output_names == names


def test_places_and_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    program = trace(fill(SmallCNN()), torch.zeros(1, 1, 7, 7))
    by_layer = {node.loc.layer: node for node in program.nodes}
    assert list(by_layer) == [
        *("image", "conv1", "bn1", "act", "features.0", "features.1", "features.2", "act_1", "flatten"),
        *("fc1", "silu", "fc2"),
    ]
    for layer, text in (
        ("image", "def forward"),
        ("bn1", "self.bn1(self.conv1"),
        ("features.1", "self.features(x)"),
        ("silu", "F.silu"),
        ("fc2", "self.fc2(x)"),
    ):
        assert by_layer[layer].loc.file == MODELS
        assert by_layer[layer].loc.line == line_of(SmallCNN, text)
    assert by_layer["act_1"].op == "relu"


def test_layers_that_no_line_calls_have_the_place_in_which_they_are_written() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), nn.ReLU())
    program = trace(model, torch.zeros(1, 3))
    written = ["nn.Linear(3, 3)", "nn.ReLU()", "nn.Linear(3, 2)", "nn.ReLU()"]
    assert [(n.loc.file, n.loc.line) for n in program.nodes[1:]] == [(text, 0) for text in written]
    assert [n.loc.layer for n in program.nodes[1:]] == ["0", "1.0", "1.1", "2"]
    assert program.name == "Sequential"


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.relu_1 = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(x)
        x = self.relu(x) + self.relu(2 * x)
        return self.relu_1(x) + F.relu(x) + torch.relu(x)


@pytest.mark.parametrize("file", [Path(hg.__file__).parent / "demo.py", "<stdin>", "<string>"])
def test_without_a_line_of_the_user_the_layer_is_shown(file: Path | str) -> None:
    """The demonstration, and lines that are in no file."""
    module = nn.Sequential(nn.Linear(3, 2), nn.Conv1d(1, 2, 2), nn.BatchNorm1d(2, eps=1e-3), nn.ReLU()).eval()
    code = "found = trace(module, torch.zeros(1, 1, 3), input_range=(-1, 1))"
    names: dict[str, Any] = {"trace": trace, "module": module, "torch": torch}
    run = threading.Thread(target=exec, args=(compile(code, str(file), "exec"), names))
    run.start()  # a thread has no frames of this file around it
    run.join()
    shorts = [node.loc.short for node in names["found"].nodes]
    convolution = "nn.Conv1d(1, 2, kernel_size=(2,), stride=(1,))"
    assert shorts == ["input", "nn.Linear(3, 2)", convolution, "nn.BatchNorm1d(2, eps=0.001)", "nn.ReLU()"]


def test_an_installed_model_is_shown_from_its_package_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "lib" / "site-packages" / "installed_networks"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "from torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n        return x * x\n"
    )
    monkeypatch.syspath_prepend(str(folder.parent))
    program = trace(importlib.import_module("installed_networks").Net(), torch.zeros(1, 2), input_range=(-1, 1))
    sys.modules.pop("installed_networks")
    assert {node.loc.short for node in program.nodes} == {
        "installed_networks/__init__.py:3",
        "installed_networks/__init__.py:4",
    }


def test_functions_never_take_the_name_of_a_layer() -> None:
    program = trace(Nested(), torch.zeros(1, 3))
    assert layers(program, "relu") == ["relu_2", "relu", "relu_3", "relu_4", "relu_5"]
    assert layers(program, "tanh") == ["relu_1"]


def test_constants_are_named_by_parameter_path_and_keep_their_precision() -> None:
    program = trace(fill(SmallCNN()), torch.zeros(1, 1, 7, 7))
    assert {"conv1.weight", "bn1.running_mean", "bn1.running_var", "features.0.weight", "fc2.bias"} <= set(
        program.constants
    )
    assert {str(program.array(name).dtype) for name in program.constants} == {"float32"}
    double = trace(fill(SmallCNN()).double(), torch.zeros(1, 1, 7, 7).double())
    assert {str(double.array(name).dtype) for name in double.constants} == {"float64"}


def test_shared_weights_are_one_constant() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.second = nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x)) @ self.first.weight.t()

    torch.manual_seed(0)
    program = agree(Tied(), (3,))
    assert sorted(program.constants) == ["first.bias", "first.weight", "second.bias"]


def test_constant_subgraphs_are_folded() -> None:
    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        mask = torch.tril(torch.ones(3, 3, dtype=w.dtype)) / torch.arange(1, 4, dtype=w.dtype)[:, None]
        return x @ (torch.softmax(w, -1) * mask).t() + w.max()

    program = agree(Fn(forward, w=torch.randn(3, 3, dtype=torch.float64)), (3,))
    assert ops(program) == ["linear", "add"]


def test_half_precision_parameters_become_float32() -> None:
    module = nn.Linear(3, 2).to(torch.bfloat16)
    program = trace(module, torch.zeros(1, 3, dtype=torch.bfloat16))
    assert program.array("weight").dtype == np.float32
    np.testing.assert_array_equal(program.array("weight"), module.weight.detach().float().numpy())


def test_the_program_is_a_copy_of_the_weights() -> None:
    module = fill(nn.Linear(3, 2))
    program = trace(module, torch.zeros(1, 3))
    before = str(program)
    nn.init.zeros_(module.weight)
    assert str(program) == before
    assert program.array("weight").any()


def test_the_module_is_left_as_it_was() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 3)
            self.last: object = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = self.fc(x)
            self.extra = x
            return torch.relu(self.last)

    module = Careless().train()
    parameters = {name: (id(p), p.detach().clone(), p.requires_grad) for name, p in module.named_parameters()}
    program = trace(module, torch.zeros(1, 3))
    assert ops(program) == ["linear", "relu"]
    assert module.training
    assert module.fc.training
    assert module.last is None
    assert not hasattr(module, "extra")
    for name, parameter in module.named_parameters():
        identity, value, grad = parameters[name]
        assert id(parameter) == identity
        assert parameter.requires_grad == grad
        assert torch.equal(parameter, value)
    module(torch.ones(2, 3)).sum().backward()
    assert module.fc.weight.grad is not None


def test_what_the_model_prints_comes_through(capsys: pytest.CaptureFixture[str]) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        print("shape", tuple(x.shape))
        return x * 2

    trace(Fn(forward), torch.zeros(1, 3))
    assert "shape (1, 3)" in capsys.readouterr().out


@pytest.mark.parametrize("decompose", [False, True])
def test_exported_program(decompose: bool) -> None:
    module = fill(SmallCNN()).double()
    example = inputs([(1, 7, 7)], 2)
    exported = torch.export.export(module, example)
    if decompose:
        exported = exported.run_decompositions()
    program = verify(trace(exported, example[0], input_range=(-4, 4)))
    assert program.name == "SmallCNN"
    samples = inputs([(1, 7, 7)], 4, seed=5)[0]
    np.testing.assert_allclose(
        interpret_batch(program, samples.numpy())[0], module(samples).detach().numpy(), rtol=0, atol=1e-9
    )
    found = {"function" if op.startswith("torch_function_") else op for op in ops(program)}
    assert ("function" in found) == decompose  # a decomposed activation is one again
    assert found - {"function"} <= {
        "conv",
        "batch_norm",
        "relu",
        "gelu",
        "avg_pool",
        "reshape",
        "linear",
        "silu",
        "mul",
    } | {"sigmoid"}
    assert "fc1.weight" in program.constants
    if not decompose:
        texts = {str(trace(exported, *given, input_range=(-4, 4))) for given in (example, ())}
        assert len(texts) == 1


def test_every_activation_call_has_its_own_layer() -> None:
    program = trace(fill(GeluResidual()), torch.zeros(1, 6))
    names = [node.loc.layer for node in program.nodes if OPS[node.op].activation]
    assert names == ["act", "act_1", "gelu"]


_SCRIPT = """
import torch
from frontends.models import GeluResidual, ResNet, TwoInputs, fill
import heliograph as hg
from heliograph.errors import HeliographError
from heliograph.frontends.torch.export import trace
print(trace(fill(ResNet(2)), torch.zeros(1, 3, 8, 8)))
print(trace(fill(GeluResidual()), torch.zeros(2, 6), input_range=(-1, 1)))
print(trace(fill(TwoInputs()), (torch.zeros(1, 1, 4, 4), torch.zeros(1, 5))))
"""


def test_the_text_is_the_same_in_every_process() -> None:
    import os

    texts = []
    for seed in ("1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert texts[0] == texts[1]
    assert texts[0].count("heliograph-ir 2") == 3


def test_the_package_does_not_load_torch() -> None:
    code = "import sys, heliograph, heliograph.frontends; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def test_input_types_have_no_batch_axis() -> None:
    program = trace(fill(ResNet(1)), torch.zeros(5, 3, 8, 8))
    assert program.inputs[0].type == TensorType((3, 8, 8))
    assert interpret(program, np.zeros((3, 8, 8))).shape == (3,)


@pytest.mark.slow
def test_pretrained_resnet20(data: Callable[[str], Path]) -> None:
    weights = np.load(data("cifar10_resnet20_akamaster.npz"))
    module = ResNet(blocks=3, widths=(16, 32, 64), classes=10)
    state = module.state_dict()
    module.load_state_dict({name: torch.as_tensor(weights[name]) if name in weights else state[name] for name in state})
    assert {name for name in state if not name.endswith("num_batches_tracked")} <= set(weights.files)
    program = verify(trace(module.eval(), torch.zeros(1, 3, 32, 32), input_range=(-3, 3)))
    torch.manual_seed(0)
    sample = torch.randn(1, 3, 32, 32)
    expected = module(sample)[0].detach().numpy()
    np.testing.assert_allclose(interpret(program, sample[0].numpy()), expected, atol=1e-3)


def test_a_number_read_from_a_parameter_is_a_constant() -> None:
    program = agree(Fn(lambda x, scale: x * scale.item(), scale=torch.tensor(3.0, dtype=torch.float64)), (4,))
    assert ops(program) == ["mul"]


def helper(x: torch.Tensor) -> torch.Tensor:
    return F.relu(x)


def test_the_place_is_the_users_own_helper() -> None:
    program = trace(Fn(lambda x: helper(x) + 1), torch.zeros(1, 3))
    relu = next(node for node in program.nodes if node.op == "relu")
    assert relu.loc.line == inspect.getsourcelines(helper)[1] + 1


def test_one_rule_in_one_file_adds_an_op() -> None:
    from heliograph.frontends.torch.values import RULES, Call, Value, rule

    library = torch.library.Library("heliograph_test", "DEF")
    library.define("cube(Tensor x) -> Tensor")
    library.impl("cube", lambda x: x**3, "CompositeExplicitAutograd")
    module = Fn(lambda x: torch.ops.heliograph_test.cube(x) * 2)
    with pytest.raises(HeliographError, match="heliograph_test::cube"):
        trace(module, torch.zeros(1, 3))

    @rule("heliograph_test.cube")
    def cube(call: Call, x: Value) -> Value:
        return Value(call.emit("power", x.node, exponent=3))

    try:
        assert ops(agree(module, (3,))) == ["power", "mul"]
    finally:
        del RULES["heliograph_test.cube"]
