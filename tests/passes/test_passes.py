"""Each pass alone: meaning kept, and what it promises."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.backends import largest_difference, run, simulator
from helpers.random_programs import random_inputs, random_program
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.ckks.ring import Ring
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import back_passes, front_passes
from heliograph.errors import InternalError, PlanningError, ProgramError, UnsupportedError
from heliograph.interpret import interpret, run_nodes
from heliograph.ir import Array, Builder, CipherType, Location, Node, Program, Stage
from heliograph.ir.analysis.depth import program_depth
from heliograph.ir.analysis.liveness import last_use_table, peak_towers
from heliograph.ir.location import joined
from heliograph.ir.maps.steps import rotation_steps
from heliograph.ir.ranges import RangeEntry
from heliograph.passes.base import apply
from heliograph.passes.levels.lower_polynomials import LowerPolynomials
from heliograph.passes.levels.plan_levels import PlanLevels, TooFewLevelsError
from heliograph.passes.levels.select_keys import SelectKeys
from heliograph.passes.packing.clean_slots import CleanSlots
from heliograph.passes.packing.pack import Pack
from heliograph.passes.polynomials.approximate import Approximate
from heliograph.passes.polynomials.fold_scaling import FoldScaling
from heliograph.passes.ranges.calibrate import Calibrate
from heliograph.passes.ranges.intervals import program_intervals
from heliograph.passes.tensors.expand import Expand
from heliograph.passes.tensors.fuse_linear import FuseLinear
from heliograph.passes.tensors.simplify import Simplify

R = np.random.default_rng(0)
RING = Ring(10, 60, 40, 12, 3, None)


def loc(layer: str, line: int = 1) -> Location:
    return Location("model.py", line, 1, layer)


def outputs(program: Program, samples: list[Array]) -> list[Array]:
    value = interpret(program, *samples)
    return [np.asarray(v) for v in (value if isinstance(value, tuple) else (value,))]


def ops(program: Program) -> Counter[str]:
    return Counter(node.op for node in program.nodes)


def tensor(body: Callable[[Builder, Node], Any], *shape: int, low: Any = -1.0, high: Any = 1.0) -> Program:
    builder = Builder("p", Stage.TENSOR)
    made = body(builder, builder.input("x", shape=shape, low=low, high=high))
    return builder.finish(made if isinstance(made, dict | list) else [made])


def lin(b: Builder, x: Node, out: int, layer: str = "fc") -> Node:
    cols = x.type.shape[-1]  # type: ignore[union-attr]
    weight = b.constant(
        np.random.default_rng(zlib.crc32(f"{layer} {out} {cols}".encode())).normal(size=(out, cols)) / np.sqrt(cols),
        f"{layer}.weight",
    )
    return b.op("linear", (x,), loc(layer), weight=weight, bias=b.constant(np.linspace(-1, 1, out), f"{layer}.bias"))


def chain(program: Program, options: Options | None = None, ring: Ring = RING) -> dict[str, Program]:
    options = options or Options(security_bits=None)
    front = front_passes(program, options)
    return {"source": program, **dict(front), **dict(back_passes(front[-1].program, ring, options))}


@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 14))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_tensor_passes_keep_the_meaning(seed: int, steps: int) -> None:
    program = random_program(seed, steps)
    samples = random_inputs(program, seed)
    expected = outputs(program, samples)
    size = max(1.0, max(float(np.abs(v).max(initial=0)) for v in expected))
    simplified = apply(Simplify(), program)
    assert largest_difference(expected, outputs(simplified, samples)) <= 1e-12 * size
    expanded = apply(Expand(), simplified)
    assert largest_difference(expected, outputs(expanded, samples)) <= 1e-9 * size
    fused = apply(FuseLinear(), expanded)
    assert largest_difference(expected, outputs(fused, samples)) <= 1e-9 * size
    assert largest_difference(expected, outputs(apply(FuseLinear(), program), samples)) <= 1e-9 * size
    polynomial = apply(Approximate(degree=5), fused)
    approximate = outputs(polynomial, samples)
    scaled = outputs(apply(FoldScaling(), polynomial), samples)
    size = max(1.0, max(float(np.abs(v).max(initial=0)) for v in approximate))
    assert largest_difference(approximate, scaled) <= 1e-8 * size


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_intervals_hold_every_value(seed: int) -> None:
    program = apply(FuseLinear(), apply(Simplify(), random_program(seed, 8)))
    bounds = program_intervals(program, {})
    random = np.random.default_rng(seed)
    # Corners of the range as well as its inside.
    samples = [np.sign(random.normal(size=(40, *n.type.shape))) for n in program.inputs]  # type: ignore[union-attr]

    def check(node: Node, value: Array) -> None:
        if node in bounds and value.size:
            assert bounds[node].low - 1e-9 <= value.min()
            assert value.max() <= bounds[node].high + 1e-9

    run_nodes(program, dict(zip(program.inputs, samples, strict=True)), check)


# ------------------------------------------------------------------------------------------ simplify, fuse


def test_simplify_folds_merges_and_drops() -> None:
    def body(b: Builder, x: Node) -> Node:
        one = b.op("constant", value=b.constant(np.ones(3)))
        zero = b.op("sub", (one, one))
        y = b.op("mul", (b.op("add", (x, zero)), one))
        y = b.op("reshape", (b.op("power", (y,), exponent=1),), shape=(3,))
        b.op("sigmoid", (y,))
        return b.op("add", (b.op("tanh", (y,)), b.op("tanh", (x,))))

    program = apply(Simplify(), tensor(body, 3))
    assert ops(program) == {"input": 1, "tanh": 1, "add": 1}


def test_runs_of_linear_ops_become_one_map() -> None:
    def body(b: Builder, x: Node) -> Node:
        w = b.constant(R.normal(size=(4, 2, 3, 3)), "conv.weight")
        y = b.op("conv", (x,), loc("conv"), weight=w, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
        m, v = b.constant(R.normal(size=4), "bn.mean"), b.constant(R.uniform(1, 2, 4), "bn.var")
        y = b.op("batch_norm", (y,), loc("bn"), mean=m, variance=v, eps=1e-5)
        y = b.op("avg_pool", (y,), kernel=(2, 2), stride=(2, 2), padding=(0, 0), count_include_pad=True)
        return lin(b, b.op("reshape", (y,), shape=(36,)), 5, "fc")

    program = apply(FuseLinear(), tensor(body, 2, 6, 6))
    assert ops(program) == {"input": 1, "affine": 1}
    assert program.nodes[-1].loc.layer == "conv+bn+fc"
    assert program_depth(replace(program, stage=Stage.POLYNOMIAL)) == 1


def test_batch_norms_of_large_maps_are_merged_and_their_poolings_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is merged is bounded by entries, but a map that only scales channels adds none."""

    def body(b: Builder, x: Node) -> Node:
        w = b.constant(R.normal(size=(16, 8, 3, 3)), "conv.weight")
        y = b.op("conv", (x,), loc("conv"), weight=w, stride=(1, 1), padding=(1, 1), dilation=(1, 1), groups=1)
        m, v = b.constant(R.normal(size=16), "bn.mean"), b.constant(R.uniform(1, 2, 16), "bn.var")
        y = b.op("batch_norm", (y,), loc("bn"), mean=m, variance=v, eps=1e-5)
        return b.op("avg_pool", (y,), kernel=(2, 2), stride=(2, 2), padding=(0, 0), count_include_pad=True)

    program = tensor(body, 8, 16, 16)
    monkeypatch.setattr("heliograph.passes.tensors.fuse_linear._MAX_ENTRIES", 100_000)
    made = apply(FuseLinear(), program)
    assert next(node.loc.layer for node in made.nodes if node.op == "affine") == "conv+bn"
    assert ops(made) == {"input": 1, "affine": 2}
    x = R.normal(size=(8, 16, 16))
    np.testing.assert_allclose(interpret(made, x)[0], interpret(program, x)[0], atol=1e-12)


def test_a_map_is_named_by_the_layers_that_it_was() -> None:
    """Each once, within their module, on the line of the last; of many the first and the last."""

    def name(*layers: str) -> str:
        return joined([Location("net.py", line + 1, layer=layer) for line, layer in enumerate(layers)]).layer

    assert name("conv1") == "conv1"
    assert name("block.conv1", "block.bn1", "block.bn1") == "block.conv1+bn1"
    assert name("stem.conv", "head.fc") == "stem.conv+head.fc"
    assert name("a.0", "a.1", "a.2", "a.3") == "a.0+...+3"
    assert joined([Location("net.py", 3, layer="conv"), Location("net.py", 4, layer="bn")]).short == "net.py:4"
    without = joined([Location("nn.Linear(2, 3)", layer="0"), Location("nn.BatchNorm1d(3)", layer="1")])
    assert str(without) == "nn.Linear(2, 3) + nn.BatchNorm1d(3) (0+1)"

    def branches(b: Builder, x: Node) -> Node:
        return b.op("add", (lin(b, lin(b, x, 4, "conv1"), 3, "conv2"), lin(b, x, 3, "shortcut")))

    assert apply(FuseLinear(), tensor(branches, 4)).nodes[-1].loc.layer == "conv1+conv2+shortcut"


def test_residual_sums_stay_sums() -> None:
    def body(b: Builder, x: Node) -> Node:
        h = b.op("relu", (lin(b, x, 4, "a"),), loc("act"))
        return b.op("add", (x, h))

    program = apply(FuseLinear(), tensor(body, 4))
    assert ops(program) == {"input": 1, "affine": 1, "relu": 1, "add": 1}


def test_shared_values_are_computed_once() -> None:
    def body(b: Builder, x: Node) -> list[Node]:
        h = lin(b, x, 6, "shared")
        return [b.op("sigmoid", (h,)), b.op("add", (lin(b, h, 3, "head"), b.op("tanh", (lin(b, h, 3, "other"),)))), h]

    program = apply(FuseLinear(), tensor(body, 8))
    # shared, head (which starts from the shared value), other.
    assert ops(program)["affine"] == 3


def test_parallel_branches_of_one_input_merge() -> None:
    program = apply(FuseLinear(), tensor(lambda b, x: b.op("add", (lin(b, x, 3, "a"), lin(b, x, 3, "b"))), 5))
    assert ops(program) == {"input": 1, "affine": 1}


def test_powers_have_least_depth() -> None:
    for exponent, depth in ((2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)):
        program = apply(FuseLinear(), tensor(lambda b, x, e=exponent: b.op("power", (x,), exponent=e), 3))
        assert program_depth(replace(program, stage=Stage.POLYNOMIAL)) == depth


def test_products_of_two_run_time_matrices_are_products_of_elements() -> None:
    for left, right in (((2, 3), (3, 4)), ((3,), (3, 2)), ((2, 3), (3,)), ((4,), (4,)), ((2, 2, 3), (3, 2))):
        builder = Builder("product", Stage.TENSOR)
        pair = [builder.input(name, shape=shape) for name, shape in (("a", left), ("b", right))]
        program = builder.finish([builder.op("matmul", pair)])
        fused = apply(FuseLinear(), program)
        assert ops(fused)["mul"] == 1
        samples = [R.normal(size=left), R.normal(size=right)]
        assert largest_difference(outputs(program, samples), outputs(fused, samples)) < 1e-12


def test_too_large_products_of_run_time_matrices_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="products of elements"):
        apply(
            FuseLinear(), tensor(lambda b, x: b.op("matmul", (x, b.input("y", shape=(64, 64), secret=False))), 64, 64)
        )
    # Two matrices stay one product, of any size.
    fused = apply(FuseLinear(), tensor(lambda b, x: b.op("matmul", (x, x)), 64, 64))
    assert [node.op for node in fused.nodes] == ["input", "matrix_product"]


def test_large_matrix_products_do_not_need_dense_units() -> None:
    def body(b: Builder, x: Node) -> Node:
        return b.op("matmul", (x, b.op("constant", value=b.constant(R.normal(size=(64, 8)), "m"))))

    program = tensor(body, 64, 64)
    fused = apply(FuseLinear(), program)
    samples = random_inputs(program)
    assert largest_difference(outputs(program, samples), outputs(fused, samples)) < 1e-10


# ------------------------------------------------------------------------------------------ calibrate, approximate


def act(name: str = "tanh", **attrs: Any) -> Callable[[Builder, Node], Node]:
    return lambda b, x: b.op(name, (lin(b, x, 4, "fc"),), loc("net.act", 42), **attrs)


def with_samples(program: Program, samples: Array) -> Program:
    return replace(program, calibration=(samples,))


def approximated(program: Program, **options: Any) -> RangeEntry:
    fused = apply(FuseLinear(), program)
    made = apply(Approximate(observed=Calibrate().run(fused), **options), fused)
    (entry,) = made.ranges
    return entry


def test_without_a_range_the_layer_is_named() -> None:
    with pytest.raises(ProgramError, match="nothing bounds the input of tanh") as caught:
        approximated(tensor(act(), 3, low=None, high=None))
    assert caught.value.where == "model.py:42:1 (net.act)"
    assert "calibration" in caught.value.hint


def test_observed_ranges_are_widened_by_the_margin() -> None:
    program = tensor(act(), 3, low=None, high=None)
    samples = R.normal(size=(50, 3))
    seen: list[Array] = []
    run_nodes(program, {program.inputs[0]: samples}, lambda n, v: seen.append(v) if n.op == "linear" else None)
    low, high = float(seen[0].min()), float(seen[0].max())
    for margin in (0.0, 0.1, 0.5):
        entry = approximated(with_samples(program, samples), margin=margin)
        width = margin * (high - low)
        assert entry.source == "observed"
        assert entry.observed == pytest.approx([low, high])
        assert entry.low <= low - width + 1e-9
        assert entry.high >= high + width - 1e-9
        assert max(-entry.low, entry.high) == pytest.approx(max(width - low, high + width))


def test_proved_ranges_cut_observed_ones() -> None:
    program = tensor(act(), 3)
    entry = approximated(with_samples(program, R.uniform(-1, 1, size=(50, 3))), margin=10.0)
    assert entry.source == "proved"
    assert entry.proved[0] <= entry.observed[0]
    assert entry.observed[1] <= entry.proved[1]


def test_declared_ranges_win_unless_contradicted() -> None:
    program = tensor(act(low=-9.0, high=9.0), 3, low=None, high=None)
    assert approximated(program).source == "declared"
    narrow = with_samples(tensor(act(low=-0.1, high=0.1), 3, low=None, high=None), R.normal(size=(50, 3)))
    with pytest.raises(ProgramError, match="contradicted by calibration"):
        approximated(narrow)


def test_degrees_of_layers() -> None:
    program = tensor(act(), 3)
    assert approximated(program).degree == 15
    assert approximated(program, degree=7).degree == 7
    assert approximated(program, degree=7, degrees={"net.act": 3}).degree == 3
    assert approximated(tensor(act(degree=5), 3), degree=7).degree == 5
    with pytest.raises(ProgramError, match=r"no activation is called 'net\.acts'") as caught:
        approximated(program, degrees={"net.acts": 3})
    assert "net.act" in caught.value.hint


def test_degree_by_target_error() -> None:
    program = tensor(act(), 3)
    coarse, fine = (approximated(program, target_error=e) for e in (0.05, 0.001))
    assert coarse.max_error <= 0.05
    assert fine.max_error <= 0.001
    assert coarse.degree < fine.degree
    assert approximated(program, degree=coarse.degree - 1).max_error > 0.05


def test_relu_of_what_is_never_negative_is_nothing() -> None:
    program = tensor(lambda b, x: b.op("relu", (x,)), 3, low=0.0, high=2.0)
    assert ops(apply(Approximate(), program)) == {"input": 1}


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (np.zeros((4, 5)), "have shape"),
        (np.zeros((0, 3)), "no samples"),
        (np.full((2, 3), 7.0), "outside its range"),
        (np.zeros(()), "have shape"),
    ],
)
def test_calibration_that_does_not_fit_is_refused(samples: Array, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        Calibrate().run(with_samples(tensor(act(), 3), samples))
    with pytest.raises(ProgramError, match="samples of 2 inputs"):
        Calibrate().run(replace(tensor(act(), 3), calibration=(np.zeros((2, 3)),) * 2))


def test_calibration_sees_every_chunk() -> None:
    samples = np.zeros((200, 3))
    samples[-1] = 0.75
    program = with_samples(tensor(lambda b, x: b.op("neg", (x,)), 3), samples)
    table = Calibrate().run(program)
    seen = table[program.outputs[0]]
    assert (seen.low, seen.high, seen.samples) == (-0.75, 0.0, 200)
    assert seen.mean == pytest.approx(-0.75 / 200)
    assert seen.std == pytest.approx(np.std(-samples))


# ------------------------------------------------------------------------------------------ fold scaling


def residual(b: Builder, x: Node) -> Node:
    h = lin(b, x, 6, "stem")
    for i in range(3):
        h = b.op("add", (h, lin(b, b.op("silu", (lin(b, h, 6, f"a{i}"),), loc(f"act{i}")), 6, f"b{i}")))
    return lin(b, h, 2, "head")


@pytest.mark.parametrize("low", [-1.0, 0.0, 0.9])
def test_scaling_costs_no_level_in_residual_networks(low: float) -> None:
    program = apply(Approximate(degree=7), apply(FuseLinear(), tensor(residual, 5, low=low)))
    folded = apply(FoldScaling(), program)
    assert all((n.attrs["low"], n.attrs["high"]) == (-1.0, 1.0) for n in folded.nodes if n.op == "poly")
    assert program_depth(folded) == program_depth(program)
    assert ops(folded)["affine"] == ops(program)["affine"]
    samples = random_inputs(program)
    assert largest_difference(outputs(program, samples), outputs(folded, samples)) < 1e-9


def test_a_map_that_others_read_is_not_computed_twice() -> None:
    def body(b: Builder, x: Node) -> list[Node]:
        h = lin(b, x, 4)
        return [b.op("add", (h, b.op("gelu", (h,)))), h]

    program = apply(Approximate(degree=3), apply(FuseLinear(), tensor(body, 4, low=0.5, high=3.0)))
    folded = apply(FoldScaling(), program)
    samples = random_inputs(program)
    assert largest_difference(outputs(program, samples), outputs(folded, samples)) < 1e-9
    # One map, and one that brings the polynomial's input to its interval.
    assert ops(folded)["affine"] <= 2


# ------------------------------------------------------------------------------------------ packing


def test_a_leaking_program_is_caught() -> None:
    packed = chain(tensor(lambda b, x: lin(b, x, 3), 8))["pack"]
    counts = CleanSlots().run(packed)
    assert counts == (RING.slots * 3 // 4,)
    # Output rows 3 of every 4 carry results: declare one fewer, and the third is a leak.
    (spec,) = packed.interface.outputs
    less = replace(packed.interface, outputs=(replace(spec, layout=replace(spec.placed, shape=(2,))),))
    with pytest.raises(InternalError, match="would leak: slot 2"):
        CleanSlots().run(replace(packed, interface=less))


def test_unused_slots_are_followed_through_products_and_rotations() -> None:
    def body(b: Builder, x: Node) -> Node:
        return b.op("mul", (x, x))

    packed = chain(tensor(body, 3))["pack"]
    rotated = packed.outputs[0]
    moved = Builder("p", Stage.PACKED, packed).op("rotate", (rotated,), amount=1)
    broken = replace(packed, nodes=(*packed.nodes, moved), outputs=(moved,))
    with pytest.raises(InternalError, match="slot 3"):
        CleanSlots().run(broken)


def test_a_returned_input_is_not_shifted() -> None:
    program = tensor(lambda b, x: {"y": lin(b, x, 64), "x": x}, 64)
    made = chain(program)["schedule"]
    samples = random_inputs(program)
    assert largest_difference(outputs(program, samples), outputs(made, samples)) < 1e-9


def test_inputs_are_shifted_where_that_is_free() -> None:
    packed = chain(tensor(lambda b, x: lin(b, x, 64), 64))["pack"]
    assert packed.interface.inputs[0].placed.shift == 8


def test_zeros_at_the_top_of_a_polynomial_cost_nothing() -> None:
    def body(b: Builder, x: Node) -> Node:
        coefficients = b.constant(np.array([0.5, 0.25, 0.0, 0.0, 0.0, 0.0]), "c")
        return b.op("poly", (x,), coefficients=coefficients, low=-1.0, high=1.0)

    assert program_depth(replace(tensor(body, 3), stage=Stage.POLYNOMIAL)) == 1


# ------------------------------------------------------------------------------------------ levels, keys, order


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_true_scales_follow_from_the_primes(seed: int) -> None:
    """Recomputed with the primes themselves; the verifier's own rule only sees their rounded logarithms."""
    made = chain(random_program(seed, 8), ring=Ring(10, 60, 40, 30, 8, None))["schedule"]
    primes = made.ring.primes
    scale: dict[Node, float] = {}
    for node in made.nodes:
        if not node.type.secret:
            continue
        assert isinstance(node.type, CipherType)
        inputs = [scale[i] for i in node.inputs if i.type.secret]
        if node.op == "input":
            scale[node] = 2.0 ** node.attrs["log_scale"]
        elif node.op == "mul_ct":
            scale[node] = inputs[0] * inputs[1]
        elif node.op in ("mul_plain", "mul_pt"):
            scale[node] = inputs[0] * 2.0 ** node.attrs["plain_log_scale"]
        elif node.op in ("lincomb", "linear_transform"):
            terms = [s * 2.0**p for s, p in zip(inputs, node.attrs["plain_log_scales"], strict=True)]
            np.testing.assert_allclose(terms, terms[0], rtol=1e-9)
            scale[node] = terms[0]
        elif node.op == "rescale":
            level = node.inputs[0].type.level  # type: ignore[union-attr]
            scale[node] = inputs[0] / primes[level]
        else:
            np.testing.assert_allclose(inputs, inputs[0], rtol=1e-9)
            scale[node] = inputs[0]
        assert 2.0**node.type.log_scale == pytest.approx(scale[node], rel=1e-9)
    for node in made.outputs:
        assert isinstance(node.type, CipherType)
        assert (node.type.level, node.type.parts) == (0, 2)


def test_sums_of_products_pay_one_switch_and_one_rescale() -> None:
    def body(b: Builder, x: Node) -> Node:
        parts = [b.op("mul", (lin(b, x, 4, f"a{i}"), lin(b, x, 4, f"b{i}"))) for i in range(4)]
        total = parts[0]
        for part in parts[1:]:
            total = b.op("add", (total, part))
        return total

    made = ops(chain(tensor(body, 4))["plan-levels"])
    assert made["mul_ct"] == 4
    assert made["relinearize"] == 1
    # One for each map, one for the sum.
    assert made["rescale"] <= 8 + 1


def test_too_few_levels_say_how_many() -> None:
    program = chain(tensor(lambda b, x: b.op("power", (x,), exponent=8), 3))["lower-polynomials"]
    with pytest.raises(TooFewLevelsError, match="needs 3 levels, the ring has 2") as caught:
        PlanLevels(Ring(10, 60, 40, 2, 1, None)).run(program)
    assert caught.value.needed == 3


def test_summands_of_different_depth_meet_at_one_scale() -> None:
    def body(b: Builder, x: Node) -> Node:
        cube = b.op("power", (x,), exponent=5)
        return b.op("sub", (b.op("add", (cube, x)), b.op("mul", (x, x))))

    program = tensor(body, 4)
    made = chain(program)["schedule"]
    samples = random_inputs(program)
    got, _ = run(made, samples, simulator(made, noisy=False))
    assert largest_difference(outputs(program, samples), got) < 1e-9


def test_drifting_scales_are_brought_back() -> None:
    """Each squaring doubles the distance from the nominal scale; products with one undo it, a level each."""

    def body(b: Builder, x: Node) -> Node:
        for _ in range(40):
            x = b.op("mul", (x, x))
        return x

    program = tensor(body, 3)
    made = chain(program, ring=Ring(10, 60, 40, 60, 8, None))["schedule"]
    scales = [node.type.log_scale for node in made.nodes if node.op == "rescale"]  # type: ignore[union-attr]
    assert max(abs(scale - 40.0) for scale in scales) <= 8.0
    assert any(node.op == "lincomb" for node in made.nodes)
    with pytest.raises(PlanningError, match="levels"):
        chain(program, ring=Ring(10, 60, 40, 40, 8, None))


@pytest.mark.parametrize("keys", [1, 2, 3, 5, 8])
def test_few_rotation_keys_compose(keys: int) -> None:
    program = tensor(lambda b, x: lin(b, b.op("tanh", (lin(b, x, 12, "a"),), degree=3), 5, "b"), 20)
    unlimited = chain(program)["schedule"]
    relinearize = 1
    made = chain(program, Options(security_bits=None, key_bytes=(keys + relinearize) * RING.rotation_key_bytes))
    final = made["schedule"]
    assert len(final.planned.chains[0].rotation_keys) <= keys < len(unlimited.planned.chains[0].rotation_keys)
    for node in final.nodes:
        if node.op == "rotate":
            assert node.attrs["amount"] in final.planned.chains[0].rotation_keys
    for node in final.nodes:
        for step in rotation_steps(node) if node.op == "linear_transform" else ():
            path = final.planned.rotation_paths.get(step, (step,))
            assert sum(path) % RING.slots == step
            assert set(path) <= set(final.planned.chains[0].rotation_keys)
    samples = random_inputs(program)
    got, _ = run(final, samples, simulator(final, noisy=False))
    assert largest_difference(outputs(unlimited, samples), got) < 1e-9


def test_no_room_for_a_key_is_refused() -> None:
    program = chain(tensor(lambda b, x: lin(b, x, 5), 20))["plan-levels"]
    with pytest.raises(PlanningError, match="holds 0 rotation keys; this program needs 1") as caught:
        SelectKeys(RING, RING.rotation_key_bytes - 1).run(program)
    assert str(RING.rotation_key_bytes) in caught.value.hint
    assert len(SelectKeys(RING, RING.rotation_key_bytes).run(program).planned.chains[0].rotation_keys) == 1


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_orders_are_no_worse_and_free_at_the_last_use(seed: int) -> None:
    table = chain(random_program(seed, 10), ring=Ring(10, 60, 40, 30, 8, None))
    before, after = table["select-keys"], table["schedule"]
    assert peak_towers(after.nodes, after.outputs) <= peak_towers(before.nodes, before.outputs)
    assert set(after.nodes) == set(before.nodes)
    freed: set[int] = set()
    index = {node: i for i, node in enumerate(after.nodes)}
    table_of_last_uses = last_use_table(after.nodes, after.outputs)
    for i, node in enumerate(after.nodes):
        assert not freed & {index[operand] for operand in node.inputs}
        assert not freed & set(table_of_last_uses[i])
        freed |= set(table_of_last_uses[i])
    assert freed == set(range(len(after.nodes))) - {index[node] for node in after.outputs}


def test_lowering_keeps_the_meaning_and_leaves_no_polynomial() -> None:
    packed = chain(tensor(act("gelu", degree=9), 3))["pack"]
    lowered = apply(LowerPolynomials(), packed)
    assert "poly" not in ops(lowered)
    sample = [np.array([0.3, -0.8, 0.1])]
    assert largest_difference(outputs(packed, sample), outputs(lowered, sample)) < 1e-12


def test_a_pass_at_the_wrong_stage_is_refused() -> None:
    with pytest.raises(InternalError, match="needs stage polynomial"):
        apply(Pack(RING), tensor(lambda b, x: x, 3))


@pytest.mark.parametrize("name", ["pack", "schedule"])
def test_passes_are_deterministic(name: str) -> None:
    assert str(chain(random_program(11, 10))[name]) == str(chain(random_program(11, 10))[name])
