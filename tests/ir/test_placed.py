"""Blocks of small maps in positions: the same diagonals, entries and products as from the list of all entries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from heliograph.ir import Array, SparseMatrix
from heliograph.ir.constants import same
from heliograph.ir.maps.diagonals import DiagonalMap, MapGeometry, diagonal_offsets
from heliograph.ir.maps.kronecker import KroneckerMatrix
from heliograph.ir.maps.layout import Layout, gap_axes
from heliograph.ir.maps.placed import PlacedMatrix, blocks_of, fits
from heliograph.ir.node import constant_digest, next_power_of_two

SLOTS = 256


def kernel(random: np.random.Generator, out: int, own: int, zeros: bool) -> KroneckerMatrix:
    """A 3 x 3 convolution of 4 x 4 images with padding."""
    from heliograph.ir.builder import Builder
    from heliograph.ir.node import Stage
    from heliograph.ir.ops.table import OPS

    builder = Builder("p", Stage.TENSOR)
    weights = random.normal(size=(out, own, 3, 3))
    if zeros:
        weights *= random.random(weights.shape) < 0.5
        weights[0, 0] = 1.0
    node = builder.op(
        "conv", (builder.input("x", shape=(own, 4, 4)),), weight=builder.constant(weights, "w"), stride=(1, 1),
        padding=(1, 1), dilation=(1, 1), groups=1,
    )  # fmt: skip
    linear = OPS["conv"].linear
    assert linear is not None
    (matrix,), _ = linear([node.inputs[0].type], node.attrs, builder.context)
    if not isinstance(matrix, KroneckerMatrix):
        assume(False)
    assert isinstance(matrix, KroneckerMatrix)
    return matrix


def layout(channels: int, gap: int, block: int, period: int) -> Layout:
    made = Layout((channels, 4, 4), SLOTS, 1, gap_axes((channels, 4, 4), gap, 4 * gap, block * gap * gap))
    return replace(made, period=min(period, next_power_of_two(made.last_place + 1)))


CASES = st.fixed_dictionaries(
    {
        "out": st.integers(1, 8),
        "own": st.integers(1, 8),
        "zeros": st.booleans(),
        "gap_in": st.sampled_from([1, 2]),
        "gap_out": st.sampled_from([1, 2]),
        # In 16 and 32 positions the rows of an image with gaps are spread over several ciphertexts.
        "period": st.sampled_from([16, 32, 64, 128]),
        "seed": st.integers(0, 1000),
    }
)


def alike(worked_out: DiagonalMap, listed: DiagonalMap, amounts: bool) -> None:
    assert worked_out.offsets == listed.offsets
    for offset in listed.offsets:
        for turned in (0, worked_out.modulus) if amounts else (0,):
            amount = offset + turned
            np.testing.assert_array_equal(worked_out.diagonal(offset, amount), listed.diagonal(offset, amount))
            assert sorted(worked_out.slots_of(offset, amount)) == sorted(listed.slots_of(offset, amount))


@given(case=CASES)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_blocks_are_the_map(case: dict[str, int]) -> None:
    random = np.random.default_rng(case["seed"])
    matrix = kernel(random, case["out"], case["own"], bool(case["zeros"]))
    operand = layout(case["own"], case["gap_in"], 16, case["period"])
    result = layout(case["out"], case["gap_out"], 16, case["period"])
    blocks = blocks_of(matrix, operand, result)
    whole: Array = np.zeros((result.ciphertexts * result.period, operand.ciphertexts * operand.period))
    whole[np.ix_(result.places(), operand.places())] = matrix.csr().toarray()
    x = random.normal(size=(3, whole.shape[1]))
    for o in range(result.ciphertexts):
        for i in range(operand.ciphertexts):
            rows, columns = (
                slice(o * result.period, (o + 1) * result.period),
                slice(i * operand.period, (i + 1) * operand.period),
            )
            part = whole[rows, columns]
            if (o, i) not in blocks:
                assert not part.any()
                continue
            block = blocks[o, i]
            np.testing.assert_array_equal(block.csr().toarray(), part)
            np.testing.assert_array_equal(block.sparse().csr().toarray(), part)
            np.testing.assert_allclose(block.apply(x[:, columns]), x[:, columns] @ part.T, atol=1e-12)
            assert block.nnz == np.count_nonzero(part)
            geometry = MapGeometry(SLOTS, operand.period, result.period)
            alike(DiagonalMap(block, geometry), DiagonalMap(block.sparse(), geometry), True)
            assert diagonal_offsets(block, geometry) == diagonal_offsets(block.sparse(), geometry)
            np.testing.assert_array_equal(block.times(2).csr().toarray(), 2 * part)
            np.testing.assert_array_equal(block.absolute().csr().toarray(), np.abs(part))


@given(case=CASES, copies=st.sampled_from([2, 4]), side=st.booleans(), samples=st.sampled_from([1, 2]))
@settings(max_examples=80, deadline=None, derandomize=True)
def test_moved_copies_and_samples(case: dict[str, int], copies: int, side: bool, samples: int) -> None:
    random = np.random.default_rng(case["seed"])
    matrix = kernel(random, case["out"], case["own"], bool(case["zeros"]))
    operand, result = (layout(case[k], case[g], 16, 128) for k, g in (("own", "gap_in"), ("out", "gap_out")))
    slots = 4096
    moved = {"shift": operand.period // copies, "in_copies": copies} if side else {"out_copies": copies}
    geometry = MapGeometry(slots, operand.period, result.period, samples=samples, **moved)
    assume(geometry.exists and operand.ciphertexts == result.ciphertexts == 1)
    blocks = blocks_of(matrix, operand, result)
    alike(DiagonalMap(blocks[0, 0], geometry), DiagonalMap(blocks[0, 0].sparse(), geometry), False)


def test_blocks_of_one_map_are_told_apart() -> None:
    random = np.random.default_rng(1)
    matrix = kernel(random, 8, 4, False)
    operand, result = layout(4, 1, 16, 64), layout(8, 1, 16, 64)
    blocks = blocks_of(matrix, operand, result)
    assert len(blocks) == 2
    first, second = blocks.values()
    assert not same(first, second)
    assert constant_digest(first) != constant_digest(second)
    again = PlacedMatrix(matrix, operand, result, first.block)
    assert same(first, again)
    assert constant_digest(first) == constant_digest(again)


def test_what_does_not_add_up_is_listed() -> None:
    matrix = kernel(np.random.default_rng(1), 4, 4, False)
    good, wrong = layout(4, 1, 16, 64), Layout((4, 4, 4), SLOTS, 16, gap_axes((4, 4, 4), 1, 4, 18))
    assert not fits(matrix, Layout((4, 2, 2), SLOTS, 16), good)
    for own, operand in ((matrix, wrong), (SparseMatrix.of(matrix.csr()), good)):
        blocks = blocks_of(own, operand, good)
        assert {type(block) for block in blocks.values()} == {SparseMatrix}
        assert sum(block.nnz for block in blocks.values()) == matrix.nnz
