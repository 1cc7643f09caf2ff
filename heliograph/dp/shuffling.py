"""One epoch of shuffled batches: a lower bound on its epsilon, beside the usual accounting as Poisson sampling.

Many trainers shuffle the records, cut them into batches, and account as if batches were Poisson samples. No
useful upper bound for that is known here; a lower bound shows how far off the figure is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import mpmath
from mpmath import mp, mpf

from heliograph.dp.accounting import Bracket, epsilon_at
from heliograph.dp.accounting.accountant import check_delta
from heliograph.dp.mechanisms import SampledGaussian
from heliograph.errors import ProgramError


@dataclass(frozen=True)
class ShuffledEpoch:
    """One epoch in `batches` batches of equal size, shuffled: each record is in one of them.

    Neighbours differ by one record that is present or null (the number of places stays). The bound is for one pair of
    data sets and one family of events: all other gradients are opposite to the record's, and the event is that some
    batch's sum is above a threshold (Chua et al. 2024, How private are DP-SGD implementations?, section 4.2). With
    batches centred at the sum of the others: P = mean over t of N(2 e_t, s^2), Q = mean over t of N(e_t, s^2), and
    delta(e) >= P(max > c) - exp(e) Q(max > c) for every c. More epochs are no more private.
    """

    batches: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        holder = SampledGaussian(1.0, self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", holder.noise_multiplier)
        if isinstance(self.batches, bool) or not isinstance(self.batches, int) or not 2 <= self.batches <= 10**9:
            raise ProgramError(f"batches = {self.batches!r} must be an integer of at least 2", where="ShuffledEpoch")

    def delta_lower(self, epsilon: float) -> float:
        """A lower bound on delta at an epsilon: the best of a grid of thresholds, at 40 digits, rounded down."""
        with mp.workdps(40):
            return max((self._event(mpf(epsilon), c) for c in self._thresholds()), default=0.0)

    def epsilon_lower(self, delta: float) -> float:
        """A lower bound on epsilon at a delta; 0 if there is none."""
        check_delta(delta)
        best = 0.0
        with mp.workdps(40):
            for threshold in self._thresholds():
                p, q = self._masses(threshold)
                if p > delta and q > 0:
                    best = max(best, float(mpmath.log((p - mpf(delta)) / q)) * (1 - 1e-12))
        return max(best, 0.0)

    def poisson(self, delta: float) -> Bracket:
        """The common accounting of the epoch: as many Poisson samples with probability 1 / batches."""
        return epsilon_at(SampledGaussian(1 / self.batches, self.noise_multiplier) * self.batches, delta)

    def _thresholds(self) -> list[float]:
        s = self.noise_multiplier
        low, high = -2 * s, 2 + (12 + math.sqrt(2 * math.log(self.batches))) * s
        return [low + (high - low) * k / 400 for k in range(401)]

    def _masses(self, threshold: float) -> tuple[mpf, mpf]:
        """P and Q of the event that the largest of all batches is above the threshold."""
        s, c = mpf(self.noise_multiplier), mpf(threshold)
        # 1 - (1 - a)(1 - b)^(t - 1), without cancellation.
        log_others = (self.batches - 1) * mpmath.log1p(-mpmath.ncdf(-c / s))
        found = [-mpmath.expm1(log_others + mpmath.log1p(-mpmath.ncdf((shift - c) / s))) for shift in (2, 1)]
        return found[0], found[1]

    def _event(self, epsilon: mpf, threshold: float) -> float:
        p, q = self._masses(threshold)
        return max(float(p - mpmath.exp(epsilon) * q) * (1 - 1e-12), 0.0)


__all__ = ["ShuffledEpoch"]
