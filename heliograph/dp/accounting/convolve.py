"""The law of a sum of many discretized losses, by one FFT, with every error bounded.

The masses are tilted by e^(theta loss) first, with theta the saddle of the composition at the epsilon in question, so
that the bulk of the tilted law is the part of the law on which delta depends: FFT round-off, which is absolute, is then
relative to delta. The bounded errors are: round-off of the transforms (each output of a mixed-radix transform passes
log2(N) butterflies, each of which errs by a few units relative to the sum of the absolute inputs), of the power, of the
tilting; wrap-around of the circular convolution and mass beyond the window, both by Chernoff's bound on the lattice law
itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import fft
from scipy.signal import lfilter

from heliograph.dp.accounting.discretize import Lattice, TooFineError
from heliograph.dp.pairs import UNIT, Array

MAX_LENGTH = 1 << 24
"""No transform is longer than this."""

# Relative error of one butterfly level, in units of round-off. Twiddle factor, product and sum give less than 5 for
# radix 2, and less than 4 per factor of two for other radices; this is twice that.
_BUTTERFLY_UNITS = 10.0
_MOST_PLACES = 2.0**50
"""Nodes from loss 0 to the composed law: their numbers are exact as doubles."""
_MARGIN = 18.0
"""log of the share of delta that a window may lose."""

Terms = Sequence[tuple[Lattice, int]]


class TooLongError(Exception):
    """The transform would exceed the largest number of nodes: it needs `nodes`."""

    def __init__(self, nodes: float) -> None:
        super().__init__(nodes)
        self.nodes = nodes


def cumulant(lattice: Lattice, theta: float) -> float:
    """log of the sum of mass times e^(theta loss), without the shift."""
    exponent = theta * lattice.losses()
    top = float(exponent.max(where=lattice.mass > 0, initial=-np.inf))
    if top == -np.inf:
        return -np.inf
    return top + math.log(float(np.dot(lattice.mass, np.exp(np.minimum(exponent - top, 0.0)))))


def total_cumulant(terms: Terms, theta: float) -> float:
    """The cumulant of the composition."""
    return math.fsum(count * cumulant(lattice, theta) for lattice, count in terms)


def tilted(lattice: Lattice, theta: float) -> tuple[Array, Array, float, float]:
    """The losses of a law, their tilted weights, the sum of these, and the log of what they were divided by."""
    losses = lattice.losses()
    exponent = theta * losses
    top = float(exponent.max(where=lattice.mass > 0, initial=-np.inf))
    weights = lattice.mass * np.exp(np.minimum(exponent - top, 0.0))
    total = float(weights.sum())
    if not total > 0:
        # No mass is left at finite losses; a coarser mesh may keep some.
        raise TooFineError
    return losses, weights, total, top


def tilted_moments(terms: Terms, theta: float) -> tuple[float, float, float]:
    """Cumulant, mean and variance of the composition's loss tilted by theta."""
    total = mean = variance = 0.0
    for lattice, count in terms:
        losses, weights, sum_, top = tilted(lattice, theta)
        first = float(np.dot(weights, losses)) / sum_
        total += count * (top + math.log(sum_))
        mean += count * first
        variance += count * float(np.dot(weights, (losses - first) ** 2)) / sum_
    return total, mean, variance


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The transform of one tilted lattice law, as logarithm and angle so that counts multiply them.

    The law's largest node is at index 0 and is kept separate: only the other nodes, which complete it to 1, are
    transformed and have errors. In this way the power of a law that is nearly a point keeps its accuracy over millions
    of steps.
    """

    log_size: Array
    angle: Array
    away: Array
    """|transform - 1|, by which the two before are accurate."""
    error: float
    """Absolute error of the complex value behind them."""
    log_weight: float
    """log of the number that the tilted masses were divided by."""
    relative: float
    """Relative error of each tilted mass, and of their sum."""
    origin: float
    """The loss of index 0."""
    infinite: float
    total: float
    shift: float


def spectrum(lattice: Lattice, theta: float, length: int) -> Spectrum:
    """The spectrum of a lattice law tilted by theta, on a circle of `length` nodes."""
    exponent = theta * lattice.losses()
    log_weight = cumulant(lattice, theta)
    weights = lattice.mass * np.exp(np.minimum(exponent - log_weight, 700.0))
    main = int(np.argmax(weights))
    others = weights.copy()
    others[main] = 0.0
    folded = np.bincount((lattice.index - lattice.index[main]) % length, weights=others, minlength=length)
    aside = float(others.sum())
    total = float(weights[main]) + aside
    away = (fft.rfft(folded) - aside) / total
    largest = float(np.abs(exponent).max(where=weights > 1e-25, initial=0.0))
    # Near 1, use log1p of |transform|^2 - 1. Near 0, adding 1 to that would cancel all digits: use the modulus itself.
    added = 2 * away.real + away.real**2 + away.imag**2
    log_size = np.where(
        added > -0.5,
        0.5 * np.log1p(np.maximum(added, -0.5)),
        np.log(np.maximum(np.hypot(1 + away.real, away.imag), 1e-300)),
    )
    return Spectrum(
        log_size,
        np.arctan2(away.imag, 1 + away.real),
        np.abs(away),
        _BUTTERFLY_UNITS * UNIT * (math.log2(length) + 2) * 1.01 * aside / total,
        log_weight + math.log(total),
        UNIT * (48 + 3 * largest + 2 * abs(log_weight) + lattice.mass.size / length),
        lattice.offset + lattice.step * int(lattice.index[main]),
        lattice.infinite,
        float(lattice.mass.sum()),
        lattice.shift,
    )


@dataclass(frozen=True, eq=False)
class Composed:
    """The tilted law of a composition on a circle of nodes, with bounds on its error.

    `delta_at` is the only reader; it gives delta from above and from below at an epsilon.
    """

    step: float
    values: Array
    theta: float
    log_scale: float
    origin: float
    """The loss of index 0."""
    entry_error: float
    relative: float
    infinite_above: float
    infinite_below: float
    low: float
    high: float
    """Below `low` and above `high` the tilted law has at most e^-need of mass each."""
    need: float
    shift: float

    @property
    def width(self) -> float:
        """The length of the circle, as a loss."""
        return self.step * self.values.size

    def _around(self, first: int, count: int) -> Array:
        """The values of `count` indices from `first` on, at most a whole circle.

        numpy's own wrapping subtracts the length until an index fits, which takes minutes where the origin is far away.
        """
        return np.take(self.values, first % self.values.size + np.arange(count), mode="wrap")

    def likelihood(self, losses: Array, epsilon: float) -> Array:
        """The share of delta at epsilon per unit of tilted mass at each loss of one step, up to a common factor.

        For steering only: the law of all steps stands in for the law of one step fewer.
        """
        start = max(self.low, epsilon - self.width)
        first = math.floor((start - self.origin) / self.step)
        values = self._around(first, self.values.size)
        values = np.maximum(values, 0.0)[::-1]
        # Sum over s > e of P(s) e^(-theta (s - e)) (1 - e^(e - s)), a difference of two one-sided filters.
        filtered = [
            lfilter([1.0], [1.0, -math.exp(-rate * self.step)], values) for rate in (self.theta, self.theta + 1)
        ]
        carried = np.maximum(filtered[0] - filtered[1], 0.0)[::-1]
        place = (epsilon - losses - self.origin) / self.step - first
        reached = np.interp(place, np.arange(carried.size), carried, left=0.0, right=0.0)
        # Left of the window the whole law lies above epsilon: use the value at the window's lower end, decayed.
        fade = np.where(place < 0, np.exp(np.maximum(self.theta * self.step * np.minimum(place, 0.0), -700.0)), 0.0)
        return np.asarray(reached + fade * float(carried[0]) + (self.entry_error + 1e-300) * 1e-3)

    def delta_at(self, epsilon: float) -> tuple[float, float]:
        """Lower and upper bounds on the lattice law's delta at epsilon (shift not applied)."""
        theta, width = self.theta, self.width
        reach = min(self.need / max(theta, 1e-9), max(self.high - epsilon, 0.0) + self.step, width)
        first = math.floor((epsilon - self.origin) / self.step) + 1
        # Take all nodes within reach: nodes left out are further away than `covered`.
        count = max(min(math.ceil(reach / self.step), self.values.size - 1), 1)
        covered = count * self.step
        index = np.arange(first, first + count)
        gap = (self.origin - epsilon) + self.step * index
        weights = np.exp(-theta * gap)
        terms = self._around(first, count) * weights
        short = -np.expm1(-gap)
        value = float(np.dot(terms, short))
        slope = float(np.dot(terms, np.exp(-gap)))
        spread = float(np.dot(weights, np.abs(short)))
        log_factor = self.log_scale - theta * epsilon
        if log_factor > 690:
            return 0.0, 1.0
        factor = math.exp(log_factor)
        # Close to epsilon, gap is only as accurate as the terms it was computed from.
        place = 8 * UNIT * (abs(self.origin) + abs(epsilon) + self.step * abs(first + count))
        exponent = UNIT * (64 + 4 * abs(self.log_scale) + 4 * theta * abs(epsilon))
        relative = math.expm1(min(self.relative + (theta + 1) * place + exponent, 50.0))
        noise = self.entry_error * spread + place * slope
        tail = math.exp(-self.need)
        beyond_reach = tail if epsilon + covered >= self.high else 1.0
        beyond = math.exp(-theta * covered) * beyond_reach
        # Wrap-around: mass a full circle above these terms, or below them.
        wrapped = tail if epsilon + width >= self.high else 1.0
        wrapped += tail if epsilon + covered - width <= self.low else 1.0
        above = self.infinite_above + factor * (max(value, 0.0) + noise + beyond) * (1 + relative)
        below = self.infinite_below + factor * max(value - noise - wrapped, 0.0) * max(1 - relative, 0.0)
        return min(max(below, 0.0), 1.0), min(above, 1.0)


def infinite_mass(masses: Iterable[tuple[float, float, int]]) -> tuple[float, float]:
    """Bounds, above and below, on the mass of infinite loss of a composition: (infinite, finite mass, count) of each law."""
    log_total = log_finite = 0.0
    for infinite, finite, count in masses:
        total = finite + infinite
        log_total += count * math.log(total)
        log_finite += count * math.log1p(-min(infinite / total, 1.0)) if infinite < total else -np.inf
    lost = -math.expm1(log_finite) if log_finite > -np.inf else 1.0
    # A law that was rounded up may have a total mass slightly above one; one that was rounded down, slightly below.
    above = lost * math.exp(max(log_total, 0.0)) * (1 + 1e-12) + (1e-305 if lost > 0 else 0.0)
    return above, max(lost * math.exp(min(log_total, 0.0)) * (1 - 1e-9) - 1e-250, 0.0)


def window(terms: Terms, theta: float, moments: tuple[float, float, float], need: float) -> tuple[float, float]:
    """Losses below and above which the composition tilted by theta has at most e^-need of mass each."""
    base, _, variance = moments
    spread = math.sqrt(max(variance, 1e-300))
    need = need + 1e-3 + 1e-9 * abs(base)
    ends = []
    for sign in (-1.0, 1.0):
        # Chernoff: P(sign S > x) <= exp(K(theta + sign t) - K(theta) - sign t x), for a few t around sqrt(2 need).
        best = np.inf
        guess = math.sqrt(2 * need) / spread
        factor = 1.0
        tried: dict[float, float] = {}
        for _ in range(12):
            for candidate in (factor / 1.6, factor, factor * 1.6):
                if candidate not in tried:
                    t = guess * candidate
                    value = (total_cumulant(terms, theta + sign * t) - base + need) / t
                    tried[candidate] = value if math.isfinite(value) else np.inf
            choice = min((factor / 1.6, factor, factor * 1.6), key=lambda f: tried[f])
            if choice == factor:
                break
            factor = choice
        best = min(tried.values())
        ends.append(sign * best)
    return ends[0], ends[1]


def compose(terms: Terms, theta: float, epsilon: float, log_delta: float, *, longest: int = MAX_LENGTH) -> Composed:
    """The composition of lattice laws of one step, tilted by theta, for epsilons and log deltas near the given ones.

    Raises TooLongError if the window needs more than `longest` nodes.
    """
    step = terms[0][0].step
    moments = tilted_moments(terms, theta)
    need = min(max(moments[0] - theta * epsilon - log_delta, 0.0), 22.0) + _MARGIN
    low, high = window(terms, theta, moments, need)
    # On a circle of this width, and a tenth more, wrap-around misses the terms of delta at epsilon.
    reach = min(need / max(theta, 1e-9), max(high - epsilon, 0.0))
    width = max(high - epsilon, epsilon + reach - low, reach) * 1.1 + 8 * step
    if not width / step < longest:
        raise TooLongError(width / step)
    if not max(abs(low), abs(high), abs(epsilon)) / step < _MOST_PLACES:
        raise TooFineError
    length = int(fft.next_fast_len(max(math.ceil(width / step), 64), real=True))
    spectra = ((spectrum(lattice, theta, length), count) for lattice, count in terms)
    return combine(spectra, step, theta, low, high, need, length)


def combine(
    spectra: Iterable[tuple[Spectrum, int]],
    step: float,
    theta: float,
    low: float,
    high: float,
    need: float,
    length: int,
) -> Composed:
    """The composition from the spectra of its mechanisms and their counts; each is read in turn and then released."""
    frequencies = length // 2 + 1
    # A product below e^-55 is negligible next to round-off. Factors are at most 1, so it stays that small.
    # None are left out at first: then nothing is copied, and the longest circles need less memory.
    kept: npt.NDArray[np.int64] | slice = slice(None)
    zeros: Array = np.zeros(frequencies)
    bound, log_size, angle, drift, noise = (zeros.copy() for _ in range(5))
    del zeros
    log_scale = relative = origin = shift = 0.0
    masses = []
    for each, count in spectra:
        sizes = each.log_size[kept]
        size = np.exp(sizes)
        bound += count * np.log(size + each.error + 4 * UNIT)
        log_size += count * sizes
        angle += np.remainder(count * each.angle[kept], 2 * np.pi)
        drift += count * np.log1p(each.error / np.maximum(size, 1e-300))
        # The logarithm and angle of 1 + z have errors of a few units of |z| / |1 + z|; multiplying them adds as much again.
        noise += count * (np.abs(sizes) + np.abs(each.angle[kept]) + each.away[kept] / np.maximum(size, 1e-300))
        log_scale += count * each.log_weight
        relative += count * each.relative
        origin += count * each.origin
        shift += count * each.shift
        masses.append((each.infinite, each.total, count))
        still = bound > -55.0
        if not bool(still.all()):
            kept = np.flatnonzero(still) if isinstance(kept, slice) else kept[still]
            bound, log_size, angle, drift, noise = (array[still] for array in (bound, log_size, angle, drift, noise))
    size = np.exp(np.minimum(log_size, 50.0))
    product = np.zeros(frequencies, dtype=np.complex128)
    turned = 1j * angle
    np.exp(turned, out=turned)
    turned *= size
    product[kept] = turned
    del turned
    error = size * np.expm1(np.minimum(drift + 8 * UNIT * noise + 32 * UNIT, 200.0))
    # Where a factor is nearly 0 its relative error says nothing; but no error is above |computed| + |true|.
    error = np.minimum(error, (size + np.exp(np.minimum(bound, 50.0))) * (1 + 1e-9))
    values = fft.irfft(product, length)
    transform = _BUTTERFLY_UNITS * UNIT * (math.log2(length) + 2)
    entry = 2 * (float(error.sum()) + transform * float(size.sum())) / length + math.exp(-54.0)
    above, below = infinite_mass(masses)
    return Composed(step, values, theta, log_scale, origin, entry, relative, above, below, low, high, need, shift)
