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

Values between maps may have R `copies` (a power of two) that are moved by B / R each: the run of R * B slots is then
cyclic, and rotations by any k serve in each copy another one of the offsets that equal k modulo B / R. A map from such
copies to a plain value has R times fewer diagonals; its terms are added up over the R copies. A map from a plain value
gives the copies for nothing: each has the rows of another offset.

With a stride k > 1 the slots hold k samples side by side: slot v * k + j is slot v of sample j. Periods, runs and shifts
count slots of one sample, offsets and amounts count real slots: they are multiples of k.
"""

from __future__ import annotations

import bisect
import functools
import random
import threading
from dataclasses import dataclass

import numpy as np

from heliograph.errors import InternalError
from heliograph.ir.node import Array, SparseMatrix


@dataclass(frozen=True, slots=True, eq=False)
class DiagonalMap:
    """The diagonals of one matrix for one pair of layouts; entry i stands in slot `places[i]` of its run.

    Rotations that differ by `modulus` serve the same diagonal; `turns` says that its plaintext turns with them. Where the
    operand has moved `copies`, entry i is row `places[i]` and column `columns[i]` instead: its slot depends on the amount.
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
    matrix: SparseMatrix
    # Whether each slot of the result holds all terms of its row.
    whole_rows: bool = False
    columns: Array | None = None
    copies: int = 1

    def diagonal(self, offset: int, amount: int | None = None) -> Array:
        """The plaintext of one diagonal for a rotation by `amount` (by default the offset), (slots,)."""
        one_run = self.one_run(offset, amount)
        return np.tile(one_run, self.slots // one_run.size)

    def apply(self, x: Array) -> Array:
        """The map of slot vectors, (..., slots), without the sums that follow: diagonals times x turned by their offsets."""
        if self.whole_rows and (rows := self._rows(x)) is not None:
            return rows
        out = np.zeros_like(x, dtype=np.result_type(x, np.float64))
        for offset in self.offsets:
            out += self.diagonal(offset) * np.roll(x, -offset, axis=-1)
        return out

    def _rows(self, x: Array) -> Array | None:
        """The same by one product with the matrix, where x repeats with its period."""
        out_period, in_period = self.matrix.shape
        copies = x.reshape(*x.shape[:-1], -1, in_period, self.stride)
        if not (copies == copies[..., :1, :, :]).all():
            return None
        one = np.moveaxis(copies[..., 0, :, :], -2, 0)
        rows = (self.matrix.csr() @ one.reshape(in_period, -1)).reshape(out_period, *one.shape[1:])
        shift = 0 if self.run == out_period else out_period * out_period // self.run
        made = np.moveaxis(rows[positions_in_slots(self.run, out_period, shift)], 0, -2)
        made = made.reshape(*x.shape[:-1], self.run * self.stride)
        return np.tile(made, self.slots // (self.run * self.stride))

    def one_run(self, offset: int, amount: int | None = None) -> Array:
        """What `diagonal` repeats over the slots, (run * stride,)."""
        one_run = np.zeros(self.run)
        one_run[self.slots_of(offset, amount)] = self.matrix.data[self.order[self._entries(offset)]]
        return np.repeat(one_run, self.stride) if self.stride > 1 else one_run

    def slots_of(self, offset: int, amount: int | None = None) -> Array:
        """The slots (of one sample, within a run) in which the entries of one diagonal stand for a rotation by `amount`."""
        entries = self._entries(offset)
        places = self.places[entries]
        turned = 0 if amount is None else (amount - offset) // self.stride
        if self.columns is not None:
            steps = offset // self.stride + turned
            in_period = self.run // self.copies
            shift = in_period // self.copies
            columns = self.columns[entries].astype(np.int64)
            # The copy in which the rotation brings the column to a slot of its row.
            copy = (columns - places - steps) // shift % (self.matrix.shape[0] // shift)
            return np.asarray((copy * in_period + (columns - shift * copy) % in_period - steps) % self.run)
        return (places - turned) % self.run if self.turns else places

    def _entries(self, offset: int) -> slice:
        index = bisect.bisect_left(self.offsets, offset)
        if index == len(self.offsets) or self.offsets[index] != offset:
            raise InternalError(f"there is no diagonal {offset}")
        return slice(int(self.starts[index]), int(self.starts[index + 1]))

    @property
    def values(self) -> Array:
        """The entries in the order of `places`."""
        return np.asarray(self.matrix.data[self.order])

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


def modulus_of(slots: int, in_period: int, out_period: int, shift: int, in_copies: int = 1, out_copies: int = 1) -> int:
    """Rotations (counted in slots of one sample) that differ by this serve the same diagonal."""
    if in_copies > 1:
        return in_period // in_copies
    return slots if shift else in_period if out_copies > 1 else min(in_period, out_period)


def copies_fit(slots: int, in_period: int, out_period: int, in_copies: int, out_copies: int) -> bool:
    """Whether there is a map between layouts with so many moved copies: on one side only, and on the longer period."""
    if in_copies == out_copies == 1:
        return True
    if in_copies > 1 and out_copies > 1:
        return False
    if any(copies < 1 or copies & (copies - 1) for copies in (in_copies, out_copies)):
        return False
    if in_copies > 1:
        shift = in_period // in_copies
        return 0 < shift <= out_period <= in_period and in_period * in_copies <= slots
    return in_period <= out_period * out_copies <= slots and out_period >= out_copies


def make_diagonal_map(
    matrix: SparseMatrix,
    slots: int,
    in_period: int,
    out_period: int,
    shift: int,
    stride: int = 1,
    in_copies: int = 1,
    out_copies: int = 1,
) -> DiagonalMap:
    """The diagonals of a matrix of shape (out_period, in_period)."""
    columns = matrix.indices
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))
    own, entry = slots // stride, None
    if not copies_fit(own, in_period, out_period, in_copies, out_copies):
        raise InternalError(f"no map leads from {in_copies} copies of {in_period} to {out_copies} of {out_period}")
    if shift:
        run = out_period * in_period // shift
        if run > own or run * shift != out_period * in_period:
            raise InternalError(f"a shift of {shift} does not cover a {out_period}x{in_period} map in {own} slots")
        offset_of, slot_of = _shifted_places(run, in_period, out_period, shift)
        key = rows.astype(np.int64) * in_period + columns
        offset, place = offset_of[key], slot_of[key]
    elif in_copies > 1:
        run = in_period * in_copies
        offset, place = (columns - rows) % (in_period // in_copies), rows
    elif out_copies > 1:
        run = out_period * out_copies
        copy = np.repeat(np.arange(out_copies, dtype=np.int32), rows.size)
        entry = np.tile(np.arange(rows.size, dtype=np.int32), out_copies)
        place = copy * out_period + (rows[entry] - out_period // out_copies * copy) % out_period
        offset = (columns[entry] - place) % in_period
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
        modulus_of(own, in_period, out_period, shift, in_copies, out_copies) * stride,
        not shift and in_copies == out_copies == 1 and out_period < in_period,
        stride,
        tuple(int(k) * stride for k in there),
        np.concatenate([[0], np.cumsum(counts[there])]),
        place[order].astype(np.int32),
        order if entry is None else entry[order],
        matrix,
        not shift and in_copies == 1 and (out_copies > 1 or out_period >= in_period),
        columns[order] if in_copies > 1 else None,
        in_copies,
    )


# A matrix is mapped by several readers in a row (packing, cost, execution); the arrays are shared, not copied.
_maps: dict[tuple[int, ...], tuple[SparseMatrix, DiagonalMap]] = {}
_MAPS_KEPT = 256
# Eight bytes each. Readers go through a program again and again: dropping the oldest would drop each map just before it
# is needed, so what goes is drawn at random.
_ENTRIES_KEPT = 1 << 27
_drawn = random.Random(0)
_maps_lock = threading.Lock()


def diagonal_map(
    matrix: SparseMatrix,
    slots: int,
    in_period: int,
    out_period: int,
    shift: int,
    stride: int = 1,
    in_copies: int = 1,
    out_copies: int = 1,
) -> DiagonalMap:
    """As `make_diagonal_map`, remembered for the matrices used last."""
    key = (id(matrix), slots, in_period, out_period, shift, stride, in_copies, out_copies)
    known = _maps.get(key)
    if known is not None and known[0] is matrix:
        return known[1]
    made = make_diagonal_map(matrix, slots, in_period, out_period, shift, stride, in_copies, out_copies)
    with _maps_lock:
        kept = sum(entry.entries for _, entry in _maps.values())
        while _maps and (len(_maps) >= _MAPS_KEPT or kept + made.entries > _ENTRIES_KEPT):
            kept -= _maps.pop(_drawn.choice(list(_maps)))[1].entries
        _maps[key] = (matrix, made)
    return made
