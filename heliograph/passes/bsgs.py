"""Baby and giant steps for a set of diagonals, chosen by the measured cost of what they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.target import CostTable, Ring


@dataclass(frozen=True, slots=True)
class Steps:
    """Every offset is one baby step plus one giant step, modulo the slots; `cost_ms` prices the whole transform."""

    baby: tuple[int, ...]
    giant: tuple[int, ...]
    cost_ms: float

    @property
    def rotations(self) -> int:
        return sum(1 for step in (*self.baby, *self.giant) if step)


def split(offset: int, modulus: int, centred: bool, slots: int) -> tuple[int, int]:
    """(baby, giant) of one offset."""
    baby = (offset + modulus // 2) % modulus - modulus // 2 if centred else offset % modulus
    return baby % slots, (offset - baby) % slots


def _candidates(offsets: Sequence[int], slots: int) -> list[int]:
    """Moduli worth trying: powers of two, and the distances that are frequent between the diagonals."""
    moduli = {1 << i for i in range(slots.bit_length())}
    if 1 < len(offsets) <= 4096:
        array = np.array(offsets)
        for stride in (1, 2, 3, 4, 5, 7, 9):
            distances, counts = np.unique(array[stride:] - array[:-stride], return_counts=True)
            moduli.update(int(d) for d in distances[np.argsort(-counts)[:12]])
    return sorted(m for m in moduli if m > 0)


def plan_steps(offsets: Sequence[int], slots: int, ring: Ring, level: int, costs: CostTable) -> Steps:
    """The cheapest baby-step giant-step plan for these diagonals at a level."""
    products = len(offsets) * (costs.mul_plain_ms(ring, level) + costs.add_ms(ring, level))
    hoisted = costs.rotate_ms(ring, level, hoisted=True)
    single = costs.rotate_ms(ring, level)
    decompose = costs.decompose_ms(ring, level + 1)
    array = np.array(sorted(offsets), dtype=np.int64)
    best: tuple[float, int, bool] | None = None
    for modulus in _candidates(offsets, slots):
        for centred in (False, True):
            baby = (array + modulus // 2) % modulus - modulus // 2 if centred else array % modulus
            babies = int(np.count_nonzero(np.unique(baby % slots)))
            giants = int(np.count_nonzero(np.unique((array - baby) % slots)))
            cost = (decompose + babies * hoisted if babies > 1 else babies * single) + giants * single
            if best is None or cost < best[0] - 1e-9:
                best = (cost, modulus, centred)
    assert best is not None
    cost, modulus, centred = best
    pairs = [split(int(k), modulus, centred, slots) for k in array]
    return Steps(tuple(sorted({b for b, _ in pairs})), tuple(sorted({g for _, g in pairs})), cost + products)


def pair_offsets(
    offsets: Sequence[int], baby: Sequence[int], giant: Sequence[int], slots: int
) -> dict[int, list[tuple[int, int]]]:
    """For each giant step the (baby step, offset) pairs that it serves; each offset is served once."""
    wanted = {offset % slots: offset for offset in offsets}
    table: dict[int, list[tuple[int, int]]] = {}
    for g in giant:
        for b in baby:
            offset = wanted.pop((g + b) % slots, None)
            if offset is not None:
                table.setdefault(g, []).append((b, offset))
    assert not wanted, "the steps do not reach every diagonal"
    return table
