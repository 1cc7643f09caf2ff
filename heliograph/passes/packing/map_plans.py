"""Steps and prices of each map between two layouts, for choosing layouts and then for packing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.execution.prices import prices_on
from heliograph.ir import Array, Matrix, Node, Program
from heliograph.ir.analysis.depth import levels_below, program_depth
from heliograph.ir.maps.diagonals import MapGeometry, shift_for
from heliograph.ir.maps.layout import Layout
from heliograph.ir.maps.offsets import MapOffsets
from heliograph.ir.maps.placed import blocks_of
from heliograph.passes.packing.bsgs import Steps, plan_steps
from heliograph.passes.packing.choose_layouts import Groups

# If a program is deeper than the chain, values are bootstrapped. Maps are then priced at about this level, which lies
# between the end of a bootstrap and the next polynomial.
_LEVEL_BETWEEN_BOOTSTRAPS = 4


class MapPlans:
    """Steps and prices of the maps of one polynomial program; `slots` are those of one sample."""

    def __init__(self, program: Program, groups: Groups, ring: Ring, costs: CostTable, slots: int) -> None:
        self.program, self.groups, self.slots = program, groups, slots
        self._prices = prices_on((ring,), costs)
        self.below = levels_below(program)
        # Whether values are bootstrapped. Then there are too many plaintexts to keep, and each product encodes its own.
        self.deep = program_depth(program) > ring.levels
        self.users = program.users()
        self._offsets = MapOffsets()
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
            cost = min(cost, self.steps(node, [(name, shifted)], out, thorough=False)[0])
        return cost

    def steps(
        self, node: Node, maps: Sequence[tuple[Any, Layout]], out: Layout, *, thorough: bool
    ) -> tuple[float, Steps]:
        """Cost and steps of maps from operands with the same period, with the rotations that add up partial sums."""
        geometry = MapGeometry.between(maps[0][1], out)
        if not geometry.exists:
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
                modulus=geometry.modulus,
                strides=_strides([*(layout for _, layout in maps), out]) if thorough else (),
                inputs=sum(layout.ciphertexts for _, layout in maps),
                outputs=out.ciphertexts,
                products=sum(offsets.size for offsets in blocks),
                thorough=thorough,
                held=self.amounts if thorough else None,
            )
            if thorough:
                self.amounts |= {*steps.baby, *steps.giant}
            sums = (geometry.run // out.run).bit_length() - 1
            # The partial sums are added after the rescale, one level lower.
            cost = steps.cost_ms + out.ciphertexts * sums * self._rotate_ms(level - 1)
            self._known[key] = cost, steps
        return self._known[key]

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
        shift, copies = shift_for(self.slots, layout.period, out.period)
        return replace(layout, shift=shift, copies=copies) if shift and not out.shift else None

    def blocks(self, name: Any, layout: Layout, out: Layout) -> Mapping[tuple[int, int], Matrix]:
        """The matrix in positions, by block: (ciphertext of the result, ciphertext of the operand)."""
        key = (name, layout.alike, out.alike)
        if key not in self._positioned:
            self._positioned[key] = blocks_of(self.program.linear_map(name), layout.alike, out.alike)
        return self._positioned[key]


def _strides(layouts: Sequence[Layout]) -> list[int]:
    """The distances between neighbouring rows and groups of channels in these layouts."""
    distances = set()
    for layout in layouts:
        channels, rows, columns = layout.digits
        # Where channels stand between columns, they also stand between rows.
        distances |= {stride for _, stride in (*channels, *(() if columns and columns[0][1] > 1 else rows))}
    return sorted(distances)
