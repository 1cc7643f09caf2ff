"""The accountant of Gopi, Lee, Wutschitz 2021 (Numerical Composition of Differential Privacy), algorithms 1 and 2.

Faithful: each privacy-loss variable is truncated to [-L, L], rounded to the nearest node of a mesh h, shifted so that
its mean is the truncated variable's, and all are convolved by FFT on the circle [-L, L). With k compositions,
`h = eps_error / sqrt(k/2 log(12 / delta_error))` and `L = 3 + max(eps_error, epsilon of the whole at delta_error / 4,
epsilon of each alone at delta_error / (8k))`, the two from Renyi bounds. Then (their theorem 5.5)
`delta~(e + eps_error) - delta_error <= delta(e) <= delta~(e - eps_error) + delta_error`.

Like the paper's, these bounds leave floating point out: the method refuses a delta that FFT round-off would drown, and
is not called proved. For a narrower bracket that includes round-off, use `pld`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import fft

from heliograph.dp.accounting.pld import infinite_bounds
from heliograph.dp.accounting.rdp import epsilon_bound
from heliograph.dp.accounting.result import Estimate, Tolerance
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Direction
from heliograph.dp.pairs import Array, Pair
from heliograph.errors import PlanningError, ProgramError

_MOST_NODES = 1 << 23
_FINE = 2
"""Sub-cells per cell when the mean of a variable is taken."""


@dataclass(frozen=True)
class PrivacyRandomVariables:
    """The paper's accountant; `eps_error` is half the width of its bracket, `delta_share` its delta_error over delta."""

    eps_error: float = 0.02
    delta_share: float = 1e-3

    name = "prv"
    proved = False
    remark = "the paper's error bounds, which leave floating-point error out"

    def epsilon(self, composition: Composition, direction: Direction, delta: float, tolerance: Tolerance) -> Estimate:
        """The paper's bounds on epsilon at delta; PlanningError if delta would drown in round-off."""
        pairs = [(mechanism.pair(direction), count) for mechanism, count in composition]
        if not pairs:
            return Estimate(0.0, 0.0, 0.0)
        lost = infinite_bounds(pairs).upper
        if lost >= delta:
            return Estimate(math.inf, math.inf, math.inf)
        error = (delta - lost) * self.delta_share
        nodes, mass = self._law(composition, direction, pairs, error)
        # The upper end solves delta~(e - eps_error) + delta_error + lost = delta; the others are similar.
        upper = _inverse(nodes, mass, (delta - lost - error) / (1 - lost)) + self.eps_error
        lower = _inverse(nodes, mass, (delta - lost + error) / (1 - lost)) - self.eps_error
        middle = _inverse(nodes, mass, (delta - lost) / (1 - lost))
        return Estimate(max(lower, 0.0), max(middle, 0.0), max(upper, 0.0))

    def delta(self, composition: Composition, direction: Direction, epsilon: float, tolerance: Tolerance) -> Estimate:
        """The paper's bounds on delta at epsilon, with delta_error 1e-10."""
        pairs = [(mechanism.pair(direction), count) for mechanism, count in composition]
        if not pairs:
            return Estimate(0.0, 0.0, 0.0)
        lost = infinite_bounds(pairs).upper
        error = 1e-10
        nodes, mass = self._law(composition, direction, pairs, error)
        whole = [
            lost + (1 - lost) * _delta(nodes, mass, epsilon + shift) for shift in (self.eps_error, 0, -self.eps_error)
        ]
        return Estimate(max(whole[0] - error, 0.0), whole[1], min(whole[2] + error, 1.0))

    def _law(
        self,
        composition: Composition,
        direction: Direction,
        pairs: list[tuple[Pair, int]],
        delta_error: float,
    ) -> tuple[Array, Array]:
        steps = composition.steps
        if delta_error < 1e-13:
            raise PlanningError(
                f"the method prv cannot resolve a delta_error of {delta_error:.3g}",
                where="method prv",
                why="its FFT is not tilted, so round-off of 1e-16 per node is as large as the result",
                hint="use the method pld or auto",
            )
        step = self.eps_error / math.sqrt(steps / 2 * math.log(12 / delta_error))
        reach = 3 + max(
            self.eps_error,
            epsilon_bound(composition, direction, delta_error / 4)[0],
            *(epsilon_bound(Composition(((m, 1),)), direction, delta_error / (8 * steps))[0] for m, _ in composition),
        )
        if not math.isfinite(reach):
            raise PlanningError("the method prv found no finite window", where="method prv", hint="use the method pld")
        half = fft.next_fast_len(math.ceil(reach / step), real=True)
        if 2 * half > _MOST_NODES:
            raise ProgramError(
                f"the method prv needs {2 * half:,} nodes",
                where="method prv",
                hint="use the method pld or auto, or a larger eps_error",
            )
        grid = np.arange(-half, half) * step
        product: np.ndarray | None = None  # type: ignore[type-arg]
        shift = 0.0
        for pair, count in pairs:
            mass, moved = _discretized(pair, grid, step)
            spectrum = fft.rfft(np.roll(mass, -half)) ** count
            product = spectrum if product is None else product * spectrum
            shift += count * moved
        assert product is not None
        law = np.roll(fft.irfft(product, 2 * half), half)
        # The shifts add up, and wrap around the circle (algorithm 1, modulo 2L).
        turns = round(shift / step)
        return grid + (shift - turns * step), np.roll(law, turns)


def _discretized(pair: Pair, grid: Array, step: float) -> tuple[Array, float]:
    """Masses of the truncated variable rounded to the grid, and the shift that restores its mean (algorithm 2)."""
    mass = np.zeros(grid.size)
    mean = 0.0
    if pair.part is not None:
        edges = np.concatenate((grid, [grid[-1] + step])) - step / 2
        fine = (edges[:-1, None] + step / _FINE * np.arange(_FINE)).ravel()
        fine = np.append(fine, edges[-1])
        cells = pair.part.cells(pair.part.edge(fine)).a
        mass += cells.reshape(-1, _FINE).sum(axis=1)
        mean += float(np.dot(cells, (fine[:-1] + fine[1:]) / 2))
    if pair.atoms.loss.size:
        inside = np.abs(pair.atoms.loss) <= -grid[0]
        loss, a = pair.atoms.loss[inside], pair.atoms.a[inside]
        place = np.clip(np.round((loss - grid[0]) / step).astype(np.int64), 0, grid.size - 1)
        mass += np.bincount(place, weights=a, minlength=grid.size)
        mean += float(np.dot(loss, a))
    total = float(mass.sum())
    return mass / total, (mean - float(np.dot(mass, grid))) / total


def _delta(nodes: Array, mass: Array, epsilon: float) -> float:
    above = nodes > epsilon
    return float(np.dot(mass[above], -np.expm1(epsilon - nodes[above])))


def _inverse(nodes: Array, mass: Array, delta: float) -> float:
    """The epsilon at which the discrete law has the given delta."""
    if delta <= 0:
        return math.inf
    low, high = float(nodes[0]), float(nodes[-1])
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _delta(nodes, mass, middle) > delta:
            low = middle
        else:
            high = middle
    return high
