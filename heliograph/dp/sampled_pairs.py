"""The continuous parts of the pairs of fixed-size batches: mixtures of Gaussians, and two halves of two pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri_exp

from heliograph.dp.pairs import UNIT, Array, Atoms, Cells, Pair, Part, normal_cells

_BLOCK = 1 << 14
"""Points at which a mixture is evaluated at once: memory is this times its components."""


@dataclass(frozen=True, eq=False)
class MixturePart:
    """The mixture of N(shift, 1) with the weights against N(0, 1), in one direction.

    Shifts rise from 0; weights are positive and add up to at most 1. remove: A is the mixture; the loss is the convex
    log of the sum of weight times exp(shift x - shift^2 / 2), rising in x. add: B is the mixture; the coordinate runs the
    other way.
    """

    weights: Array
    shifts: Array
    remove: bool

    def _sign(self) -> int:
        return 1 if self.remove else -1

    @property
    def low(self) -> float:
        return float(np.log(self.weights[0])) if self.remove else -np.inf

    @property
    def high(self) -> float:
        return np.inf if self.remove else -float(np.log(self.weights[0]))

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
        inside = wanted > np.log(self.weights[0])
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


@dataclass(frozen=True, eq=False)
class JoinedPart:
    """Losses above 0 of one pair and below 0 of another; y = 0 is where either has loss 0."""

    above: Part
    below: Part

    def _zeros(self) -> tuple[float, float]:
        return float(self.above.edge(np.zeros(1))[0]), float(self.below.edge(np.zeros(1))[0])

    @property
    def low(self) -> float:
        return self.below.low

    @property
    def high(self) -> float:
        return self.above.high

    def loss(self, x: Array) -> Array:
        up, down = self._zeros()
        x = np.asarray(x, dtype=np.float64)
        right = np.maximum(self.above.loss(up + np.maximum(x, 0.0)), 0.0)
        left = np.minimum(self.below.loss(down + np.minimum(x, 0.0)), 0.0)
        return np.asarray(np.where(x > 0, right, np.where(x < 0, left, 0.0)))

    def edge(self, loss: Array) -> Array:
        up, down = self._zeros()
        loss = np.asarray(loss, dtype=np.float64)
        right = np.maximum(self.above.edge(np.maximum(loss, 0.0)) - up, 0.0)
        left = np.minimum(self.below.edge(np.minimum(loss, 0.0)) - down, 0.0)
        return np.asarray(np.where(loss > 0, right, np.where(loss < 0, left, 0.0)))

    def edge_error(self, size: float) -> float:
        # Moving the coordinate rounds it once more, by no more than the rounding of the edges themselves.
        return 4 * max(self.above.edge_error(size), self.below.edge_error(size))

    def cells(self, x: Array) -> Cells:
        up, down = self._zeros()
        right = self.above.cells(up + np.maximum(x, 0.0))
        left = self.below.cells(down + np.minimum(x, 0.0))
        return Cells(right.a + left.a, right.b + left.b, right.a_error + left.a_error, right.b_error + left.b_error)

    def loss_range(self, log_bottom: float, log_top: float) -> tuple[float, float]:
        low, high = self.below.loss_range(log_bottom, log_top)[0], self.above.loss_range(log_bottom, log_top)[1]
        return min(low, 0.0), max(high, 0.0)


def joined_pair(above: Part, below: Part) -> Pair:
    """The pair with one pair's delta at epsilon >= 0 and another's at epsilon < 0; both agree at 0.

    Mass in neither counts as loss 0, so that all masses add up to 1.
    """
    part = JoinedPart(above, below)
    cells = part.cells(np.array([-np.inf, np.inf]))
    rest = max(1.0 - float(cells.a[0]), 0.0) + float(cells.a_error[0]) + 4 * UNIT
    return Pair(Atoms(np.zeros(1), np.array([rest]), 1e-14), part)


__all__ = ["JoinedPart", "MixturePart", "joined_pair"]
