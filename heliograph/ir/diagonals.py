"""A sparse map between periodic slot layouts as generalized diagonals, made one at a time.

A tensor stands in the slots with period B (a power of two): position p of it is in every slot s with
`(s + shift * (s // B)) % B == p`, so copy number s // B is moved left by `shift` more than the one before it (counting
anew in each run of slots). The matrix is given in positions: (out_period M, in_period B). Diagonal k holds, at slot s,
the entry that row s mod M has for the position which stands at slot s + k. With shift 0 the offsets are
(column - row) mod min(M, B), and the terms of a row lie in one run of max(M, B) slots; with a shift g every offset is
below g and they lie in one run of M * B / g slots. Either way each entry of the matrix occurs exactly once per run, and
rotations by M, 2M, ... add them up.

With shift 0 a rotation by any amount that equals the offset modulo min(M, B) serves a diagonal: `diagonal(k, amount)` is
its plaintext for that amount. So steps may wrap around the period.

With a stride k > 1 the slots hold k samples side by side: slot v * k + j is slot v of sample j. Periods, runs and shifts
count slots of one sample, offsets and amounts count real slots: they are multiples of k.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from heliograph.errors import InternalError
from heliograph.ir.node import Array, SparseMatrix


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalMap:
    """The diagonals of one matrix for one pair of layouts; entry i stands in slot `places[i]` of its run.

    Rotations that differ by `modulus` serve the same diagonal; `turns` says that its plaintext turns with them.
    """

    slots: int
    run: int
    modulus: int
    turns: bool
    stride: int
    offsets: tuple[int, ...]
    starts: Array
    places: Array
    order: Array
    data: Array

    def diagonal(self, offset: int, amount: int | None = None) -> Array:
        """The plaintext of one diagonal for a rotation by `amount` (by default the offset), (slots,)."""
        one_run = self.one_run(offset, amount)
        return np.tile(one_run, self.slots // one_run.size)

    def one_run(self, offset: int, amount: int | None = None) -> Array:
        """What `diagonal` repeats over the slots, (run * stride,)."""
        index = self._index(offset)
        entries = slice(self.starts[index], self.starts[index + 1])
        places = self.places[entries]
        if amount is not None and self.turns:
            places = (places - (amount - offset) // self.stride) % self.run
        one_run = np.zeros(self.run)
        one_run[places] = self.data[self.order[entries]]
        return np.repeat(one_run, self.stride) if self.stride > 1 else one_run

    def _index(self, offset: int) -> int:
        index = int(np.searchsorted(self.offsets, offset))
        if index == len(self.offsets) or self.offsets[index] != offset:
            raise InternalError(f"there is no diagonal {offset}")
        return index

    @property
    def values(self) -> Array:
        """The entries in the order of `places`."""
        return np.asarray(self.data[self.order])

    @property
    def entries(self) -> int:
        return int(self.order.size)


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


def modulus_of(slots: int, in_period: int, out_period: int, shift: int) -> int:
    """Rotations (counted in slots of one sample) that differ by this serve the same diagonal."""
    return slots if shift else min(in_period, out_period)


def make_diagonal_map(
    matrix: SparseMatrix, slots: int, in_period: int, out_period: int, shift: int, stride: int = 1
) -> DiagonalMap:
    """The diagonals of a matrix of shape (out_period, in_period)."""
    columns = matrix.indices
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))
    own = slots // stride
    if shift:
        run = out_period * in_period // shift
        if run > own or run * shift != out_period * in_period:
            raise InternalError(f"a shift of {shift} does not cover a {out_period}x{in_period} map in {own} slots")
        offset_of, slot_of = _shifted_places(run, in_period, out_period, shift)
        key = rows.astype(np.int64) * in_period + columns
        offset, place = offset_of[key], slot_of[key]
    else:
        offset = (columns - rows) % min(in_period, out_period)
        run = max(in_period, out_period)
        place = (columns - offset) % in_period if out_period <= in_period else rows
    counts = np.bincount(offset)
    there = np.flatnonzero(counts)
    # Sorting small whole numbers of 16 bits is a radix sort.
    number = np.zeros(counts.size, dtype=np.uint16 if there.size < 1 << 16 else np.int32)
    number[there] = np.arange(there.size)
    order = np.argsort(number[offset], kind="stable").astype(np.int32)
    return DiagonalMap(
        slots,
        run,
        modulus_of(own, in_period, out_period, shift) * stride,
        not shift and out_period < in_period,
        stride,
        tuple(int(k) * stride for k in there),
        np.concatenate([[0], np.cumsum(counts[there])]),
        place[order].astype(np.int32),
        order,
        matrix.data,
    )


# A matrix is mapped by several readers in a row (packing, cost, execution); the arrays are shared, not copied.
_maps: dict[tuple[int, int, int, int, int, int], tuple[SparseMatrix, DiagonalMap]] = {}
_MAPS_KEPT = 256
_ENTRIES_KEPT = 1 << 26


def diagonal_map(
    matrix: SparseMatrix, slots: int, in_period: int, out_period: int, shift: int, stride: int = 1
) -> DiagonalMap:
    """As `make_diagonal_map`, remembered for the matrices used last."""
    key = (id(matrix), slots, in_period, out_period, shift, stride)
    known = _maps.get(key)
    if known is not None and known[0] is matrix:
        return known[1]
    made = make_diagonal_map(matrix, slots, in_period, out_period, shift, stride)
    kept = sum(entry.entries for _, entry in _maps.values())
    while _maps and (len(_maps) >= _MAPS_KEPT or kept + made.entries > _ENTRIES_KEPT):
        kept -= _maps.pop(next(iter(_maps)))[1].entries
    _maps[key] = (matrix, made)
    return made
