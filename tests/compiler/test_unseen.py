"""Inputs that calibration did not see: margins and degrees from tails, samples kept apart, what the bill says of them."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

import heliograph as hg
from heliograph.compiler.driver import compile
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import front_passes, linear_passes
from heliograph.compiler.polynomials import approximate
from heliograph.compiler.reporting.held_out import observe, rate_bound
from heliograph.errors import RangeError
from heliograph.interpret import interpret_many, run_nodes
from heliograph.ir import Array, Builder, Location, Node, Program, Stage
from heliograph.ir.analysis.depth import depth_of_degree, program_depth
from heliograph.ir.ops.table import OPS, Context
from heliograph.passes.base import apply
from heliograph.passes.ranges.margins import RATE, tail
from heliograph.passes.ranges.output_ranges import OutputRanges
from heliograph.report.text import Report
from heliograph.runtime.client.outputs import check_output
from heliograph.tools.debug import debug

# What the defaults were: one margin and one degree for every layer.
BEFORE = Options(degree=15, margin=0.1)
TOY = Options(security_bits=None, log_ring=11)


def inputs(count: int, seed: int, width: int = 16) -> Array:
    """Samples of very different sizes, as images of different contrast are."""
    random = np.random.default_rng(seed)
    return np.asarray(random.normal(size=(count, width)) * np.exp(0.25 * random.normal(size=(count, 1))))


def network(layers: int, calibration: Array, op: str = "relu", classes: int = 8, width: int = 16) -> Program:
    random = np.random.default_rng(3)
    b = Builder("net", Stage.TENSOR)
    x = b.input("x", shape=(width,))
    for number in range(layers):
        weight = b.constant(random.normal(size=(width, width)) * math.sqrt(2.0 / width), f"w{number}")
        x = b.op(op, (b.op("linear", (x,), Location("net.py", number, 0, f"map{number}"), weight=weight),),
                 Location("net.py", number, 0, f"act{number}"))  # fmt: skip
    x = b.op("linear", (x,), weight=b.constant(random.normal(size=(classes, width)), "last"))
    return replace(b.finish([x]), calibration=(calibration,))


def results(program: Program, options: Options, samples: Array) -> tuple[int, float, int]:
    """Garbage results, agreement of the class, and the depth."""
    polynomial = front_passes(program, options)[-1].program
    ((exact,),) = (interpret_many(program, [samples]),)
    with np.errstate(all="ignore"):
        (outputs,) = interpret_many(polynomial, [samples])
        garbage = ~(np.abs(outputs - exact).max(axis=1) <= np.ptp(exact))
    agreement = float((np.nan_to_num(outputs).argmax(1) == exact.argmax(1)).mean())
    return int(garbage.sum()), agreement, program_depth(polynomial)


@pytest.mark.parametrize("op", ["relu", "gelu"])
def test_no_garbage_on_unseen_samples_at_the_defaults(op: str) -> None:
    program, samples = network(6, inputs(256, 1), op), inputs(4000, 2)
    before, now = results(program, BEFORE, samples), results(program, Options(), samples)
    assert before[0] > 0
    assert now[0] == 0
    assert now[1] >= before[1]


def test_no_level_more_where_the_usual_degree_serves() -> None:
    """Bounded inputs of a shallow network: the samples show all there is."""
    random = np.random.default_rng(0)
    program = network(2, random.uniform(-1, 1, size=(512, 16)))
    samples = random.uniform(-1, 1, size=(2000, 16))
    before, now = results(program, BEFORE, samples), results(program, Options(), samples)
    assert (now[0], now[2]) == (0, before[2])
    assert now[1] >= before[1]


@pytest.mark.parametrize("count", [1, 2, 4, 16, 64, 256])
@pytest.mark.parametrize("draw", ["exponential", "normal", "uniform"])
def test_tails_are_not_underestimated(count: int, draw: str) -> None:
    """What `RATE` of the samples pass: in most draws the estimate is above that."""
    random = np.random.default_rng(0)
    true = {"exponential": -math.log(RATE), "normal": 3.719, "uniform": 1.0}[draw]
    scale = {"exponential": 1.0, "normal": 1.0, "uniform": 1.0}[draw]
    found = []
    for _ in range(200):
        values = getattr(random, draw)(size=count)
        found.append(tail(values, max(float(np.ptp(values)), scale)))
        assert found[-1] >= values.max()
    assert np.mean(np.array(found) >= true) > 0.85 if count >= 16 else np.median(found) >= 0.5 * true


def test_the_bound_is_clopper_and_pearsons() -> None:
    assert rate_bound(0, 128) == pytest.approx(1 - 0.05 ** (1 / 128))
    assert rate_bound(3, 20) == pytest.approx(0.3437, abs=1e-4)
    assert rate_bound(0, 0) == rate_bound(5, 5) == 1.0


@pytest.mark.parametrize("options", [Options(), Options(margin=0.0, degree=7)], ids=["defaults", "no margin"])
def test_the_bound_holds_of_what_fresh_samples_do(options: Options) -> None:
    """The rate at which ten thousand fresh samples leave the program that was looked at is under its bound."""
    samples = inputs(200, 5)
    fused = linear_passes(network(3, samples))[-1].program
    seen = observe(fused, options)
    assert (seen.unseen.setting, seen.unseen.apart) == (100, 100)
    assert seen.trial is not None
    made = seen.trial.write()
    left = np.zeros(10_000, dtype=bool)

    def look(node: Node, value: Array) -> None:
        for reader in (n for n in made.nodes if n.op == "poly" and n.inputs[0] is node):
            low, high = reader.attrs["low"], reader.attrs["high"]
            left[~((value >= low - 1e-6) & (value <= high + 1e-6)).all(axis=1)] = True

    with np.errstate(all="ignore"):
        run_nodes(made, {made.inputs[0]: inputs(10_000, 6)}, look)
    assert left.mean() <= rate_bound(seen.unseen.left, 100)
    assert left.any() if options.margin == 0.0 else left.mean() < 1e-3


def test_a_sample_kept_apart_that_leaves_makes_room() -> None:
    samples = inputs(64, 1)
    samples[33] *= 40.0 / np.abs(samples[33]).max()
    fused = linear_passes(network(2, samples))[-1].program
    found = observe(fused, Options())
    assert found.unseen.left == 1
    assert max(found.known.choice.room.values()) > 1.2
    made = approximate(network(2, samples))
    (output,) = interpret_many(made, [samples[33:34]])
    (exact,) = interpret_many(fused, [samples[33:34]])
    assert np.abs(output - exact).max() < np.abs(exact).max()
    # A margin that was given is the user's: it is looked at, and kept.
    kept = observe(fused, Options(margin=0.1))
    assert kept.unseen.left >= 1
    assert not kept.known.choice.room


def test_as_many_samples_are_kept_apart_as_was_asked_for() -> None:
    """And debug, which makes the polynomials again, keeps as many: here the sample that makes room is not among them."""
    samples = inputs(64, 1)
    samples[33] *= 40.0 / np.abs(samples[33]).max()
    program = network(2, samples)
    artifact = compile(program, replace(TOY, samples_apart=8))
    unseen = artifact.report.values["unseen"]
    assert (unseen["setting"], unseen["apart"], unseen["left"]) == (32, 8, 0)
    assert artifact.report.values["options"]["samples_apart"] == 8
    shown = debug(artifact, samples[0], program=program, encrypted=False)
    # With other samples apart units get other sizes, and their values would be read by those.
    other = replace(artifact, report=Report(replace(artifact.report.figures, options={})))
    wrong = debug(other, samples[0], program=program, encrypted=False)
    # The first activation's input is a linear map of the sample.
    assert shown.layers[0].approximation_error < 1e-6 < 1e-3 < wrong.layers[0].approximation_error


def test_the_bill_gives_rate_layer_and_an_error_of_held_out_samples() -> None:
    program = network(2, inputs(120, 1))
    artifact = compile(program, replace(TOY, degree=7, margin=0.1))
    values = artifact.report.to_dict()
    unseen = values["unseen"]
    assert (unseen["setting"], unseen["apart"], unseen["confidence"]) == (60, 60, 0.95)
    assert unseen["rate_bound"] == rate_bound(unseen["left"], 60)
    assert unseen["worst"]["layer"] in ("act0", "act1")
    text = " ".join(artifact.report.full().split())
    assert (
        f"of the 60 held out left one. Inputs like the samples leave a range at a rate of at most {unseen['rate_bound']:.2g}"
        in text
    )
    # The error is that of ranges which the even samples set, on the odd ones that stayed.
    half = replace(program, calibration=(program.calibration[0][0::2],))
    polynomial = front_passes(half, replace(TOY, degree=7, margin=0.1))[-1].program
    odd = [program.calibration[0][1::2]]
    errors = np.abs(interpret_many(polynomial, odd)[0] - interpret_many(program, odd)[0]).max(axis=1)
    assert values["error_samples"] == 60 - unseen["left"]
    assert np.sort(errors)[values["error_samples"] - 1] == pytest.approx(values["approximation_error"], rel=1e-5)


def test_polynomials_that_overflow_on_the_samples_are_refused_in_words() -> None:
    """All samples give zero behind the first ReLU, so that the interval of the second holds nothing else."""
    samples = -np.abs(np.random.default_rng(7).normal(size=(7, 4))).clip(0.5, 9)
    ones = "w = [[1, 1, 1, 1], [1, 1, 1, 1]]\n"
    made = hg.parse(f"program p\ninput x: secret tensor[4] in [-9, 9]\n{ones}output y = relu(relu(w @ x))\n")
    with pytest.raises(hg.PlanningError, match="the polynomials overflow on the samples"):
        compile(replace(made, calibration=(samples,)), TOY)


def test_one_sample_is_warned_of() -> None:
    program = network(1, inputs(1, 1))
    with pytest.warns(UserWarning, match="1 calibration samples say little") as caught:
        artifact = compile(program, replace(TOY, degree=15))
    assert {each.filename for each in caught if "say little" in str(each.message)} == {__file__}
    assert artifact.report.to_dict()["unseen"]["rate_bound"] == 1.0
    assert "nothing is known of how often a new input leaves a range" in " ".join(artifact.report.full().split())
    # The range is far wider than the sample, and the next ones stay within it.
    assert results(program, Options(), inputs(500, 2))[0] <= 5 < results(program, BEFORE, inputs(500, 2))[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compile(network(1, inputs(64, 1)), replace(TOY, degree=15))


def test_a_declared_input_range_is_not_narrowed_by_samples() -> None:
    b = Builder("net", Stage.TENSOR)
    x = b.input("x", shape=(4,), low=-5.0, high=5.0)
    y = b.op("tanh", (x,), Location("net.py", 1, 0, "act"))
    program = replace(b.finish([y]), calibration=(np.random.default_rng(0).uniform(-1, 1, size=(50, 4)),))
    for options in (Options(), Options(margin=0.1)):
        (entry,) = front_passes(program, options)[-1].program.ranges
        assert (entry.low, entry.high, entry.source) == (-5.0, 5.0, "proved")


@pytest.mark.parametrize("margin", [None, 0.1])
def test_a_margin_does_not_push_a_variance_to_its_eps(margin: float | None) -> None:
    """A layer norm's variance is at least eps, and the samples' is a thousand times that."""
    b = Builder("net", Stage.TENSOR)
    x = b.input("x", shape=(8,))
    y = b.op("layer_norm", (x,), Location("net.py", 1, 0, "norm"), rank=1, eps=1e-5)
    samples = inputs(256, 1, 8)
    samples /= np.maximum(1.0, 0.1 / samples.std(axis=1, keepdims=True))
    program = replace(b.finish([y]), calibration=(samples,))
    polynomial = front_passes(program, Options(margin=margin))[-1].program
    (entry,) = [e for e in polynomial.ranges if e.function in ("rsqrt", "reciprocal", "sqrt")]
    assert 1e-5 < entry.low < samples.var(axis=1).min()
    (exact,), (got,) = interpret_many(program, [samples]), interpret_many(polynomial, [samples])
    assert np.abs(exact - got).max() < 0.05


def test_results_that_left_are_caught_by_their_range() -> None:
    """Of the garbage that the old defaults gave here, nearly all lies outside what outputs can be; nothing sound does."""
    program, samples = network(6, inputs(256, 1)), inputs(4000, 2)
    polynomial = front_passes(program, BEFORE)[-1].program
    polynomial = apply(OutputRanges(polynomial.stage, interpret_many(program, [inputs(64, 1)]), 256), polynomial)
    (spec,) = polynomial.interface.outputs
    (exact,) = interpret_many(program, [samples])
    with np.errstate(all="ignore"):
        (outputs,) = interpret_many(polynomial, [samples])
        garbage = ~(np.abs(outputs - exact).max(axis=1) <= np.ptp(exact))

    def refused(output: Array) -> bool:
        try:
            check_output(spec, output, 0.0, 0.0)
        except RangeError:
            return True
        return False

    assert garbage.sum() > 0
    assert np.mean([refused(output) for output in outputs[garbage]]) >= 0.8
    assert not any(refused(output) for output in exact[:500])


def test_degrees_are_raised_until_the_outputs_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of the usual degrees are near enough, ten are not."""

    def outcome(layers: int) -> tuple[float, int]:
        program, samples = network(layers, inputs(256, 1)), inputs(1000, 2)
        (exact,) = interpret_many(program, [samples])
        polynomial = front_passes(program, Options())[-1].program
        error = np.square(interpret_many(polynomial, [samples])[0] - exact).mean() ** 0.5
        return float(error / exact.var(axis=0).mean() ** 0.5), program_depth(polynomial)

    shallow, deep = outcome(2), outcome(10)
    monkeypatch.setattr("heliograph.compiler.reporting.held_out._CLOSER", (1.0,))
    assert outcome(2) == shallow
    usual = outcome(10)
    assert usual[0] > 0.1
    assert deep[0] < 0.7 * usual[0]
    assert deep[1] > usual[1]


def test_outputs_that_stay_too_far_off_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.compiler.reporting.held_out._CLOSER", (1.0,))
    with pytest.warns(UserWarning, match=r"by \d+% of their spread, .* more calibration samples"):
        compile(network(10, inputs(256, 1)), TOY)


def pooled(calibration: Array, gap: float | None = None) -> Program:
    """The maximum of each four channels of a ReLU, behind which many are equal."""
    b = Builder("pooled", Stage.TENSOR)
    x = b.input("x", shape=(4, 32))
    x = b.op("relu", (x,), Location("net.py", 1, 0, "act"))
    y = b.op("max", (x,), Location("net.py", 2, 0, "pool"), axis=0, **({} if gap is None else {"gap": gap}))
    return replace(b.finish([y]), calibration=(calibration,))


def test_a_maximum_is_fitted_to_the_differences_that_the_samples_show() -> None:
    random = np.random.default_rng(0)
    calibration, samples = random.normal(size=(256, 4, 32)) - 1.0, random.normal(size=(500, 4, 32)) - 1.0
    exact = np.maximum(samples, 0).max(axis=1)

    def outcome(program: Program) -> tuple[float, int]:
        # Before scaling.
        polynomial = front_passes(program, Options())[-2].program
        rounds = [entry for entry in polynomial.ranges if entry.function == "max_rows"]
        error = with_exact_relu(polynomial, samples) - exact
        assert np.abs(error).max() <= rounds[0].max_error
        return float(np.square(error).mean() ** 0.5), rounds[0].degree

    (fitted, degree), (least_largest, other) = outcome(pooled(calibration)), outcome(pooled(calibration, 0.05))
    assert depth_of_degree(degree) == depth_of_degree(other)
    assert fitted < 0.7 * least_largest


def with_exact_relu(polynomial: Program, samples: Array) -> Array:
    """The output where ReLUs are not approximated."""
    table: dict[Node, Array] = {}
    context = Context(polynomial.constants, polynomial.log_primes)
    for node in polynomial.nodes:
        operands = [table[operand] for operand in node.inputs]
        if node.op == "input":
            table[node] = samples
        elif node.attrs.get("range") is not None and polynomial.ranges[node.attrs["range"]].function == "relu":
            table[node] = np.maximum(operands[0], 0)
        else:
            table[node] = np.asarray(OPS[node.op].evaluate(operands, node.attrs, context))
    return table[polynomial.outputs[0]]


def test_a_sample_that_leaves_a_later_round_of_a_maximum_makes_room() -> None:
    random = np.random.default_rng(0)
    calibration = random.normal(size=(64, 4, 32)) - 1.0
    # Rows that the first round compares are alike, those of the second are not: in one sample that sets no range.
    calibration[1, [0, 2]], calibration[1, [1, 3]] = 40.0, 0.0
    program = pooled(calibration)
    linear = linear_passes(program)[-1].program
    seen = observe(linear, Options())
    polynomial = seen.known.write()
    assert seen.unseen.left == 1
    assert [entry.high >= 40.0 * factor for entry, factor in zip(polynomial.ranges[1:], (0.25, 0.5), strict=True)][1]


@pytest.mark.parametrize("act", ["gelu", "tanh", "sigmoid", "silu", "softplus"])
@pytest.mark.parametrize("calibrated", [True, False])
def test_smooth_functions_take_the_smallest_degree_that_encryption_hides(act: str, calibrated: bool) -> None:
    samples = np.random.default_rng(0).uniform(-0.2, 0.2, size=(256, 16))
    source = network(1, samples, act)
    if not calibrated:
        b = Builder("net", Stage.TENSOR)
        x = b.input("x", shape=(16,), low=-0.5, high=0.5)
        source = b.finish([b.op(act, (x,), Location("net.py", 1, 0, "act"))])
    coarse, fine = (front_passes(source, Options(precision_bits=bits))[-1].program.ranges[0] for bits in (10.0, 40.0))
    assert coarse.degree <= min(fine.degree, 15)
    assert coarse.max_error < 2.0**-14
    assert fine.max_error <= coarse.max_error


def test_kinks_take_no_low_degree() -> None:
    program = network(1, np.random.default_rng(0).uniform(-1, 1, size=(256, 16)))
    assert front_passes(program, Options(precision_bits=0.0))[-1].program.ranges[0].degree >= 15


def test_functions_of_one_value_have_degrees_of_their_own() -> None:
    samples = np.random.default_rng(0).uniform(-0.2, 0.2, size=(256, 16))
    b = Builder("net", Stage.TENSOR)
    x = b.input("x", shape=(16,), low=-0.5, high=0.5)
    kinked, smooth = b.op("relu", (x,)), b.op("tanh", (x,))
    program = replace(b.finish([b.op("add", (kinked, smooth))]), calibration=(samples,))
    ranges = front_passes(program, Options(precision_bits=10.0))[-1].program.ranges
    degrees = {entry.function: entry.degree for entry in ranges}
    assert degrees["relu"] >= 15 > degrees["tanh"]
