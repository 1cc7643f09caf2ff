"""Closed forms, evaluated with 60 digits: the bracket is nearly as narrow as two neighbouring doubles.

They exist for compositions of Gaussians (one Gaussian), for one sampled Gaussian or Laplace mechanism alone, and for
compositions of randomized responses of one epsilon (a binomial sum: Kairouz, Oh, Viswanath 2015), with or without deltas.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
from mpmath import mp, mpf

from heliograph.dp.accounting.result import Estimate, Tolerance
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import (
    Approximate,
    Direction,
    Gaussian,
    Laplace,
    Pure,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
    SampledReplaced,
)
from heliograph.errors import UnsupportedError

_DIGITS = 60
_MOST_RESPONSES = 2000
"""A longer binomial sum at 60 digits is slower than the FFT."""

_BEYOND = mpf(10) ** 30
"""No finite loss of a composition that is accounted for is above this but with a probability below 1e-300."""

Curve = Callable[[mpf], mpf]


class Exact:
    """Closed forms as an accountant."""

    name = "exact"
    proved = True
    remark = ""

    def suits(self, composition: Composition) -> bool:
        """Whether there is a closed form."""
        return _curve(composition, "remove") is not None

    def epsilon(self, composition: Composition, direction: Direction, delta: float, tolerance: Tolerance) -> Estimate:
        """Epsilon at delta between doubles that enclose it."""
        with mp.workdps(_DIGITS):
            curve = self._need(composition, direction)
            return _solve(curve, mpf(delta))

    def delta(self, composition: Composition, direction: Direction, epsilon: float, tolerance: Tolerance) -> Estimate:
        """Delta at epsilon between doubles that enclose it."""
        with mp.workdps(_DIGITS):
            value = self._need(composition, direction)(mpf(epsilon))
            return _enclosed(float(value))

    def _need(self, composition: Composition, direction: Direction) -> Curve:
        curve = _curve(composition, direction)
        if curve is None:
            raise UnsupportedError(
                "no closed form is known for this composition",
                where=composition.text(),
                why="there is one for Gaussians together, for one sampled Gaussian or Laplace, for equal responses",
                hint="use the method auto or pld",
            )
        return curve


def _enclosed(value: float) -> Estimate:
    # 60 digits leave some 40 after the worst cancellation here; two doubles to either side enclose the value.
    lower, upper = value, value
    for _ in range(2):
        lower, upper = math.nextafter(lower, 0.0), math.nextafter(upper, math.inf)
    return Estimate(max(lower, 0.0), value, upper)


def _solve(curve: Curve, delta: mpf) -> Estimate:
    if curve(mpf(0)) <= delta:
        return Estimate(0.0, 0.0, 0.0)
    high = mpf(1)
    # Beyond every finite loss, delta is the mass of infinite loss.
    if curve(_BEYOND) > delta:
        return Estimate.between(math.inf, math.inf)
    while curve(high) > delta:
        high *= 2
    low = mpf(0) if high == 1 else high / 2
    # The Illinois variant of false position on the logarithm, inside a bracket that only shrinks.
    tiny = mpf(10) ** -300_000
    f_low, f_high = mpmath.log(curve(low) / delta), mpmath.log(max(curve(high), tiny) / delta)
    side = 0
    for _ in range(200):
        if high - low <= mpf(10) ** -18 * high:
            break
        # If delta equals the mass of infinite loss, the curve is flat there: bisect.
        middle = (low * f_high - high * f_low) / (f_high - f_low) if f_high < 0 else (low + high) / 2
        # Step a hair beyond the guess, so that both ends move in.
        nudge = mpf(10) ** -19 * high
        middle = min(max(middle, low + nudge), high - nudge)
        f_middle = mpmath.log(max(curve(middle), tiny) / delta)
        if f_middle > 0:
            low, f_low = middle, f_middle
            if side == 1:
                f_high /= 2
            side = 1
        else:
            high, f_high = middle, f_middle
            if side == -1:
                f_low /= 2
            side = -1
    # Rounding to double must go outwards.
    lower, upper = float(low), float(high)
    lower = math.nextafter(lower, 0.0) if mpf(lower) > low else lower
    upper = math.nextafter(upper, math.inf) if mpf(upper) < high else upper
    return Estimate.between(lower, upper)


def _curve(composition: Composition, direction: Direction) -> Curve | None:
    """The closed form of delta, if there is one, with as many digits as mpmath has now."""
    items = composition.items
    if not items:
        return lambda epsilon: mpf(0)
    if all(isinstance(mechanism, Gaussian) for mechanism, _ in items):
        multipliers = [(mpf(mechanism.arguments()["noise_multiplier"]), count) for mechanism, count in items]
        return _gaussian(mpmath.sqrt(mpmath.fsum(count / each**2 for each, count in multipliers)))
    if composition.steps == 1:
        mechanism = items[0][0]
        if isinstance(mechanism, SampledGaussian) and 0 < mechanism.p < 1:
            return _sampled_gaussian(mpf(mechanism.p), 1 / mpf(mechanism.noise_multiplier), direction)
        if isinstance(mechanism, SampledReplaced):
            return _exchanged(mpf(mechanism.p), 1 / mpf(mechanism.noise_multiplier))
        if isinstance(mechanism, Laplace):
            return _laplace(mpf(1), mpf(mechanism.epsilon), "remove")
        if isinstance(mechanism, SampledLaplace) and 0 < mechanism.p < 1:
            return _laplace(mpf(mechanism.p), mpf(mechanism.epsilon), direction)
    return _responses(composition)


def _gaussian(mu: mpf) -> Curve:
    return lambda e: mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)


def _sampled(p: mpf, masses: Callable[[mpf], tuple[mpf, mpf]], direction: Direction) -> Curve:
    """The curve of a Poisson-sampled pair.

    `masses` are those of the shifted and the unshifted law where their log-ratio is above t (remove), or below it (add).
    """

    def remove(e: mpf) -> mpf:
        shifted, still = masses(mpmath.log((mpmath.expm1(e) + p) / p))
        return (1 - p) * still + p * shifted - mpmath.exp(e) * still

    def add(e: mpf) -> mpf:
        # No loss exceeds e for e >= -log(1 - p).
        rest = mpmath.expm1(-e) + p
        shifted, still = masses(mpmath.log(rest / p)) if rest > 0 else (mpf(0), mpf(0))
        return still - mpmath.exp(e) * ((1 - p) * still + p * shifted)

    return remove if direction == "remove" else add


def _sampled_gaussian(p: mpf, mu: mpf, direction: Direction) -> Curve:
    sign = 1 if direction == "remove" else -1

    def masses(t: mpf) -> tuple[mpf, mpf]:
        x = t / mu + mu / 2
        return mpmath.ncdf(sign * (mu - x)), mpmath.ncdf(-sign * x)

    return _sampled(p, masses, direction)


def _exchanged(p: mpf, mu: mpf) -> Curve:
    def curve(e: mpf) -> mpf:
        # The loss exceeds e right of x, as in `sampled_pairs.ExchangedPart`.
        k = (1 - p) / p * mpmath.exp(mu * mu / 2)
        x = (e / 2 + mpmath.asinh(k * mpmath.sinh(e / 2))) / mu
        still, there, opposite = mpmath.ncdf(-x), mpmath.ncdf(mu - x), mpmath.ncdf(-mu - x)
        return (1 - p) * still + p * there - mpmath.exp(e) * ((1 - p) * still + p * opposite)

    return curve


def _laplace(p: mpf, epsilon: mpf, direction: Direction) -> Curve:
    def masses(t: mpf) -> tuple[mpf, mpf]:
        # No log-ratio is outside of [-epsilon, epsilon].
        if abs(t) >= epsilon and (t > 0) == (direction == "remove"):
            return mpf(0), mpf(0)
        x = (t / epsilon + 1) / 2
        shifted, still = 1 - mpmath.exp(-epsilon * (1 - x)) / 2, mpmath.exp(-epsilon * x) / 2
        return (shifted, still) if direction == "remove" else (1 - shifted, 1 - still)

    return _sampled(p, masses, direction)


def _responses(composition: Composition) -> Curve | None:
    epsilons, count = set(), 0
    log_kept = mpf(0)
    for mechanism, times in composition:
        if isinstance(mechanism, Approximate):
            log_kept += times * mpmath.log1p(-mpf(mechanism.delta)) if mechanism.delta < 1 else -mpmath.inf
            if mechanism.epsilon == 0:
                continue
            epsilons.add(mechanism.epsilon)
        elif isinstance(mechanism, Pure) or (isinstance(mechanism, RandomizedResponse) and mechanism.categories == 2):
            epsilons.add(mechanism.epsilon)
        else:
            return None
        count += times
    kept = mpmath.exp(log_kept)
    # Not 1 - kept, which would lose all digits of a small delta.
    lost = -mpmath.expm1(log_kept)
    if composition.steps == 1:
        # Use delta as given: rounded up by 1e-60, it would exceed a delta that it equals.
        lost = mpf(getattr(composition.items[0][0], "delta", 0.0))
    if len(epsilons) > 1 or count > _MOST_RESPONSES:
        return None
    if not epsilons:
        return lambda e: lost
    each = mpf(epsilons.pop())

    def curve(e: mpf) -> mpf:
        # j of `count` responses are lies: the loss is (count - 2j) * each, the mass binomial.
        total = mpf(0)
        norm = count * mpmath.log1p(mpmath.exp(-each))
        for j in range(count + 1):
            loss = (count - 2 * j) * each
            if loss <= e:
                break
            total += mpmath.binomial(count, j) * mpmath.exp(-j * each - norm) * -mpmath.expm1(e - loss)
        return lost + kept * total

    return curve
