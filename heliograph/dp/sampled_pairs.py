"""The continuous parts of pairs of batches: mixtures of Gaussians, exchanged records, halves and choices of pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtri_exp

from heliograph.dp.pairs import NO_ATOMS, UNIT, Array, Atoms, Cells, Pair, Part, normal_cells

_BLOCK = 1 << 14
"""Points at which a mixture is evaluated at once: memory is this times its components."""


@dataclass(frozen=True, eq=False)
class MixturePart:
    """The mixture of N(shift, 1) with the weights against N(0, 1), in one direction.

    Shifts rise from 0 or above to more than 0; weights are positive and add up to at most 1. remove: A is the mixture;
    the loss is the convex log of the sum of weight times exp(shift x - shift^2 / 2), rising in x. add: B is the mixture;
    the coordinate runs the other way.
    """

    weights: Array
    shifts: Array
    remove: bool

    def _sign(self) -> int:
        return 1 if self.remove else -1

    @property
    def _least(self) -> float:
        """The infimum of the log-ratio of mixture over N(0, 1)."""
        return float(np.log(self.weights[0])) if self.shifts[0] == 0 else -np.inf

    @property
    def low(self) -> float:
        return self._least if self.remove else -np.inf

    @property
    def high(self) -> float:
        return np.inf if self.remove else -self._least

    def _log_ratio(self, x: Array) -> tuple[Array, Array]:
        """log of mixture over N(0, 1) at x, and its slope."""
        x = np.asarray(np.clip(x, -1e150, 1e150), dtype=np.float64)
        if x.size > _BLOCK:
            blocks = [self._log_ratio(each) for each in np.array_split(x.ravel(), -(-x.size // _BLOCK))]
            whole = [np.concatenate(parts).reshape(x.shape) for parts in zip(*blocks, strict=True)]
            return whole[0], whole[1]
        terms = np.log(self.weights)[:, None] + self.shifts[:, None] * (x - self.shifts[:, None] / 2)
        top = terms.max(axis=0)
        shares = np.exp(terms - top)
        total = shares.sum(axis=0)
        return top + np.log(total), (self.shifts[:, None] * shares).sum(axis=0) / total

    def loss(self, x: Array) -> Array:
        sign = self._sign()
        return np.asarray(sign * self._log_ratio(sign * np.asarray(x))[0])

    def edge(self, loss: Array) -> Array:
        sign = self._sign()
        wanted = sign * np.asarray(loss, dtype=np.float64)
        found = np.full(wanted.shape, -np.inf)
        inside = wanted > self._least
        found[inside] = self._solved(np.asarray(wanted[inside], dtype=np.float64))
        return np.asarray(sign * found)

    def _solved(self, wanted: Array) -> Array:
        """x for each wanted log-ratio, by Newton's method from the right, where it is monotone; else by halving."""
        largest, weight = float(self.shifts[-1]), float(self.weights[-1])
        # The last component alone reaches the ratio here; the sum of all reaches it here or further left.
        high: Array = (wanted - math.log(weight)) / largest + largest / 2
        x: Array = high.copy()
        close = 16 * UNIT * (1 + np.abs(wanted) + largest * largest)
        for _ in range(80):
            value, slope = self._log_ratio(x)
            miss = value - wanted
            if bool(np.all(np.abs(miss) <= close)):
                return np.asarray(x, dtype=np.float64)
            x = x - np.where(np.abs(miss) <= close, 0.0, miss / np.maximum(slope, 1e-300))
        low = np.full(wanted.shape, -1e6)
        for _ in range(200):
            middle = (low + high) / 2
            below = self._log_ratio(middle)[0] < wanted
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.asarray(high, dtype=np.float64)

    def edge_error(self, size: float) -> float:
        return 64 * UNIT * (1 + size + float(self.shifts[-1]) ** 2)

    def cells(self, x: Array) -> Cells:
        there = x if self.remove else -x[::-1]
        still, still_error = normal_cells(there)
        mixed, mixed_error = np.zeros_like(still), np.zeros_like(still)
        for weight, shift in zip(self.weights, self.shifts, strict=True):
            mass, error = normal_cells(there - shift, there)
            mixed += weight * mass
            mixed_error += weight * error
        mixed_error += 2 * (self.weights.size + 2) * UNIT * mixed
        if self.remove:
            return Cells(mixed, still, mixed_error, still_error)
        return Cells(still[::-1], mixed[::-1], still_error[::-1], mixed_error[::-1])

    def loss_range(self, log_bottom: float, log_top: float) -> tuple[float, float]:
        if self.remove:
            bottom = float(ndtri_exp(log_bottom))
            # Each component's tail may be cut where its own share of the mass is left.
            share = log_top - np.log(self.weights) - np.log(self.weights.size)
            top = max(float(shift - ndtri_exp(min(each, -0.7))) for shift, each in zip(self.shifts, share, strict=True))
        else:
            bottom, top = float(ndtri_exp(log_bottom)), -float(ndtri_exp(log_top))
        ends = self.loss(np.array([bottom, top]))
        return max(float(ends[0]), self.low), min(float(ends[1]), self.high)


@dataclass(frozen=True)
class ExchangedPart:
    """(1-p) N(0, 1) + p N(mu, 1) against (1-p) N(0, 1) + p N(-mu, 1): a sampled record, and its opposite in its place.

    With m = mu x and k = (1-p)/p exp(mu^2 / 2) the loss is log (k + e^m) / (k + e^-m), odd and rising in x; it is l where
    m = l/2 + arsinh(k sinh(l/2)).
    """

    p: float
    mu: float
    low = -np.inf
    high = np.inf

    @property
    def _log_k(self) -> float:
        return math.log1p(-self.p) - math.log(self.p) + self.mu**2 / 2 if self.p < 1 else -np.inf

    def loss(self, x: Array) -> Array:
        m = self.mu * np.clip(np.asarray(x, dtype=np.float64), -1e150, 1e150)
        size = np.abs(m)
        # log (k + e^m) / (k + e^-m) = log(1 + (e^m - e^-m) / (k + e^-m)), without cancellation where k is large.
        with np.errstate(over="ignore"):
            near = np.log1p(2 * np.sinh(np.minimum(size, 300.0)) / (math.exp(min(self._log_k, 700.0)) + np.exp(-size)))
        far = np.logaddexp(self._log_k, size) - np.logaddexp(self._log_k, -size)
        return np.asarray(np.copysign(np.where((size < 300) & (self._log_k < 600), near, far), m))

    def edge(self, loss: Array) -> Array:
        half = np.abs(np.asarray(loss, dtype=np.float64)) / 2
        with np.errstate(divide="ignore"):
            # log sinh, and log of k sinh; where that is large, arsinh y = log 2y to a relative e^-60.
            log_y = self._log_k + half + np.log(-np.expm1(-2 * half) / 2)
        inverse = np.where(log_y < 30, np.arcsinh(np.exp(np.minimum(log_y, 30.0))), log_y + math.log(2))
        return np.asarray(np.copysign((half + inverse) / self.mu, loss))

    def edge_error(self, size: float) -> float:
        # The loss is no steeper than 2 m, and m is a sum of terms of at most these sizes.
        return 64 * UNIT * (1 + size + max(self._log_k, 0.0) + self.mu**2)

    def cells(self, x: Array) -> Cells:
        still, still_error = normal_cells(x)
        q = 1 - self.p
        sides = []
        for shift in (self.mu, -self.mu):
            moved, error = normal_cells(x - shift, x)
            mixed = q * still + self.p * moved
            sides.append((mixed, q * still_error + self.p * error + 4 * UNIT * mixed))
        return Cells(sides[0][0], sides[1][0], sides[0][1], sides[1][1])

    def loss_range(self, log_bottom: float, log_top: float) -> tuple[float, float]:
        # The shifted component has only p of the mass: its tail may be cut that much earlier.
        shifted = self.mu - float(ndtri_exp(min(log_top - math.log(2 * self.p), -0.7)))
        ends = self.loss(np.array([float(ndtri_exp(log_bottom)), max(shifted, -float(ndtri_exp(log_top - 0.7)))]))
        return float(ends[0]), float(ends[1])


class _ByLoss:
    """A part made of others; its coordinate is the loss."""

    def loss(self, x: Array) -> Array:
        return x

    def edge(self, loss: Array) -> Array:
        return loss


@dataclass(frozen=True, eq=False)
class JoinedPart(_ByLoss):
    """Losses above 0 of one pair and below 0 of another."""

    above: Part
    below: Part

    @property
    def low(self) -> float:
        return self.below.low

    @property
    def high(self) -> float:
        return self.above.high

    def edge_error(self, size: float) -> float:
        return max(self.above.edge_error(size), self.below.edge_error(size))

    def cells(self, x: Array) -> Cells:
        right = self.above.cells(_edges(self.above, np.maximum(x, 0.0)))
        left = self.below.cells(_edges(self.below, np.minimum(x, 0.0)))
        return Cells(right.a + left.a, right.b + left.b, right.a_error + left.a_error, right.b_error + left.b_error)

    def loss_range(self, log_bottom: float, log_top: float) -> tuple[float, float]:
        low, high = self.below.loss_range(log_bottom, log_top)[0], self.above.loss_range(log_bottom, log_top)[1]
        return min(low, 0.0), max(high, 0.0)


@dataclass(frozen=True, eq=False)
class EitherPart(_ByLoss):
    """One of two pairs, each with its probability, and one sees which."""

    parts: tuple[Part, Part]
    shares: tuple[float, float]
    error: float
    """Of the smaller probability, relative to it; the other's is as large."""

    @property
    def low(self) -> float:
        return min(part.low for part in self.parts)

    @property
    def high(self) -> float:
        return max(part.high for part in self.parts)

    def edge_error(self, size: float) -> float:
        return max(part.edge_error(size) for part in self.parts)

    def cells(self, x: Array) -> Cells:
        slack = self.error * min(self.shares) + 4 * UNIT
        sums = [np.zeros(x.size - 1) for _ in range(4)]
        for part, share in zip(self.parts, self.shares, strict=True):
            cells = part.cells(_edges(part, x))
            for at, mass, error in ((0, cells.a, cells.a_error), (1, cells.b, cells.b_error)):
                sums[at] += share * mass
                sums[at + 2] += share * error + slack * mass
        return Cells(*sums)

    def loss_range(self, log_bottom: float, log_top: float) -> tuple[float, float]:
        # Each pair's tails may be cut where its own share of the mass is left.
        ends = []
        for part, share in zip(self.parts, self.shares, strict=True):
            cuts = (min(each - math.log(max(share, 1e-300)), -0.7) for each in (log_bottom, log_top))
            ends.append(part.loss_range(*cuts))
        return min(low for low, _ in ends), max(high for _, high in ends)


def _edges(part: Part, loss: Array) -> Array:
    """The coordinates of losses in a part; infinite ones stay at its ends."""
    finite = np.isfinite(loss)
    return np.where(finite, part.edge(np.where(finite, loss, 0.0)), loss)


@lru_cache(maxsize=64)
def joined_pair(above: Part, below: Part) -> Pair:
    """The pair with one pair's delta at epsilon >= 0 and another's at epsilon < 0; both agree at 0.

    Mass in neither counts as loss 0, so that all masses add up to 1.
    """
    part = JoinedPart(above, below)
    cells = part.cells(np.array([-np.inf, np.inf]))
    rest = max(1.0 - float(cells.a[0]), 0.0) + float(cells.a_error[0]) + 4 * UNIT
    return Pair(Atoms(np.zeros(1), np.array([rest]), 1e-14), part)


@lru_cache(maxsize=4096)
def exchanged_pair(p: float, mu: float) -> Pair:
    """The pair of a Poisson-sampled Gaussian where a record is exchanged: sensitivity over noise `mu`."""
    return Pair(NO_ATOMS, ExchangedPart(p, mu))


__all__ = ["EitherPart", "ExchangedPart", "JoinedPart", "MixturePart", "exchanged_pair", "joined_pair"]
