"""Delta by inverting the moment generating function along the saddle line: a cost that is flat in the steps.

With M(z) = E_A[e^(z L)] of the whole composition and theta > 0,
`e^(theta eps) delta(eps) = 1/(2 pi) integral of M(theta + i t) e^(-i t eps) / ((theta + i t)(1 + theta + i t)) dt`.
It is used only where four errors are bounded:

- aliasing: the trapezoid rule with step eta gives the sum over m of e^(theta x) delta(x) at x = eps + 2 pi m / eta
  (Poisson); all terms are positive, those with m != 0 are bounded by Chernoff's bound with another tilt;
- truncation: with phi the characteristic function of one step's tilted loss, |phi|^2 <= 1 - v t^2 + m4 t^4 / 24
  near 0 (v the variance, m4 the fourth moment of the difference of two copies), beyond that a grid with
  |phi'| <= sqrt(v), and for large t |phi| <= V / t with V the total variation of the density of the loss;
- quadrature: M itself is an integral of an analytic function over the line; the trapezoid rule's relative error is bounded
  by the integrand's size in a strip (Trefethen and Weideman 2014, theorem 5.1);
- round-off: relative to the sum of absolute values, a few units per step of the composition.

If one of these does not come out small (few effective steps: steps times p below about 10), the method refuses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from heliograph.dp.accounting.rdp import conversion, total_log_moment
from heliograph.dp.accounting.result import Estimate, Tolerance
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Direction, Gaussian, SampledGaussian
from heliograph.dp.pairs import UNIT, Array, sampled_loss
from heliograph.errors import PlanningError, UnsupportedError

Complex = npt.NDArray[np.complex128]

_CUT = 60.0
"""log of what truncation may leave out, relative to the moment."""

_ACCURACY = 44.0
"""-log of the relative error that a quadrature may have."""

_MOST_WORK = 20_000_000
"""Nodes on the line times nodes of the quadratures, at most: about two seconds. If the characteristic function can be shown
to decay for only a few of the steps, it would take many times that; the bracket by FFT is faster then."""


@dataclass(frozen=True)
class Inversion:
    """Inversion along the saddle line as an accountant, for sampled Gaussians and Gaussians in any number."""

    least_steps: int = 1

    name = "inversion"
    proved = True
    remark = ""

    def suits(self, composition: Composition) -> bool:
        """Whether the method may apply: only Gaussians, sampled or not, and enough steps."""
        kinds = all(isinstance(mechanism, Gaussian | SampledGaussian) for mechanism, _ in composition)
        return kinds and composition.steps >= max(self.least_steps, 1)

    def epsilon(self, composition: Composition, direction: Direction, delta: float, tolerance: Tolerance) -> Estimate:
        """Epsilon at delta between bounds; PlanningError if an error is not bounded."""
        self._check(composition)

        def bound(log_theta: float) -> float:
            theta = math.exp(log_theta)
            return total_log_moment(composition, theta, direction) / theta + conversion(theta, delta)

        found = minimize_scalar(
            bound, bounds=(math.log(1e-3), math.log(1e4)), method="bounded", options={"xatol": 1e-2}
        )
        guess = float(found.fun)
        if not 0 < guess < 1e6:
            raise _refusal("epsilon is near 0 or out of reach of a saddle")
        x = guess
        for _ in range(4):
            line = _Line(composition, direction, math.exp(float(found.x)), x)
            x = line.solved(delta, x, guess)
            if abs(x - line.centre) <= line.period / 16:
                break
        value, slope, error = line.at(x)
        # Guess the bracket from the error in delta, then check it by evaluating both ends.
        half = max(2 * (error + abs(value - delta)) / slope, 1e-12 * max(x, 1.0))
        for _ in range(30):
            low, high = max(x - half, 0.0), x + half
            value_low, _, error_low = line.at(low)
            value_high, _, error_high = line.at(high)
            if value_low - error_low >= delta >= value_high + error_high:
                return Estimate(low, x, high)
            half *= 2
        raise _refusal("the errors are larger than delta")

    def delta(self, composition: Composition, direction: Direction, epsilon: float, tolerance: Tolerance) -> Estimate:
        """Delta at epsilon between bounds; PlanningError if an error is not bounded."""
        self._check(composition)

        def exponent(log_theta: float) -> float:
            theta = math.exp(log_theta)
            return total_log_moment(composition, theta, direction) - theta * epsilon - math.log(theta)

        found = minimize_scalar(
            exponent, bounds=(math.log(1e-3), math.log(1e4)), method="bounded", options={"xatol": 1e-2}
        )
        line = _Line(composition, direction, math.exp(float(found.x)), epsilon)
        value, _, error = line.at(epsilon)
        return Estimate(max(value - error, 0.0), value, value + error)

    def _check(self, composition: Composition) -> None:
        if not self.suits(composition) or not composition.items:
            raise UnsupportedError(
                "the method inversion does not apply",
                where=composition.text(),
                why=f"it takes Gaussians, sampled or not, and at least {self.least_steps} steps",
                hint="use the method auto or pld",
            )


def _refusal(why: str) -> PlanningError:
    return PlanningError(
        "the method inversion proves no bracket here", where="method inversion", why=why, hint="use auto"
    )


class _Line:
    """The saddle line: the moment at its nodes, computed once; delta at any nearby epsilon comes from them."""

    def __init__(self, composition: Composition, direction: Direction, theta: float, epsilon: float) -> None:
        self.theta = theta
        self.centre = epsilon
        self.steps = composition.steps
        steps = [_Step(mechanism, direction, theta) for mechanism, _ in composition]  # type: ignore[arg-type]
        counts = [count for _, count in composition]
        self.log_moment = math.fsum(count * step.log_moment for step, count in zip(steps, counts, strict=True))
        variance = math.fsum(count * step.variance for step, count in zip(steps, counts, strict=True))
        # Truncation: the mechanism that decays fastest is enough, since the factors of the others are at most 1.
        cuts = [step.cut(count) for step, count in zip(steps, counts, strict=True)]
        self.end = min(cuts)
        if not math.isfinite(self.end):
            raise _refusal("the characteristic function is not proved to fall: too few effective steps")
        period = 16.0 * math.sqrt(variance)
        self.aliases: list[tuple[float, float]] = []
        for _ in range(12):
            self.alias = self._alias_bound(composition, direction, epsilon, period)
            if self.alias <= self.log_moment - 34.0:
                break
            period *= 1.3
        self.period = period
        eta = 2 * math.pi / period
        count_nodes = math.ceil(self.end / eta) + 1
        if count_nodes > 200_000:
            raise _refusal("too many nodes on the line")
        self.eta = eta
        self.t: Array = np.asarray(eta * np.arange(count_nodes), dtype=np.float64)
        if count_nodes * sum(step.quadrature(float(self.t[-1])) for step in steps) > _MOST_WORK:
            raise _refusal("too much work on the line: a kind with many steps is not proved to fall early")
        log_phi: Complex = np.zeros(count_nodes, dtype=np.complex128)
        error = 64 * UNIT
        for step, count in zip(steps, counts, strict=True):
            part, part_error = step.log_phi(self.t)
            log_phi += count * part
            error += count * part_error
        self.relative = error
        if error > 1e-3:
            raise _refusal("round-off over this many steps is too large")
        # A power whose base is a few units of round-off has no correct digits, but is negligible.
        kept = log_phi.real > -_CUT - 20
        self.t, log_phi = self.t[kept], log_phi[kept]
        z = theta + 1j * self.t
        self.first = np.exp(log_phi) / (z * (1 + z))
        self.weight = np.where(self.t == 0, 1.0, 2.0)
        self.sum_abs = float((self.weight * np.abs(self.first)).sum()) * eta / (2 * math.pi)
        self.z = z

    def _alias_bound(self, composition: Composition, direction: Direction, epsilon: float, period: float) -> float:
        """log of a bound on the other periods' share of e^(theta eps) delta, for epsilons within period / 8."""
        slack = period / 8
        best_right = best_left = math.inf
        for factor in (0.1, 0.25, 0.5, 1.0, 2.0):
            s = self.theta * factor
            right = total_log_moment(composition, self.theta + s, direction) - s * (epsilon - slack + period)
            best_right = min(best_right, right - math.log(-math.expm1(-s * period)))
            if factor < 1.0:
                left = total_log_moment(composition, self.theta - s, direction) + s * (epsilon + slack - period)
            else:
                s = self.theta
                left = s * (epsilon + slack - period)
            best_left = min(best_left, left - math.log(-math.expm1(-s * period)))
        return float(np.logaddexp(best_right, best_left))

    def solved(self, delta: float, start: float, most: float) -> float:
        """A value near the epsilon in [0, most] at which delta is reached, by Newton's method within its reach."""
        log_delta = math.log(delta)
        x = start
        for _ in range(40):
            value, slope, _ = self._at(x)
            if not value > 0 or not slope > 0:
                raise _refusal("the sum on the line is not positive")
            move = (math.log(value) - log_delta) * value / slope
            new = min(max(x + move, self.centre - self.period / 8, 0.0), self.centre + self.period / 8, most)
            done = new == x or abs(move) <= 1e-12 * max(x, 1.0)
            x = new
            if done:
                break
        return x

    def at(self, epsilon: float) -> tuple[float, float, float]:
        """Delta at epsilon, its falling slope, and a bound on the error of delta.

        Raises PlanningError further than an eighth of the period from the centre: there aliasing is not bounded.
        """
        if abs(epsilon - self.centre) > self.period / 8:
            raise _refusal("the epsilon is further from the guess than aliasing is bounded for")
        return self._at(epsilon)

    def _at(self, epsilon: float) -> tuple[float, float, float]:
        scale = math.exp(min(self.log_moment - self.theta * epsilon, 700.0))
        wave = np.exp(-1j * self.t * epsilon)
        terms = self.weight * (self.first * wave).real
        slopes = self.weight * (self.first * self.z * wave).real
        value = scale * float(terms.sum()) * self.eta / (2 * math.pi)
        slope = scale * float(slopes.sum()) * self.eta / (2 * math.pi)
        phase = UNIT * (float(self.t[-1]) * abs(epsilon) + 16)
        relative = 2 * (self.relative + phase + UNIT * (16 + abs(self.log_moment) + self.theta * epsilon))
        error = scale * self.sum_abs * relative
        # The truncated tails: at most e^-cut of the moment times the integral of 1 / t^2, on both sides.
        error += scale * math.exp(-_CUT) * (1 / max(self.end - self.eta, self.eta)) * 2
        error += math.exp(min(self.alias - self.theta * epsilon, 700.0))
        return value, slope, error


class _Step:
    """One step's loss, tilted: its moment, its characteristic function, and the decay of the latter."""

    def __init__(self, mechanism: Gaussian | SampledGaussian, direction: Direction, theta: float) -> None:
        self.mu = 1 / mechanism.noise_multiplier
        self.p = mechanism.p if isinstance(mechanism, SampledGaussian) else 1.0
        self.theta = theta
        self.sign = 1.0 if direction == "remove" else -1.0
        # The power of 1 - p + p e^t in the integrand: theta + 1 where A is the mixture, -theta where B is.
        self.power = theta + 1 if direction == "remove" else -theta
        if self.p == 1.0:
            # t is normal under both; A0 has t ~ N(mu^2/2, mu^2). One formula for both directions.
            self.log_moment = theta * (theta + 1) * self.mu**2 / 2
            self.variance = self.mu**2
            return
        self.x, self.weights, self.log_moment = self._nodes(0.0, _ACCURACY)
        loss = self.sign * sampled_loss(self.mu * self.x - self.mu**2 / 2, self.p)
        self.mean = float(np.dot(self.weights, loss))
        centred = loss - self.mean
        self.variance = float(np.dot(self.weights, centred**2))
        self.fourth = float(np.dot(self.weights, centred**4))

    def quadrature(self, t_max: float) -> int:
        """The number of nodes in the integral of one step for |t| <= t_max."""
        return 0 if self.p == 1.0 else self._interval(t_max, _ACCURACY)[2]

    def _interval(self, t_max: float, accuracy: float) -> tuple[float, float, int]:
        """The ends and the number of nodes for integrating e^(i t L) for |t| <= t_max to e^-accuracy."""
        mu = self.mu
        low = -12.0 if self.power > 0 else -8.0 - self.theta * mu
        high = self.power * mu + 8.0 if self.power > 0 else 12.0
        low, high = low - 4.0, high + 4.0
        limit = 0.9 * math.pi / mu if self.power > 0 else math.pi / (3 * mu)
        best = math.inf
        # In a strip of half-width d, the base's argument is at most mu d; e^(i t L) turns it into a factor e^(t mu d).
        for strip in np.minimum(np.geomspace(0.05, 6.0, 16), limit):
            need = accuracy + strip**2 / 2 + t_max * mu * strip
            need += 0.0 if self.power > 0 else self.theta * math.log(2.0)
            best = min(best, need / strip)
        count = max(math.ceil((high - low) * best / (2 * math.pi)), 16)
        if count > 400_000:
            raise _refusal("too many nodes in the quadrature of one step")
        return low, high, count

    def _nodes(self, t_max: float, accuracy: float) -> tuple[Array, Array, float]:
        """Nodes and normalised weights for integrating e^(i t L) for |t| <= t_max to e^-accuracy."""
        mu, p = self.mu, self.p
        low, high, count = self._interval(t_max, accuracy)
        x = np.asarray(np.linspace(low, high, count), dtype=np.float64)
        step = (high - low) / (count - 1)
        t = mu * x - mu * mu / 2
        exponent = self.power * sampled_loss(t, p) - x * x / 2
        top = float(exponent.max())
        weights = np.exp(exponent - top)
        total = float(weights.sum())
        log_moment = top + math.log(total * step) - 0.5 * math.log(2 * math.pi)
        return x, weights / total, log_moment

    def log_phi(self, t: Array) -> tuple[Complex, float]:
        """log of the characteristic function of the tilted loss at t, and a bound on its error for one step."""
        if self.p == 1.0:
            mean = (self.theta + 0.5) * self.mu**2
            return np.asarray(1j * t * mean - self.mu**2 * t**2 / 2, dtype=np.complex128), 8 * UNIT * (
                1 + float(t[-1]) * abs(mean)
            )
        x, weights, _ = self._nodes(float(t[-1]), _ACCURACY)
        loss = self.sign * sampled_loss(self.mu * x - self.mu**2 / 2, self.p)
        mean = float(np.dot(weights, loss))
        centred = loss - mean
        # Sum phi - 1 directly, so that it keeps its digits: it is small wherever the power of phi is not.
        away = np.empty(t.size, dtype=np.complex128)
        for start in range(0, t.size, 256):
            block = np.outer(t[start : start + 256], centred)
            half = np.sin(block / 2)
            away[start : start + 256] = (-2 * half * half) @ weights + 1j * ((np.sin(block) - block) @ weights)
        value: Complex = np.log1p(away)
        # The mean of `centred` is zero to round-off only; that residue is the error of the phase.
        residue = abs(float(np.dot(weights, centred))) + 8 * UNIT * float(np.dot(weights, np.abs(centred)))
        size = float(np.abs(away).max()) if t.size < 3 else float(np.abs(away[np.abs(away) < 0.5]).max(initial=0.0))
        error = (
            float(t[-1]) * residue
            + 64 * UNIT * size
            + 16 * UNIT * (1 + abs(self.log_moment))
            + 4 * math.exp(-_ACCURACY)
        )
        return np.asarray(value + 1j * t * mean, dtype=np.complex128), error + 8 * UNIT * float(t[-1]) * abs(mean)

    def cut(self, count: int) -> float:
        """A t beyond which |phi|^count is proved to be at most e^-_CUT; infinite if none is known."""
        if self.p == 1.0:
            return math.sqrt(2 * _CUT / count) / self.mu
        v = self.variance * 0.99
        m4 = 2 * (self.fourth + 3 * self.variance**2) * 1.01
        if not (v > 0 and m4 > 0):
            # With little noise the tilted loss is one number, up to what doubles can hold.
            return math.inf
        near = math.sqrt(12 * v / m4)  # up to here |phi|^2 <= 1 - v t^2 / 2
        start = math.sqrt(4 * _CUT / (count * v))
        if start >= near:
            return math.inf
        needed = math.exp(-_CUT / count)
        # Beyond `far` the total variation bounds |phi| by the square root of the required value.
        variation = self._variation()
        far = variation / min(needed, 0.9)
        deviation = math.sqrt(self.variance) * 1.01
        slack = (1 - needed) / 4 if needed > 0.5 else 0.1
        slack = max(slack, 0.02)
        points = math.ceil((far - near) * deviation / (2 * slack)) + 1
        if far <= near:
            return start
        if points > 4000:
            return math.inf
        t = np.linspace(near, far, points)
        x, weights, _ = self._nodes(float(far), 8.0)
        if x.size * points > 20_000_000:
            return math.inf
        loss = self.sign * sampled_loss(self.mu * x - self.mu**2 / 2, self.p)
        largest = 0.0
        for begin in range(0, points, 128):
            block = np.outer(t[begin : begin + 128], loss)
            largest = max(largest, float(np.hypot(np.cos(block) @ weights, np.sin(block) @ weights).max()))
        # Allow for the quadrature, accurate to e^-8, and for the slope times half the grid spacing.
        return start if largest + slack + 4e-3 <= needed else math.inf

    def _variation(self) -> float:
        """A bound on the total variation of the density of the tilted loss.

        As a function of x that density is proportional to weight / |dL/dx|; the derivative of its logarithm has at most
        three zeros, so at most two maxima: the variation is at most four times the largest value.
        """
        mu, p = self.mu, self.p
        reach = 14.0 + (self.theta + 3) * mu
        x = np.asarray(np.linspace(-reach, reach, 4000), dtype=np.float64)
        distance = 2 * reach / 3999
        t = mu * x - mu * mu / 2
        log_base = sampled_loss(t, p)
        log_slope = math.log(mu * p) + t - log_base
        density = self.power * log_base - x * x / 2 - 0.5 * math.log(2 * math.pi) - log_slope - self.log_moment
        curvature = 1 + (abs(self.power) + 1) * mu * mu / 4
        return 4 * math.exp(min(float(density.max()) + curvature * distance**2 / 8, 600.0))
