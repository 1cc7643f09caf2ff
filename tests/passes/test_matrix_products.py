"""Products of two encrypted matrices: every way to lower one gives the product, and takes what was counted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import heliograph as hg
from heliograph.ckks.costs import BUILT_IN
from heliograph.ckks.ring import Ring
from heliograph.errors import PlanningError, ProgramError
from heliograph.execution.prices import SWITCH, Work
from heliograph.execution.walk import descents, node_calls
from heliograph.interpret import run_nodes
from heliograph.ir import Builder, Stage
from heliograph.ir.maps.layout import Layout, matrix_axes
from heliograph.ir.ops.matrices import KINDS
from heliograph.passes.levels.plan_levels import PlanLevels
from heliograph.passes.packing.products import choose_products
from heliograph.passes.packing.products.choose_products import product_ms, product_work
from heliograph.passes.packing.products.fold import Fold
from heliograph.passes.packing.products.matrix_products import Gather, MatrixProduct, Sizes, ways
from heliograph.passes.tensors.fuse_linear import FuseLinear
from heliograph.passes.tensors.simplify import Simplify
from heliograph.records import record, to_json

Array = NDArray[np.float64]


def numpy_product(kind: str, left: Array, right: Array) -> Array:
    turned = KINDS[kind]
    return (left.T if turned[0] else left) @ (right.T if turned[1] else right)


def shapes_of(kind: str, m: int, k: int, n: int) -> tuple[tuple[int, int], tuple[int, int]]:
    turned = KINDS[kind]
    return ((k, m) if turned[0] else (m, k)), ((n, k) if turned[1] else (k, n))


def on_slots(way: MatrixProduct, left: list[Array], right: list[Array]) -> list[Array]:
    """What the nodes of a way mean, on slot vectors."""
    program = way.program()
    values = zip(program.inputs, (*left, *right), strict=True)
    return [vector[0] for vector in run_nodes(program, {node: vector[np.newaxis] for node, vector in values})]


def written(way: MatrixProduct, left: Array, right: Array) -> Array:
    return way.out.unpack(on_slots(way, way.left.pack(left), way.right.pack(right)))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([64, 256, 512]),
)
def test_every_way_gives_the_product(kind: str, m: int, k: int, n: int, slots: int) -> None:
    rng = np.random.default_rng(m * 10_000 + k * 100 + n)
    left, right = (rng.normal(size=shape) for shape in shapes_of(kind, m, k, n))
    for way in ways(kind, (left.shape, right.shape), slots, 1, 0.5):
        assert written(way, left, right) == pytest.approx(0.5 * numpy_product(kind, left, right))


def test_both_ways_with_either_operand_large_are_found() -> None:
    for kind in KINDS:
        found = ways(kind, shapes_of(kind, 8, 30, 8), 512, 1, 1.0)
        own = {(w, big, half) for w in ("combine", "gather") for big in (0, 1) for half in (False, True)}
        assert {(way.how.way, way.big, way.how.halves) for way in found if isinstance(way.how, Sizes)} == own
        assert {way.big for way in found if isinstance(way.how, Fold)} == {0, 1}


def test_results_stand_in_clean_slots() -> None:
    """What a gathering product leaves in other slots is zero: a combining one reads copies of it."""
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(3, 20)), rng.normal(size=(50, 20))
    every = ways("abt", (left.shape, right.shape), 256, 1, 1.0)
    found = [way for way in every if isinstance(way.how, Gather) and way.big == 1]
    assert [way.how.halves for way in found if isinstance(way.how, Gather)] == [False, True]
    for way in found:
        # Rows behind those of the small operand may hold anything.
        (small,) = way.left.pack(left)
        small = np.where(way.left.used(0), small, 1e3)
        (made,) = on_slots(way, [small], way.right.pack(right))
        assert not made[~way.out.used(0)].any()
        assert way.out.unpack([made]) == pytest.approx(left @ right.T)


def test_what_stands_beside_small_operands_is_not_added_up() -> None:
    """A polynomial's constant stands in every slot; sums over padding would take it in."""
    program = hg.parse(
        "program p\ninput w: secret tensor[5, 20] in [-1, 1]\ninput x: secret tensor[20, 100] in [-1, 1]\n"
        "s = sigmoid(w) with degree = 3, range = [-1, 1]\noutput s @ x\n"
    )
    artifact = hg.compile(program, hg.Options(security_bits=None, log_ring=12))
    rng = np.random.default_rng(4)
    w, x = rng.uniform(-1, 1, (5, 20)), rng.uniform(-1, 1, (20, 100))
    assert hg.simulate(artifact, w, x) == pytest.approx(1 / (1 + np.exp(-w)) @ x, abs=0.01)


def test_places_of_digits() -> None:
    layout = Layout((3, 5), 64, 64, matrix_axes((3, 5), (4, 1, 64), (2, 16, 4)))
    places = layout.places().reshape(3, 5)
    assert places[1].tolist() == [1, 17, 5, 21, 9]
    assert record(Layout, to_json(layout), "it") == layout
    values = np.arange(15.0).reshape(3, 5)
    assert (layout.unpack(layout.pack(values)) == values).all()


def text(kind: str, left: tuple[int, int], right: tuple[int, int]) -> str:
    turned = KINDS[kind]
    operands = [f"permute({name}, axes=[1, 0])" if turn else name for name, turn in zip("ab", turned, strict=True)]
    return (
        f"program product\ninput a: secret tensor{list(left)} in [-1, 1]\ninput b: secret tensor{list(right)} in [-1, 1]\n"
        f"output {operands[0]} @ {operands[1]}\n"
    )


def assert_as_counted(program: hg.Program, way: MatrixProduct) -> None:
    """A run makes the calls that were counted, each at its level."""
    counted = product_work(way)
    assert any(primitive == "mul" for (primitive, _, _), _ in counted.calls)
    calls = sum((own + descents(node) for node, own in node_calls(program).items()), Counter())
    # Some values drop to a lower level without a rescale, which takes no call but perhaps a switch of chains.
    found = Counter(dict(Work.of(calls, 0).calls))
    assert not Counter(dict(counted.calls)) - found
    assert {primitive for primitive, _, _ in found - Counter(dict(counted.calls))} <= {SWITCH}


@pytest.mark.parametrize("sizes", [(4, 60, 33), (8, 30, 8), (2, 3, 4), (15, 60, 5)])
def test_every_way_takes_what_was_counted(sizes: tuple[int, int, int]) -> None:
    for way in ways("ab", shapes_of("ab", *sizes), 512, 1, 1.0):
        planned = PlanLevels(Ring(10, 60, 50, 3 + way.more_levels, 1, None)).run(way.program())
        assert_as_counted(planned, way)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_compiled_products_take_what_was_counted(kind: str) -> None:
    left, right = shapes_of(kind, 4, 60, 33)
    program = hg.parse(text(kind, left, right))
    artifact = hg.compile(program, hg.Options(security_bits=None, log_ring=10))
    rng = np.random.default_rng(1)
    a, b = rng.uniform(-1, 1, left), rng.uniform(-1, 1, right)
    assert np.abs(hg.simulate(artifact, a, b) - numpy_product(kind, a, b)).max() < 1e-4
    every = ways(kind, (left, right), 512, 1, 1.0)
    assert_as_counted(artifact.program, min(every, key=lambda way: product_ms(way, artifact.ring, BUILT_IN)))


def test_compiled_products_in_blocks_take_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = shapes_of("abt", 15, 60, 5)
    (only,) = (w for w in ways("abt", (left, right), 512, 1, 1.0) if isinstance(w.how, Fold) and w.big == 0)
    monkeypatch.setattr(choose_products, "ways", lambda *_: [only])
    artifact = hg.compile(hg.parse(text("abt", left, right)), hg.Options(security_bits=None, log_ring=10))
    rng = np.random.default_rng(1)
    a, b = rng.uniform(-1, 1, left), rng.uniform(-1, 1, right)
    assert np.abs(hg.simulate(artifact, a, b) - numpy_product("abt", a, b)).max() < 1e-4
    assert_as_counted(artifact.program, only)


def test_transposed_operands_and_factors_cost_nothing() -> None:
    source = text("abt", (60, 33), (40, 33)).replace("output a @ permute(b, axes=[1, 0])", "")
    program = hg.parse(source + "output (a @ permute(b, axes=[1, 0])) * 0.25\n")
    fused = FuseLinear().run(Simplify().run(program))
    (node,) = (node for node in fused.nodes if node.op == "matrix_product")
    assert (node.attrs["kind"], node.attrs["scale"]) == ("abt", 0.25)
    assert not [each for each in fused.nodes if each.op in ("affine", "mul")]


def test_small_products_stay_products_of_elements() -> None:
    fused = FuseLinear().run(Simplify().run(hg.parse(text("ab", (3, 4), (4, 5)))))
    assert [node.op for node in fused.nodes].count("mul") == 1


def test_a_product_without_a_way_is_refused() -> None:
    with pytest.raises(PlanningError, match="no way to multiply"):
        hg.compile(hg.parse(text("ab", (200, 300), (300, 200))), hg.Options(security_bits=None, log_ring=10))


@pytest.mark.parametrize(
    ("kind", "left", "right", "wrong"),
    [("ba", (2, 2), (2, 2), "no kind"), ("ab", (2, 3), (2, 3), "do not match"), ("ab", (2,), (2, 2), "takes matrices")],
)
def test_malformed_products_are_refused(kind: str, left: tuple[int, ...], right: tuple[int, ...], wrong: str) -> None:
    builder = Builder("p", Stage.TENSOR)
    a, b = (builder.input(name, shape=shape) for name, shape in (("a", left), ("b", right)))
    with pytest.raises(ProgramError, match=wrong):
        builder.op("matrix_product", (a, b), kind=kind)
