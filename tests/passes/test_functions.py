"""Functions that are not polynomials: what their lowering means, what it promises, and what bad use gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.backends import openfhe, run

from heliograph.approx.compositions.argmax import argmax as argmax_plan
from heliograph.approx.compositions.softmax import softmax as softmax_plan
from heliograph.artifact.artifact import Artifact
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import front_passes
from heliograph.compiler.top1 import top1
from heliograph.errors import PlanningError, ProgramError
from heliograph.interpret import interpret, interpret_batch
from heliograph.ir import Array, Builder, Location, Node, Program, Stage
from heliograph.ir.analysis.depth import program_depth
from heliograph.passes.polynomials.lower_functions import resolved_share
from heliograph.tools.simulate import simulate

TOY = Options(security_bits=None)
LOC = Location("net.py", 7, 5, "layer")
Body = Callable[[Builder, Node], Node]


def program(body: Body, *shape: int, low: float | None = -1.0, high: float | None = 1.0) -> Program:
    builder = Builder("p", Stage.TENSOR)
    x = builder.input("x", shape=shape, low=low, high=high)
    return builder.finish({"y": body(builder, x)})


def op(name: str, **attrs: Any) -> Body:
    return lambda b, x: b.op(name, (x,), LOC, **attrs)


def against(name: str, value: float, **attrs: Any) -> Body:
    """A function of x and a number."""
    return lambda b, x: b.op(name, (x, b.op("constant", value=b.constant(np.array(value), "k"))), LOC, **attrs)


def uniform(shape: tuple[int, ...], count: int = 200, low: float = -1.0, high: float = 1.0) -> Array:
    return np.random.default_rng(1).uniform(low, high, size=(count, *shape))


def apart(rows: Array, gap: float, axis: int) -> Array:
    """The samples whose largest value is at least `gap` above the next, everywhere."""
    ordered = np.sort(rows, axis=axis)
    distance = np.take(ordered, -1, axis) - np.take(ordered, -2, axis)
    return rows[(distance >= gap).reshape(len(rows), -1).all(axis=1)]


def polynomial(source: Program, options: Options = TOY) -> Program:
    return front_passes(source, options)[-1].program


SQUARED = uniform((6,)) ** 2
CASES: dict[str, tuple[Body, Array, float, float]] = {
    # body, samples, low, high of the input
    "sign": (op("sign", gap=0.05), np.where(np.abs(uniform((6,))) < 0.05, 0.3, uniform((6,))), -1, 1),
    "abs": (op("abs", gap=0.02), uniform((6,)), -1, 1),
    "gt": (against("gt", 0.25, gap=0.05), np.where(np.abs(uniform((6,)) - 0.25) < 0.05, 0.8, uniform((6,))), -1, 1),
    "le": (against("le", 0.25, gap=0.05), np.where(np.abs(uniform((6,)) - 0.25) < 0.05, 0.8, uniform((6,))), -1, 1),
    "maximum": (against("maximum", 0.25, gap=0.02), uniform((6,)), -1, 1),
    "minimum": (against("minimum", 0.25, gap=0.02), uniform((6,)), -1, 1),
    "max": (op("max", axis=-1, gap=0.05), uniform((2, 5)), -1, 1),
    "min": (op("min", axis=0, keepdims=True, gap=0.05), uniform((3, 2)), -1, 1),
    "argmax": (op("argmax", axis=-1, gap=0.1), apart(uniform((5,), 400), 0.1, 1), -1, 1),
    "argmax of two": (op("argmax", axis=0, gap=0.1), apart(uniform((2, 3), 400), 0.1, 1), -1, 1),
    "argmax number": (op("argmax", axis=1, gap=0.2, bits=8.0, index=True), apart(uniform((2, 4), 900), 0.2, 2), -1, 1),
    "softmax": (op("softmax", axis=-1), uniform((10,), low=-6, high=6), -6, 6),
    "softmax of columns": (op("softmax", axis=0), uniform((3, 4), low=0, high=4), 0, 4),
    "exp": (op("exp"), uniform((6,), low=-9, high=1), -9, 1),
    "reciprocal": (op("reciprocal"), uniform((6,), low=0.05, high=2), 0.05, 2),
    "reciprocal below zero": (op("reciprocal"), uniform((6,), low=-2, high=-0.5), -2, -0.5),
    "sqrt": (op("sqrt"), uniform((6,), low=0.05, high=2), 0.05, 2),
    "rsqrt": (op("rsqrt"), uniform((6,), low=0.05, high=2), 0.05, 2),
    "max_pool": (op("max_pool", kernel=(3, 3), stride=(2, 2), padding=(1, 1), gap=0.1), uniform((1, 4, 4)), -1, 1),
    "layer_norm": (op("layer_norm", rank=1, eps=0.1, low=0.0, high=1.0), uniform((6,)), -1, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_the_error_is_the_one_that_was_proved(case: str) -> None:
    body, samples, low, high = CASES[case]
    source = program(body, *samples.shape[1:], low=low, high=high)
    lowered = polynomial(source)
    (exact,), (got,) = interpret_batch(source, samples), interpret_batch(lowered, samples)
    error = float(np.abs(exact - got).max())
    entries = lowered.ranges
    # A tournament's rounds add up, a number of an argmax sums its one-hot results, a norm multiplies by the centred value.
    factor = {"max": 7.0, "min": 3.0, "max_pool": 15.0, "argmax number": 6.0}.get(case, 1.0)
    bound = factor * max(entry.max_error for entry in entries)
    assert error <= bound * (1 + 1e-9) + 1e-12
    assert error >= bound / 500, "the bound says nothing"


@pytest.mark.parametrize("case", ["gt", "max", "argmax", "argmax of two", "softmax", "rsqrt", "layer_norm"])
def test_functions_on_openfhe(case: str) -> None:
    body, samples, low, high = CASES[case]
    source = program(body, *samples.shape[1:], low=low, high=high)
    artifact = compile(source, TOY)
    expected = interpret(artifact.program, samples[0])
    (measured,), _ = run(artifact.program, [samples[0]], openfhe(artifact.program))
    assert np.abs(measured - expected).max() <= 8 * 2.0 ** -TOY.bits()
    assert np.abs(simulate(artifact, samples[0], check_ranges=True) - expected).max() <= 8 * 2.0 ** -TOY.bits()
    Artifact.from_bytes(artifact.to_bytes())


def test_ties_are_no_harm_to_a_maximum() -> None:
    source = program(op("max", axis=0, gap=0.02), 4)
    tied = np.array([[0.5, 0.5, 0.5, 0.5], [0.0, 0.7, 0.7, 0.0], [-1.0, -1.0, -1.0, -1.0]])
    (got,) = interpret_batch(polynomial(source), tied)
    assert np.abs(got - tied.max(axis=1)).max() <= 0.02


def test_all_pairs_share_one_ciphertext_and_sums_cost_no_level() -> None:
    made = compile(program(op("argmax", axis=0, gap=0.02), 10), TOY)
    values = made.report.values
    (entry,) = values["ranges"]
    chains = sum(int(np.ceil(np.log2(d + 1))) for d in entry["degrees"])
    # One level for the differences, then the polynomials of the two signs.
    assert values["depth"] == 1 + chains
    inputs = [node for node in made.program.nodes if node.op == "input"]
    assert len(inputs) == 1
    assert values["ciphertext_products"] < 40


def test_a_linear_layer_before_an_argmax_takes_its_differences_in() -> None:
    def body(b: Builder, x: Node) -> Node:
        weight = b.constant(np.random.default_rng(0).normal(size=(5, 8)) / 3, "w")
        return b.op("argmax", (b.op("linear", (x,), LOC, weight=weight),), LOC, axis=0, gap=0.05)

    lowered = polynomial(program(body, 8))
    assert sum(node.op == "affine" for node in lowered.nodes) == 1


def calibrated(body: Body, samples: Array) -> Program:
    return replace(program(body, *samples.shape[1:], low=None, high=None), calibration=(samples,))


def test_the_gap_comes_from_the_program_from_calibration_or_from_a_default() -> None:
    samples = uniform((5,), 500)
    samples[:, 0] = samples[:, 1:].max(axis=1) + 0.25
    seen = polynomial(calibrated(op("argmax", axis=0), samples)).ranges[0]
    assert seen.gap_source == "observed"
    assert 0.2 < seen.gap <= 0.25
    default = polynomial(program(op("argmax", axis=0), 5)).ranges[0]
    assert (default.gap_source, default.gap) == ("default", pytest.approx(0.02))
    report = compile(program(op("argmax", axis=0), 5), TOY).report.full()
    assert "differences below 0.02 (default) are not resolved" in " ".join(report.split())


@pytest.mark.parametrize(
    ("body", "low", "high", "words"),
    [
        (op("sign", gap=0.01), None, None, "nothing bounds the input of sign"),
        (op("sign", gap=0.0), -1, 1, "gap 0 is not between 0 and 1"),
        (op("sign", gap=1e-14), -1, 1, "below the precision"),
        (op("argmax", axis=0, gap=1e-14), -1, 1, "below the precision"),
        (op("reciprocal"), -1, 1, "not an interval above zero"),
        (op("sqrt"), 0, 1, "not an interval above zero"),
        (op("exp"), 0, 1e5, "larger than any number"),
    ],
)
def test_bad_use_is_an_error_at_the_users_line(body: Body, low: float | None, high: float | None, words: str) -> None:
    with pytest.raises(ProgramError, match=words) as caught:
        polynomial(program(body, 4, low=low, high=high))
    assert "net.py:7" in str(caught.value)
    assert caught.value.hint or caught.value.why or "larger" in words


def test_a_declared_range_that_calibration_contradicts_is_refused() -> None:
    body = op("sign", gap=0.1, low=-0.5, high=0.5)
    with pytest.raises(ProgramError, match="contradicted by calibration"):
        polynomial(calibrated(body, uniform((4,))))


def test_more_levels_than_any_ring_has() -> None:
    def deep(b: Builder, x: Node) -> Node:
        for _ in range(5):
            x = b.op("sign", (b.op("add", (x, x)),), LOC, gap=1e-4)
        return x

    with pytest.raises(PlanningError, match="it needs"):
        compile(program(deep, 4), Options(bootstrap=False))
    assert compile(program(deep, 4)).report.to_dict()["bootstraps"] > 0


def test_top1_gives_the_class_and_nothing_else() -> None:
    def body(b: Builder, x: Node) -> Node:
        weight = b.constant(np.random.default_rng(0).normal(size=(5, 8)), "w")
        return b.op("linear", (x,), LOC, weight=weight)

    source = replace(program(body, 8), calibration=(uniform((8,)),))
    artifact = compile(top1(source, bits=7.0), replace(TOY, flood=0.05))
    assert artifact.program.output_names == source.output_names
    x = uniform((8,))[0]
    (measured,), _ = run(artifact.program, [x], openfhe(artifact.program))
    assert measured.round().tolist() == np.eye(5)[int(interpret(source, x).argmax())].tolist()
    number = compile(top1(source, bits=10.0, index=True), TOY)
    assert round(float(simulate(number, x))) == int(interpret(source, x).argmax())
    with pytest.raises(ProgramError, match="one output"):
        top1(replace(source, outputs=source.outputs * 2, output_names=("a", "b")))


def test_the_server_floods_its_outputs() -> None:
    pytest.importorskip("openfhe")
    from heliograph.runtime.client.client import Client
    from heliograph.runtime.server.server import Server

    artifact = compile(program(op("sign", gap=0.1), 512), replace(TOY, flood=0.05))
    assert "adds noise of deviation 0.05" in " ".join(artifact.report.full().split())
    client = Client(artifact.public(), allow_insecure=True)
    sample = np.where(uniform((512,))[0] > 0, 0.8, -0.8)
    with Server(artifact, client.evaluation_keys(), allow_insecure=True) as server:
        answers = [client.decrypt(server.run(client.encrypt(sample))) for _ in range(2)]
    for answer in answers:
        assert 0.04 < (answer - np.sign(sample)).std() < 0.06
    assert np.abs(answers[0] - answers[1]).max() > 0.05


@pytest.mark.parametrize(("classes", "gap", "family"), [(10, 1e-3, "best"), (2, 0.01, "best"), (5, 0.05, "iterated")])
def test_the_depth_of_the_plan_is_that_of_the_lowered_program(classes: int, gap: float, family: str) -> None:
    body = op("argmax", axis=0, gap=gap, count=8, bits=0.0, method=family)
    lowered = polynomial(program(body, classes, low=0.0, high=1.0))
    plan = argmax_plan(classes, resolved_share(TOY.gap_error) * gap, 8, family)
    assert program_depth(lowered) == plan.depth
    rows = apart(uniform((classes,), 300, 0.0, 1.0), gap, 1)
    np.testing.assert_allclose(interpret_batch(lowered, rows)[0], plan(rows), atol=1e-9)


def test_the_lowered_softmax_is_the_plan() -> None:
    """Its rows are columns of the plan; the scaling of the input is a level of both."""
    source = program(op("softmax", axis=0), 3, 11, low=-8.0, high=8.0)
    lowered = front_passes(source, replace(TOY, target_error=1e-3))[-1].program
    plan = softmax_plan(3, 8.0, max_error=1e-3)
    rows = uniform((3,), 11, -8, 8)
    expected = interpret_batch(plan.program, rows[..., np.newaxis])[0][..., 0]
    np.testing.assert_allclose(interpret(lowered, rows.T).T, expected, atol=1e-9)
    assert program_depth(lowered) == plan.depth


def test_an_argmax_whose_pairs_do_not_fit_is_a_tournament(monkeypatch: pytest.MonkeyPatch) -> None:
    body = op("argmax", axis=0, gap=0.2)
    rows = apart(uniform((5,), 400), 0.2, 1)
    pairs = polynomial(program(body, 5))
    monkeypatch.setattr("heliograph.passes.polynomials.lower_functions._MOST_PAIRS", 8)
    rounds = polynomial(program(body, 5))
    assert program_depth(rounds) > program_depth(pairs)
    (exact,) = interpret_batch(program(body, 5), rows)
    for lowered in (pairs, rounds):
        assert np.abs(interpret_batch(lowered, rows)[0] - exact).max() <= lowered.ranges[-1].max_error * 1.01
    artifact = compile(program(body, 5), TOY)
    assert np.abs(simulate(artifact, rows[0]) - exact[0]).max() < 0.05
