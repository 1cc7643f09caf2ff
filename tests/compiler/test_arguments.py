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


@pytest.mark.parametrize("function", [hg.compile, hg.approximate, hg.top1])
def test_a_module_is_no_program(function: Any) -> None:
    with pytest.raises(hg.ProgramError) as caught:
        function(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    assert caught.value.what == f"{function.__name__} takes a program, not torch.nn.modules.container.Sequential"
    assert "hg.trace(model, example_input" in caught.value.hint


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
