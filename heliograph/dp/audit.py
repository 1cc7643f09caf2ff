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
from scipy.stats import beta, binom, chi2, norm

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
    tpr_low, tpr_high = clopper_pearson(true_positive, members.size, each)
    fpr_low, fpr_high = clopper_pearson(false_positive, others.size, each)
    best = 0.0
    for gain, loss in ((tpr_low, fpr_high), (1 - fpr_high, 1 - tpr_low)):
        if gain > delta and loss > 0:
            best = max(best, math.log((gain - delta) / loss))
    del tpr_high, fpr_low
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
    seen_members, seen_others = members[:first_members], others[:first_others]
    candidates = np.unique(np.concatenate((seen_members, seen_others)))
    best, threshold = -1.0, float(candidates[0])
    for candidate in candidates:
        found = many_runs(
            seen_members.tolist(),
            seen_others.tolist(),
            threshold=float(candidate),
            delta=delta,
            confidence=confidence,
        )
        if found.epsilon_lower > best:
            best, threshold = found.epsilon_lower, float(candidate)
    return many_runs(
        members[first_members:].tolist(),
        others[first_others:].tolist(),
        threshold=threshold,
        delta=delta,
        confidence=confidence,
    )


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

    `probability` and `clipping` are None where they were not measured; an upper end of infinity means that there were too
    few values to bound it.
    """

    noise: tuple[float, float]
    probability: tuple[float, float] | None
    clipping: tuple[float, float] | None
    samples: int
    confidence: float

    @property
    def refuted(self) -> bool:
        """Whether there is less noise, a larger probability or a larger bound than accounted."""
        above = any(each is not None and each[0] > 1 for each in (self.probability, self.clipping))
        return above or self.noise[1] < 1


def measure(
    absent: Any, present: Any = (), noise: Any = 1.0, probability: Any = 1.0, *, confidence: float = 0.95
) -> Measured:
    """What a trainer does, from released sums at canaries whose gradients are one entry each, beyond any clipping bound.

    `absent` are values of sums at entries of canaries outside the data, without the true records' part, divided by
    the accounted standard deviation of the noise. `present` are those of canaries in the data, divided by the accounted
    clipping bound; `noise` is the accounted noise multiplier, and `probability` the accounted inclusion probability, of
    all of them or of each. The values must be independent. Bounds on the noise are those of the chi-square
    distribution, exact for Gaussian noise; the others take means of the values and of their squares as normal, and are
    left out where fewer than 200 inclusions are expected.
    """
    _check(0.0, confidence)
    z, x = np.asarray(absent, dtype=np.float64).ravel(), np.asarray(present, dtype=np.float64).ravel()
    if z.size < 1 or not (np.isfinite(z).all() and np.isfinite(x).all()):
        raise ProgramError("a measurement needs finite values at absent canaries", where="measure")
    # Six ends share the confidence.
    level = (1 - confidence) / 6
    total = float(z @ z)
    low, high = (math.sqrt(total / float(chi2.ppf(q, z.size))) for q in (1 - level, level))
    squares = np.broadcast_to(np.asarray(noise, dtype=np.float64), x.shape) ** 2
    expected = float(np.broadcast_to(np.asarray(probability, dtype=np.float64), x.shape).sum())
    if expected < 200:
        return Measured((low, high), None, None, z.size, confidence)
    width = float(norm.isf(level)) * math.sqrt(x.size) / expected
    # Means are probability times bound, and probability times the bound's square besides the noise.
    first, second = x.sum() / expected, ((x * x).sum() - np.array([high, low]) ** 2 * squares.sum()) / expected
    a1, b1 = float(first - width * x.std()), float(first + width * x.std())
    a2, b2 = float(second[0] - width * (x * x).std()), float(second[1] + width * (x * x).std())
    a1, a2, b1, b2 = max(a1, 0.0), max(a2, 0.0), max(b1, 1e-300), max(b2, 1e-300)
    clipping = (a2 / b1, b2 / a1 if a1 > 0 else math.inf)
    share = (a1 * a1 / b2, b1 * b1 / a2 if a2 > 0 else math.inf)
    return Measured((low, high), share, clipping, z.size, confidence)
