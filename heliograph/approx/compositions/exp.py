"""Plans for exp: a polynomial on a scaled interval, then squarings."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from heliograph.approx.compositions.sign import DEFAULT_SCALE_BITS
from heliograph.approx.compositions.written import Written
from heliograph.approx.fits.minimax import Minimax, remez
from heliograph.approx.proofs import proof
from heliograph.approx.result import Stage
from heliograph.errors import ProgramError
from heliograph.ir.node import Node
from heliograph.ir.writer import Writer

_PIECES = 32
_DEGREES = (3, 5, 7, 11, 15, 23, 31, 63)
_MOST_SQUARINGS = 8
_MOST_REACH = 24.0
_MOST_EXPONENT = 16.0


@dataclass(frozen=True, slots=True)
class ExpStage:
    """A polynomial p(t) for exp(reach t) on [-1, 1], with |p(t) exp(-reach t) - 1| <= `relative_error` (proved)."""

    stage: Stage
    reach: float
    relative_error: float


@dataclass(frozen=True)
class ExpPlan(Written):
    """exp(x) by a polynomial for exp(x / 2^squarings) on its interval, and squarings.

    `relative_error`: the proved bound on |computed / exp(x) - 1| of the true polynomials.
    `rounding`: the bound on the absolute error that evaluation at 2^scale_bits adds.
    """

    polynomial: Stage
    squarings: int
    relative_error: float
    rounding: float
    scale_bits: int

    def write(self, writer: Writer, x: Node, entry: int | None = None) -> Node:
        y = writer.poly(x, self.polynomial.coefficients, self.polynomial.low, self.polynomial.high, entry)
        for _ in range(self.squarings):
            y = writer.op("mul", y, y)
        return y


@lru_cache(maxsize=256)
def relative_exp(reach: float, degree: int) -> ExpStage:
    """The polynomial of least relative error for exp(reach t) on [-1, 1].

    The relative error is what counts under squaring and normalising: a common factor drops out of a softmax.
    """
    made = least_relative(reach, degree).coefficients
    return ExpStage(Stage(made), reach, _relative_error(made, reach))


@lru_cache(maxsize=256)
def least_relative(reach: float, degree: int) -> Minimax:
    """The polynomial without its proof; its level is about the relative error, if that is above 1e-13."""
    return remez(lambda t: np.exp(reach * t), [(-1.0, 1.0)], degree, weight=lambda t: np.asarray(np.exp(-reach * t)))


def exp(low: float, high: float, target: float, *, scale_bits: int = DEFAULT_SCALE_BITS) -> ExpPlan:
    """The plan for exp on [low, high] with this proved relative error, by depth, then by multiplications."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ProgramError(f"exp needs an interval with low < high, not [{low:g}, {high:g}]")
    if high > _MOST_EXPONENT:
        raise ProgramError(
            f"exp reaches {math.exp(min(high, 700.0)):.3g} on [{low:g}, {high:g}]",
            why="a ciphertext cannot hold a value that large at this precision",
            hint=f"subtract a constant, so that the range ends at {_MOST_EXPONENT:g} or below",
        )
    if not 1e-11 <= target < 1:
        raise ProgramError(f"relative error {target:g} is not in [1e-11, 1)")
    half = (high - low) / 2
    found = []
    for squarings in range(_MOST_SQUARINGS + 1):
        reach = half / 2**squarings
        if reach > _MOST_REACH:
            continue
        for degree in _DEGREES:
            made = least_relative(reach, degree)
            if made.level * 2**squarings <= target * 0.98:
                stage = Stage(made.coefficients)
                found.append((stage.depth + squarings, stage.multiplications + squarings, squarings, degree))
    for _, _, squarings, degree in sorted(found):
        fitted = relative_exp(half / 2**squarings, degree)
        error = math.expm1(2**squarings * math.log1p(fitted.relative_error))
        if error <= target:
            return _exp_plan(low, high, fitted, squarings, error, scale_bits)
    raise ProgramError(
        f"no plan for exp on [{low:g}, {high:g}] has a relative error of {target:g}",
        hint="a narrower range, or a larger error",
    )


def _exp_plan(low: float, high: float, fitted: ExpStage, squarings: int, error: float, scale_bits: int) -> ExpPlan:
    # The factor exp(middle / 2^squarings) is folded into the coefficients.
    stage = fitted.stage.scaled(math.exp((high + low) / 2 / 2**squarings))
    unit = proof.unit(scale_bits)
    size = math.exp(high / 2**squarings) * (1.0 + fitted.relative_error)
    # The argument's own error moves exp by reach times its size, and the polynomial by only a little more.
    slip = proof.rounding_error(stage.coefficients, scale_bits) + 2.0 * unit * stage.degree**2 * size
    for _ in range(squarings):
        slip = 2.0 * size * slip + slip**2 + unit
        size = size**2
    return ExpPlan(Stage(stage.coefficients, low, high), squarings, error, slip * (1 + 1e-9), scale_bits)


def exp_series(reach: float, degree: int) -> tuple[tuple[float, ...], float]:
    """(Chebyshev coefficients of exp(reach t) up to that degree, a bound on the rest), by modified Bessel functions.

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
    # On each piece exp varies by at most a factor of exp(1/6), so the proved error is within that of the true one.
    ends = np.linspace(-1.0, 1.0, max(_PIECES, math.ceil(12 * reach)) + 1)
    worst = 0.0
    for low, high in itertools.pairwise(ends):
        least, most = proof.image(difference, float(low), float(high), 5e-3)
        error = max(abs(least), abs(most)) + rest + slip
        worst = max(worst, error * math.exp(-reach * float(low)))
    return worst * (1 + 1e-12)
