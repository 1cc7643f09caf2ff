"""Auditing: empirical lower bounds on epsilon, with confidence, from the scores of canaries.

Two audits. `many_runs`: independent scores of canaries in the data and of canaries outside it, one of each run; a
threshold that was fixed beforehand (or chosen on held-out canaries by `split`) gives true and false positive rates,
Clopper-Pearson intervals bound them, and `epsilon >= log((TPR_lower - delta) / FPR_upper)` (Jagielski, Ullman, Oprea
2020; Nasr et al. 2021). `one_run`: many canaries in one training run, each included by its own fair coin; (epsilon,
delta) privacy bounds the tail of the number of right guesses (Steinke, Nasr, Jagielski 2023, theorem 5.2, with its
delta term).

`measure` needs no guesses: it bounds the noise, the inclusion probability and the clipping bound of a trainer from the
values that it released at canaries.

A bound holds with the stated confidence if scores, thresholds and numbers of guesses were not chosen after seeing the
outcome. An audit can show that a guarantee is broken; a small bound shows nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.stats import beta, binom, chi2

from heliograph.errors import ProgramError


@dataclass(frozen=True)
class Audit:
    """An empirical lower bound on epsilon, with its basis."""

    epsilon_lower: float
    delta: float
    confidence: float
    right: int
    guesses: int
    threshold: float | None
    method: str


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """One-sided exact bounds on a binomial probability: each holds with the confidence by itself."""
    if not 0 <= successes <= trials or trials < 1 or not 0 < confidence < 1:
        raise ProgramError("need 0 <= successes <= trials, trials >= 1, confidence in (0, 1)", where="clopper_pearson")
    alpha = 1 - confidence
    lower = 0.0 if successes == 0 else float(beta.ppf(alpha, successes, trials - successes + 1))
    upper = 1.0 if successes == trials else float(beta.ppf(1 - alpha, successes + 1, trials - successes))
    return lower, upper


def _scores(values: Sequence[float], name: str) -> np.ndarray:  # type: ignore[type-arg]
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or scores.size == 0 or np.any(np.isnan(scores)):
        raise ProgramError(f"{name} must be a non-empty list of numbers", where="audit")
    return scores


def _check(delta: float, confidence: float) -> None:
    if not 0 <= delta < 1 or not 0 < confidence < 1:
        raise ProgramError("need delta in [0, 1) and confidence in (0, 1)", where="audit")


def many_runs(
    member_scores: Sequence[float],
    other_scores: Sequence[float],
    *,
    threshold: float,
    delta: float,
    confidence: float = 0.95,
) -> Audit:
    """The lower bound from independent scores at a threshold fixed beforehand; members should score above it.

    Both directions of attack are bounded (guess "member" above, guess "other" below); the confidence is shared among
    the four one-sided intervals.
    """
    _check(delta, confidence)
    members, others = _scores(member_scores, "member_scores"), _scores(other_scores, "other_scores")
    each = 1 - (1 - confidence) / 4
    true_positive = int((members > threshold).sum())
    false_positive = int((others > threshold).sum())
    tpr_low, _ = clopper_pearson(true_positive, members.size, each)
    _, fpr_high = clopper_pearson(false_positive, others.size, each)
    best = 0.0
    for gain, loss in ((tpr_low, fpr_high), (1 - fpr_high, 1 - tpr_low)):
        if gain > delta and loss > 0:
            best = max(best, math.log((gain - delta) / loss))
    right = true_positive + others.size - false_positive
    return Audit(best, delta, confidence, right, members.size + others.size, threshold, "many_runs")


def split(
    member_scores: Sequence[float],
    other_scores: Sequence[float],
    *,
    delta: float,
    confidence: float = 0.95,
    held_out: float = 0.3,
) -> Audit:
    """`many_runs` with the threshold from the first `held_out` share of either list, and the bound from the rest."""
    members, others = _scores(member_scores, "member_scores"), _scores(other_scores, "other_scores")
    if not 0 < held_out < 1:
        raise ProgramError("held_out must be inside (0, 1)", where="split")
    first_members, first_others = max(int(members.size * held_out), 1), max(int(others.size * held_out), 1)
    if members.size <= first_members or others.size <= first_others:
        raise ProgramError("too few canaries to hold some out", where="split")

    def at(threshold: float, own: Any, other: Any) -> Audit:
        return many_runs(own.tolist(), other.tolist(), threshold=threshold, delta=delta, confidence=confidence)

    seen = members[:first_members], others[:first_others]
    best = max(np.unique(np.concatenate(seen)).tolist(), key=lambda each: at(each, *seen).epsilon_lower)
    return at(best, members[first_members:], others[first_others:])


def one_run(
    scores: Sequence[float],
    included: Sequence[bool],
    *,
    guess_in: int,
    guess_out: int,
    delta: float,
    confidence: float = 0.95,
) -> Audit:
    """The lower bound from one run: the `guess_in` highest scores are guessed in, the `guess_out` lowest out.

    Each canary must have been included by an independent fair coin; the numbers of guesses are fixed beforehand. Ties are
    broken by position.
    """
    _check(delta, confidence)
    values = _scores(scores, "scores")
    coins = np.asarray(included, dtype=bool)
    if coins.shape != values.shape:
        raise ProgramError("scores and included must have the same length", where="one_run")
    if guess_in < 0 or guess_out < 0 or not 1 <= guess_in + guess_out <= values.size:
        raise ProgramError("guess_in + guess_out must be between 1 and the number of canaries", where="one_run")
    order = np.argsort(values, kind="stable")
    right = int(coins[order[values.size - guess_in :]].sum()) if guess_in else 0
    right += int((~coins[order[:guess_out]]).sum())
    guesses = guess_in + guess_out
    bound = one_run_bound(right, guesses, values.size, delta, confidence)
    return Audit(bound, delta, confidence, right, guesses, None, "one_run")


def one_run_bound(right: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """The largest epsilon that `right` of `guesses` right guesses among `canaries` refute at the confidence.

    The p-value of (epsilon, delta)-privacy is P(B >= v) + 2 canaries delta max over i of P(v > B >= v - i) / i with
    B binomial(guesses, e^epsilon / (1 + e^epsilon)) (Steinke, Nasr, Jagielski 2023, theorem 5.2).
    """
    if not 0 <= right <= guesses <= canaries:
        raise ProgramError("need 0 <= right <= guesses <= canaries", where="one_run_bound")
    level = 1 - confidence

    def p_value(epsilon: float) -> float:
        rate = 1 / (1 + math.exp(-epsilon))
        tail = float(binom.sf(right - 1, guesses, rate))
        if delta == 0 or right == 0:
            return min(tail, 1.0)
        i = np.arange(1, right + 1)
        below = binom.sf(right - i - 1, guesses, rate) - tail
        return min(tail + 2 * canaries * delta * float((below / i).max()), 1.0)

    if p_value(0.0) > level:
        return 0.0
    low, high = 0.0, 1.0
    while p_value(high) <= level and high < 64:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        if p_value(middle) <= level:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True)
class Measured:
    """Bounds on what a trainer does, as multiples of what is accounted; all hold at once with the confidence.

    `probability` and `clipping` are None where they were not measured.
    """

    noise: tuple[float, float]
    probability: tuple[float, float] | None
    clipping: tuple[float, float] | None
    samples: int
    """Values of noise alone."""
    confidence: float

    @property
    def refuted(self) -> bool:
        """Whether there is less noise, a larger probability or a larger bound than accounted."""
        above = any(each is not None and each[0] > 1 for each in (self.probability, self.clipping))
        return above or self.noise[1] < 1


def measure(
    absent: Any,
    crowds: Any = (),
    size: int = 1,
    noise: Any = 1.0,
    probability: Any = 1.0,
    length: Any = math.inf,
    *,
    confidence: float = 0.95,
) -> Measured:
    """What a trainer does, from released sums at entries of no canary, and at entries of crowds of canaries.

    `absent` are values of sums at entries without canaries, less the true records' part, over the accounted standard
    deviation of the noise. `crowds` are those at entries that are each the whole gradient of `size` canaries in the data,
    over the accounted clipping bound and in the order of their release. `noise` is the accounted noise multiplier,
    `probability` the accounted inclusion probability and `length` the gradients' length over the clipping bound, of all
    crowds or of each; the first two may depend on earlier releases. Sums over many canaries show inclusions where the
    noise would hide one; the means of crowds below the bound and far above it tell probability and bound apart.

    Half of 1 - confidence is for the noise, by the chi-square distribution, exact for Gaussian noise. The other half is
    for probability and bound, by a likelihood ratio (Wasserman, Ramdas, Balakrishnan 2020, Universal inference): what the
    first half of the crowds makes most likely, q, is fixed before the second half is seen, whose likelihood under q is
    above 1/a times its likelihood under the truth with probability at most a (Markov), however few crowds there are.
    """
    _check(0.0, confidence)
    z = np.asarray(absent, dtype=np.float64).ravel()
    x = np.asarray(crowds, dtype=np.float64).ravel()
    if z.size < 1 or not (np.isfinite(z).all() and np.isfinite(x).all()):
        raise ProgramError("a measurement needs finite values at absent canaries", where="measure")
    level, total = (1 - confidence) / 4, float(z @ z)
    low, high = (math.sqrt(total / float(chi2.ppf(q, z.size))) for q in (1 - level, level))
    if x.size < 4:
        return Measured((low, high), None, None, z.size, confidence)
    each = [np.broadcast_to(np.asarray(v, dtype=np.float64), x.shape) for v in (noise, probability, length)]
    half = x.size // 2
    seen, unseen = (_Crowds(size, (low, high), x[at], *(v[at] for v in each)) for at in (np.s_[:half], np.s_[half:]))
    least = unseen.likelihood(seen.likeliest()) + math.log((1 - confidence) / 2)
    return Measured((low, high), unseen.ends(0, least), unseen.ends(1, least), z.size, confidence)


_TRIED = np.log([0.5, 0.8, 1.0, 1.25, 2.0, 5.0])


class _Crowds:
    """The log-likelihood of crowds at (log probability, log bound, log noise), as multiples of what is accounted."""

    def __init__(
        self, size: int, ratio: tuple[float, float], x: Any, noise: Any, probability: Any, length: Any
    ) -> None:
        self.x, self.noise, self.size, self.length = x, noise, size, length
        self.p, self.which = np.unique(probability, return_inverse=True)
        self.counts = np.arange(size + 1)
        largest = math.log((1 - 1e-12) / float(self.p.max()))
        self.bounds = [(min(-12.0, largest - 1), largest), (-12.0, 12.0), tuple(map(math.log, ratio))]

    def likelihood(self, point: Any) -> float:
        """The log-likelihood at a point."""
        return self._likelihood(point)[0]

    def _likelihood(self, point: Any) -> tuple[float, Any]:
        """The log-likelihood and its gradient."""
        scale, bound, ratio = np.exp(point)
        p = np.minimum(self.p * scale, 1.0)[:, None]
        std, unit = (ratio * self.noise)[:, None], np.minimum(self.length, bound)[:, None]
        away = (self.x[:, None] - unit * self.counts) / std
        terms = binom.logpmf(self.counts, self.size, p)[self.which] - away**2 / 2
        most = terms.max(axis=1, keepdims=True)
        weights = np.exp(terms - most)
        total = weights.sum(axis=1, keepdims=True)
        weights /= total
        moved = (away * weights) @ self.counts * np.where(self.length < bound, 0.0, bound) / std[:, 0]
        likelier = (weights @ self.counts - (self.size * p)[self.which, 0]) / (1 - p)[self.which, 0]
        gradient = [likelier.sum(), moved.sum(), float((weights * away**2).sum()) - len(self.x)]
        return float((most + np.log(total) - np.log(std)).sum()), np.array(gradient)

    def likeliest(self, held: int | None = None, value: float = 0.0, start: Any = None) -> Any:
        """The point of largest likelihood, with one coordinate held at a value if it is named."""
        if start is None:
            start = max(([p, c, 0.0] for p in _TRIED for c in _TRIED), key=self.likelihood)
        bounds = list(self.bounds)
        if held is not None:
            bounds[held] = (value, value)
            start = [start[0] + start[1] - value if n == 1 - held else each for n, each in enumerate(start)]
            start[held] = value
        start = [min(max(each, a), b) for each, (a, b) in zip(start, bounds, strict=True)]

        def less(point: Any) -> tuple[float, Any]:
            found, gradient = self._likelihood(point)
            return -found, -gradient

        return minimize(less, start, jac=True, method="L-BFGS-B", bounds=bounds).x

    def ends(self, which: int, least: float) -> tuple[float, float]:
        """The ends of a coordinate where some point has at least this likelihood."""
        best, found = self.likeliest(), []

        def inside(value: float) -> bool:
            return self.likelihood(self.likeliest(which, value, best)) >= least

        for end in self.bounds[which]:
            near, step = float(best[which]), math.copysign(0.02, end - best[which])
            # Walk outwards first: the region is small beside the bounds.
            while abs(step) < abs(end - near) and inside(near + step):
                near, step = near + step, 2 * step
            far = near + step if abs(step) < abs(end - near) else end
            while abs(far - near) > 1e-3:
                middle = (near + far) / 2
                near, far = (middle, far) if inside(middle) else (near, middle)
            found.append(math.exp(far))
        return found[0], found[1]
