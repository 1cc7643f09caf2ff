"""Products of two encrypted matrices: every way to lower one gives the product, and takes what was counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import heliograph as hg
from heliograph.ckks.costs import BUILT_IN
from heliograph.ckks.ring import Ring
from heliograph.errors import PlanningError, ProgramError
from heliograph.execution.walk import node_calls
from heliograph.ir import Builder, SparseMatrix, Stage
from heliograph.ir.maps.layout import Layout
from heliograph.ir.ops.matrices import KINDS
from heliograph.passes.packing.products import choose_products
from heliograph.passes.packing.products.block_products import OF_ABT, OF_ATB, Blocks
from heliograph.passes.packing.products.count_products import count
from heliograph.passes.packing.products.matrix_products import MatrixProduct, Sizes, ways
from heliograph.passes.tensors.fuse_linear import FuseLinear
from heliograph.passes.tensors.simplify import Simplify
from heliograph.records import record, to_json

Array = NDArray[np.float64]


class Numbers:
    """Writes a product as numbers: vectors of all slots."""

    def rotate(self, value: Array, amount: int) -> Array:
        return np.roll(value, -amount)

    def add(self, left: Array, right: Array) -> Array:
        return left + right

    def subtract(self, left: Array, right: Array) -> Array:
        return left - right

    def mask(self, value: Array, real: Array, imaginary: Array | None = None) -> Array:
        return value * np.resize(real if imaginary is None else real + 1j * imaginary, value.size)

    def complex(self, real: Array, imaginary: Array) -> Array:
        return np.asarray(real + 1j * imaginary)

    def real(self, value: Array) -> Array:
        return np.real(value)

    def imaginary(self, value: Array) -> Array:
        return np.imag(value)

    def multiply(self, left: Array, right: Array) -> Array:
        return left * right

    def transform(
        self, values: Sequence[Array], maps: Sequence[SparseMatrix], baby: Sequence[int], giant: Sequence[int]
    ) -> Array:
        total = np.zeros_like(values[0])
        for value, matrix in zip(values, maps, strict=True):
            period = matrix.shape[1]
            parts = (matrix.apply(part.reshape(-1, period)).ravel() for part in (np.real(value), np.imag(value)))
            total = total + next(parts)
            total = total + 1j * next(parts) if np.iscomplexobj(value) else total
        return total


def numpy_product(kind: str, left: Array, right: Array) -> Array:
    turned = KINDS[kind]
    return (left.T if turned[0] else left) @ (right.T if turned[1] else right)


def shapes_of(kind: str, m: int, k: int, n: int) -> tuple[tuple[int, int], tuple[int, int]]:
    turned = KINDS[kind]
    return ((k, m) if turned[0] else (m, k)), ((n, k) if turned[1] else (k, n))


def written(way: MatrixProduct, left: Array, right: Array) -> Array:
    made = way.write(Numbers(), way.left.pack(left), way.right.pack(right))
    return way.out.unpack(made)


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
        assert {(way.way, way.big, way.sizes.halves) for way in found if isinstance(way.sizes, Sizes)} == own
        in_blocks = {(w, big) for w in (*OF_ABT, *OF_ATB) for big in (0, 1)}
        assert {(way.way, way.big) for way in found if isinstance(way.sizes, Blocks)} == in_blocks


def test_results_stand_in_clean_slots() -> None:
    """What a gathering product leaves in other slots is zero: a combining one reads copies of it."""
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(3, 20)), rng.normal(size=(50, 20))
    found = [w for w in ways("abt", (left.shape, right.shape), 256, 1, 1.0) if (w.way, w.big) == ("gather", 1)]
    assert [way.sizes.halves for way in found if isinstance(way.sizes, Sizes)] == [False, True]
    for way in found:
        # Rows behind those of the small operand may hold anything.
        (small,) = way.left.pack(left)
        small = np.where(way.left.used(0), small, 1e3)
        (made,) = way.write(Numbers(), [small], way.right.pack(right))
        assert not made[~way.out.used(0)].any()
        assert way.out.unpack([made]) == pytest.approx(left @ right.T)


# HETAL, table 11 (the corrected one): (a, b, c), then CMult, Mult and Rot of DiagABT, of DiagATB where A is at least as high
# as B, and of DiagATB otherwise; s = 32,768 slots, s0 = a.
PUBLISHED = [
    ((128, 128, 4), (4, 2, 34), (4, 2, 18), (4, 2, 18)),
    ((256, 256, 8), (8, 8, 64), (12, 8, 72), (15, 8, 75)),
    ((512, 769, 4), (4, 26, 50), (28, 26, 238), (40, 26, 250)),
    ((1024, 769, 8), (8, 100, 140), (104, 100, 1008), (176, 100, 1080)),
    ((2048, 769, 16), (16, 392, 456), (400, 392, 4328), (736, 392, 4664)),
]
# The same of ColMajor and RowMajor.
BASELINES = [
    ((128, 128, 4), (8, 4, 63)),
    ((256, 256, 8), (24, 16, 191)),
    ((512, 769, 4), (56, 52, 495)),
    ((1024, 769, 8), (208, 200, 2047)),
    ((2048, 769, 16), (800, 784, 8703)),
]
SLOTS = 32768
OURS = ("combine", "gather", "fold")


def counts_of(kind: str, left: tuple[int, int], right: tuple[int, int], way: str, big: int) -> tuple[int, int, int]:
    """CMult, Mult, Rot."""
    (found,) = (w for w in ways(kind, (left, right), SLOTS, 1, 1.0) if (w.way, w.big) == (way, big))
    taken = count(found)
    return taken.plain_products, taken.products, taken.rotations


@pytest.mark.parametrize(("sizes", "abt", "atb", "upwards"), PUBLISHED)
def test_published_ways_take_what_was_published(
    sizes: tuple[int, int, int], abt: tuple[int, ...], atb: tuple[int, ...], upwards: tuple[int, ...]
) -> None:
    a, b, c = sizes
    assert counts_of("abt", (a, b), (c, b), "DiagABT", 0) == abt
    assert counts_of("atb", (a, c), (a, b), "DiagATB", 1) == atb
    assert counts_of("atb", (a, c), (a, b), "DiagATB with PRotUp", 1) == upwards


@pytest.mark.parametrize(("sizes", "counts"), BASELINES)
def test_baselines_take_what_was_published(sizes: tuple[int, int, int], counts: tuple[int, ...]) -> None:
    a, b, c = sizes
    assert counts_of("abt", (a, b), (c, b), "ColMajor", 0) == counts
    assert counts_of("atb", (a, c), (a, b), "RowMajor", 1) == counts


@pytest.mark.parametrize("sizes", [each[0] for each in PUBLISHED])
@pytest.mark.parametrize("kind", ["abt", "atb"])
def test_ours_are_never_dearer_than_published_ones(kind: str, sizes: tuple[int, int, int]) -> None:
    a, b, c = sizes
    shapes = ((a, b), (c, b)) if kind == "abt" else ((a, c), (a, b))
    ring = Ring(16, 60, 50, 8, 2, None)
    prices: dict[bool, list[float]] = {True: [], False: []}
    for way in ways(kind, shapes, SLOTS, 1, 1.0):
        prices[way.way in OURS].append(count(way).price_ms(ring, BUILT_IN, 4))
    assert min(prices[True]) <= min(prices[False])


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


def test_places_of_split_layouts() -> None:
    layout = Layout((3, 5), 64, 64, split=(4, 1, 64, 2, 16, 4))
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


def calls_of(artifact: hg.Artifact) -> Counter[str]:
    """How often each primitive is called in a run."""
    calls = Counter[str]()
    for call, number in sum(node_calls(artifact.program).values(), Counter()).items():
        calls[call.primitive] += number
    return calls


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_compiled_products_take_what_was_counted(kind: str) -> None:
    left, right = shapes_of(kind, 4, 60, 33)
    program = hg.parse(text(kind, left, right))
    artifact = hg.compile(program, hg.Options(security_bits=None, log_ring=10))
    rng = np.random.default_rng(1)
    a, b = rng.uniform(-1, 1, left), rng.uniform(-1, 1, right)
    assert np.abs(hg.simulate(artifact, a, b) - numpy_product(kind, a, b)).max() < 1e-4
    fewest = min(
        map(count, ways(kind, (left, right), 512, 1, 1.0)), key=lambda c: c.price_ms(artifact.ring, BUILT_IN, 3)
    )
    calls = calls_of(artifact)
    assert calls["mul"] == fewest.products
    assert calls["mul_plain"] == fewest.plain_products - fewest.terms
    assert calls["summed_product"] == fewest.terms
    assert calls["conjugate"] == fewest.conjugations
    assert calls["relinearize"] == fewest.relinearizations
    assert calls["rotate"] + calls["rotate_hoisted"] == fewest.rotations + fewest.hoisted


@pytest.mark.parametrize("way", [*OF_ABT, *OF_ATB])
def test_compiled_products_in_blocks_take_what_was_counted(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = "abt" if way in OF_ABT else "atb"
    left, right = shapes_of(kind, 15, 60, 5) if kind == "abt" else shapes_of(kind, 5, 15, 60)
    (only,) = (w for w in ways(kind, (left, right), 512, 1, 1.0) if w.way == way and w.big == int(kind == "atb"))
    monkeypatch.setattr(choose_products, "ways", lambda *_: [only])
    artifact = hg.compile(hg.parse(text(kind, left, right)), hg.Options(security_bits=None, log_ring=10))
    rng = np.random.default_rng(1)
    a, b = rng.uniform(-1, 1, left), rng.uniform(-1, 1, right)
    assert np.abs(hg.simulate(artifact, a, b) - numpy_product(kind, a, b)).max() < 1e-4
    taken = count(only)
    calls = calls_of(artifact)
    assert calls["mul"] == taken.products
    assert calls["mul_plain"] == taken.plain_products - taken.terms
    assert calls["summed_product"] == taken.terms
    assert calls["conjugate"] == taken.conjugations
    assert calls["relinearize"] == taken.relinearizations
    assert calls["rotate"] + calls["rotate_hoisted"] == taken.rotations
    assert calls["rotate_hoisted"] == taken.sharing


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
