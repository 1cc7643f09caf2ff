"""Random allocation (balls in bins): each record in one of t batches, drawn uniformly for every epoch, as pairs.

The pair of an epoch, in direction remove, is A = (1/t) sum over i of N(e_i / s, 1) against B = N(0, 1) in t dimensions
(s is the noise multiplier): a record adds a vector of norm at most 1 to its batch, whatever the other records do. It
dominates adaptive runs too, and is reached by aligned gradients (Chua et al. 2025, Balls-and-bins sampling for DP-SGD,
theorem 3.1; Feldman, Shenfeld 2025, Privacy amplification by random allocation). Its ratio is A/B = (Y_1 + ... + Y_t) /
t with Y_i = exp(x_i / s - 1 / (2 s^2)), independent under B and of mean 1; so delta at epsilon is E[(W - e^epsilon)+]
for the mean W of the Y_i in direction remove, and E[(1 - e^epsilon W)+] in direction add.

Both are convex functions of a sum of independent variables, the first rising, the second falling. So the law of the sum is
replaced by lattice laws on multiples of h:

- above, every Y is spread to the two nodes beside it with its mean kept: larger in convex order, term by term;
- below, every Y is merged with its neighbours into a node of at most (direction add: at least) their mean, by
  Jensen's inequality and by monotonicity.

Sums are t-fold convolutions by FFT on a circle. Under A one Y is size-biased: its masses are the node times the mass,
which is a convolution again, so that masses under A are computed that way, not as a product with a ratio. Outcomes with
a Y beyond the largest node have infinite loss above, and are left out below. Round-off of the transforms is added to
every mass (above) or subtracted from it (below); wrap-around on the circle is bounded by Chernoff's bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import fft
from scipy.special import log_ndtr, ndtri_exp

from heliograph.dp.mechanisms import Direction, Side
from heliograph.dp.pairs import UNIT, Array, Atoms, Pair, normal_cells
from heliograph.errors import PlanningError

_NODES = 1 << 20
_MESH = 2.0**-12
"""Distance of the losses that an epoch's pair is given on; what that costs is of second order in it."""
_DEVIATIONS = 12.0
_FFT_UNITS = 10.0
"""Per factor of two of a transform's length, as in `accounting.convolve`."""
_BLOCK = 32
"""Nodes that Chernoff's bound takes together."""
_OFFSETS = (0.5, 0.499, 0.495, 0.48, 0.45, 0.4, 0.3, 0.2, 0.1, 0.0)
"""Of a gap: how far above its lower end (direction add: below its upper end) a merged cell may stand."""


@lru_cache(maxsize=16)
def allocated_pair(batches: int, noise_multiplier: float, direction: Direction, side: Side, log_tail: float) -> Pair:
    """The pair of one epoch of random allocation: each record in one of `batches` batches, as a bound on one side.

    About e^log_tail of A's mass counts as infinite loss (above) or not at all (below). Raises PlanningError if the
    ratios spread too far for a lattice: noise below about 0.3.
    """
    terms = _terms(batches, 1 / noise_multiplier, log_tail, direction)
    law = terms.sums(direction, side)
    positive = law.sums > 0
    loss = np.log(law.sums[positive] / batches) * (1 if direction == "remove" else -1)
    masses = law.masses[positive]
    if side == "above":
        masses = masses + law.error
        infinite = terms.beyond(direction) + law.wrapped
        if direction == "add":
            # These outcomes have no mass under B: only those where every Y is at 0.
            infinite += float(np.maximum(law.masses[~positive] + law.error, 0.0).sum())
    else:
        masses = np.maximum(masses - law.error, 0.0)
        infinite = 0.0
    order = np.argsort(loss, kind="stable")
    loss, masses = loss[order], masses[order]
    if side == "below":
        # Mass that wrapped around the circle may be at any node: subtract it as if all of it had the largest loss.
        left = np.maximum(np.cumsum(masses[::-1]) - law.wrapped, 0.0)
        masses = np.diff(left, prepend=0.0)[::-1]
    loss, masses = _coarser(loss, masses, side)
    return Pair(Atoms(loss, masses, 1e-11), None, min(infinite, 1.0), infinite_error=1e-12)


def _coarser(loss: Array, masses: Array, side: Side) -> tuple[Array, Array]:
    """The same law on far fewer losses, `_MESH` apart: above by chords, below by merging neighbouring outcomes."""
    some = masses > 0
    loss, masses = loss[some], masses[some]
    cell = np.floor(loss / _MESH).astype(np.int64)
    first = int(cell[0]) if cell.size else 0
    place = cell - first
    size = int(place[-1]) + 2 if place.size else 1
    if side == "below":
        # Merging is post-processing: masses under A and under B add up.
        under_a = np.bincount(place, weights=masses, minlength=size)
        gaps = np.bincount(place, weights=masses * np.exp(cell * _MESH - loss), minlength=size)
        kept = under_a > 0
        merged = (first + np.arange(size)[kept]) * _MESH + np.log(under_a[kept] / gaps[kept])
        return np.asarray(merged, dtype=np.float64), np.asarray(under_a[kept], dtype=np.float64)
    # Part of each outcome goes to the node above it, such that its masses under A and B are preserved.
    gap = np.clip(loss - cell * _MESH, 0.0, _MESH)
    up = np.minimum(np.expm1(-gap) / np.expm1(-_MESH) * (1 + 1e-12), 1.0)
    spread = np.bincount(place, weights=masses * (1 - up), minlength=size)
    spread += np.bincount(place + 1, weights=masses * up, minlength=size)
    kept = spread > 0
    losses = (first + np.arange(size)[kept]) * _MESH
    return np.asarray(losses, dtype=np.float64), np.asarray(spread[kept], dtype=np.float64)


@dataclass(frozen=True)
class _Sums:
    """The law of the sum under A: nodes, masses, a bound on each one's round-off, and on all wrapped mass."""

    sums: Array
    masses: Array
    error: float
    wrapped: float


class _Terms:
    """The law of one Y on a mesh, and sums of `count` of them, on a circle of nodes."""

    def __init__(self, count: int, mu: float, log_tail: float, direction: Direction) -> None:
        self.count, self.mu = count, mu
        # Each kind of tail gets half of the mass that may be lost. Under A of direction remove, x of one Y is shifted by mu.
        z = float(-ndtri_exp(log_tail - math.log(2.0 * count)))
        self.log_top = mu * z - mu * mu / 2
        if direction == "remove":
            self.log_top = max(self.log_top, mu * float(-ndtri_exp(log_tail - math.log(2.0))) + mu * mu / 2)
        spread = math.sqrt(math.expm1(mu * mu)) if mu < 20 else math.inf
        if not self.log_top < 34 or not math.isfinite(spread):
            raise PlanningError(
                f"random allocation with noise multiplier {1 / mu:g} is not accounted for",
                where="allocated_gaussian",
                why="the ratio of one batch spreads over too many magnitudes for a lattice",
                hint="use a noise multiplier of at least 0.3",
            )
        top = math.exp(self.log_top)
        width = top + 2 * _DEVIATIONS * math.sqrt(count) * min(spread, top) + 4
        self.spread = min(spread, top)
        self.length = fft.next_fast_len(_NODES, real=True)
        # The circle covers every value of one Y, and the sums as far as they spread.
        self.h = width / (0.98 * self.length)
        self.low = max(count - 0.4 * (width - top), 0.0)
        self.nodes = math.ceil(top / self.h)
        # Cell j is (j h, (j + 1) h]. q is its mass under B; p is q times the cell's mean, which is its mass under A.
        edges = self.h * np.arange(self.nodes + 1)
        with np.errstate(divide="ignore"):
            x = np.log(edges) / self.mu + self.mu / 2
        self.q, self.q_error = normal_cells(x, x)
        self.p, self.p_error = normal_cells(x - self.mu, x)

    def beyond(self, direction: Direction) -> float:
        """The probability that some Y is above the largest node."""
        x = math.log(self.nodes * self.h) / self.mu + self.mu / 2
        still, shifted = math.exp(float(log_ndtr(-x))), math.exp(float(log_ndtr(self.mu - x)))
        return (self.count * still if direction == "add" else (self.count - 1) * still + shifted) * (1 + 1e-10)

    def spread_out(self, rising: bool) -> tuple[Array, float]:
        """Every cell spread to its two ends with mass and mean kept; rounded up if delta rises with Y, else down.

        Masses at h times the index, and what is added to these places.
        """
        j = np.arange(self.nodes)
        mass = self.q + self.q_error
        if rising:
            up = (self.p + self.p_error) / self.h - j * (self.q - self.q_error)
        else:
            up = (self.p - self.p_error) / self.h - j * (self.q + self.q_error)
        up = np.clip(up * (1 + (8 if rising else -8) * UNIT), 0.0, mass)
        found = np.zeros(self.nodes + 1)
        found[:-1] += mass - up
        found[1:] += up
        return found, 0.0

    def merged(self, rising: bool) -> tuple[Array, float]:
        """Every cell merged into one place of at most (if delta falls with Y: at least) its mean, as `spread_out`."""
        j = np.arange(self.nodes)
        mass = np.maximum(self.q - self.q_error, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            if rising:
                mean = (self.p - self.p_error) / (self.q + self.q_error) / self.h - j
            else:
                mean = j + 1 - (self.p + self.p_error) / (self.q - self.q_error) / self.h
        mean = np.where(mass > 0, np.nan_to_num(mean, nan=-1.0, posinf=1.0, neginf=-1.0), 1.0)
        best: tuple[float, float, npt.NDArray[np.bool_]] | None = None
        for share in _OFFSETS:
            missed = mean < share * (1 + 1e-9)
            price = float((mass * np.where(missed, mean + 1 - share, mean - share)).sum())
            if best is None or price < best[0]:
                best = price, share, missed
        assert best is not None
        _, share, missed = best
        # Index i is node i - 1, since cells may move one node down, even from 0 (sums below 0 contribute to no delta).
        found = np.zeros(self.nodes + 2)
        if rising:
            # Cell j is placed at (j + share) h, or one node lower.
            np.add.at(found, np.where(missed, j, j + 1), mass)
            return found, (share - 1) * self.h
        # Cell j is placed at (j + 1 - share) h, or one node higher.
        np.add.at(found, np.where(missed, j + 1, j), mass)
        return found, (1 - share) * self.h

    def sums(self, direction: Direction, side: Side) -> _Sums:
        """The law of the sum under A of the direction."""
        rising = direction == "remove"
        mass, offset = self.spread_out(rising) if side == "above" else self.merged(rising)
        values = self.h * np.arange(mass.size) + offset
        # Under A of direction remove, one Y is size-biased; under A of direction add, none is.
        last = mass * values * (1 + (4 if side == "above" else -4) * UNIT) if rising else mass
        masses, error = self._convolved(mass, last)
        low = self.low - 2 * self.count * self.h
        first = math.floor((low - self.count * offset) / self.h)
        index = first + np.arange(self.length)
        nodes = self.h * index + self.count * offset
        wrapped = self._wrapped(mass, np.maximum(last, 0.0), values, float(nodes[0]), float(nodes[-1]))
        return _Sums(nodes, np.take(masses, index, mode="wrap"), error, wrapped)

    def _convolved(self, mass: Array, last: Array) -> tuple[Array, float]:
        """mass to the power of all terms but one, times the last, and a bound on the round-off of each entry."""
        others = self.count - 1
        unit = _FFT_UNITS * UNIT * (math.log2(self.length) + 2)
        spectrum, final = fft.rfft(mass, self.length), fft.rfft(last, self.length)
        each, each_last = unit * float(mass.sum()), unit * float(np.abs(last).sum())
        size = np.abs(spectrum)
        log_size = np.log(np.maximum(size, 1e-300))
        power = np.exp(others * log_size)
        angle = np.remainder(others * np.angle(spectrum), 2 * np.pi)
        found = fft.irfft(power * np.exp(1j * angle) * final, self.length)
        # A power's error is its base's, plus the rounding of its logarithm and angle, times the number of factors.
        log_above = np.log(size + each + 4 * UNIT)
        above = np.exp(np.minimum(others * log_above, 1.0))
        drift = others * (each + 8 * UNIT * (1 + np.abs(log_size) + np.pi) * size)
        wrong = np.minimum(drift * np.exp(np.minimum((others - 1) * log_above, 1.0)), 2 * above)
        sizes = np.abs(final) + each_last
        total = (wrong + unit * above) * sizes + above * each_last
        return found, 2 * float(total.sum()) / self.length

    def _wrapped(self, mass: Array, last: Array, values: Array, low: float, high: float) -> float:
        """An upper bound on the mass of the sum below `low` or above `high`, by Chernoff's bound."""
        mass, ends = _chords(mass, values)
        last, _ = _chords(last, values)
        total = 0.0
        deviation = math.sqrt(self.count) * self.spread
        for end, sign in ((high, 1.0), (low, -1.0)):
            if sign < 0 and end <= values[0] * self.count:
                continue
            best = 0.0
            rates = (np.geomspace(0.5, 40, 10) / deviation, np.geomspace(0.5, 60, 8) / math.exp(self.log_top))
            for t in np.concatenate(rates):
                exponent = sign * t * ends
                if float(exponent.max()) > 600:
                    continue
                weights = np.exp(exponent)
                each, final = float(np.dot(mass, weights)), float(np.dot(last, weights))
                if each > 0 and final > 0:
                    best = min(best, (self.count - 1) * math.log(each) + math.log(final) - sign * t * end)
            total += math.exp(best)
        return total


_terms = lru_cache(maxsize=2)(_Terms)
"""The law of one Y, kept for the other side of the bracket."""


def _chords(mass: Array, values: Array) -> tuple[Array, Array]:
    """Masses moved to the two ends of blocks with their means kept: no moment of an exponential gets smaller."""
    blocks = -(-mass.size // _BLOCK)
    each = np.pad(mass, (0, blocks * _BLOCK - mass.size)).reshape(blocks, _BLOCK)
    up = each @ np.linspace(0.0, 1.0, _BLOCK)
    starts = values[::_BLOCK]
    ends = starts + (_BLOCK - 1) * (values[1] - values[0])
    return np.concatenate((np.maximum(each.sum(axis=1) - up, 0.0), up)), np.concatenate((starts, ends))
