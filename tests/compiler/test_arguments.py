"""What is given to the public functions in place of what they take: refused in words, or taken where it is meant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import heliograph as hg
from heliograph.compiler import driver

TOY = hg.Options(security_bits=None)
SOURCE = """program scores
input x: secret tensor[4] in [-1, 1]
output y = relu(2 * x) with degree = 3, range = [-2, 2]
"""


@pytest.mark.parametrize("function", [hg.approximate, hg.top1])
def test_a_module_is_no_program(function: Any) -> None:
    with pytest.raises(hg.ProgramError) as caught:
        function(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    assert caught.value.what == f"{function.__name__} takes a program, not torch.nn.modules.container.Sequential"
    assert "hg.trace(model, example_input" in caught.value.hint


def _as_loader(rows: torch.Tensor) -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows, rows[:, 0]), batch_size=8)


@pytest.mark.parametrize(
    "form", [lambda x: x, lambda x: x.numpy(), lambda x: x.tolist(), lambda x: (x,), lambda x: {"input": x}, _as_loader]
)
def test_a_module_is_traced_with_its_samples(form: Any) -> None:
    rows = torch.linspace(-1, 1, 96).reshape(24, 4)[torch.randperm(24, generator=torch.Generator().manual_seed(0))]
    model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Sigmoid()).eval()
    artifact = hg.compile(model, TOY, calibration=form(rows))
    expected = hg.compile(hg.trace(model, rows[:1], calibration=rows), TOY)
    assert artifact.fingerprint == expected.fingerprint
    np.testing.assert_allclose(hg.simulate(artifact, rows[3]), model(rows[3:4])[0].detach(), atol=1e-2)


def test_a_module_of_two_inputs_is_compiled() -> None:
    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * y

    x, y = torch.linspace(-1, 1, 12).reshape(4, 3), torch.linspace(0, 2, 12).reshape(4, 3)
    artifact = hg.compile(Two().eval(), TOY, calibration=(x, y))
    np.testing.assert_allclose(hg.simulate(artifact, x[1], y[1]), x[1] * y[1], atol=1e-3)
    exported = torch.export.export(Two().eval(), (x[:1], y[:1]))
    again = hg.compile(exported, TOY, input_range=((-1, 1), (0, 2)))
    np.testing.assert_allclose(hg.simulate(again, x[1], y[1]), x[1] * y[1], atol=1e-3)
    with pytest.raises(hg.ProgramError, match="trace needs example_input"):
        hg.compile(Two().eval(), TOY, calibration=(x, None))


def test_an_estimator_is_compiled_with_its_samples() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    rows = np.linspace(-1, 1, 40).reshape(10, 4)
    estimator = linear.LinearRegression().fit(rows, rows[:, 0])
    artifact = hg.compile(estimator, TOY, calibration=rows)
    np.testing.assert_allclose(hg.simulate(artifact, rows[2]), rows[2, :1], atol=1e-3)
    with pytest.raises(hg.ProgramError, match="an estimator is compiled with samples"):
        hg.compile(estimator, TOY)


def test_what_is_neither_program_nor_module_is_refused() -> None:
    with pytest.raises(hg.ProgramError) as caught:
        hg.compile(len)
    assert caught.value.what == "compile takes a program, not builtins.builtin_function_or_method"
    with pytest.raises(hg.ProgramError, match="trace needs example_input"):
        hg.compile(torch.nn.Linear(4, 2).eval())
    with pytest.raises(hg.ProgramError, match="options is Tensor, not Options") as caught:
        hg.compile(torch.nn.Linear(4, 2).eval(), torch.zeros(1, 4))  # type: ignore[arg-type]
    assert "example_input=x, calibration=samples" in caught.value.hint
    with pytest.raises(hg.ProgramError, match="calibration cannot be used here"):
        hg.compile(hg.parse(SOURCE), TOY, calibration=np.zeros((2, 4)))


def test_options_are_options() -> None:
    with pytest.raises(hg.ProgramError, match="options is dict, not Options"):
        hg.compile(hg.parse(SOURCE), {"degree": 3})  # type: ignore[arg-type]


def test_tensors_that_require_gradients_are_values() -> None:
    pytest.importorskip("openfhe")
    artifact = hg.compile(hg.parse(SOURCE), TOY)
    x = torch.tensor([0.5, -0.5, 0.25, 1.0], requires_grad=True)
    client = hg.Client(artifact.public(), allow_insecure=True)
    with hg.Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        found = client.decrypt(server.run(client.encrypt(x)))
    np.testing.assert_allclose(found, hg.simulate(artifact, x, noisy=False), atol=1e-3)
    assert x.requires_grad
    many = hg.compile(hg.parse(SOURCE), hg.Options(security_bits=None, batch=2))
    np.testing.assert_allclose(hg.simulate(many, torch.stack([x, x]), noisy=False)[1], found, atol=1e-3)


@pytest.mark.parametrize("place", ["linear_passes", "polynomial_passes", "best_plan"])
def test_a_compilation_without_memory_is_refused_in_words(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **options: Any) -> Any:
        raise MemoryError("Unable to allocate 9.7 GiB")

    monkeypatch.setattr(driver, place, fails)
    with pytest.raises(hg.PlanningError) as caught:
        hg.compile(hg.parse(SOURCE), TOY)
    error = caught.value
    assert error.what == "compiling scores took more memory than there is"
    assert "Unable to allocate 9.7 GiB" in error.why
    assert "has 4 elements" in error.why
    assert "a machine with more memory" in error.hint
    assert ("what follows fuse-linear" in error.why) == (place == "polynomial_passes")


def test_a_mask_of_large_numbers_is_what_it_means() -> None:
    class Masked(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x + torch.tensor([0.0, 0.0, 0.0, -1e9]), -1)

    artifact = hg.compile(hg.trace(Masked(), torch.zeros(1, 4), input_range=(-1, 1)), TOY)
    x = np.array([0.5, -0.25, 1.0, 0.75])
    visible = np.exp(x[:3]) / np.exp(x[:3]).sum()
    np.testing.assert_allclose(hg.simulate(artifact, x), [*visible, 0.0], atol=2e-3)


def test_the_class_alone_has_no_probabilities() -> None:
    """Clients compute the softmax of a classifier's scores; of its class they compute nothing."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    rows = np.linspace(-1, 1, 96).reshape(24, 4)[np.random.default_rng(0).permutation(24)]
    program = hg.from_sklearn(linear_model.LogisticRegression().fit(rows, rows[:, 0] > 0), rows)
    assert [spec.finish for spec in program.interface.outputs] == ["softmax"]
    sample = rows[np.abs(rows[:, 0]).argmax()]
    found = hg.simulate(hg.compile(hg.top1(program), TOY), sample)
    np.testing.assert_allclose(found, np.eye(2)[int(sample[0] > 0)], atol=0.01)


@pytest.mark.parametrize(
    ("function", "name", "hint"),
    [
        (hg.compile, "degre", "options=hg.Options(degree=...)"),
        (hg.compile, "degree", "options=hg.Options(degree=...)"),
        (hg.compile, "calibraton", "perhaps 'calibration' was meant"),
        (hg.compile, "zzz", "help(heliograph.compile) names all"),
        (hg.run, "quite", "perhaps 'quiet' was meant"),
        (hg.run, "log_rings", "options=hg.Options(log_ring=...)"),
        (hg.tune, "degres", "perhaps 'degrees' was meant"),
    ],
)
def test_a_misspelt_argument_names_the_nearest(function: Any, name: str, hint: str) -> None:
    with pytest.raises(hg.ProgramError, match=f"^{function.__name__} takes no argument '{name}'") as caught:
        function(hg.parse(SOURCE), **{name: 3})
    assert caught.value.hint == hint
