"""Linear maps in their small form: the same matrix as entry by entry, through products, sums, scalings and application."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.compiler.pipeline import linear_passes
from heliograph.interpret import interpret_batch
from heliograph.ir import Array, Builder, Location, Matrix, Node, Program, SparseMatrix, Stage
from heliograph.ir.constants import Constants, same
from heliograph.ir.maps.gather import gather_matrix
from heliograph.ir.maps.kronecker import KroneckerMatrix, gather_map, identity_places
from heliograph.ir.node import constant_digest
from heliograph.ir.ops.table import OPS
from heliograph.ir.text import parse_program, print_program
from heliograph.passes.tensors import fuse_linear


@pytest.fixture(autouse=True)
def _small_maps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse_linear, "_FEW_ENTRIES", 0)


def kernel(seed: int, shape: tuple[int, ...], out: int, size: int, **attrs: Any) -> Matrix:
    """The map of a convolution of (channels, *spatial)."""
    random = np.random.default_rng(seed)
    rank, groups = len(shape) - 1, attrs.get("groups", 1)
    builder = Builder("p", Stage.TENSOR)
    usual = {"stride": (1,) * rank, "padding": (0,) * rank, "dilation": (1,) * rank, "groups": 1}
    weight = builder.constant(random.normal(size=(out, shape[0] // groups, *[size] * rank)), "w")
    node = builder.op("conv", (builder.input("x", shape=shape),), weight=weight, **(usual | attrs))
    linear = OPS["conv"].linear
    assert linear is not None
    (matrix,), _ = linear([node.inputs[0].type], node.attrs, builder.context)
    x = random.normal(size=(5, *shape))
    wanted = OPS["conv"].evaluate([x], node.attrs, builder.context)
    np.testing.assert_allclose(matrix.apply(x.reshape(5, -1)).reshape(wanted.shape), wanted, atol=1e-12)
    np.testing.assert_allclose((matrix.csr() @ x.reshape(5, -1).T).T.reshape(wanted.shape), wanted, atol=1e-12)
    assert isinstance(matrix, Matrix)
    if isinstance(matrix, KroneckerMatrix):
        np.testing.assert_allclose(matrix.apply_to_constant(x[0].ravel()), wanted[0].ravel(), atol=1e-12)
    return matrix


KERNELS = [
    ((3, 8, 8), 4, 3, {"padding": (1, 1)}),
    ((3, 9, 8), 4, 3, {"stride": (2, 2), "padding": (1, 1)}),
    ((4, 8, 8), 4, 2, {"groups": 2}),
    ((6, 8, 8), 6, 3, {"groups": 6, "padding": (1, 1)}),
    ((3, 12), 5, 3, {"dilation": (2,)}),
    ((2, 4, 5, 6), 3, 2, {}),
]


@pytest.mark.parametrize(("shape", "out", "size", "attrs"), KERNELS)
def test_kernels(shape: tuple[int, ...], out: int, size: int, attrs: dict[str, Any]) -> None:
    matrix = kernel(1, shape, out, size, **attrs)
    csr = matrix.csr()
    assert csr.has_canonical_format
    assert csr.has_sorted_indices
    assert matrix.nnz == csr.nnz == np.count_nonzero(csr.toarray())
    sparse = matrix.sparse()
    assert np.array_equal(sparse.csr().toarray(), csr.toarray())
    assert (np.diff(sparse.indptr) >= 0).all()
    if isinstance(matrix, KroneckerMatrix):
        assert sum(each.size for each in matrix.numbers) < 3 * matrix.nnz
        assert (matrix.absolute().csr() != abs(csr)).nnz == 0
        assert abs(matrix.times(-0.5).csr() + 0.5 * csr).max() < 1e-15


def test_zeros_among_the_weights_are_no_entries() -> None:
    weights = np.array([[[1.0, 0.0], [0.0, 2.0]], [[0.0, 3.0], [0.0, 0.0]]])
    shifted = SparseMatrix.of(scipy.sparse.csr_array(np.eye(9, k=1)))
    matrix = KroneckerMatrix(weights, (identity_places(9), shifted))
    assert matrix.nnz == 2 * 9 + 8
    assert matrix.sparse().nnz == matrix.nnz
    dense = np.kron(weights[0], np.eye(9)) + np.kron(weights[1], np.eye(9, k=1))
    np.testing.assert_array_equal(matrix.csr().toarray(), dense)


def test_terms_that_overlap_are_a_general_matrix() -> None:
    weights = np.random.default_rng(0).normal(size=(2, 4, 4))
    places = [identity_places(9), SparseMatrix.of(np.eye(9) + np.eye(9, k=1))]
    made = KroneckerMatrix.of(weights, places)
    assert isinstance(made, SparseMatrix)
    dense = np.kron(weights[0], np.eye(9)) + np.kron(weights[1], np.eye(9) + np.eye(9, k=1))
    np.testing.assert_allclose(made.csr().toarray(), dense, atol=1e-15)
    same_places = KroneckerMatrix.of(weights, [places[1], places[1]])
    assert isinstance(same_places, KroneckerMatrix)
    assert len(same_places.places) == 1


def test_rows_and_columns_are_scaled() -> None:
    matrix = kernel(2, (3, 8, 8), 4, 3, padding=(1, 1))
    random = np.random.default_rng(3)
    by_channel = np.repeat(random.uniform(1, 2, size=4), 64), np.repeat(random.uniform(1, 2, size=3), 64)
    for rows, columns, small in ((*by_channel, True), (random.uniform(1, 2, size=256), by_channel[1], False)):
        made = matrix.scaled(rows, columns)
        assert isinstance(made, KroneckerMatrix) == small
        wanted = matrix.csr().toarray() * rows[:, np.newaxis] * columns
        np.testing.assert_allclose(made.csr().toarray(), wanted, rtol=1e-13)


@given(
    channels=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    sizes=st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 3])),
)
@settings(max_examples=30, deadline=None)
def test_products_and_sums(channels: list[int], seeds: tuple[int, int], sizes: tuple[int, int]) -> None:
    inner = kernel(seeds[0], (channels[0], 6, 7), channels[1], sizes[0], padding=(1, 1))
    shape = (channels[1], 6 + 3 - sizes[0], 7 + 3 - sizes[0])
    outer = kernel(seeds[1], shape, channels[2], sizes[1], stride=(2, 1))
    if isinstance(outer, KroneckerMatrix) and isinstance(inner, KroneckerMatrix):
        product = outer.after(inner)
        assert product is not None
        np.testing.assert_allclose(product.csr().toarray(), (outer.csr() @ inner.csr()).toarray(), atol=1e-12)
        total = inner.plus(inner)
        assert total is not None
        np.testing.assert_allclose(total.csr().toarray(), 2 * inner.csr().toarray(), atol=1e-12)


@pytest.mark.parametrize(
    ("name", "move", "small"),
    [
        ("slice", lambda x: x[:, ::2, 1::2], True),
        ("pad", lambda x: np.pad(x, [(2, 1), (0, 0), (0, 0)], constant_values=-1), True),
        ("both", lambda x: np.pad(x[::-1, 1:], [(1, 0), (1, 2), (0, 0)], constant_values=-1), True),
        ("transposed", lambda x: x.transpose(1, 0, 2), False),
        ("identity", lambda x: x.reshape(4, -1), False),
    ],
)
def test_moves(name: str, move: Any, small: bool) -> None:
    shape = (4, 6, 6)
    index: Array = move(np.arange(144).reshape(shape))
    found, wanted = gather_map(index, shape, index.shape), gather_matrix(index, 144)
    csr = found.csr() if isinstance(found, Matrix) else found
    assert (csr != wanted).nnz == 0
    assert isinstance(found, KroneckerMatrix) <= small


def network(builder: Builder, x: Node) -> Node:
    """A residual network of convolutions, batch norms, a slice, a pooling and a linear layer."""
    random = np.random.default_rng(0)

    def layer(x: Node, out: int, name: str, stride: int = 1) -> Node:
        loc = Location("net.py", 1, 0, name)
        own = x.type.shape[0]  # type: ignore[union-attr]
        weight = builder.constant(random.normal(size=(out, own, 3, 3)) / np.sqrt(9 * own), f"{name}.w")
        x = builder.op(
            "conv", (x,), loc, weight=weight, stride=(stride, stride), padding=(1, 1), dilation=(1, 1), groups=1
        )
        ones = builder.constant(random.uniform(0.5, 1.5, size=out), f"{name}.v")
        return builder.op("batch_norm", (x,), loc, mean=builder.constant(np.zeros(out), "m"), variance=ones, eps=1e-5)

    h = builder.op("relu", (layer(x, 4, "stem"),))
    short = builder.op("slice", (h,), starts=(0, 0, 0), stops=(4, 8, 8), steps=(1, 2, 2))
    h = builder.op("relu", (builder.op("add", (layer(h, 4, "down", 2), short)),))
    h = builder.op("mean", (h,), axes=(1, 2), keepdims=False)
    weight = builder.constant(random.normal(size=(3, 4)), "head")
    return builder.op("linear", (h,), weight=weight)


def built() -> Program:
    builder = Builder("net", Stage.TENSOR)
    x = builder.input("x", shape=(3, 8, 8), low=-1.0, high=1.0)
    return builder.finish([network(builder, x)])


def test_a_network_keeps_its_maps_small_and_its_values() -> None:
    program = built()
    fused = linear_passes(program)[-1].program
    maps = [value for value in fused.constants.values() if isinstance(value, Matrix)]
    assert sum(isinstance(each, KroneckerMatrix) for each in maps) >= 2
    x = np.random.default_rng(1).uniform(-1, 1, size=(4, 3, 8, 8))
    np.testing.assert_allclose(interpret_batch(fused, x)[0], interpret_batch(program, x)[0], atol=1e-12)
    text = print_program(fused)
    assert "kronecker[" in text
    assert print_program(parse_program(text, fused.constants)) == text
    # Without the constants the text is still read.
    assert print_program(parse_program(text)) == text


def test_equal_maps_are_one_constant() -> None:
    first, second = (kernel(5, (3, 8, 8), 4, 3) for _ in range(2))
    other = kernel(6, (3, 8, 8), 4, 3)
    assert constant_digest(first) == constant_digest(second) != constant_digest(other)
    assert constant_digest(first) != constant_digest(first.sparse())
    assert same(first, second)
    assert not same(first, other)
    assert not same(first, first.sparse())
    table = Constants({"a": first})
    assert table.digest("a") == constant_digest(second)
