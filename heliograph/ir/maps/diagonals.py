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

**Moved copies** (`shift`, `in_copies`, `out_copies`). Half of the slots above repeat the work of the other half. Copy number
i may be moved left by i * shift, counting anew after a number of copies. The client can pack an input so. With W of 2 x 4
and two copies moved by 1:

    slot             0 1 2 3 4 5 6 7
    input            a b c d b c d a
    row              0 1 0 1 0 1 0 1

Every pair of a row and a position meets in some slot without any rotation: 1 diagonal instead of 2, in a run of 8 slots,
and rotations by 2 and 4 add up the terms of a row. In general a shift g leaves the offsets (c - r) mod g, and rotations
that are equal modulo g serve one diagonal; M rows need M / g copies (`shift_for`).

    diagonal 0       W00 W11 W02 W13 W01 W12 W03 W10

A map may also put its result out in R copies (a power of two), each moved left by B / R more than the one before it. It
computes every copy anyway, and only has its rows elsewhere in the second copy. With R = 2:

    slot             0 1 2 3 4 5 6 7
    moved copies     a b c d c d a b

The next map, 4 x 4, then takes 2 diagonals instead of 4: the second copy has, without a rotation, what offset 2 needs. A
rotation by 4 adds up the two halves.

    diagonal 0       W00 W11 W22 W33 W02 W13 W20 W31

**Several samples** (`samples`). With two samples the slots hold them side by side, A a B b A a B b. All of the above counts
slots of one sample (`MapGeometry`); offsets and amounts of rotations count real slots, and are multiples of the number of
samples.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heliograph.errors import InternalError
from heliograph.ir.maps.layout import MOST_SLOTS, Layout, positions_in_slots
from heliograph.ir.node import Array, Matrix, SparseMatrix
from heliograph.records import bounds


@dataclass(frozen=True, slots=True)
class MapGeometry:
    """The layouts of a map's two sides (see the pictures above). Periods and shifts count slots of one sample."""

    # Slots of the ciphertext, for all samples together.
    slots: int = field(metadata=bounds(1, MOST_SLOTS))
    # Columns and rows of the matrix, powers of two.
    in_period: int = field(metadata=bounds(1, MOST_SLOTS))
    out_period: int = field(metadata=bounds(1, MOST_SLOTS))
    # How far each copy of the operand is moved left relative to the one before it; 0 if all copies are alike.
    shift: int = field(default=0, metadata=bounds(0, MOST_SLOTS))
    # Number of moved copies of the operand and of the result; 1 if copies are alike.
    in_copies: int = field(default=1, metadata=bounds(1, MOST_SLOTS))
    out_copies: int = field(default=1, metadata=bounds(1, MOST_SLOTS))
    # Number of samples side by side.
    samples: int = field(default=1, metadata=bounds(1, MOST_SLOTS))

    @staticmethod
    def between(layout: Layout, out: Layout) -> MapGeometry:
        """The geometry of a map from values in one layout to values in another one."""
        copies = layout.copies, out.copies
        return MapGeometry(layout.slots, layout.period, out.period, layout.shift, *copies, layout.samples)

    @property
    def own_slots(self) -> int:
        """The slots of one sample."""
        return self.slots // self.samples

    @property
    def run(self) -> int:
        """The number of slots after which the diagonals repeat: over them, all terms of all rows are computed."""
        return max(self.in_period * self.in_copies, self.out_period * self.out_copies)

    @property
    def modulus(self) -> int:
        """Rotations that differ by this serve the same diagonal."""
        if self.shift:
            return self.shift
        return self.in_period if self.out_copies > 1 else min(self.in_period, self.out_period)

    @property
    def whole_rows(self) -> bool:
        """Whether each slot of the result holds all terms of its row, so that no sum remains."""
        return self.in_copies == 1 and (self.out_copies > 1 or self.out_period >= self.in_period)

    @property
    def moves(self) -> list[tuple[int, int, bool, int]]:
        """The rows in each copy of the result: the copy, the row at its start, whether it is about the rows before that
        one, which stand at the copy's end, and what is added to the distances of their entries.
        """
        starts = [self.out_period // self.out_copies * copy for copy in range(self.out_copies)]
        return [
            (copy, start, wraps, start - self.out_period * (copy + wraps))
            for copy, start in enumerate(starts)
            for wraps in (False, True)
        ]

    @property
    def exists(self) -> bool:
        """Whether there is such a map: with moved copies on one side at most, and on the longer period."""
        if (self.shift > 0) != (self.in_copies > 1) or min(self.in_copies, self.out_copies) > 1:
            return False
        if self.slots % self.samples:
            return False
        lengths = self.in_period, self.out_period, self.shift or 1, self.in_copies, self.out_copies
        if any(length & (length - 1) for length in lengths) or self.own_slots % self.run:
            return False
        if self.in_copies > 1:
            return self.shift <= self.out_period <= self.shift * self.in_copies <= self.in_period
        return self.out_copies == 1 or self.out_copies <= self.out_period >= self.in_period // self.out_copies

    @property
    def refusal(self) -> str:
        """What to say where there is no such map."""
        return (
            f"no map leads from {self.in_copies} copies of {self.in_period}, moved by {self.shift}, to "
            f"{self.out_copies} of {self.out_period} in {self.slots} slots for {self.samples} samples"
        )


class DiagonalMap:
    """The diagonals of one matrix, of shape (out_period, in_period), for one geometry."""

    __slots__ = ("_distances", "_parts", "geometry", "held", "matrix", "offsets")

    def __init__(self, matrix: Matrix, geometry: MapGeometry) -> None:
        if not geometry.exists:
            raise InternalError(geometry.refusal)
        self.geometry, self.matrix = geometry, matrix
        self._distances = known = matrix.by_distance(geometry.modulus)
        # Approximately how many numbers it keeps in memory.
        self.held = known.held
        # The distances that make up a diagonal: (distance, copy of the result, the row at its start, and whether only the
        # rows before that one are in the diagonal, or the others, or None for all rows).
        self._parts: dict[int, list[tuple[int, int, int, bool | None]]] = {}
        moves = geometry.moves
        for distance in known.distances:
            least, most = known.edges(distance) if geometry.out_copies > 1 else (0, 0)
            for copy, start, wraps, change in moves:
                if least < start if wraps else most >= start:
                    every = None if most < start or least >= start else wraps
                    offset = (distance + change) % geometry.in_period * geometry.samples
                    self._parts.setdefault(offset, []).append((distance, copy, start, every))
        # The offsets of the diagonals that hold entries, ascending, in real slots.
        self.offsets = tuple(sorted(self._parts))

    @property
    def slots(self) -> int:
        return self.geometry.slots

    @property
    def samples(self) -> int:
        return self.geometry.samples

    @property
    def run(self) -> int:
        """The run in slots of one sample."""
        return self.geometry.run

    @property
    def modulus(self) -> int:
        """Rotations that differ by this serve the same diagonal; in real slots."""
        return self.geometry.modulus * self.samples

    def diagonal(self, offset: int, amount: int | None = None) -> Array:
        """The plaintext of one diagonal for a rotation by `amount` (by default the offset), (slots,)."""
        one_run = self.one_run(offset, amount)
        return np.tile(one_run, self.slots // one_run.size)

    def apply(self, x: Array) -> Array:
        """The map of slot vectors, (..., slots), without the final sums: diagonals times x rotated by their offsets."""
        if self.geometry.whole_rows and (rows := self._rows(x)) is not None:
            return rows
        out = np.zeros_like(x, dtype=np.result_type(x, np.float64))
        # Twice in a row: a rotation is then a slice.
        twice, product = np.concatenate([x, x], axis=-1), np.empty_like(out)
        for offset in self.offsets:
            one_run = self.one_run(offset)
            runs = (*x.shape[:-1], -1, one_run.size)
            moved = twice[..., offset % self.slots :][..., : self.slots]
            np.multiply(moved.reshape(runs), one_run, out=product.reshape(runs))
            out += product
        return out

    def _rows(self, x: Array) -> Array | None:
        """The same by one product with the matrix, if x repeats with its period."""
        out_period, in_period = self.matrix.shape
        samples, run = self.samples, self.run
        copies = x.reshape(*x.shape[:-1], -1, in_period, samples)
        if not (copies == copies[..., :1, :, :]).all():
            return None
        one = np.moveaxis(copies[..., 0, :, :], -2, 0)
        rows = self.matrix.apply(one.reshape(in_period, -1).T).T.reshape(out_period, *one.shape[1:])
        out_copies = self.geometry.out_copies
        shift = 0 if out_copies == 1 else out_period // out_copies
        made = np.moveaxis(rows[positions_in_slots(run, out_period, shift, run // out_period)], 0, -2)
        made = made.reshape(*x.shape[:-1], run * samples)
        return np.tile(made, self.slots // (run * samples))

    def one_run(self, offset: int, amount: int | None = None) -> Array:
        """One run of the plaintext of `diagonal`, which repeats over the slots, (run * samples,)."""
        one_run = np.zeros(self.run)
        one_run[self.slots_of(offset, amount)] = self._values(offset)
        return np.repeat(one_run, self.samples) if self.samples > 1 else one_run

    def slots_of(self, offset: int, amount: int | None = None) -> Array:
        """The slots (of one sample, within a run) of the entries of one diagonal for a rotation by `amount`."""
        geometry, known, made = self.geometry, self._distances, []
        in_period, out_period, shift = geometry.in_period, geometry.out_period, geometry.shift
        steps = (offset if amount is None else amount) // geometry.samples
        # Remainders and quotients by powers of two, many times as fast by their bits.
        for distance, out_copy, start, kept in self._kept(offset):
            if geometry.whole_rows:
                made.append(out_copy * out_period + ((known.rows(distance)[kept] - start) & (out_period - 1)))
                continue
            columns = known.columns(distance).astype(np.int64)
            copy: Array = np.zeros_like(columns)
            if shift:
                # The copy in which the rotation moves the column to a slot of its row.
                moved = columns - known.rows(distance) - steps
                copy = (moved >> (shift.bit_length() - 1)) & (out_period // shift - 1)
            column = (columns - shift * copy) & (in_period - 1)
            made.append((copy * in_period + column - steps) & (self.run - 1))
        return made[0] if len(made) == 1 else np.concatenate(made)

    def _values(self, offset: int) -> Array:
        """The entries of a diagonal."""
        made = [self._distances.values(distance)[kept] for distance, _, _, kept in self._kept(offset)]
        return made[0] if len(made) == 1 else np.concatenate(made)

    def _kept(self, offset: int) -> Iterator[tuple[int, int, int, Any]]:
        """The distances that make up a diagonal: (distance, copy of the result, the row at its start, an index of the
        entries there).
        """
        if offset not in self._parts:
            raise InternalError(f"there is no diagonal {offset}")
        for distance, copy, start, wraps in self._parts[offset]:
            kept = slice(None) if wraps is None else (self._distances.rows(distance) < start) == wraps
            yield distance, copy, start, kept


def shift_for(slots: int, in_period: int, out_period: int) -> tuple[int, int]:
    """The shift between copies that lets all slots work on different entries, and their number; (0, 1) for none."""
    shift = max(1, out_period * in_period // slots)
    copies = out_period // shift
    return (shift, copies) if copies > 1 and out_period <= in_period and in_period * copies <= slots else (0, 1)


def diagonal_offsets(matrix: Matrix, geometry: MapGeometry) -> tuple[int, ...]:
    """The diagonals that hold entries, ascending, in real slots: `DiagonalMap.offsets` in less time and memory."""
    known = _maps.get((id(matrix), geometry))
    if known is not None and known[0] is matrix:
        return known[1].offsets
    # A list of entries is sorted only where they are read, so the map takes little time.
    make = DiagonalMap if isinstance(matrix, SparseMatrix) else diagonal_map
    return make(matrix, geometry).offsets


# Several readers map the same matrix in turn (packing, cost, execution); they share the arrays instead of copying them.
_maps: dict[tuple[int, MapGeometry], tuple[Matrix, DiagonalMap]] = {}
_MAPS_KEPT = 1 << 12
# Entries take eight bytes each. Readers go through a program again and again. Evicting the oldest map would drop each one
# just before it is needed, so the one to evict is drawn at random.
_ENTRIES_KEPT = 1 << 27
_drawn = random.Random(0)
_maps_lock = threading.Lock()


def cache_clear() -> None:
    """Forget the maps, as the method of this name of a function's cache does."""
    with _maps_lock:
        _maps.clear()


def diagonal_map(matrix: Matrix, geometry: MapGeometry) -> DiagonalMap:
    """The diagonals of a matrix, from a cache of the most recent ones."""
    key = (id(matrix), geometry)
    known = _maps.get(key)
    if known is not None and known[0] is matrix:
        return known[1]
    made = DiagonalMap(matrix, geometry)
    with _maps_lock:
        kept = sum(entry.held for _, entry in _maps.values())
        while _maps and (len(_maps) >= _MAPS_KEPT or kept + made.held > _ENTRIES_KEPT):
            kept -= _maps.pop(_drawn.choice(list(_maps)))[1].held
        _maps[key] = (matrix, made)
    return made
