"""A sparse map between slot vectors as generalized diagonals, computed one at a time.

y = W x on slots is a sum over diagonals: sum over k of diagonal_k * rotate(x, k), where rotate(x, k) brings slot s + k to
slot s. A value of B elements (a power of two, its *period*) repeats over the slots. Here are 8 slots, and a value of B = 4
elements a b c d at positions 0 to 3:

    slot             0 1 2 3 4 5 6 7
    copies alike     a b c d a b c d

**As many rows as columns** (W is 4 x 4). Row r of the result stands in slots r and r + 4. The entry W[r, c] is needed where
row r stands, after a rotation that brings position c there: by the *offset* (c - r) mod 4. So there are 4 diagonals, and
diagonal 1 is

    slot             0   1   2   3   4   5   6   7
    diagonal 1       W01 W12 W23 W30 W01 W12 W23 W30

Each entry stands once in every *run* of slots, here 4, and a diagonal repeats from run to run.

**Fewer rows** (W is 2 x 4). The rows stand as 0 1 0 1 0 1 0 1. Offsets are (c - r) mod 2: 2 diagonals instead of 4.

    diagonal 0       W00 W11 W02 W13 ...    times    a b c d ...
    diagonal 1       W01 W12 W03 W10 ...    times    b c d a ...

The terms of row 0 are now in slots 0 and 2, spread over a run of 4 slots: one rotation by 2 adds them up, in every slot of
the row. A rotation by 3 = 1 + 2 would serve diagonal 1 as well, if the plaintext moves along: rotations that are equal
modulo 2, the *modulus*, serve one diagonal, and its plaintext *turns* with them. (With more rows than columns, rotations
by a whole period give the same vector, so that the plaintext stays.)

**An input with shifted copies** (`shift`). Half of the slots above repeat the work of the other half. The client may pack
an input so that copy number i is moved left by i * shift. With W of 2 x 4 and a shift of 1:

    slot             0 1 2 3 4 5 6 7
    input            a b c d b c d a
    row              0 1 0 1 0 1 0 1

Every pair of a row and a position meets in some slot without any rotation: 1 diagonal instead of 2, in a run of 8 slots,
and rotations by 2 and 4 add up the terms of a row. In general a shift g leaves the offsets 0 to g - 1, in a run of M * B / g
slots for M rows (`shift_for`).

**Moved copies between maps** (`in_copies`, `out_copies`). A map may also put its result out in R copies (a power of two),
each moved left by B / R more than the one before it. It computes every copy anyway, and only has its rows elsewhere in the
second copy. With R = 2:

    slot             0 1 2 3 4 5 6 7
    moved copies     a b c d c d a b

The next map, 4 x 4, then takes 2 diagonals instead of 4: the second copy has, without a rotation, what offset 2 needs. A
rotation by 4 adds up the two halves.

    diagonal 0       W00 W11 W22 W33 W02 W13 W20 W31

The vector is cyclic in the R * B slots of its copies. Rotations that are equal modulo B / R = 2 serve one diagonal.

**Several samples** (`stride`). With a stride of 2 the slots hold two samples side by side, a A b B c C d D. All of the above
counts slots of one sample (`MapGeometry`); offsets and amounts of rotations count real slots, and are multiples of the
stride.
"""

from __future__ import annotations

import bisect
import functools
import random
import threading
from dataclasses import dataclass

import numpy as np

from heliograph.errors import InternalError
from heliograph.ir.node import Array, Distances, Matrix, SparseMatrix


@dataclass(frozen=True, slots=True)
class MapGeometry:
    """The layouts of a map's two sides (see the pictures above). Periods, shifts and runs count slots of one sample."""

    # Slots of the ciphertext, for all samples together.
    slots: int
    # Columns and rows of the matrix, powers of two.
    in_period: int
    out_period: int
    # How far each copy of an input is shifted left relative to the one before it; 0 if all copies are alike.
    shift: int = 0
    # Number of samples side by side.
    stride: int = 1
    # Number of shifted copies of the operand and of the result; 1 if copies are alike.
    in_copies: int = 1
    out_copies: int = 1

    @property
    def own_slots(self) -> int:
        """The slots of one sample."""
        return self.slots // self.stride

    @property
    def run(self) -> int:
        """The number of slots after which the diagonals repeat: over them, all terms of all rows are computed."""
        if self.shift:
            return self.out_period * self.in_period // self.shift
        if self.in_copies > 1:
            return self.in_period * self.in_copies
        return max(self.in_period, self.out_period * self.out_copies)

    @property
    def modulus(self) -> int:
        """Rotations that differ by this serve the same diagonal."""
        if self.in_copies > 1:
            return self.in_period // self.in_copies
        if self.shift:
            return self.own_slots
        return self.in_period if self.out_copies > 1 else min(self.in_period, self.out_period)

    @property
    def turns(self) -> bool:
        """Whether a diagonal's plaintext moves with the rotation, where that differs from the offset."""
        return not self.shift and self.in_copies == self.out_copies == 1 and self.out_period < self.in_period

    @property
    def whole_rows(self) -> bool:
        """Whether each slot of the result holds all terms of its row, so that no sum remains."""
        return not self.shift and self.in_copies == 1 and (self.out_copies > 1 or self.out_period >= self.in_period)

    @property
    def copies_fit(self) -> bool:
        """Whether a map between this many moved copies exists: on one side only, and on the longer period."""
        in_copies, out_copies = self.in_copies, self.out_copies
        if in_copies == out_copies == 1:
            return True
        if in_copies > 1 and out_copies > 1:
            return False
        if any(copies < 1 or copies & (copies - 1) for copies in (in_copies, out_copies)):
            return False
        if in_copies > 1:
            shift = self.in_period // in_copies
            return 0 < shift <= self.out_period <= self.in_period and self.in_period * in_copies <= self.own_slots
        return self.in_period <= self.out_period * out_copies <= self.own_slots and self.out_period >= out_copies


class DiagonalMap:
    """The diagonals of one matrix for one geometry."""

    __slots__ = ("geometry", "held", "matrix", "offsets")

    def __init__(self, geometry: MapGeometry, matrix: Matrix, offsets: tuple[int, ...]) -> None:
        self.geometry = geometry
        # Of shape (out_period, in_period).
        self.matrix = matrix
        # The offsets of the diagonals that hold entries, ascending, in real slots.
        self.offsets = offsets

    # Approximately how many numbers it keeps in memory.
    held: int

    def _places(self, offset: int) -> tuple[Array, Array | None]:
        """The slot of each entry of a diagonal, within a run of one sample.

        If the operand has moved copies, the slot depends on the amount of the rotation; the result is then row and
        column.
        """
        raise NotImplementedError

    def _values(self, offset: int) -> Array:
        """The entries of a diagonal."""
        raise NotImplementedError

    @property
    def slots(self) -> int:
        return self.geometry.slots

    @property
    def stride(self) -> int:
        return self.geometry.stride

    @property
    def run(self) -> int:
        """The run in slots of one sample."""
        return self.geometry.run

    @property
    def modulus(self) -> int:
        """Rotations that differ by this serve the same diagonal; in real slots."""
        return self.geometry.modulus * self.geometry.stride

    def diagonal(self, offset: int, amount: int | None = None) -> Array:
        """The plaintext of one diagonal for a rotation by `amount` (by default the offset), (slots,)."""
        one_run = self.one_run(offset, amount)
        return np.tile(one_run, self.slots // one_run.size)

    def apply(self, x: Array) -> Array:
        """The map of slot vectors, (..., slots), without the final sums: diagonals times x rotated by their offsets."""
        if self.geometry.whole_rows and (rows := self._rows(x)) is not None:
            return rows
        out = np.zeros_like(x, dtype=np.result_type(x, np.float64))
        for offset in self.offsets:
            out += self.diagonal(offset) * np.roll(x, -offset, axis=-1)
        return out

    def _rows(self, x: Array) -> Array | None:
        """The same by one product with the matrix, if x repeats with its period."""
        out_period, in_period = self.matrix.shape
        stride, run = self.stride, self.run
        copies = x.reshape(*x.shape[:-1], -1, in_period, stride)
        if not (copies == copies[..., :1, :, :]).all():
            return None
        one = np.moveaxis(copies[..., 0, :, :], -2, 0)
        rows = self.matrix.apply(one.reshape(in_period, -1).T).T.reshape(out_period, *one.shape[1:])
        shift = 0 if run == out_period else out_period * out_period // run
        made = np.moveaxis(rows[positions_in_slots(run, out_period, shift)], 0, -2)
        made = made.reshape(*x.shape[:-1], run * stride)
        return np.tile(made, self.slots // (run * stride))

    def one_run(self, offset: int, amount: int | None = None) -> Array:
        """One run of the plaintext of `diagonal`, which repeats over the slots, (run * stride,)."""
        one_run = np.zeros(self.run)
        one_run[self.slots_of(offset, amount)] = self._values(offset)
        return np.repeat(one_run, self.stride) if self.stride > 1 else one_run

    def slots_of(self, offset: int, amount: int | None = None) -> Array:
        """The slots (of one sample, within a run) of the entries of one diagonal for a rotation by `amount`."""
        places, columns = self._places(offset)
        geometry = self.geometry
        turned = 0 if amount is None else (amount - offset) // geometry.stride
        if geometry.in_copies > 1:
            assert columns is not None, "columns of moved copies"
            steps = offset // geometry.stride + turned
            in_period = geometry.in_period
            shift = in_period // geometry.in_copies
            # The copy in which the rotation moves the column to a slot of its row.
            copy = (columns - places - steps) // shift % (geometry.out_period // shift)
            return np.asarray((copy * in_period + (columns - shift * copy) % in_period - steps) % self.run)
        return (places - turned) % self.run if geometry.turns and turned else places


class ListedDiagonals(DiagonalMap):
    """The diagonals of a matrix whose entries are listed, diagonal by diagonal.

    Entries `starts[i]` to `starts[i + 1] - 1` of `places`, `order` and `columns` are on the diagonal `offsets[i]`.
    """

    __slots__ = ("columns", "data", "order", "places", "starts")

    def __init__(self, geometry: MapGeometry, matrix: SparseMatrix) -> None:
        offset, place, entry = _numbered(matrix, geometry)
        counts = np.bincount(offset)
        there = np.flatnonzero(counts)
        super().__init__(geometry, matrix, tuple(int(k) * geometry.stride for k in there))
        # For 16-bit integers numpy uses a radix sort.
        number = np.zeros(counts.size, dtype=np.uint16 if there.size < 1 << 16 else np.int32)
        number[there] = np.arange(there.size)
        order = np.argsort(number[offset], kind="stable").astype(np.int32)
        self.data = matrix.data
        self.starts = np.concatenate([[0], np.cumsum(counts[there])])
        self.places = place[order].astype(np.int32)
        self.columns = matrix.indices[order] if geometry.in_copies > 1 else None
        # For each entry, its index in the matrix.
        self.order = order if entry is None else entry[order]

        self.held = int(self.order.size)

    def _there(self, offset: int) -> slice:
        index = bisect.bisect_left(self.offsets, offset)
        if index == len(self.offsets) or self.offsets[index] != offset:
            raise InternalError(f"there is no diagonal {offset}")
        return slice(int(self.starts[index]), int(self.starts[index + 1]))

    def _places(self, offset: int) -> tuple[Array, Array | None]:
        there = self._there(offset)
        return self.places[there], None if self.columns is None else self.columns[there].astype(np.int64)

    def _values(self, offset: int) -> Array:
        return np.asarray(self.data[self.order[self._there(offset)]])


class WorkedOutDiagonals(DiagonalMap):
    """The diagonals of a matrix in a small form: entries are computed on demand. Inputs are not shifted."""

    __slots__ = ("_distances", "_parts")

    def __init__(self, geometry: MapGeometry, matrix: Matrix, distances: Distances) -> None:
        self._distances = distances
        in_period, out_period, copies = geometry.in_period, geometry.out_period, geometry.out_copies
        if not geometry.copies_fit:
            raise InternalError(
                f"no map leads from {geometry.in_copies} copies of {in_period} to {copies} of {out_period}"
            )
        # The distances that make up a diagonal: (distance, copy of the result, and whether its rows wrap around, or None
        # for all rows).
        self._parts: dict[int, list[tuple[int, int, bool | None]]] = {}
        if copies == 1:
            for distance in distances.distances:
                self._parts[distance * geometry.stride] = [(distance, 0, None)]
        else:
            step = out_period // copies
            for distance in distances.distances:
                least, most = distances.edges(distance)
                for copy in range(copies):
                    for wraps in (False, True):
                        # Rows below `step * copy` lie one period further on.
                        if least < step * copy if wraps else most >= step * copy:
                            moved = distance + step * copy - out_period * (copy + wraps)
                            every = None if most < step * copy or least >= step * copy else wraps
                            key = moved % in_period * geometry.stride
                            self._parts.setdefault(key, []).append((distance, copy, every))
        super().__init__(geometry, matrix, tuple(sorted(self._parts)))

        self.held = distances.held

    def _of(self, offset: int) -> list[tuple[int, int, bool | None]]:
        if offset not in self._parts:
            raise InternalError(f"there is no diagonal {offset}")
        return self._parts[offset]

    def _places(self, offset: int) -> tuple[Array, Array | None]:
        geometry, known, parts = self.geometry, self._distances, self._of(offset)
        in_period, out_period = geometry.in_period, geometry.out_period
        if geometry.in_copies > 1:
            return known.rows(parts[0][0]).astype(np.int64), known.columns(parts[0][0]).astype(np.int64)
        if geometry.out_copies > 1:
            made = []
            for distance, copy, wraps in parts:
                rows, step = known.rows(distance), out_period // geometry.out_copies * copy
                if wraps is not None:
                    rows = rows[(rows < step) == wraps]
                made.append(copy * out_period + (rows - step) % out_period)
            return np.concatenate(made), None
        if out_period < in_period:
            return (known.columns(parts[0][0]) - offset // geometry.stride) % in_period, None
        return known.rows(parts[0][0]), None

    def _values(self, offset: int) -> Array:
        made = []
        for distance, copy, wraps in self._of(offset):
            values = self._distances.values(distance)
            if wraps is not None:
                step = self.geometry.out_period // self.geometry.out_copies * copy
                values = values[(self._distances.rows(distance) < step) == wraps]
            made.append(values)
        return made[0] if len(made) == 1 else np.concatenate(made)


def positions_in_slots(slots: int, period: int, shift: int, run: int = 0) -> Array:
    """The position in each slot; copies are counted anew every `run` slots (0: never)."""
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


def _numbered(matrix: SparseMatrix, geometry: MapGeometry) -> tuple[Array, Array, Array | None]:
    """For each entry its diagonal, counted in slots of one sample, and its slot; if copies have different entries, also
    the index of each entry in the matrix.
    """
    columns = matrix.indices
    rows = np.repeat(np.arange(matrix.shape[0], dtype=np.int32), np.diff(matrix.indptr))
    in_period, out_period, shift = geometry.in_period, geometry.out_period, geometry.shift
    in_copies, out_copies, run, entry = geometry.in_copies, geometry.out_copies, geometry.run, None
    if not geometry.copies_fit:
        raise InternalError(f"no map leads from {in_copies} copies of {in_period} to {out_copies} of {out_period}")
    if shift:
        if run > geometry.own_slots or run * shift != out_period * in_period:
            raise InternalError(
                f"a shift of {shift} does not cover a {out_period}x{in_period} map in {geometry.own_slots} slots"
            )
        offset_of, slot_of = _shifted_places(run, in_period, out_period, shift)
        key = rows.astype(np.int64) * in_period + columns
        offset, place = offset_of[key], slot_of[key]
    elif in_copies > 1:
        offset, place = (columns - rows) % (in_period // in_copies), rows
    elif out_copies > 1:
        copy = np.repeat(np.arange(out_copies, dtype=np.int32), rows.size)
        entry = np.tile(np.arange(rows.size, dtype=np.int32), out_copies)
        place = copy * out_period + (rows[entry] - out_period // out_copies * copy) % out_period
        offset = (columns[entry] - place) % in_period
    else:
        offset = (columns - rows) % min(in_period, out_period)
        place = (columns - offset) % in_period if out_period <= in_period else rows
    return offset, place, entry


def make_diagonal_map(matrix: Matrix, geometry: MapGeometry) -> DiagonalMap:
    """The diagonals of a matrix of shape (out_period, in_period)."""
    modulus = geometry.in_period if geometry.out_copies > 1 else geometry.modulus
    distances = None if geometry.shift else matrix.by_distance(modulus)
    if distances is None:
        return ListedDiagonals(geometry, matrix.sparse())
    return WorkedOutDiagonals(geometry, matrix, distances)


def diagonal_offsets(matrix: Matrix, geometry: MapGeometry) -> tuple[int, ...]:
    """The diagonals that hold entries, ascending, in real slots: `DiagonalMap.offsets` in less time and memory."""
    known = _maps.get((id(matrix), geometry))
    if known is not None and known[0] is matrix:
        return known[1].offsets
    if not isinstance(matrix, SparseMatrix) and not geometry.shift:
        return diagonal_map(matrix, geometry).offsets
    offset = _numbered(matrix.sparse(), geometry)[0]
    return tuple(int(k) * geometry.stride for k in np.flatnonzero(np.bincount(offset)))


# Several readers map the same matrix in turn (packing, cost, execution); they share the arrays instead of copying them.
_maps: dict[tuple[int, MapGeometry], tuple[Matrix, DiagonalMap]] = {}
_MAPS_KEPT = 1 << 12
# Entries take eight bytes each. Readers go through a program again and again. Evicting the oldest map would drop each one
# just before it is needed, so the one to evict is drawn at random.
_ENTRIES_KEPT = 1 << 27
_drawn = random.Random(0)
_maps_lock = threading.Lock()


def diagonal_map(matrix: Matrix, geometry: MapGeometry) -> DiagonalMap:
    """`make_diagonal_map` with a cache of the most recent matrices."""
    key = (id(matrix), geometry)
    known = _maps.get(key)
    if known is not None and known[0] is matrix:
        return known[1]
    made = make_diagonal_map(matrix, geometry)
    with _maps_lock:
        kept = sum(entry.held for _, entry in _maps.values())
        while _maps and (len(_maps) >= _MAPS_KEPT or kept + made.held > _ENTRIES_KEPT):
            kept -= _maps.pop(_drawn.choice(list(_maps)))[1].held
        _maps[key] = (matrix, made)
    return made
