"""Bootstraps that compute an activation: written out, simulated, run, compiled, told and refused."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.backends import native, openfhe, run, simulator
from runtime.bootstrapped import COARSE, FULL, lowered, only_bootstrap

pytest.importorskip("numba")
pytest.importorskip("openfhe")

import heliograph as hg
from heliograph import functions
from heliograph.approx.fits.fit import fit
from heliograph.approx.fits.trigonometric import fit_series
from heliograph.artifact.validate import check_program
from heliograph.ckks.costs import BUILT_IN
from heliograph.ckks.noise import series_std
from heliograph.ckks.ring import Ring
from heliograph.ckks.trigonometric import levels_deeper
from heliograph.compiler.planning import bootstrapped, planner
from heliograph.compiler.planning.plan import Refusal, run_ms
from heliograph.errors import ProgramError, RangeError, VerifyError
from heliograph.execution.walk import node_calls
from heliograph.interpret import interpret, interpret_many
from heliograph.ir import Builder, Program, Stage
from heliograph.ir.bootstraps.asked import WHOLE, bootstraps, inside_bootstraps
from heliograph.ir.text import parse_program, print_program
from heliograph.ir.verify import verify
from heliograph.passes.levels.schedule import Schedule

RELU = functions.function("relu")


def computing(ring: Ring, period: int, degree: int, log_scale: float = 0.0) -> Program:
    """One bootstrap that computes a ReLU like a polynomial of that degree, its operand at a scale so much finer."""
    made = fit(RELU.evaluate, -1.0, 1.0, degree, "gaussian", 0.0, 0.25, RELU.kinks, 1.5)
    series = fit_series(RELU, made, 0.0, 0.25, spread=1.5)
    assert series is not None
    program, deeper = only_bootstrap(ring, period), levels_deeper(series.degree)
    level = ring.bootstrap_level - deeper
    builder = Builder(program.name, Stage.MANAGED)
    builder.set_ring(ring)
    scale = ring.scale_bits + log_scale
    x = builder.input("x", slots=ring.slots, chunk=0, level=ring.bootstrap_input_level, log_scale=scale)
    name = builder.constant(series.coefficients, "series")
    attrs = {"series": name, "half_period": series.half_period, "deeper": deeper}
    fresh = builder.op(WHOLE, (x,), slots=period, level=level, **attrs)
    builder.parameters, builder.interface = program.parameters, program.interface
    return lowered(builder.finish([builder.op("level_drop", (fresh,), levels=level)]))


@pytest.mark.parametrize(("ring", "period"), [(FULL, 1024), (FULL, 64), (COARSE, 2048)])
@pytest.mark.parametrize(("degree", "log_scale"), [(31, 0.0), (15, 0.3), (7, 0.0)])
def test_real_ciphertexts_hold_what_the_series_means(ring: Ring, period: int, degree: int, log_scale: float) -> None:
    program, x = computing(ring, period, degree, log_scale), np.random.default_rng(1).uniform(-1, 1, period)
    exact = interpret(program, x)
    assert np.abs(exact - np.maximum(x, 0)).max() < {31: 0.009, 15: 0.018, 7: 0.075}[degree]
    ((alone,), _) = run(program, [x], simulator(program, noisy=False))
    assert np.abs(alone - exact).max() < 2.0**-26
    spread = {}
    for backend in (simulator, native, openfhe):
        ((values,), calls) = run(program, [x], backend(program))
        assert calls == sum(node_calls(program).values(), Counter())
        spread[backend] = math.log2(float(np.std(values - exact)))
    # The deviation of 64 numbers is known less well.
    near = 0.5 if period > 64 else 1.0
    assert abs(spread[simulator] - spread[native]) < near
    assert abs(spread[simulator] - spread[openfhe]) < near + 1
    # Of degree 7 a bit more.
    assert abs(spread[native] - math.log2(series_std(ring)) - (degree == 7)) < near
    # Far finer than a bootstrap of the value itself.
    ((values,), _) = run(whole := lowered(only_bootstrap(ring, period)), [x], simulator(whole))
    assert spread[native] < math.log2(float(np.std(values - x))) - 1


def test_it_takes_two_levels_less_than_a_bootstrap_and_a_polynomial() -> None:
    program = computing(FULL, 64, 31)
    (end,) = bootstraps(program)
    # The polynomial alone takes five levels.
    assert end.inputs[0].type.level == FULL.bootstrap_level - 5 + 2  # type: ignore[union-attr]
    products = sum(node.op == "relinearize" for node in inside_bootstraps(program))
    plain = lowered(only_bootstrap(FULL, 64))
    ordinary = sum(node.op == "relinearize" for node in inside_bootstraps(plain))
    assert products - ordinary == 6


def test_a_value_beyond_the_period_is_refused() -> None:
    program = computing(FULL, 64, 31)
    x = np.zeros(64)
    x[3] = 1.02
    run(program, [x], simulator(program))
    x[3] = 1.6
    with pytest.raises(RangeError, match=r"a value of size 1\.6"):
        run(program, [x], simulator(program))


def test_it_is_printed_read_and_checked() -> None:
    program = computing(FULL, 64, 15)
    text = print_program(program)
    assert "half_period" in text
    again = parse_program(text, program.constants)
    verify(again)
    assert print_program(again) == text
    check_program(program)


@pytest.mark.parametrize(("attrs", "message"), [
    ({"half_period": 1.0}, "not a half period above 1"),
    ({"half_period": math.nan}, "not a half period above 1"),
    ({"half_period": 9.0}, "not a half period above 1 and at most 4"),
    ({"half_period": None}, "a series has coefficients and a half period"),
    ({"deeper": 1}, "does not take it 1 levels down"),
    ({"series": "short"}, r"have shape \(2, 5\)"),
])  # fmt: skip
def test_series_that_no_bootstrap_computes_are_refused(attrs: dict[str, object], message: str) -> None:
    builder = Builder("bad", Stage.PACKED)
    x = builder.input("x", slots=64, chunk=0)
    good = {"series": builder.constant(np.ones((2, 8)), "series"), "half_period": 1.5, "deeper": 2}
    short = builder.constant(np.ones((2, 5)), "short")
    given = {name: short if value == "short" else value for name, value in {**good, **attrs}.items()}
    with pytest.raises(ProgramError, match=message):
        builder.op("bootstrap", (x,), slots=64, **{name: value for name, value in given.items() if value is not None})
    with pytest.raises(ProgramError, match="of one value alone"):
        builder.op("bootstrap", (x, x), slots=64, **good)


def test_a_forged_share_is_refused() -> None:
    program = computing(FULL, 64, 15)
    for share in ("0.0", "nan", "1e300", "-3.0"):
        text = print_program(program)
        forged = re.sub(r"share = [0-9.]+", f"share = {share}", text)
        assert forged != text
        with pytest.raises(hg.HeliographError):
            verify(parse_program(forged, program.constants))


def test_one_that_is_not_written_out_is_no_executable_program() -> None:
    builder = Builder("whole", Stage.MANAGED)
    plain, name = only_bootstrap(FULL, 64), builder.constant(np.ones((2, 8)) / 16, "series")
    builder.set_ring(FULL)
    x = builder.input("x", slots=FULL.slots, chunk=0, level=FULL.bootstrap_input_level, log_scale=35.0)
    level = FULL.bootstrap_level - 2
    fresh = builder.op("bootstrap", (x,), slots=64, level=level, series=name, half_period=1.5, deeper=2)
    builder.parameters, builder.interface = plain.parameters, plain.interface
    made = builder.finish([builder.op("level_drop", (fresh,), levels=level)])
    with pytest.raises(VerifyError, match="bootstrap"):
        verify(Schedule().run(made))


DEEP = """program deep
input x: secret tensor[64] in [-1, 1]
a = relu(2*x - 0.2)
b = relu(1.5*a - 0.3)
c = relu(3*b - 1)
d = relu(0.1 - c)
output y = 2*d - 1
"""
TOY = hg.Options(security_bits=None, log_ring=11, scale_bits=36, bootstrap=True, degree=15, margin=0.1)


@pytest.fixture(scope="module")
def deep() -> hg.Program:
    samples = np.random.default_rng(0).uniform(-1, 1, (64, 64))
    return replace(hg.parse(DEEP), calibration=(samples,))


@pytest.fixture(scope="module")
def artifact(deep: hg.Program) -> hg.Artifact:
    return hg.compile(deep, TOY)


def test_a_compiled_program_computes_activations_where_it_bootstraps(deep: hg.Program, artifact: hg.Artifact) -> None:
    program, figures = artifact.program, artifact.report.figures
    ends = [node for node in bootstraps(program) if node.attrs.get("series") is not None]
    assert ends
    assert figures.bootstrapping is not None
    assert figures.bootstrapping.activations == len(ends)
    assert "compute the activation that follows" in artifact.report.full()
    merged = {entry for node in ends for entry in node.attrs["ranges"]}
    for number, entry in enumerate(program.ranges):
        assert entry.method == ("trigonometric" if number in merged else "gaussian")
        assert entry.degree == (7 if number in merged else 15)
    x = np.random.default_rng(5).uniform(-1, 1, 64)
    exact = interpret(deep, x)
    for backend in (simulator, native, openfhe):
        ((values,), _) = run(program, [x], backend(program))
        assert np.abs(values - exact).max() < 1.5 * figures.predicted.max_abs_error
        assert np.abs(values - interpret(program, x)).max() < 2.0**-10
    low, high = (getattr(program.interface.outputs[0], name) for name in ("low", "high"))
    assert low <= values.min()
    assert values.max() <= high
    # The polynomial program of the artifact means what its bootstraps compute.
    assert "merged = 1" in artifact.stages["polynomial"]


def test_no_plan_is_made_that_could_not_be_faster(deep: hg.Program, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    made = planner.plan_bootstrapped
    monkeypatch.setattr(planner, "plan_bootstrapped", lambda *of: asked.append(of) or made(*of))
    hg.compile(deep, replace(TOY, objective="latency"))
    *given, wanted = asked[0]
    refused = made(*given, replace(wanted, faster_than=1.0))
    assert isinstance(refused, Refusal)
    assert refused.slow
    assert "no plan takes less than 1 ms" in str(refused.error)


def test_without_it_bootstraps_refresh_values(deep: hg.Program) -> None:
    plain = hg.compile(deep, replace(TOY, bootstrap_activations=False))
    assert not any("series" in node.attrs for node in plain.program.nodes)
    assert plain.report.figures.bootstrapping is not None
    assert plain.report.figures.bootstrapping.activations is None


def twelve() -> hg.Program:
    layers = "\n".join(f"v{i + 1} = relu(1.5*v{i} - 0.1)" for i in range(12))
    text = f"program deep\ninput v0: secret tensor[64] in [-1, 1]\n{layers}\noutput y = 2*v12\n"
    return replace(hg.parse(text), calibration=(np.random.default_rng(0).uniform(-1, 1, (64, 64)),))


TWELVE = hg.Options(log_ring=15, degree=31, margin=0.1, bootstrap=True, precision_bits=6.0)


def test_a_deep_program_is_faster_with_it() -> None:
    with_it, without = (
        hg.compile(twelve(), replace(TWELVE, bootstrap_activations=chosen)).report.figures for chosen in (True, False)
    )
    assert with_it.bootstrapping is not None
    assert with_it.bootstrapping.activations
    assert with_it.predicted.evaluate_ms < 0.9 * without.predicted.evaluate_ms
    assert with_it.approximation_error <= without.approximation_error


def test_linear_maps_are_corrected_for_what_bootstraps_compute() -> None:
    """The plan is that of the program without corrections, and its outputs are nearer to the network's."""
    program, unseen = twelve(), [np.random.default_rng(1).uniform(-1, 1, (256, 64))]
    (exact,) = interpret_many(program, unseen)
    figures, errors = [], []
    for correct in (False, True):
        seen: dict[str, Program] = {}
        made = hg.compile(program, replace(TWELVE, correct=correct), watch=seen.__setitem__)
        figures.append(made.report.figures)
        errors.append(np.abs(interpret_many(seen["merge-activations"], unseen)[0] - exact).mean())
    assert figures[1].bootstrapping is not None
    assert figures[1].bootstrapping.activations
    assert figures[1].predicted.evaluate_ms == pytest.approx(figures[0].predicted.evaluate_ms, rel=1e-3)
    assert errors[1] < 0.8 * errors[0]


def test_it_does_so_where_the_fastest_plan_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (planner, bootstrapped):
        monkeypatch.setattr(module, "wanted_fastest", lambda *given: True)
    # Each plan is written out before plans are compared, whatever their number.
    monkeypatch.setattr(bootstrapped, "_COMPARED", 4)
    fastest = hg.compile(twelve(), TWELVE)
    figures = fastest.report.figures
    assert figures.bootstrapping is not None
    assert figures.bootstrapping.activations
    # What is compared is what a run's calls take; plaintexts made in it come on top.
    assert figures.predicted.evaluate_ms == pytest.approx(run_ms(fastest.program, BUILT_IN), rel=0.02)
