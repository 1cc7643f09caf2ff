"""Ranges by unit: a homogeneous activation between two linear maps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heliograph.errors import ProgramError
from heliograph.interpret import interpret_batch
from heliograph.ir import Builder, Location, Node, Program, Stage
from heliograph.passes.base import apply
from heliograph.passes.polynomials.approximate import Approximate
from heliograph.passes.polynomials.fold_scaling import FoldScaling
from heliograph.passes.ranges.calibrate import Calibrate
from heliograph.passes.tensors.fuse_linear import FuseLinear

SIZES = 2.0 ** np.linspace(-6, 3, 12)


def network(activation: str = "relu", residual: bool = False, reach: float | None = 1.0, **attrs: float) -> Program:
    """Linear, activation, linear; the units' sizes differ by up to 2^9, and the second map evens them out."""
    random = np.random.default_rng(5)
    b = Builder("net", Stage.TENSOR)
    limits = {"low": -reach, "high": reach} if reach else {}
    x = b.input("x", shape=(12,), **limits)
    first = b.constant(random.normal(size=(12, 12)) * SIZES[:, None], "first")
    second = b.constant(random.normal(size=(4, 12)) / SIZES, "second")
    hidden = b.op("linear", (x,), Location("net.py", 1, 0, "first"), weight=first)
    active: Node = b.op(activation, (hidden,), Location("net.py", 2, 0, "act"), **attrs)
    if residual:
        total = b.op("add", (active, x), Location("net.py", 3, 0, "sum"))
        active = b.op("tanh", (total,), Location("net.py", 3, 0, "outer"))
    y = b.op("linear", (active,), Location("net.py", 4, 0, "second"), weight=second)
    samples = np.random.default_rng(1).uniform(-1, 1, size=(400, 12))
    return replace(b.finish([y]), calibration=(samples,))


def polynomial(program: Program, observed: bool = True, **options: float) -> Program:
    fused = apply(FuseLinear(), program)
    table = Calibrate().run(fused)
    if not observed:
        table = {node: replace(seen, reach=None) for node, seen in table.items()}
    return apply(FoldScaling(), apply(Approximate(degree=15, observed=table, **options), fused))  # type: ignore[arg-type]


def worst(program: Program, made: Program, count: int = 2000) -> float:
    x = np.random.default_rng(2).uniform(-1, 1, size=(count, 12))
    return float(np.abs(interpret_batch(program, x)[0] - interpret_batch(made, x)[0]).max())


def test_small_units_gain_what_a_common_range_loses() -> None:
    program = network()
    assert worst(program, polynomial(program)) < 0.05 * worst(program, polynomial(program, observed=False))


def test_every_unit_stays_in_its_interval() -> None:
    program = network()
    made = polynomial(program)
    (poly,) = [node for node in made.nodes if node.op == "poly"]
    inner = replace(made, outputs=(poly.inputs[0],), nodes=made.nodes[: made.nodes.index(poly)])
    x = np.random.default_rng(3).uniform(-1, 1, size=(20_000, 12))
    values = np.abs(interpret_batch(inner, x)[0])
    assert values.max() <= 1.0
    # No unit wastes its interval: each comes within a factor of four of the end.
    assert values.max(axis=0).min() > 0.25


def test_it_costs_no_level_and_no_map() -> None:
    made = polynomial(network())
    assert [node.op for node in made.nodes] == ["input", "affine", "poly", "affine"]


def test_the_report_tells_units_and_source() -> None:
    (entry,) = polynomial(network(reach=8.0)).ranges
    assert entry.units == 12
    assert entry.smallest_unit < entry.high / 50
    assert entry.high == -entry.low
    assert entry.source == "observed"
    (tight,) = polynomial(network(), margin=10.0).ranges
    assert tight.source == "proved"
    assert tight.high == pytest.approx(max(tight.proved[1], -tight.proved[0]))


@pytest.mark.parametrize(
    "program",
    [network("tanh"), network(residual=True), network(low=-60.0, high=60.0)],
    ids=["not homogeneous", "read by a sum", "range declared"],
)
def test_a_common_range_elsewhere(program: Program) -> None:
    entry = polynomial(program).ranges[0]
    assert entry.layer == "act"
    assert entry.units is None


def test_leaky_relu_by_unit() -> None:
    program = network("leaky_relu", negative_slope=0.2)
    made = polynomial(program)
    assert made.ranges[0].units == 12
    assert worst(program, made) < 0.05 * worst(program, polynomial(program, observed=False))


def test_without_an_input_range() -> None:
    (entry,) = polynomial(network(reach=None)).ranges
    assert entry.units == 12
    assert entry.proved is None


def test_channels_are_units() -> None:
    random = np.random.default_rng(0)
    b = Builder("conv", Stage.TENSOR)
    x = b.input("x", shape=(1, 6, 6), low=0.0, high=1.0)
    weight = np.abs(random.normal(size=(3, 1, 3, 3))) * np.array([0.01, 1.0, 30.0]).reshape(3, 1, 1, 1)
    geometry = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
    hidden = b.op("conv", (x,), weight=b.constant(weight, "w"), **geometry)
    active = b.op("relu", (hidden,), Location("c.py", 1, 0, "act"))
    y = b.op("sum", (active,), axes=(1, 2), keepdims=False)
    samples = random.uniform(0, 1, size=(100, 1, 6, 6))
    program = replace(b.finish([y]), calibration=(samples,))
    made = polynomial(program)
    assert made.ranges[0].units == 3
    exact, got = interpret_batch(program, samples)[0], interpret_batch(made, samples)[0]
    scale = np.abs(exact).max(axis=0)
    assert (np.abs(exact - got).max(axis=0) / scale < 0.1).all()


STREAM = 2.0 ** np.linspace(-2, 1.5, 12)


def residual(read: str = "") -> Program:
    """A stem and two residual blocks whose units differ in size; `read` puts something else beside it."""
    random = np.random.default_rng(7)
    b = Builder("residual", Stage.TENSOR)
    x = b.input("x", shape=(12,), low=-1.0, high=1.0)

    def linear(value: Node, name: str, rows: np.ndarray, columns: np.ndarray) -> Node:
        weight = 0.2 * random.normal(size=(12, 12)) * rows[:, None] / columns
        return b.op("linear", (value,), Location("net.py", 1, 0, name), weight=b.constant(weight, name))

    def relu(value: Node, name: str) -> Node:
        return b.op("relu", (value,), Location("net.py", 2, 0, name))

    stream = relu(linear(x, "stem", STREAM, np.ones(12)), "relu0")
    for block in (1, 2):
        hidden = relu(linear(stream, f"a{block}", STREAM[::-1], STREAM), f"inner{block}")
        total = b.op("add", (linear(hidden, f"b{block}", STREAM, STREAM[::-1]), stream), Location("net.py", 3))
        stream = relu(total, f"relu{block}")
    ends = [linear(stream, "head", np.ones(12), STREAM)]
    if read == "output":
        ends.append(stream)
    if read == "tanh":
        ends.append(b.op("tanh", (total,), Location("net.py", 4, 0, "tanh")))
    samples = np.random.default_rng(1).uniform(-1, 1, size=(400, 12))
    return replace(b.finish(ends), calibration=(samples,))


def test_units_across_sums_share_their_sizes() -> None:
    program = residual()
    made = polynomial(program, margin=0.5)
    entries = {entry.layer: entry for entry in made.ranges}
    assert all(entry.units == 12 for entry in entries.values())
    # The identity shortcuts stay sums of ciphertexts: no map, no level.
    assert [node.op for node in made.nodes].count("affine") == [node.op for node in program.nodes].count("linear")
    assert [node.op for node in made.nodes].count("add") == 2
    # Behind a polynomial no unit is taken for much smaller than the others: the errors of large ones reach it.
    for layer in ("inner1", "relu1", "relu2"):
        assert entries[layer].smallest_unit == pytest.approx(entries[layer].high / 4)
    assert worst(program, made) < 0.7 * worst(program, polynomial(program, observed=False, margin=0.5))
    # One interval for all: every polynomial's input stays in it on inputs that were not seen.
    x = np.random.default_rng(3).uniform(-1, 1, size=(5_000, 12))
    for node in made.nodes:
        if node.op == "poly":
            inner = replace(
                made, outputs=(node.inputs[0],), nodes=made.nodes[: made.nodes.index(node)], output_names=("y",)
            )
            assert np.abs(interpret_batch(inner, x)[0]).max() <= 1.0


@pytest.mark.parametrize("read", ["output", "tanh"])
def test_sums_that_something_else_reads_keep_a_common_range(read: str) -> None:
    program = residual(read)
    entries = {entry.layer: entry for entry in polynomial(program, margin=0.5).ranges}
    assert entries["relu2"].units is None
    assert entries["inner2"].units == 12


def test_degrees_in_program_order() -> None:
    fused = apply(FuseLinear(), residual())
    made = apply(Approximate(degrees=(3, 5, 7, 9, 11), observed=Calibrate().run(fused)), fused)
    assert [entry.degree for entry in made.ranges] == [3, 5, 7, 9, 11]
    with pytest.raises(ProgramError, match="2 degrees are given for 5 activations") as error:
        Approximate(degrees=[3, 5], observed=Calibrate().run(fused)).run(fused)
    assert "'relu0', 'inner1', 'relu1', 'inner2', 'relu2'" in str(error.value)


def test_a_list_of_degrees_needs_names() -> None:
    b = Builder("twins", Stage.TENSOR)
    x = b.input("x", shape=(2,), low=-1.0, high=1.0)
    y = b.op("tanh", (x,), Location("t.py", 1, 0, "act"))
    program = b.finish([b.op("tanh", (y,), Location("t.py", 2, 0, "act"))])
    assert [e.degree for e in Approximate(degrees=[5, 5]).run(program).ranges] == [5, 5]
    with pytest.raises(ProgramError, match="two activations are called 'act'"):
        Approximate(degrees=[5, 7]).run(program)
