"""Layouts and diagonals: where elements stand, and that diagonals with rotations are the matrix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.ckks.costs import BUILT_IN
from heliograph.ckks.ring import Ring
from heliograph.errors import InternalError, ProgramError
from heliograph.execution.prices import prices_on
from heliograph.ir import SparseMatrix
from heliograph.ir.maps.diagonals import (
    DiagonalMap,
    MapGeometry,
    diagonal_map,
    shift_for,
)
from heliograph.ir.maps.layout import Layout, check_layout, digits_of, gap_axes, positions_in_slots
from heliograph.ir.maps.steps import pair_offsets
from heliograph.passes.packing.bsgs import plan_steps
from heliograph.records import record, to_json


def apply_map(diagonals: DiagonalMap, vector: np.ndarray, out_period: int) -> np.ndarray:
    """Diagonals, then the rotations that add up the slots of a row; checks that all copies agree."""
    total = np.zeros(vector.size)
    for offset in diagonals.offsets:
        total += diagonals.diagonal(offset) * np.roll(vector, -offset)
    run = diagonals.run
    while run > out_period:
        run //= 2
        total = total + np.roll(total, -run)
    np.testing.assert_allclose(total, np.tile(total[:out_period], vector.size // out_period), atol=1e-12)
    return total[:out_period]


@given(
    log_slots=st.integers(2, 8),
    log_in=st.integers(0, 8),
    log_out=st.integers(0, 8),
    density=st.floats(0, 1),
    shifted=st.booleans(),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_diagonals_are_the_matrix(
    log_slots: int, log_in: int, log_out: int, density: float, shifted: bool, seed: int
) -> None:
    slots, in_period, out_period = 1 << log_slots, 1 << min(log_in, log_slots), 1 << min(log_out, log_slots)
    random = np.random.default_rng(seed)
    dense = random.normal(size=(out_period, in_period)) * (random.random((out_period, in_period)) < density)
    shift, copies = shift_for(slots, in_period, out_period) if shifted else (0, 1)
    matrix = SparseMatrix.of(dense)
    diagonals = DiagonalMap(matrix, MapGeometry(slots, in_period, out_period, shift, copies))
    x = random.normal(size=in_period)
    got = apply_map(diagonals, x[positions_in_slots(slots, in_period, shift, copies)], out_period)
    np.testing.assert_allclose(got, dense @ x, atol=1e-12 * max(1, in_period))
    # Each entry stands exactly once in a run.
    cells = [(k, int(place)) for k in diagonals.offsets for place in diagonals.slots_of(k)]
    assert len(set(cells)) == len(cells) == matrix.nnz
    values = [diagonals.one_run(k)[diagonals.slots_of(k)] for k in diagonals.offsets]
    assert sorted(np.concatenate([[], *values])) == sorted(matrix.data)
    limit = shift or min(in_period, out_period)
    assert all(0 <= k < limit for k in diagonals.offsets)


def test_shift_is_used_where_all_slots_can_work() -> None:
    assert shift_for(512, 64, 64) == (8, 8)
    assert shift_for(512, 512, 64) == (0, 1)  # nothing is repeated
    assert shift_for(512, 16, 64) == (0, 1)  # more rows than columns
    assert shift_for(8192, 4, 4) == (1, 4)  # fewer entries than slots: in runs of 16
    assert shift_for(8192, 64, 8) == (1, 8)


def test_a_shift_that_does_not_cover_is_refused() -> None:
    for copies in (1, 4, 8):
        with pytest.raises(InternalError, match="no map leads from"):
            DiagonalMap(SparseMatrix.of(np.ones((16, 16))), MapGeometry(64, 16, 16, 2, copies))


def test_maps_are_remembered_by_identity() -> None:
    first, second = SparseMatrix.of(np.eye(4)), SparseMatrix.of(2 * np.eye(4))
    assert diagonal_map(first, MapGeometry(8, 4, 4)) is diagonal_map(first, MapGeometry(8, 4, 4))
    np.testing.assert_array_equal(diagonal_map(second, MapGeometry(8, 4, 4)).diagonal(0), np.full(8, 2.0))


def test_the_pictures_of_the_docstring() -> None:
    """8 slots, a value of 4 elements: what ir/maps/diagonals.py shows."""
    four = SparseMatrix.of(10 * np.arange(1, 5)[:, np.newaxis] + np.arange(1, 5))
    two = SparseMatrix.of(four.csr()[:2])
    alike = DiagonalMap(four, MapGeometry(8, 4, 4))
    assert alike.offsets == (0, 1, 2, 3)
    np.testing.assert_array_equal(alike.diagonal(1), 2 * [12, 23, 34, 41])
    rows = DiagonalMap(two, MapGeometry(8, 4, 2))
    assert (rows.offsets, rows.run, rows.modulus) == ((0, 1), 4, 2)
    np.testing.assert_array_equal(rows.diagonal(0), 2 * [11, 22, 13, 24])
    np.testing.assert_array_equal(rows.diagonal(1), 2 * [12, 23, 14, 21])
    np.testing.assert_array_equal(rows.diagonal(1, 3), 2 * [14, 21, 12, 23])
    assert shift_for(8, 4, 2) == (1, 2)
    np.testing.assert_array_equal(positions_in_slots(8, 4, 1, 2), [0, 1, 2, 3, 1, 2, 3, 0])
    shifted = DiagonalMap(two, MapGeometry(8, 4, 2, shift=1, in_copies=2))
    assert (shifted.offsets, shifted.run) == ((0,), 8)
    np.testing.assert_array_equal(shifted.diagonal(0), [11, 22, 13, 24, 12, 23, 14, 21])
    np.testing.assert_array_equal(positions_in_slots(8, 4, 2, 2), [0, 1, 2, 3, 2, 3, 0, 1])
    moved = DiagonalMap(four, MapGeometry(8, 4, 4, shift=2, in_copies=2))
    assert (moved.offsets, moved.run, moved.modulus) == ((0, 1), 8, 2)
    np.testing.assert_array_equal(moved.diagonal(0), [11, 22, 33, 44, 13, 24, 31, 42])


@given(offsets=st.sets(st.integers(0, 511), min_size=1, max_size=80), level=st.integers(0, 5))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_steps_reach_every_diagonal_once(offsets: set[int], level: int) -> None:
    ring = Ring(10, 60, 40, 5, 2, None)
    steps = plan_steps(sorted(offsets), 512, prices_on((ring,), BUILT_IN), level)
    groups = pair_offsets(sorted(offsets), steps.baby, steps.giant, 512)
    served = [(g + b) % 512 for g, pairs in groups.items() for b, _ in pairs]
    assert sorted(served) == sorted(offsets)
    for g, pairs in groups.items():
        assert all((g + b) % 512 == offset for b, offset in pairs)
    assert steps.rotations <= len(offsets)


def test_dense_maps_take_about_two_square_roots() -> None:
    ring = Ring(10, 60, 40, 5, 2, None)
    steps = plan_steps(range(256), 512, prices_on((ring,), BUILT_IN), 3)
    assert steps.rotations <= 2 * 16 + 8


@given(
    channels=st.integers(1, 9),
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    log_gap=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_gap_layouts(channels: int, rows: int, columns: int, log_gap: int, seed: int) -> None:
    """The formula of the design, injectivity, and that unpacking undoes packing."""
    g = 1 << log_gap
    layout = Layout((channels, rows, columns), 1024, 1024, gap_axes((channels, rows, columns), g))
    places = layout.places().reshape(channels, rows, columns)
    for c in range(channels):
        for y in range(rows):
            for x in range(columns):
                block = c // g**2 * (g * rows) * (g * columns)
                assert places[c, y, x] == block + (g * y + (c % g**2) // g) * (g * columns) + g * x + c % g
    assert len(set(places.ravel())) == places.size
    tensor = np.random.default_rng(seed).normal(size=layout.shape)
    vectors = layout.pack(tensor)
    assert len(vectors) == layout.ciphertexts
    np.testing.assert_array_equal(layout.unpack(vectors), tensor)
    assert sum(np.count_nonzero(v) for v in vectors) == tensor.size
    assert record(Layout, to_json(layout), "it") == layout


@given(
    size=st.integers(1, 60),
    digits=st.lists(st.tuples(st.integers(1, 7), st.integers(0, 90)), min_size=1, max_size=3),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_places_are_sums_of_digits(size: int, digits: list[tuple[int, int]]) -> None:
    layout = Layout((size,), 64, 64, ((), (), digits_of(size, *digits)))
    for index, place in enumerate(layout.places()):
        rest, expected = index, 0
        for radix, stride in digits[:-1]:
            expected, rest = expected + rest % radix * stride, rest // radix
        assert place == expected + rest * digits[-1][1]
    assert layout.last_place == layout.places().max()
    if layout.ciphertexts > size:
        with pytest.raises(ProgramError, match="more ciphertexts than it has elements"):
            check_layout(layout, 64, "it")
    else:
        assert check_layout(layout, 64, "it") is layout


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (2, 1, 2, 2)])
def test_periods_repeat(shape: tuple[int, ...]) -> None:
    layout = Layout(shape, 64, 32)
    tensor = np.random.default_rng(0).normal(size=shape)
    (vector,) = layout.pack(tensor)
    np.testing.assert_array_equal(vector[:32], vector[32:])
    np.testing.assert_array_equal(vector[: tensor.size], tensor.ravel())
    np.testing.assert_array_equal(layout.unpack([vector]), tensor)


def test_several_ciphertexts() -> None:
    layout = Layout((100,), 32, 32)
    tensor = np.arange(100.0)
    assert layout.ciphertexts == 4
    np.testing.assert_array_equal(layout.unpack(layout.pack(tensor)), tensor)


def test_layouts_refuse() -> None:
    with pytest.raises(ProgramError, match="expected shape"):
        Layout((4,), 8, 8).pack(np.zeros(5))
    with pytest.raises(ProgramError, match="expected shape"):
        Layout((4,), 8, 4, shift=1, copies=2).pack(np.zeros((2, 4)))
