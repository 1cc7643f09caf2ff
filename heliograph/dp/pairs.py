"""Pairs of distributions that dominate a mechanism: the input of every accountant.

A pair is (A, B): the hockey-stick divergence of A from B, `sup over events of A - e^epsilon B`, bounds the divergence
of the mechanism between two neighbouring data sets in one direction. The loss of an outcome is `log(A/B)`, natural
logarithm; under A, losses add up in composition. A pair here consists of atoms (outcomes with mass, one loss each), at
most one continuous part (an interval of a real outcome x along which the loss does not fall), and the mass of A where B
has none (infinite loss). Mass of B where A has none never matters.

Masses come with absolute bounds on their round-off, so that a discretization can round the right way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri_exp

Array = npt.NDArray[np.float64]

UNIT = 2.0**-53
"""The unit round-off of a double."""

# scipy's ndtr errs by at most 2.5 (1 + x^2) units, which a test checks against 40 digits. This is three times that.
_NDTR_UNITS = 8.0


@dataclass(frozen=True)
class Cells:
    """Masses of consecutive intervals under A and B, with absolute bounds on the round-off of each."""

    a: Array
    b: Array
    a_error: Array
    b_error: Array


@dataclass(frozen=True, eq=False)
class Atoms:
    """Outcomes of one loss each: losses (ascending), masses under A, and the relative round-off bound of both."""

    loss: Array
    a: Array
    relative_error: float = 8 * UNIT


NO_ATOMS = Atoms(np.empty(0), np.empty(0))


class Part(Protocol):
    """The continuous part of a pair: an interval of x along which the loss rises."""

    @property
    def low(self) -> float:
        """Infimum of the loss."""
        ...

    @property
    def high(self) -> float:
        """Supremum of the loss."""
        ...

    def loss(self, x: Array) -> Array:
        """The loss at x."""
        ...

    def edge(self, loss: Array) -> Array:
        """The x at which the loss is reached; the end of the interval if it never is."""
        ...

    def edge_error(self, size: float) -> float:
        """A bound on |loss(edge(l)) - l| over the floating-point edges, for |l| <= size."""
        ...

    def cells(self, x: Array) -> Cells:
        """Masses between consecutive entries of x (rising; infinite ends allowed)."""
        ...

    def loss_range(self, log_bottom: float, log_top: float) -> tuple[float, float]:
        """Losses below and above which A has at most about e^log_bottom and e^log_top of mass."""
        ...


@dataclass(frozen=True, eq=False)
class Pair:
    """A dominating pair (A, B) in one direction."""

    atoms: Atoms
    part: Part | None
    infinite: float = 0.0
    """Mass of A where B has none, right to `infinite_error` (relative)."""
    unsure: float = 0.0
    """Mass of A of which nothing is known: infinite loss in upper bounds, none in lower ones."""
    infinite_error: float = 8 * UNIT

    @property
    def infinite_above(self) -> float:
        """An upper bound on the mass of infinite loss, unknown mass included."""
        return min(self.infinite * (1 + self.infinite_error) + self.unsure, 1.0)

    @property
    def infinite_below(self) -> float:
        """A lower bound on the mass of infinite loss."""
        return self.infinite * (1 - self.infinite_error)


def _clean(x: Array) -> Array:
    """x with the infinities moved to where every mass is zero in a double, so that differences are not NaN."""
    return np.asarray(np.clip(x, -1e150, 1e150))


def normal_cells(x: Array, place: Array | None = None) -> tuple[Array, Array]:
    """Masses of N(0, 1) between consecutive entries of x, and absolute bounds on their round-off.

    Each is a difference of tails on the side where both are small, so that the bound is relative to the tail. If x was
    itself a difference, `place` is its minuend: x has the uncertainty of a number of that size.
    """
    x = _clean(x)
    tail = ndtr(-np.abs(x))
    # Beyond 37.5 the tail is denormal, or given as zero though it may be 6e-311: the floor makes up for that.
    error = _NDTR_UNITS * UNIT * (1 + np.minimum(x * x, 2000.0)) * tail + 1e-310
    if place is not None:
        # The density is at most (|x| + 1) times the tail.
        error = error + 2 * UNIT * np.minimum(np.abs(place), 1e150) * (np.minimum(np.abs(x), 50.0) + 1) * tail
    left, right = tail[:-1], tail[1:]
    mass = np.where(x[:-1] >= 0, left - right, np.where(x[1:] <= 0, right - left, 1 - left - right))
    return np.maximum(mass, 0.0), error[:-1] + error[1:] + UNIT * mass


@dataclass(frozen=True)
class GaussianBase:
    """N(mu, 1) against N(0, 1): t(x) = log of their ratio = mu x - mu^2 / 2."""

    mu: float
    low = -np.inf
    high = np.inf

    def loss(self, x: Array) -> Array:
        return np.asarray(self.mu * (x - self.mu / 2))

    def edge(self, loss: Array) -> Array:
        return np.asarray(loss / self.mu + self.mu / 2)

    def cells(self, x: Array) -> Cells:
        b, b_error = normal_cells(x)
        a, a_error = normal_cells(x - self.mu, x)
        return Cells(a, b, a_error, b_error)

    def x_range(self, log_mass: float) -> tuple[float, float]:
        """x beyond which B0 below, A0 above have at most e^log_mass."""
        z = float(-ndtri_exp(log_mass))
        return -z, self.mu + z


@dataclass(frozen=True)
class LaplaceBase:
    """Laplace of scale 1/epsilon at 1 against the same at 0, on the interval (0, 1): t(x) = epsilon (2x - 1).

    Outside the interval the loss is constant: those outcomes are atoms, added when the pair is built.
    """

    epsilon: float

    @property
    def low(self) -> float:
        return -self.epsilon

    @property
    def high(self) -> float:
        return self.epsilon

    def loss(self, x: Array) -> Array:
        return np.asarray(self.epsilon * (2 * x - 1))

    def edge(self, loss: Array) -> Array:
        return np.asarray(np.clip((loss / self.epsilon + 1) / 2, 0.0, 1.0))

    def cells(self, x: Array) -> Cells:
        x = np.clip(x, 0.0, 1.0)
        width = -np.expm1(-self.epsilon * np.diff(x)) / 2
        b = np.exp(-self.epsilon * x[:-1]) * width
        a = np.exp(-self.epsilon * (1 - x[1:])) * width
        relative = UNIT * (8 + 4 * self.epsilon)
        # A cell's width is a difference of numbers of size one: an absolute error in x, times the density. Where both are
        # the same end the cell is empty, and its error would count as infinite loss.
        slack = np.where(x[1:] > x[:-1], 2 * UNIT * self.epsilon, 0.0)
        return Cells(
            a,
            b,
            relative * a + slack * np.exp(-self.epsilon * (1 - x[1:])),
            relative * b + slack * np.exp(-self.epsilon * x[:-1]),
        )


def sampled_loss(t: Array, p: float) -> Array:
    """log(1 + p (e^t - 1)): the loss of a Poisson-sampled pair at loss t of the pair itself."""
    t = np.asarray(t, dtype=np.float64)
    if p >= 1.0:
        return t
    moved = p * np.expm1(np.minimum(t, 1.0))
    near = np.log1p(np.maximum(moved, -0.5))
    # With p near 1 and t far below 0, 1 + moved suffers from cancellation; the sum of both terms does not.
    far = np.logaddexp(np.log1p(-p), np.log(p) + t)
    return np.asarray(np.where((t <= 1.0) & (moved >= -0.5), near, far))


def unsampled_loss(loss: Array, p: float) -> Array:
    """The inverse of `sampled_loss`; -inf if no t reaches the loss."""
    loss = np.asarray(loss, dtype=np.float64)
    if p >= 1.0:
        return loss
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.expm1(np.minimum(loss, 1.0)) / p
        small = np.log1p(np.maximum(ratio, -1.0))
        # e^t = (e^loss - (1 - p)) / p: where the ratio is near -1, 1 + ratio suffers from cancellation; this does not.
        rest = np.exp(np.minimum(loss, 1.0)) - (1 - p)
        lowest = np.where(rest > 0, np.log(np.maximum(rest, 1e-320)) - np.log(p), -np.inf)
        large = loss - np.log(p) + np.log1p(-(1 - p) * np.exp(-np.maximum(loss, 1.0)))
    return np.asarray(np.where(loss > 1.0, large, np.where(ratio < -0.5, lowest, small)))


@dataclass(frozen=True)
class SampledPart:
    """The continuous part of a Poisson-sampled pair in one direction.

    remove: A is the mixture (1-p) B0 + p A0, B is B0, loss log(1 + p(e^t - 1)), rising in x.
    add: A is B0, B is the mixture; the loss is minus that, so the coordinate runs the other way (y = -x).
    With p = 1 this is the pair itself.
    """

    base: GaussianBase | LaplaceBase
    p: float
    remove: bool

    @property
    def low(self) -> float:
        end = self.base.low if self.remove else self.base.high
        return float(self._sign() * sampled_loss(np.array(end), self.p))

    @property
    def high(self) -> float:
        end = self.base.high if self.remove else self.base.low
        return float(self._sign() * sampled_loss(np.array(end), self.p))

    def _sign(self) -> int:
        return 1 if self.remove else -1

    def loss(self, x: Array) -> Array:
        sign = self._sign()
        with np.errstate(over="ignore"):
            return np.asarray(sign * sampled_loss(self.base.loss(sign * _clean(x)), self.p))

    def edge(self, loss: Array) -> Array:
        sign = self._sign()
        return np.asarray(sign * self.base.edge(unsampled_loss(sign * loss, self.p)))

    def edge_error(self, size: float) -> float:
        return 32 * UNIT * (1 + size)

    def cells(self, x: Array) -> Cells:
        if self.remove:
            base = self.base.cells(x)
        else:
            there = self.base.cells(-x[::-1])
            base = Cells(there.a[::-1], there.b[::-1], there.a_error[::-1], there.b_error[::-1])
        p, q = self.p, 1 - self.p
        mixed = q * base.b + p * base.a
        mixed_error = q * base.b_error + p * base.a_error + 4 * UNIT * mixed
        if self.remove:
            return Cells(mixed, base.b, mixed_error, base.b_error)
        return Cells(base.b, mixed, base.b_error, mixed_error)

    def loss_range(self, log_bottom: float, log_top: float) -> tuple[float, float]:
        if isinstance(self.base, LaplaceBase):
            return self.low, self.high
        if self.remove:
            bottom = self.base.x_range(log_bottom)[0]
            if self.p == 1.0:
                # There is nothing but the shifted component.
                bottom += self.base.mu
            # The shifted component has only p of the mass: its tail may be cut that much earlier, or all of it.
            top = -self.base.x_range(log_top)[0] if self.p < 1.0 else -np.inf
            if np.log(self.p) > log_top:
                top = max(top, self.base.x_range(min(log_top - np.log(self.p), -0.7))[1])
        else:
            bottom, top = self.base.x_range(log_bottom)[0], -self.base.x_range(log_top)[0]
        ends = self.loss(np.array([bottom, top]))
        return max(float(ends[0]), self.low), min(float(ends[1]), self.high)


@lru_cache(maxsize=4096)
def gaussian_pair(mu: float, p: float, remove: bool) -> Pair:
    """The pair of a Poisson-sampled Gaussian: sensitivity over noise `mu`, probability `p` (1: not sampled)."""
    return Pair(NO_ATOMS, SampledPart(GaussianBase(mu), p, remove))


def gaussian_mu(pair: Pair) -> float:
    """Sensitivity over noise of a Gaussian pair that is not sampled, whose loss is N(mu^2/2, mu^2); 0 for other pairs."""
    part = pair.part
    if not isinstance(part, SampledPart) or not isinstance(part.base, GaussianBase) or part.p < 1.0:
        return 0.0
    return 0.0 if pair.atoms.loss.size or pair.infinite_above else part.base.mu


@lru_cache(maxsize=4096)
def laplace_pair(epsilon: float, p: float, remove: bool) -> Pair:
    """The pair of a Poisson-sampled Laplace mechanism of scale 1/epsilon at sensitivity 1."""
    # Outcomes left of 0 have t = -epsilon, right of 1 t = +epsilon; masses under the unshifted B0 and shifted A0.
    t = np.array([-epsilon, epsilon])
    still = np.array([0.5, 0.5 * np.exp(-epsilon)])
    shifted = still[::-1]
    loss = sampled_loss(t, p)
    if remove:
        atoms = Atoms(loss, (1 - p) * still + p * shifted)
    else:
        atoms = Atoms(-loss[::-1], still[::-1])
    return Pair(atoms, SampledPart(LaplaceBase(epsilon), p, remove))


def atomic_pair(log_a: Array, log_b: Array, relative_error: float = 8 * UNIT) -> Pair:
    """The pair of two tables of log-probabilities over the same outcomes (-inf: impossible)."""
    both = np.isfinite(log_a) & np.isfinite(log_b)
    infinite = float(np.exp(log_a[np.isfinite(log_a) & ~np.isfinite(log_b)]).sum())
    loss = log_a[both] - log_b[both]
    mass = np.exp(log_a[both])
    order = np.argsort(loss, kind="stable")
    loss, mass = loss[order], mass[order]
    if loss.size:
        # Merge outcomes of equal loss, which loses nothing. Equal means within 16 units of round-off, an error that both
        # discretizations allow for in every atom.
        starts = _runs(loss, 16 * UNIT * (1 + np.abs(loss)))
        mass = np.add.reduceat(mass, starts)
        loss = loss[np.append(starts[1:], loss.size) - 1]
    return Pair(Atoms(loss, mass, relative_error), None, infinite, infinite_error=relative_error)


def _runs(rising: Array, slack: Array) -> npt.NDArray[np.int64]:
    """The starts of runs of equal numbers: every member of a run is within the slack of its first."""
    near = np.diff(rising) <= slack[1:]
    starts = np.concatenate(([0], np.flatnonzero(~near) + 1))
    ends = np.append(starts[1:], rising.size)
    long = np.flatnonzero(rising[ends - 1] - rising[starts] > slack[ends - 1])
    further: list[int] = []
    for run in long:
        # A chain of close values: cut it where it leaves the slack of its first value.
        at = int(starts[run])
        while True:
            at += int(np.searchsorted(rising[at : ends[run]], rising[at] + slack[at], side="right"))
            if at >= ends[run]:
                break
            further.append(at)
    return np.asarray(np.union1d(starts, np.asarray(further, dtype=np.int64)), dtype=np.int64)
