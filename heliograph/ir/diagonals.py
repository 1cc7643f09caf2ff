"""A sparse map between periodic slot layouts as generalized diagonals, made one at a time.

A tensor stands in the slots with period B (a power of two): position p of it is in every slot s with
`(s + shift * (s // B)) % B == p`, so copy number s // B is moved left by `shift` more than the one before it (counting
anew in each run of slots). The matrix is given in positions: (out_period M, in_period B). Diagonal k holds, at slot s,
the entry that row s mod M has for the position which stands at slot s + k. With shift 0 the offsets are
(column - row) mod min(M, B), and the terms of a row lie in one run of max(M, B) slots; with a shift g every offset is
below g and they lie in one run of M * B / g slots. Either way each entry of the matrix occurs exactly once per run, and
rotations by M, 2M, ... add them up.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from heliograph.errors import InternalError
from heliograph.ir.node import Array, SparseMatrix


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalMap:
    """The diagonals of one matrix for one pair of layouts; entry i stands in slot `places[i]` of its run."""

    slots: int
    run: int
    offsets: tuple[int, ...]
    starts: Array
    places: Array
    values: Array

    def diagonal(self, offset: int) -> Array:
        """The plaintext of one diagonal, (slots,)."""
        index = self.offsets.index(offset)
        entries = slice(self.starts[index], self.starts[index + 1])
        one_run = np.zeros(self.run)
        one_run[self.places[entries]] = self.values[entries]
        return np.tile(one_run, self.slots // self.run)

    @property
    def entries(self) -> int:
        return int(self.values.size)


def positions_in_slots(slots: int, period: int, shift: int, run: int = 0) -> Array:
    """For each slot the position that stands there; the copies are counted anew every `run` slots (0: never)."""
    s = np.arange(slots) % (run or slots)
    return (s + shift * (s // period)) % period


@functools.lru_cache(maxsize=8)
def _shifted_places(run: int, in_period: int, out_period: int, shift: int) -> tuple[Array, Array]:
    """For each (row, position) the offset and the slot where a shifted layout brings them together, flat tables."""
    position = positions_in_slots(run, in_period, shift)
    s = np.arange(run)
    offset_of = np.full(out_period * in_period, -1, dtype=np.int32)
    slot_of = np.zeros(out_period * in_period, dtype=np.int32)
    for k in range(shift):
        key = (s % out_period) * in_period + position[(s + k) % run]
        offset_of[key] = k
        slot_of[key] = s
    if (offset_of < 0).any():
        raise InternalError(f"a shift of {shift} does not cover a {out_period}x{in_period} map in {run} slots")
    return offset_of, slot_of


def shift_for(slots: int, in_period: int, out_period: int) -> tuple[int, int]:
    """The shift between copies that lets all slots work on different entries and the run it spans; (0, 0) for none."""
    entries = out_period * in_period
    shift = max(1, entries // slots)
    run = entries // shift
    if out_period > in_period or run <= in_period or run > slots:
        return 0, 0
    try:
        _shifted_places(run, in_period, out_period, shift)
    except InternalError:
        return 0, 0
    return shift, run


def make_diagonal_map(matrix: SparseMatrix, slots: int, in_period: int, out_period: int, shift: int) -> DiagonalMap:
    """The diagonals of a matrix of shape (out_period, in_period)."""
    columns = matrix.indices.astype(np.int64)
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    if shift:
        run = out_period * in_period // shift
        if run > slots or run * shift != out_period * in_period:
            raise InternalError(f"a shift of {shift} does not cover a {out_period}x{in_period} map in {slots} slots")
        offset_of, slot_of = _shifted_places(run, in_period, out_period, shift)
        key = rows * in_period + columns
        offset, place = offset_of[key].astype(np.int64), slot_of[key].astype(np.int64)
    else:
        offset = (columns - rows) % min(in_period, out_period)
        run = max(in_period, out_period)
        place = (columns - offset) % in_period if out_period <= in_period else rows
    order = np.lexsort((place, offset))
    offset, place = offset[order], place[order]
    offsets, starts = np.unique(offset, return_index=True)
    return DiagonalMap(
        slots,
        run,
        tuple(int(k) for k in offsets),
        np.append(starts, offset.size),
        place.astype(np.int32),
        matrix.data[order],
    )


# A matrix is mapped by several readers in a row (packing, cost, execution); the arrays are shared, not copied.
_maps: dict[tuple[int, int, int, int, int], tuple[SparseMatrix, DiagonalMap]] = {}
_MAPS_KEPT = 256


def diagonal_map(matrix: SparseMatrix, slots: int, in_period: int, out_period: int, shift: int) -> DiagonalMap:
    """As `make_diagonal_map`, remembered for the matrices used last."""
    key = (id(matrix), slots, in_period, out_period, shift)
    known = _maps.get(key)
    if known is not None and known[0] is matrix:
        return known[1]
    made = make_diagonal_map(matrix, slots, in_period, out_period, shift)
    if len(_maps) >= _MAPS_KEPT:
        _maps.pop(next(iter(_maps)))
    _maps[key] = (matrix, made)
    return made
