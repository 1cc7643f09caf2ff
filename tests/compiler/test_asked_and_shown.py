"""What is asked of the compiler: the particular comes before the general, and conflicts are refused at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import heliograph as hg
from heliograph.compiler import driver
from heliograph.compiler.pipeline import front_passes
from heliograph.compiler.planning import planner
from heliograph.compiler.reporting.bill import class_agreement
from heliograph.errors import HeliographError, ProgramError
from heliograph.interpret import interpret_batch
from heliograph.ir.analysis.loss import has_classes
from heliograph.passes.polynomials import approximation

RELU = """program p
input x: secret tensor[8] in [-1, 1]
y = relu(x)
output y
"""
DEEP = """program p
input x: secret tensor[8] in [-1, 1]
a = tanh(2 * x)
b = tanh(2 * a)
output y = b * b
"""
SLOTS = """program p
input x: secret slots[8] in [-1, 1]
output y = bootstrap(x * x)
"""


def relu_error(**options: Any) -> float:
    program = hg.parse(RELU)
    made = front_passes(program, hg.Options(**options))[-1].program
    x = np.linspace(-1, 1, 4001)[:, np.newaxis] * np.ones(8)
    (y,) = interpret_batch(made, x)
    return float(np.abs(y - np.maximum(x, 0)).max())


@pytest.mark.parametrize("target", [None, 0.1, 1e-4])
def test_the_error_asked_of_one_layer_comes_before_that_of_all(target: float | None) -> None:
    alone = relu_error(errors={"y": 0.001})
    assert alone < 0.001
    assert relu_error(errors={"y": 0.001}, target_error=target) == alone


@pytest.mark.parametrize(
    ("shape", "classes"),
    [("10", 10), ("1, 10", 10), ("10, 1", 10), ("1, 10, 1", 10), ("2, 5", 0), ("1", 0), ("1, 1", 0), ("1001", 0)],
)
def test_scores_of_classes_are_the_same_for_the_loss_and_for_the_bill(shape: str, classes: int) -> None:
    program = hg.parse(f"program p\ninput x: secret tensor[{shape}] in [-1, 1]\ny = x * 2\noutput y\n")
    shown = program.outputs[0].type.shape  # type: ignore[union-attr]
    assert has_classes(program) == bool(classes)
    rows = np.zeros((4, *shown))
    others = rows.copy()
    rows.reshape(4, -1)[:, 0] = others.reshape(4, -1)[1:, 0] = 1.0
    others.reshape(4, -1)[0, -1] = 0.5
    found = class_agreement(program, [rows], [others])
    assert (found is None) == (not classes)
    if found is not None:
        assert (found.samples, found.agree) == (4, 3)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (DEEP, {"objective": "latency", "batch": 8}, "a batch and an objective were given"),
        (SLOTS, {"allocate": "paper"}, "a program on slots has its polynomials"),
        (SLOTS, {"bootstrap": False}, "the program bootstraps, and bootstrap=False was asked for"),
    ],
)
def test_conflicts_are_refused_before_anything_is_worked_out(
    text: str, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("compilation began")

    monkeypatch.setattr(driver, "_made", never)
    monkeypatch.setattr(driver, "portable", never)
    with pytest.raises((ProgramError, HeliographError), match=words):
        hg.compile(hg.parse(text), hg.Options(security_bits=None, **options))


def test_series_are_fitted_only_where_a_ring_can_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network needs a larger ring than the smallest; none of the small ones can bootstrap securely."""
    asked: list[bool] = []
    fitted, planned = approximation.fit_series, planner.plan_bootstrapped
    tried: list[int] = []
    monkeypatch.setattr(approximation, "fit_series", lambda *of, **more: asked.append(True) or fitted(*of, **more))
    monkeypatch.setattr(planner, "plan_bootstrapped", lambda *of: tried.append(of[0]) or planned(*of))
    made = hg.compile(hg.parse(DEEP))
    assert made.ring.log_ring > 10
    assert made.report.figures.bootstraps == 0
    assert tried
    assert not asked
    # With toy parameters small rings do bootstrap, and the series are looked at.
    hg.compile(hg.parse(DEEP), hg.Options(security_bits=None, log_ring=10, bootstrap=True))
    assert asked
