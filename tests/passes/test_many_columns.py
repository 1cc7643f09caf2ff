"""Argmax over many columns, copies and sums of runs: in one ciphertext and over several."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import heliograph as hg
from heliograph.errors import PlanningError, ProgramError
from heliograph.interpret import interpret, interpret_batch
from heliograph.ir import Builder, Location, Program, SparseMatrix, Stage, shape_of
from heliograph.ir.maps.kronecker import KroneckerMatrix, identity_places
from heliograph.passes.polynomials.approximate import Approximate

TOY = hg.Options(security_bits=None, precision_bits=6)


def votes(classes: int, columns: int, **attrs: object) -> Program:
    """How many columns each class is the largest of."""
    builder = Builder("votes", Stage.TENSOR)
    x = builder.input("x", shape=(classes, columns), low=-1.0, high=1.0)
    best = builder.op("argmax_rows", (x,), Location(layer="votes"), gap=0.2, count=columns, **attrs)  # type: ignore[arg-type]
    return builder.finish([builder.op("sum_runs", (best,), Location(layer="counts"), count=columns)])


def separated(classes: int, columns: int, seed: int = 0) -> np.ndarray:
    """Columns whose largest value is well above the others."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-0.9, 0.4, (classes, columns))
    x[rng.integers(0, classes, columns), np.arange(columns)] = 0.9
    return x


@pytest.mark.parametrize(("classes", "columns", "rows"), [(4, 16, 4), (10, 128, 16), (10, 512, 45), (2, 4096, 1)])
def test_differences_are_taken_once_where_both_ways_do_not_fit(classes: int, columns: int, rows: int) -> None:
    program = Approximate().run(votes(classes, columns))
    first = next(node for node in program.nodes if node.op == "poly")
    assert shape_of(first.inputs[0]) == (rows, classes * columns if rows != 45 else columns)
    x = separated(classes, columns)
    np.testing.assert_allclose(interpret(program, x), np.bincount(x.argmax(axis=0), minlength=classes), atol=0.5)


@pytest.mark.parametrize(("classes", "columns", "log_ring"), [(3, 64, 10), (10, 512, 12), (10, 256, 10), (2, 512, 10)])
def test_votes_are_counted_over_one_ciphertext_and_several(classes: int, columns: int, log_ring: int) -> None:
    x = separated(classes, columns)
    program = replace(votes(classes, columns), calibration=(x[np.newaxis],))
    artifact = hg.compile(program, replace(TOY, log_ring=log_ring))
    inputs = sum(node.op == "input" for node in artifact.program.nodes)
    assert (inputs > 1) == (classes * columns > 1 << (log_ring - 1))
    found = hg.simulate(artifact, separated(classes, columns, seed=1), check_ranges=True)
    np.testing.assert_allclose(
        found, np.bincount(separated(classes, columns, 1).argmax(axis=0), minlength=classes), atol=0.5
    )


def test_a_spread_bounds_differences_and_not_values() -> None:
    x = separated(3, 8)
    builder = Builder("far", Stage.TENSOR)
    given = builder.input("x", shape=(3, 8))
    program = replace(
        builder.finish([builder.op("argmax_rows", (given,), gap=0.2, spread=2.0)]), calibration=(100.0 + x[np.newaxis],)
    )
    made = Approximate().run(program)
    assert (made.ranges[0].low, made.ranges[0].high, made.ranges[0].source) == (-2.0, 2.0, "declared")
    np.testing.assert_allclose(interpret(made, 100.0 + x), x == x.max(axis=0), atol=0.1)


def test_a_spread_that_samples_contradict_is_refused() -> None:
    program = replace(votes(3, 8, spread=0.5), calibration=(separated(3, 8)[np.newaxis],))
    with pytest.raises(ProgramError, match=r"the spread 0\.5 given for argmax_rows is contradicted"):
        hg.compile(program, TOY)


def copies(count: int, noise: bool) -> Program:
    """W x for each copy, plus noise that the server knows, squared, and the sum of the squares of all copies."""
    builder = Builder("copies", Stage.TENSOR)
    rng = np.random.default_rng(2)
    x = builder.input("x", shape=(5,), low=-1.0, high=1.0)
    weight = builder.constant(SparseMatrix.of(rng.normal(size=(4, 5))), "w")
    mapped = builder.op("affine", (x,), Location(layer="w"), matrices=(weight,), shape=(4,))
    many = builder.op("repeat", (mapped,), Location(layer="copies"), count=count)
    if noise:
        given = builder.input("noise", shape=(4, count), secret=False, drawn="uniform")
        many = builder.op("add", (many, given))
    squares = builder.op("mul", (many, many), Location(layer="squares"))
    return builder.finish([builder.op("sum_runs", (squares,), Location(layer="sums"), count=count)])


@pytest.mark.parametrize("count", [16, 256])
@pytest.mark.parametrize("noise", [False, True])
def test_copies_are_made_once_and_added_up_by_rotations(count: int, noise: bool) -> None:
    """In one ciphertext of 512 slots, and in two."""
    program = copies(count, noise)
    artifact = hg.compile(program, replace(TOY, log_ring=10))
    layers = [node.loc.layer for node in artifact.program.nodes if node.op == "linear_transform"]
    assert layers.count("w") == 1, "the map before the copies works once"
    x, drawn = np.random.default_rng(3).uniform(-1, 1, 5), np.random.default_rng(4).uniform(-1, 1, (4, count))
    given = (x, drawn) if noise else (x,)
    exact = interpret_batch(program, *(each[np.newaxis] for each in given))[0][0]
    np.testing.assert_allclose(hg.simulate(artifact, *given), exact, rtol=1e-3, atol=1e-2)
    if noise:
        assert hg.simulate(artifact, x).shape == (4,), "what is drawn may be left out"
        np.testing.assert_array_equal(hg.simulate(artifact, x, seed=5), hg.simulate(artifact, x, seed=5))


def test_runs_longer_than_a_ciphertext_are_refused() -> None:
    with pytest.raises(PlanningError, match="sum_runs of 1024 elements: a ciphertext has 512 slots"):
        hg.compile(copies(1024, False), replace(TOY, log_ring=10))


def test_runs_and_copies_that_cannot_be_are_refused() -> None:
    builder = Builder("bad", Stage.TENSOR)
    x = builder.input("x", shape=(6,))
    with pytest.raises(ProgramError, match="6 elements are not runs of 4"):
        builder.op("sum_runs", (x,), count=4)
    with pytest.raises(ProgramError, match="not runs of 3"):
        builder.op("sum_runs", (x,), count=3)
    with pytest.raises(ProgramError, match="repeat: 0 copies"):
        builder.op("repeat", (x,), count=0)
    with pytest.raises(ProgramError, match="cannot be drawn: 'normal'"):
        builder.input("secret", shape=(2,), drawn="normal")
    with pytest.raises(ProgramError, match="cannot be drawn: 'cauchy'"):
        builder.input("plain", shape=(2,), secret=False, drawn="cauchy")


def test_maps_of_channels_go_through_what_the_server_adds() -> None:
    """A difference of classes is multiplied into the map before it, and what is plain goes through it in the clear."""
    builder = Builder("plain", Stage.TENSOR)
    x = builder.input("x", shape=(6, 32), low=-1.0, high=1.0)
    known = builder.input("known", shape=(3, 32), secret=False, low=-0.01, high=0.01)
    weight = np.random.default_rng(5).normal(size=(3, 6)) / 4
    name = builder.constant(KroneckerMatrix.of(weight[np.newaxis], [identity_places(32)]), "w")
    logits = builder.op("affine", (x,), Location(layer="w"), matrices=(name,), shape=(3, 32))
    logits = builder.op("add", (logits, known))
    best = builder.op("argmax_rows", (logits,), Location(layer="best"), gap=0.3, spread=4.0)
    program = builder.finish([best])
    rng = np.random.default_rng(6)
    samples = rng.choice([-1.0, 1.0], (1, 6, 32)), rng.uniform(-0.01, 0.01, (1, 3, 32))
    made = Approximate().run(replace(program, calibration=samples))
    compared = next(node for node in made.nodes if node.op == "poly").inputs[0]
    assert compared.op == "add"
    assert sorted(operand.type.secret for operand in compared.inputs) == [False, True]
    secret = next(operand for operand in compared.inputs if operand.type.secret)
    assert secret.op == "affine"
    assert secret.inputs[0].op == "input"
