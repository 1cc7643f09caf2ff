"""The expression language: what it reads, and that every error has its position and its reason."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.dp.composition import Composition
from heliograph.dp.custom import Table
from heliograph.dp.language import parse
from heliograph.dp.mechanisms import Approximate, DiscreteLaplace, Gaussian, Laplace, SampledGaussian
from heliograph.errors import ProgramError


def test_the_example() -> None:
    text = (
        "sampled_gaussian(p=0.01, noise_multiplier=1.0) * 1000 + laplace(epsilon=0.1) * 5 "
        "+ gaussian(noise_multiplier=5) * 3 + approximate(epsilon=0.1, delta=1e-8) * 20"
    )
    expected = SampledGaussian(0.01, 1.0) * 1000 + Laplace(0.1) * 5 + Gaussian(5) * 3 + Approximate(0.1, 1e-8) * 20
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3 * gaussian(noise_multiplier=2) * 4", Gaussian(2) * 12),
        ("2 * (laplace(epsilon=1) + gaussian(noise_multiplier=1) * 3)", Laplace(1) * 2 + Gaussian(1) * 6),
        ("discrete_laplace(epsilon=0.5,\n sensitivity=3)", Composition.of(DiscreteLaplace(0.5, 3))),
        ("laplace(epsilon=1) * 1e3", Laplace(1) * 1000),
        ("laplace(epsilon=.5) + laplace(epsilon=0.5)", Laplace(0.5) * 2),
        ("table(upper=[0.6, 0.4], lower=[0.4, 0.6]) * 2", Table((0.6, 0.4), (0.4, 0.6)) * 2),
    ],
)
def test_reads(text: str, expected: Composition) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("", "line 1, column 1", "empty"),
        ("gaussian(", "line 1, column 10", "too early"),
        ("gaussian(noise_multiplier=0)", "line 1, column 10", "noise_multiplier = 0"),
        ("gaussian(noise_multiplier=-1)", "line 1, column 10", "out of range"),
        ("laplace(epsilon=1) +\n  sampled_gaussian(p=1.5, noise_multiplier=1)", "line 2, column 20", "p = 1.5"),
        ("sampled_gaussian(p=nan, noise_multiplier=1)", "line 1, column 20", "not a usable number"),
        ("gaussian(noise_multiplier=1) * 1e30", "line 1, column 32", "1e+30"),
        ("gaussian(noise_multiplier=1) * 1" + "0" * 400, "line 1, column 32", "not finite"),
        ("gaussian(noise_multiplier=1) * 100000 * 100000", "line 1, column 41", "1e+10"),
        ("gaussian(noise_multiplier=1) * 2.5", "line 1, column 32", "whole number"),
        ("gaussian(noise_multiplier=1) * -2", "line 1, column 32", "unexpected"),
        ("gauss(noise_multiplier=1)", "line 1, column 1", "no mechanism 'gauss'"),
        ("gaussian(sigma=1)", "line 1, column 10", "no parameter 'sigma'"),
        ("gaussian(noise_multiplier=1, noise_multiplier=2)", "line 1, column 30", "twice"),
        ("laplace()", "line 1, column 1", "needs epsilon"),
        ("laplace(epsilon=1) + 3", "line 1, column 22", "cannot be added"),
        ("laplace(epsilon=1) * laplace(epsilon=1)", "line 1, column 22", "cannot be multiplied"),
        ("7", "line 1, column 1", "not a mechanism"),
        ("gaussian(noise_multiplier=[1])", "line 1, column 27", "list"),
        ("table(upper=[0.5, 0.6], lower=[0.5, 0.5])", "line 1, column 7", "sums to"),
        ("gaussian(noise_multiplier=1) ; import os", "line 1, column 30", "unexpected character"),
        ("(" * 40 + "laplace(epsilon=1)" + ")" * 40, "line 1, column 33", "too deep"),
        ("x" * 30_000, "expression", "30,000 characters"),
        (" + ".join(["laplace(epsilon=1)"] * 600), "line 1, column 1", "600 terms"),
    ],
)
def test_errors_have_a_position(text: str, where: str, what: str) -> None:
    started = time.perf_counter()
    with pytest.raises(ProgramError) as error:
        parse(text)
    assert error.value.where.startswith(where)
    assert what in str(error.value)
    assert time.perf_counter() - started < 2.0


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="()[]*+=,.eE-0123456789 gausinlpc_mtrkd\n", max_size=120))
def test_nothing_but_program_errors(text: str) -> None:
    with contextlib.suppress(ProgramError):
        assert isinstance(parse(text), Composition)


def test_python_counts_are_checked_too() -> None:
    for count in (-1, 2.5, True, 10**30):
        with pytest.raises(ProgramError):
            Gaussian(1.0) * count  # type: ignore[operator]
    with pytest.raises(ProgramError, match="steps in all"):
        Gaussian(1.0) * 10**9 + Laplace(1.0) * 10
