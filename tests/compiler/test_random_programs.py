"""Random programs, checked three ways: source, polynomial and executable meaning, and the backends."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from helpers.backends import largest_difference, openfhe, run, simulator
from helpers.random_programs import random_inputs, random_program, random_slot_program
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.artifact.artifact import Artifact
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import front_passes
from heliograph.errors import PlanningError
from heliograph.interpret import interpret
from heliograph.ir import Array, Program
from heliograph.ir.text import parse_program, print_program

OPTIONS = Options(security_bits=None, precision_bits=16)


def outputs_of(value: object) -> list[Array]:
    return [np.asarray(v) for v in (value if isinstance(value, tuple) else (value,))]


@functools.cache
def compiled(seed: int, steps: int) -> tuple[Program, Program, Artifact] | None:
    """Source, polynomial program and artifact; None where the outputs are too large for any modulus."""
    source = random_program(seed, steps)
    polynomial = front_passes(source, OPTIONS)[-1].program
    try:
        return source, polynomial, compile(source, OPTIONS)
    except PlanningError as error:
        if "too large" in str(error):
            return None
        raise


def check(seed: int, steps: int) -> None:
    made = compiled(seed, steps)
    if made is None:
        return
    source, polynomial, artifact = made
    program = artifact.program
    samples = random_inputs(source, seed)
    exact = outputs_of(interpret(source, *samples))
    approximate = outputs_of(interpret(polynomial, *samples))
    size = max(1.0, max(float(np.abs(a).max(initial=0.0)) for a in approximate))
    # Where no activation was replaced, nothing is approximated.
    if not program.ranges:
        assert largest_difference(exact, approximate) <= 1e-9 * size
    executable = outputs_of(interpret(program, *samples))
    assert largest_difference(approximate, executable) <= 1e-9 * size
    plain, _ = run(program, samples, simulator(program, noisy=False))
    assert largest_difference(executable, plain) <= 1e-9 * size
    noisy, _ = run(program, samples, simulator(program, seed))
    tolerance = 2.0**-OPTIONS.precision_bits * max(1.0, artifact.report.values["output_magnitude"])
    assert largest_difference(executable, noisy) <= 4 * tolerance
    text = print_program(program)
    assert print_program(parse_program(text, program.constants)) == text


@pytest.mark.front
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 12))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_few_compiled_programs_mean_what_their_source_means(seed: int, steps: int) -> None:
    check(seed, steps)


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 12))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_compiled_programs_mean_what_their_source_means(seed: int, steps: int) -> None:
    check(seed, steps)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 25))
@settings(max_examples=3000, deadline=None, derandomize=True)
def test_many_compiled_programs_mean_what_their_source_means(seed: int, steps: int) -> None:
    check(seed, steps)


def check_on_openfhe(seed: int) -> None:
    made = compiled(seed, 8)
    if made is None:
        return
    source, _, artifact = made
    program = artifact.program
    samples = random_inputs(source, seed)
    expected = outputs_of(interpret(program, *samples))
    measured, calls = run(program, samples, openfhe(program))
    _, predicted_calls = run(program, samples, simulator(program))
    assert calls == predicted_calls
    tolerance = 2.0**-OPTIONS.precision_bits * max(1.0, artifact.report.values["output_magnitude"])
    assert largest_difference(expected, measured) <= 8 * tolerance


@pytest.mark.parametrize("seed", range(12))
def test_a_sample_of_programs_on_openfhe(seed: int) -> None:
    check_on_openfhe(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 90))
def test_more_programs_on_openfhe(seed: int) -> None:
    check_on_openfhe(seed)


def check_slots(seed: int, steps: int, real: bool) -> None:
    """A slot program: source, executable meaning, simulator and, with `real`, OpenFHE."""
    source = random_slot_program(seed, steps)
    try:
        artifact = compile(source, OPTIONS)
    except PlanningError as error:
        if any(words in str(error) for words in ("too large", "drifts", "nothing to rescale")):
            return
        raise
    program = artifact.program
    samples = random_inputs(source, seed)
    exact = outputs_of(interpret(source, *samples))
    size = max(1.0, max(float(np.abs(a).max()) for a in exact))
    assert largest_difference(exact, outputs_of(interpret(program, *samples))) <= 1e-9 * size
    tolerance = 2.0**-OPTIONS.precision_bits * max(1.0, artifact.report.values["output_magnitude"])
    measured, _ = run(program, samples, openfhe(program) if real else simulator(program, seed))
    assert largest_difference(exact, measured) <= 8 * tolerance
    for name, out in zip(program.output_names, exact, strict=True):
        bounds = artifact.report.values["output_ranges"][name]
        assert bounds["low"] - 1e-9 <= out.min() <= out.max() <= bounds["high"] + 1e-9


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 14))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_slot_programs_mean_what_their_source_means(seed: int, steps: int) -> None:
    check_slots(seed, steps, real=False)


@pytest.mark.parametrize("seed", range(6))
def test_a_sample_of_slot_programs_on_openfhe(seed: int) -> None:
    check_slots(seed, 10, real=True)
