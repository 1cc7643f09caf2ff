"""Steps and prices of each map between two layouts, for choosing layouts and then for packing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse

from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.execution.prices import prices_on
from heliograph.ir import Array, Matrix, Node, Program, SparseMatrix
from heliograph.ir.analysis.depth import levels_below, program_depth
from heliograph.ir.maps.diagonals import MapGeometry, diagonal_offsets, shift_for
from heliograph.ir.maps.layout import Layout
from heliograph.ir.maps.placed import blocks_of
from heliograph.passes.packing.bsgs import Steps, plan_steps
from heliograph.passes.packing.choose_layouts import Groups
from heliograph.passes.packing.map_offsets import MapOffsets

# If a program is deeper than the chain, values are bootstrapped. Maps are then priced at about this level, which lies
# between the end of a bootstrap and the next polynomial.
_LEVEL_BETWEEN_BOOTSTRAPS = 4
# The diagonals for shifted copies come from a table of all (row, position) pairs; larger tables than this are not made.
_MOST_SHIFTED_PAIRS = 1 << 22


class MapPlans:
    """Steps and prices of the maps of one polynomial program; `slots` are those of one sample."""

    def __init__(self, program: Program, groups: Groups, ring: Ring, costs: CostTable, slots: int) -> None:
        self.program, self.groups, self.slots = program, groups, slots
        self._prices = prices_on((ring,), costs)
        self.below = levels_below(program)
        # Whether values are bootstrapped. Then there are too many plaintexts to keep, and each product encodes its own.
        self.deep = program_depth(program) > ring.levels
        self.users = program.users()
        self._offsets = MapOffsets(slots)
        # Maps with equal structure between equal layouts share their results.
        self._known: dict[Any, tuple[float, Steps]] = {}
        # The rotation amounts of the plans so far. Each has a key, which later plans can use for free.
        self.amounts: set[int] = set()
        self._positioned: dict[Any, Mapping[tuple[int, int], Matrix]] = {}

    def _level(self, node: Node) -> int:
        level = max(1, self.below[node] + 1)
        return min(level, _LEVEL_BETWEEN_BOOTSTRAPS) if self.deep else level

    def _rotate_ms(self, level: int) -> float:
        return self._prices.at("rotate", level)

    def cost(self, node: Node, operand: Node, name: Any, layout: Layout, out: Layout) -> float:
        """The price of one map, by splits that are found quickly."""
        cost = self.steps(node, [(name, layout)], out, thorough=False)[0]
        shifted = self.shifted(operand, layout, out)
        if shifted is not None and self.program.linear_map(name).nnz:
            cost = min(cost, self.shifted_steps(node, name, shifted, out)[0])
        return cost

    def steps(
        self, node: Node, maps: Sequence[tuple[Any, Layout]], out: Layout, *, thorough: bool
    ) -> tuple[float, Steps]:
        """Cost and steps of maps from operands with the same period, with the rotations that add up partial sums."""
        if not self.geometry(maps[0][1], out).copies_fit:
            return math.inf, Steps((), (), math.inf)
        level = self._level(node)
        structures = tuple((self._offsets.structure(self.program.linear_map(name)), layout) for name, layout in maps)
        key = (structures, out, level, thorough)
        if key not in self._known:
            blocks = [
                offsets for name, layout in maps for offsets in self.offsets(name, layout, out).values() if offsets.size
            ]
            steps = plan_steps(
                np.unique(np.concatenate(blocks)).tolist() if blocks else (0,),
                self.slots,
                self._prices,
                level,
                encoded=self.deep,
                modulus=self.modulus(maps[0][1], out),
                strides=_strides([*(layout for _, layout in maps), out]) if thorough else (),
                inputs=sum(layout.ciphertexts for _, layout in maps),
                outputs=out.ciphertexts,
                products=sum(offsets.size for offsets in blocks),
                thorough=thorough,
                held=self.amounts if thorough else None,
            )
            if thorough:
                self.amounts |= {*steps.baby, *steps.giant}
            sums = (spread(maps[0][1], out) // (out.run or out.period)).bit_length() - 1
            # The partial sums are added after the rescale, one level lower.
            cost = steps.cost_ms + out.ciphertexts * sums * self._rotate_ms(level - 1)
            self._known[key] = cost, steps
        return self._known[key]

    def geometry(self, layout: Layout, out: Layout) -> MapGeometry:
        """The geometry of a map between these layouts; a shift counts as moved copies, as it does between maps."""
        copies = (layout.copies_moved, out.copies_moved)
        return MapGeometry(self.slots, layout.period, out.period, in_copies=copies[0], out_copies=copies[1])

    def modulus(self, layout: Layout, out: Layout) -> int:
        return self.geometry(layout, out).modulus

    def offsets(self, name: Any, layout: Layout, out: Layout) -> Mapping[tuple[int, int], Array]:
        return self._offsets.blocks(self.program.linear_map(name), layout, out)

    def shifted(self, operand: Node, layout: Layout, out: Layout) -> Layout | None:
        """The layout with shifted copies, for an input that only one map reads; such packing costs the client nothing.

        None where it does not apply.
        """
        users = self.users[operand]
        if operand.op != "input" or len(self.groups.members[self.groups.of[operand]]) > 1 or len(users) > 1:
            return None
        if operand in self.program.outputs or layout.ciphertexts > 1 or out.ciphertexts > 1:
            return None
        if layout.period * out.period > _MOST_SHIFTED_PAIRS or out.shift:
            return None
        shift, run = shift_for(self.slots, layout.period, out.period)
        return replace(layout, shift=shift, run=run) if shift else None

    def shifted_steps(self, node: Node, name: Any, layout: Layout, out: Layout) -> tuple[float, Steps]:
        level = self._level(node)
        key = (name, layout, out, level)
        if key not in self._known:
            matrix = self.blocks(name, layout, out)[0, 0]
            geometry = MapGeometry(self.slots, layout.period, out.period, layout.shift)
            offsets = diagonal_offsets(matrix, geometry)
            steps = plan_steps(offsets or (0,), self.slots, self._prices, level, encoded=self.deep)
            sums = (layout.run // out.period).bit_length() - 1
            self._known[key] = steps.cost_ms + sums * self._rotate_ms(level - 1), steps
        return self._known[key]

    def blocks(self, name: Any, layout: Layout, out: Layout) -> Mapping[tuple[int, int], Matrix]:
        """The matrix in positions, by block: (ciphertext of the result, ciphertext of the operand)."""
        key = (name, _plain(layout), _plain(out))
        if key not in self._positioned:
            matrix = self.program.linear_map(name)
            placed = blocks_of(matrix, _plain(layout), _plain(out))
            self._positioned[key] = _in_positions(matrix.sparse(), layout, out) if placed is None else placed
        return self._positioned[key]


def _plain(layout: Layout) -> Layout:
    """The layout without shift: all copies alike."""
    return replace(layout, shift=0, run=0)


def spread(layout: Layout, out: Layout) -> int:
    """The slots over which the terms of one row are spread."""
    return max(layout.run or layout.period, out.run or out.period)


def _strides(layouts: Sequence[Layout]) -> list[int]:
    """The distances between neighbouring rows and groups of channels in these layouts."""
    distances = set()
    for layout in layouts:
        _, rows, columns = layout.channels_rows_columns
        width = layout.width or columns * layout.gap
        distances |= {width, layout.block or rows * layout.gap * width}
    return sorted(distances)


def in_places(matrix: SparseMatrix, layout: Layout, out: Layout) -> SparseMatrix:
    """The matrix between places: rows and columns in the order of the layouts, all ciphertexts one after the other."""
    shape = (out.ciphertexts * out.period, layout.ciphertexts * layout.period)
    places_in, places_out = layout.places(), out.places()
    if shape == matrix.shape and (np.diff(places_in) == 1).all() and (np.diff(places_out) == 1).all():
        return matrix
    # Rows are moved unchanged; columns are renumbered.
    order = np.argsort(places_out, kind="stable")
    lengths = np.diff(matrix.indptr)[order].astype(np.int64)
    indptr: Array = np.zeros(shape[0] + 1, dtype=np.int64)
    indptr[places_out[order] + 1] = lengths
    indptr = np.cumsum(indptr)
    starts = np.cumsum(lengths) - lengths
    gather = np.repeat(matrix.indptr[order] - starts, lengths) + np.arange(matrix.data.size)
    columns = places_in.astype(np.int32)[matrix.indices[gather]]
    csr = scipy.sparse.csr_array((matrix.data[gather], columns, indptr.astype(np.int32)), shape=shape)
    csr.sort_indices()
    return SparseMatrix(shape, csr.data, csr.indices, csr.indptr)


def _in_positions(matrix: SparseMatrix, layout: Layout, out: Layout) -> dict[tuple[int, int], SparseMatrix]:
    """The blocks with entries, by (ciphertext of the result, ciphertext of the operand), each between positions."""
    whole = in_places(matrix, layout, out)
    if out.ciphertexts == layout.ciphertexts == 1:
        return {(0, 0): whole} if whole.data.size else {}
    blocks = {}
    csr = whole.csr()
    for o in range(out.ciphertexts):
        rows = csr[o * out.period : (o + 1) * out.period]
        for i in range(layout.ciphertexts):
            block = rows[:, i * layout.period : (i + 1) * layout.period]
            if block.nnz:
                blocks[o, i] = SparseMatrix.of(block)
    return blocks
