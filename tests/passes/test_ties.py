"""Thresholds of comparisons whose values are on a grid: every value of the grid is decided, seen on samples or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import heliograph as hg
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.ir import Array, Program
from heliograph.passes.ranges import ties
from heliograph.tools.simulate import simulate

TOY = Options(security_bits=None)
SCORES = np.arange(690.0, 711.0)


def against(operator: str, threshold: float, samples: Array) -> Program:
    text = f"program p\ninput x: secret tensor[1]\noutput y = x {operator} {threshold!r}\n"
    return replace(hg.parse(text), calibration=(samples.reshape(-1, 1),))


def decided(program: Program, values: Array) -> Array:
    artifact = compile(program, TOY)
    return np.array([float(simulate(artifact, np.array([value]))[0]) for value in values])


def whole(count: int, seed: int, *, without: tuple[int, ...] = ()) -> Array:
    drawn = np.random.default_rng(seed).integers(300, 851, size=count)
    return drawn[~np.isin(drawn, without)].astype(float)


@pytest.mark.parametrize(
    "samples",
    [
        whole(100, 1, without=(700,)),
        np.append(whole(100, 2, without=tuple(range(694, 705))), 700.0),
        whole(100, 3, without=(699, 701)),
        whole(4000, 4),
    ],
    ids=["the threshold was not seen", "nothing near it was seen", "none beside it was seen", "all were seen"],
)
@pytest.mark.parametrize("operator", [">=", ">", "<=", "<"])
def test_whole_numbers_are_decided(operator: str, samples: Array) -> None:
    wanted = eval(f"SCORES {operator} 700", {"SCORES": SCORES})
    np.testing.assert_allclose(decided(against(operator, 700.0, samples), SCORES), wanted, atol=1e-3)


@pytest.mark.parametrize(
    ("shown", "values"),
    [
        ("cents", lambda scores: scores / 100),
        ("standardized", lambda scores: (scores - 571.3) / 160.7),
        ("float32", lambda scores: ((scores - 571.3) / 160.7).astype(np.float32).astype(float)),
        ("halves", lambda scores: scores / 2),
    ],
)
def test_values_in_other_steps_are_decided(shown: str, values: Any) -> None:
    limit = float(values(np.array(700.0)))
    samples = values(whole(300, 5, without=(700,)))
    np.testing.assert_allclose(decided(against(">=", limit, samples), values(SCORES)), SCORES >= 700, atol=1e-3)


def test_a_threshold_between_two_steps_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    program = against(">", 699.75, whole(100, 6, without=(699, 700)))
    (found,) = ties.thresholds(program).values()
    assert found == ties.Threshold(0.0, 0.25)
    np.testing.assert_allclose(decided(program, SCORES), SCORES > 699.75, atol=1e-3)


@pytest.mark.parametrize("count", [3, 12, 200, 20_000])
@pytest.mark.parametrize("seed", range(5))
def test_values_that_are_on_no_grid_show_none(count: int, seed: int) -> None:
    samples = np.random.default_rng(seed).normal(size=count).astype(np.float32).astype(float)
    assert not ties.thresholds(against(">", 0.3, samples))


def test_zeros_on_no_grid_are_kept_from_the_next_values() -> None:
    samples = np.maximum(np.random.default_rng(7).normal(size=500), 0.0)
    (found,) = ties.thresholds(against(">", 0.0, samples)).values()
    positive = np.sort(samples[samples > 0])
    assert found.moved == found.room
    # One of a hundred may be nearer.
    assert found.room == positive[int(0.01 * positive.size)] / 2


def test_few_values_that_come_often_show_their_steps() -> None:
    ratings = np.random.default_rng(8).choice(np.setdiff1d(np.arange(1, 11), [7]), size=100) / 2
    every = np.arange(1, 11) / 2
    np.testing.assert_allclose(decided(against(">=", 3.5, ratings), every), every >= 3.5, atol=1e-3)


def test_values_that_rounding_makes_unequal_are_equal() -> None:
    program = against(">=", 0.3, np.arange(20) * 0.1)
    artifact = compile(program, TOY)
    # 3 * 0.1 is above 0.3, and 0.1 + 0.2, too; the bill measures no error of 1 there.
    assert artifact.report.figures.predicted.max_abs_error < 1e-3
    np.testing.assert_allclose(decided(program, np.array([0.2, 0.3, 3 * 0.1, 0.4])), [0, 1, 1, 1], atol=1e-3)


def test_the_report_says_what_the_threshold_rests_on() -> None:
    report = compile(against(">=", 700.0, whole(100, 1)), TOY).report.full()
    words = " ".join(report.split())
    assert "gap 0.4 (by steps of the values), threshold moved by 0.5 away from values that equal it" in words
