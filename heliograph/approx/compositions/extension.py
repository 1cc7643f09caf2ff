"""HETAL's wide softmax in steps: maximum by a tournament, domain extension with its correction, exp, inverse.

Kim et al., "HETAL" (ICML 2023), appendix A.2, Algorithm 1, with two misprints put right (checked against its Table 3): the
correction adds k (x^3/r^2 - x^5/r^4), and the inverse of the row sum multiplies exp.
"""

from __future__ import annotations

import math

import numpy as np

from heliograph.approx.compositions.inverse import goldschmidt
from heliograph.approx.compositions.sign import F3, G3
from heliograph.approx.compositions.steps import Steps
from heliograph.approx.result import Stage

BASE = 8.0  # exp is fitted on [-BASE, BASE]; normalised inputs of [-4, 4] need no extension
RATIO = 2.0
INVERSE_BOUND = 100.0
INVERSE_ROUNDS = 16
EXP_DEGREE = 12


def extension_rounds(limit: float) -> int:
    """How often the domain is doubled: differences of entries reach 2 * limit."""
    return max(0, math.ceil(math.log2(2.0 * limit / BASE) - 1e-9))


def subtract_maximum(steps: Steps, x: int, limit: float, width: int, unit: float) -> int:
    """(x less the row's approximate maximum) / unit: log2(width) rounds of f(g(g(a - b))) on values / (2 limit)."""
    most = steps.add_padding(steps.scale(x, 1.0 / (2.0 * limit)), -0.5)
    half = F3.scaled(0.5, 0.5)
    for j in range(width.bit_length() - 1):
        other = steps.rotate(most, 1 << j)
        difference = steps.subtract(most, other)
        compared = steps.poly(steps.poly(steps.poly(difference, G3), G3), half)
        # a c + b (1 - c) = b + (a - b) c
        most = steps.add(other, steps.multiply(difference, compared))
    # The mask that spreads the first column carries 2 limit; the one that clears the padding carries 1 / unit.
    spread = steps.first_column(most, 2.0 * limit)
    return steps.mask(steps.subtract(x, spread), 1.0 / unit)


def extend(steps: Steps, t: int, rounds: int) -> int:
    """Squeeze [-2^rounds, 2^rounds] into [-1, 1], near the identity around zero; t is in units of BASE."""
    for i in range(rounds - 1, -1, -1):
        # t - (4/27) t^3 / L^2i: the factor is applied to one operand, in parallel with the square.
        cubic = steps.scale(t, 4.0 / (27.0 * RATIO ** (2 * i)))
        t = steps.subtract(t, steps.multiply(steps.multiply(t, t), cubic))
    return t


def correct(steps: Steps, t: int, rounds: int) -> int:
    """t (1 + k (u - u^2)), u = t^2: undoes to fifth order what the extensions bend."""
    square = RATIO**2
    k = 4.0 / 27.0 * (square**rounds - 1.0) / (square ** (rounds - 1) * (square - 1.0))
    u = steps.multiply(t, t)
    bent = steps.multiply(steps.multiply(u, steps.from_constant(1.0, u)), steps.scale(t, k))
    return steps.add(t, bent)


def least_squares_exp(degree: int) -> Stage:
    """The least-squares polynomial of exp on [-1, 1], by Legendre moments."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    basis = np.polynomial.legendre.legvander(nodes, degree)
    moments = (basis * weights[:, None]).T @ np.exp(nodes) * (np.arange(degree + 1) + 0.5)
    monomials = np.polynomial.legendre.leg2poly(moments)
    return Stage(tuple(float(c) for c in np.polynomial.chebyshev.poly2cheb(monomials)))


def hetal_steps(columns: int, limit: float, corrected: bool, width: int) -> Steps:
    """The whole of Algorithm 1 for rows with entries in [-limit, limit].

    Constants ride on multiplications that are there anyway, where they can; values from the maximum on are in units of
    BASE, which exp's polynomial takes.
    """
    steps = Steps()
    rounds = extension_rounds(limit)
    t = extend(steps, subtract_maximum(steps, 0, limit, width, BASE), rounds)
    if corrected and rounds:
        t = correct(steps, t, rounds)
    e = steps.poly(t, least_squares_exp(EXP_DEGREE))
    for _ in range(int(math.log2(BASE))):
        e = steps.multiply(e, e)
    e = steps.mask(e)
    inverse = goldschmidt(steps, steps.sum_row(e), INVERSE_BOUND, INVERSE_ROUNDS)
    steps.multiply(e, inverse)
    return steps
