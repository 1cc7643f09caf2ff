"""Polynomials of degree 2 become squares: the same values, one level less, and the watch still knows their intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.random_programs import random_inputs
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import chebyshev

import heliograph as hg
from heliograph.ckks.ring import Ring
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import back_passes
from heliograph.errors import RangeError
from heliograph.interpret import interpret
from heliograph.ir import Array, Builder, Location, Node, Program, Stage
from heliograph.ir.analysis.depth import program_depth
from heliograph.passes.base import apply
from heliograph.passes.polynomials.approximate import Approximate
from heliograph.passes.polynomials.fold_scaling import FoldScaling
from heliograph.passes.polynomials.squares import square
from heliograph.passes.tensors.fuse_linear import FuseLinear

RING = Ring(10, 60, 40, 12, 3, None)
RELU = (0.22, 0.25, 0.16)  # near a ReLU on half the interval


def built(body: Callable[[Builder, Node], Any], low: float = -1.0, high: float = 1.0) -> Program:
    builder = Builder("p", Stage.TENSOR)
    made = body(builder, builder.input("x", shape=(6,), low=low, high=high))
    return builder.finish(made if isinstance(made, list) else [made])


def linear(b: Builder, x: Node, seed: int) -> Node:
    random = np.random.default_rng(seed)
    weight, bias = b.constant(random.normal(size=(6, 6)) / 6, "w"), b.constant(random.normal(size=6) / 6, "b")
    return b.op("linear", (x,), Location("net.py", seed + 1, 0, f"fc{seed}"), weight=weight, bias=bias)


def poly(
    b: Builder, x: Node, coefficients: Any = RELU, low: float = -2.0, high: float = 3.0, layer: str = "act"
) -> Node:
    return b.op(
        "poly", (x,), Location("net.py", 9, 0, layer), coefficients=b.constant(np.array(coefficients, float), "c"),
        low=low, high=high,
    )  # fmt: skip


def folded(program: Program) -> tuple[Program, Program]:
    """The program before scaling is folded, and after: the same values."""
    before = apply(Approximate(), apply(FuseLinear(), program))
    after = apply(FoldScaling(), before)
    samples = random_inputs(program)
    for own, theirs in zip(listed(interpret(before, *samples)), listed(interpret(after, *samples)), strict=True):
        np.testing.assert_allclose(own, theirs, atol=1e-9 * max(1.0, float(np.abs(own).max())))
    return before, after


def listed(value: Any) -> list[Array]:
    return list(value) if isinstance(value, tuple) else [value]


def polynomials(program: Program) -> list[Array]:
    return [program.array(node.attrs["coefficients"]) for node in program.nodes if node.op == "poly"]


@given(
    coefficients=st.tuples(*[st.floats(-4, 4).map(lambda value: round(value, 3))] * 3),
    low=st.floats(-50, 50),
    width=st.floats(0.1, 100),
    divided=st.floats(0.01, 100),
)
@settings(max_examples=200, deadline=None)
def test_a_square_is_the_polynomial(
    coefficients: tuple[float, float, float], low: float, width: float, divided: float
) -> None:
    high = low + width
    made = square(coefficients, low, high, divided)
    if made is None:
        return
    assert isinstance(made.factor, int)
    assert made.factor != 0
    # Its interval holds the polynomial's own, and is not too wide.
    slack = 1e-6 * (width + abs(low))
    assert made.low <= low + slack
    assert made.high >= high - slack
    assert made.high - made.low <= 16 * width + slack
    x = np.linspace(low, high, 21)
    y = (2 * x - made.low - made.high) / (made.high - made.low)
    wanted = chebyshev.chebval((2 * x - low - high) / width, coefficients) / divided
    limit = 1e-8 * (sum(map(abs, coefficients)) / divided + abs(made.factor)) * (1 + (abs(low) + abs(high)) / width)
    np.testing.assert_allclose(made.factor * y * y + made.constant, wanted, atol=limit)
    np.testing.assert_allclose(chebyshev.chebval(y, made.coefficients), wanted, atol=limit)
    centre, radius = made.frame
    np.testing.assert_allclose(centre + radius * y, (2 * x - low - high) / width, atol=1e-8 * (1 + abs(low) / width))


def test_what_is_nearly_a_line_stays_as_it_is() -> None:
    assert square((0.5, 1.0, 0.01), -1.0, 1.0) is None
    assert square((0.5, 1.0, 0.0), -1.0, 1.0) is None
    assert square((0.5, 1.0, 0.2, 0.1), -1.0, 1.0) is None


def test_a_layer_of_degree_two_takes_one_level() -> None:
    before, after = folded(built(lambda b, x: linear(b, poly(b, linear(b, x, 0)), 1)))
    assert (program_depth(before), program_depth(after)) == (4, 3)
    (series,) = polynomials(after)
    assert series[1] == 0
    assert (2 * series[2]).is_integer()
    packed = back_passes(after, RING, Options(security_bits=None))
    lowered = dict(packed)["lower-polynomials"]
    ops = [node.op for node in lowered.nodes]
    assert ops.count("mul_ct") == 1
    assert "lincomb" not in ops
    assert program_depth(lowered) == 3


def test_a_parabola_that_opens_downwards_too() -> None:
    before, after = folded(built(lambda b, x: linear(b, poly(b, linear(b, x, 0), (0.3, 0.2, -0.7)), 1)))
    assert program_depth(after) == program_depth(before) - 1
    assert polynomials(after)[0][2] < 0


def test_residual_networks_take_one_level_for_each() -> None:
    def body(b: Builder, x: Node) -> Node:
        h = poly(b, linear(b, x, 0), layer="stem")
        for i in range(3):
            inner = poly(b, linear(b, h, 3 * i + 1), low=-1.0 - i, high=2.0, layer=f"inner{i}")
            h = poly(b, b.op("add", (h, linear(b, inner, 3 * i + 2))), low=-3.0, high=3.0 + i, layer=f"outer{i}")
        return linear(b, h, 20)

    _, after = folded(built(body))
    assert program_depth(after) == 1 + 1 + 3 * (1 + 1 + 1 + 1) + 1
    # No scaling of its own for any of them.
    assert sum(node.op == "affine" for node in after.nodes) == 8


def test_values_that_another_polynomial_reads_too_keep_their_scale() -> None:
    def body(b: Builder, x: Node) -> list[Node]:
        h = linear(b, x, 0)
        return [linear(b, b.op("add", (poly(b, h), poly(b, h, (0.1, 0.5, 0.2, 0.3)))), 1)]

    _, after = folded(built(body))
    assert program_depth(after) == 4
    assert sum(node.op == "affine" for node in after.nodes) == 2


@pytest.mark.parametrize("second", [RELU, (0.1, -0.4, -0.3)])
def test_what_is_added_to_its_own_polynomial_stays_as_it_is(second: tuple[float, ...]) -> None:
    """Here the factor that comes out is the one that goes in: h = x + q(p(x))."""

    def body(b: Builder, x: Node) -> Node:
        h = linear(b, x, 0)
        return linear(b, b.op("add", (h, poly(b, poly(b, h, layer="p"), second, layer="q"))), 1)

    before, after = folded(built(body))
    assert program_depth(after) <= program_depth(before)


def test_an_output_and_an_input_of_the_program_are_not_scaled() -> None:
    before, after = folded(built(lambda b, x: poly(b, x, low=-1.0, high=1.0)))
    assert program_depth(after) == program_depth(before) == 2
    before, after = folded(built(lambda b, x: poly(b, x, (0.5, 0.0, 0.5), low=-1.0, high=1.0)))
    assert program_depth(after) == 1


def test_degree_three_of_a_symmetric_relu_is_a_square() -> None:
    """A ReLU less x/2 is even: its fits of degree 3 have no cubic part."""
    program = built(lambda b, x: linear(b, b.op("relu", (linear(b, x, 0),), degree=3), 1))
    before = apply(Approximate(), apply(FuseLinear(), program))
    after = apply(FoldScaling(), before)
    assert (program_depth(before), program_depth(after)) == (4, 3)


@pytest.mark.parametrize(
    ("interval", "coefficients", "depth"),
    [
        ((-2, 3), (0.22, 0.25, 0.16), 2),  # its own scaling, and the square
        ((-1, 1), (0.5, 0.0, 0.5), 1),  # x^2 as it stands
        ((-1, 1), (0.5, 0.0, 0.3), 2),  # nothing saved by scaling it
    ],
)
def test_squares_on_slots(interval: tuple[int, int], coefficients: tuple[float, ...], depth: int) -> None:
    low, high = interval
    program = hg.parse(
        f"program p\ninput x: secret slots[4] in [{low}, {high}]\n"
        f"output y = poly(x, coefficients={list(coefficients)}, low={low}, high={high})\n"
    )
    made = hg.compile(program, Options(security_bits=None))
    report = made.report.to_dict()
    assert report["depth"] == depth
    x = np.array([low, -0.5, 0.7, high], dtype=float)
    wanted = chebyshev.chebval((2 * x - low - high) / (high - low), coefficients)
    np.testing.assert_allclose(hg.simulate(made, x), wanted, atol=1e-4)
    assert [row["levels"] for row in report["degrees"]] == [1 if depth < 2 or interval != (-1, 1) else 2]


def test_the_watch_knows_the_polynomials_own_interval() -> None:
    """The square's interval is wider: a value between the two has left all the same."""

    def body(b: Builder, x: Node) -> Node:
        h = b.op("linear", (x,), weight=b.constant(np.eye(6), "w"))
        return linear(b, poly(b, h, low=-2.0, high=3.0), 1)

    program = built(body, low=-10.0, high=10.0)
    made = hg.compile(program, Options(security_bits=None))
    (entry,) = made.program.ranges
    assert entry.frame is not None
    assert entry.frame[1] > 1.0
    x = np.zeros(6)
    for value, fits in ((2.9, True), (-1.9, True), (3.2, False), (-2.3, False)):
        x[2] = value
        if fits:
            hg.simulate(made, x, check_ranges=True)
        else:
            with pytest.raises(RangeError, match=rf"element \[2\] is {value}"):
                hg.simulate(made, x, check_ranges=True)
