"""Polynomials for exp, by a polynomial on a scaled interval and squarings."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from heliograph.approx import proof
from heliograph.approx.minimax import Minimax, remez
from heliograph.approx.result import Stage

_PIECES = 32


@dataclass(frozen=True, slots=True)
class ExpStage:
    """p(t) for exp(reach t) on [-1, 1], |p(t) exp(-reach t) - 1| <= `relative_error` (proved)."""

    stage: Stage
    reach: float
    relative_error: float


@lru_cache(maxsize=256)
def relative_exp(reach: float, degree: int) -> ExpStage:
    """The polynomial of least relative error for exp(reach t) on [-1, 1].

    The relative error is what squaring and normalising keep: a common factor drops out of a softmax.
    """
    made = least_relative(reach, degree).coefficients
    return ExpStage(Stage(made), reach, _relative_error(made, reach))


@lru_cache(maxsize=256)
def least_relative(reach: float, degree: int) -> Minimax:
    """The polynomial without its proof; its level is about the relative error, where that is above 1e-13."""
    return remez(lambda t: np.exp(reach * t), [(-1.0, 1.0)], degree, weight=lambda t: np.asarray(np.exp(-reach * t)))


def exp_series(reach: float, degree: int) -> tuple[tuple[float, ...], float]:
    """(Chebyshev coefficients of exp(reach t) to that degree, a bound on the rest): modified Bessel functions.

    exp(x t) = I_0(x) + 2 sum I_k(x) T_k(t), and I_k(x) <= (x/2)^k / k! exp(x^2 / (4 (k + 1))).
    """
    from scipy.special import ive

    # ive is exp(-x) I_k(x): scaled, so that it never overflows; its relative error is a few units of 2^-53.
    scale = math.exp(reach)
    values = [scale * float(ive(k, reach)) * (2.0 if k else 1.0) for k in range(degree + 1)]
    tail = 0.0
    for k in range(degree + 1, degree + 200):
        log_term = k * math.log(reach / 2) - math.lgamma(k + 1) + reach * reach / (4 * (k + 1))
        tail += 2 * math.exp(log_term)
    rounding = 64 * 2.0**-53 * sum(values)
    return tuple(values), tail * 1.01 + rounding


def _relative_error(coefficients: tuple[float, ...], reach: float) -> float:
    """The largest |p(t) exp(-reach t) - 1| on [-1, 1], proved piece by piece against the series of exp."""
    degree = max(len(coefficients) - 1, math.ceil(1.5 * reach + 24))
    series, rest = exp_series(reach, degree)
    difference = [-c for c in series]
    for i, c in enumerate(coefficients):
        difference[i] += c
    slip = 2.0**-52 * sum(abs(c) for c in series)
    ends = np.linspace(-1.0, 1.0, _PIECES + 1)
    worst = 0.0
    for low, high in itertools.pairwise(ends):
        least, most = proof.image(difference, float(low), float(high), 5e-3)
        error = max(abs(least), abs(most)) + rest + slip
        worst = max(worst, error * math.exp(-reach * float(low)))
    return worst * (1 + 1e-12)
