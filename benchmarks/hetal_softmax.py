"""HETAL's wide softmax as a program: maximum by a tournament, domain extension with its correction, exp, inverse.

Kim et al., "HETAL" (ICML 2023), appendix A.2, Algorithm 1, with two misprints put right (checked against its Table 3): the
correction adds k (x^3/r^2 - x^5/r^4), and the inverse of the row sum multiplies exp. It has no proved error: within the gap
of its comparisons the tournament returns values between the two candidates.

As in heliograph/approx/compositions/softmax.py a row of the softmax is a column of the program's values.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse

from heliograph.approx.compositions.sign import F3, G3
from heliograph.ir import Builder, Node, Program, SparseMatrix, Stage, shape_of
from heliograph.ir.writer import Writer

RANGE = 128.0  # its parameters are made for [-128, 128], whatever smaller range is asked for
BASE = 8.0  # exp is fitted on [-BASE, BASE]; normalised inputs of [-4, 4] need no extension
RATIO = 2.0
INVERSE_BOUND = 100.0
INVERSE_ROUNDS = 16
EXP_DEGREE = 12


def hetal_softmax(columns: int, limit: float, corrected: bool) -> Program:
    """The whole of Algorithm 1 for rows of `columns` entries in [-limit, limit], on (columns, 1).

    Constants ride on multiplications that are there anyway, where they can; values from the maximum on are in units of
    BASE, which exp's polynomial takes.
    """
    limit = max(limit, RANGE)
    writer = Writer(Builder("hetal", Stage.POLYNOMIAL))
    x = writer.op("pad_rows", writer.builder.input("x", shape=(columns, 1)), rows=1 << (columns - 1).bit_length())
    rounds = max(0, math.ceil(math.log2(2.0 * limit / BASE) - 1e-9))
    t = _extended(writer, _less_maximum(writer, x, columns, limit), rounds)
    if corrected and rounds:
        t = _corrected(writer, t, rounds)
    e = writer.poly(t, _least_squares_exp())
    for _ in range(int(math.log2(BASE))):
        e = writer.op("mul", e, e)
    e = _first_rows(writer, e, columns, 1.0)
    y = writer.op("mul", e, _goldschmidt(writer, writer.rows_summed(e)))
    return writer.builder.finish([writer.op("crop_rows", y, rows=columns)])


def _first_rows(writer: Writer, x: Node, count: int, factor: float) -> Node:
    """The first rows times a number, zeros in the others: for a level."""
    kept = np.zeros(shape_of(x))
    kept[:count] = factor
    matrix = writer.builder.constant(SparseMatrix.of(scipy.sparse.diags_array(kept.ravel()).tocsr()), "rows")
    return writer.op("affine", x, matrices=(matrix,), shape=shape_of(x))


def _less_maximum(writer: Writer, x: Node, columns: int, limit: float) -> Node:
    """(x less the row's approximate maximum) / BASE: log2(width) rounds of f(g(g(a - b))) on values / (2 limit)."""
    padding = np.zeros(shape_of(x))
    padding[columns:] = -0.5
    most = writer.op("add", writer.scaled(x, 1.0 / (2.0 * limit)), writer.constant(padding, "padding"))
    half = F3.scaled(0.5, 0.5)
    for j in range(shape_of(x)[0].bit_length() - 1):
        other = writer.op("roll_rows", most, amount=1 << j)
        difference = writer.op("sub", most, other)
        compared = difference
        for stage in (G3, G3, half):
            compared = writer.poly(compared, stage.coefficients)
        # a c + b (1 - c) = b + (a - b) c
        most = writer.op("add", other, writer.op("mul", difference, compared))
    # The mask that spreads the first column carries 2 limit; the one that clears the padding carries 1 / BASE.
    spread = writer.rows_summed(_first_rows(writer, most, 1, 2.0 * limit))
    return _first_rows(writer, writer.op("sub", x, spread), columns, 1.0 / BASE)


def _extended(writer: Writer, t: Node, rounds: int) -> Node:
    """Squeeze [-2^rounds, 2^rounds] into [-1, 1], near the identity around zero; t is in units of BASE."""
    for i in range(rounds - 1, -1, -1):
        # t - (4/27) t^3 / L^2i: the factor is applied to one operand, in parallel with the square.
        cubic = writer.scaled(t, 4.0 / (27.0 * RATIO ** (2 * i)))
        t = writer.op("sub", t, writer.op("mul", writer.op("mul", t, t), cubic))
    return t


def _corrected(writer: Writer, t: Node, rounds: int) -> Node:
    """t (1 + k (u - u^2)), u = t^2: undoes to fifth order what the extensions bend."""
    square = RATIO**2
    k = 4.0 / 27.0 * (square**rounds - 1.0) / (square ** (rounds - 1) * (square - 1.0))
    u = writer.op("mul", t, t)
    bent = writer.op("mul", u, writer.shifted(writer.negated(u), 1.0))
    return writer.op("add", t, writer.op("mul", bent, writer.scaled(t, k)))


def _least_squares_exp() -> tuple[float, ...]:
    """The least-squares polynomial of exp on [-1, 1], by Legendre moments."""
    nodes, weights = np.polynomial.legendre.leggauss(64)
    basis = np.polynomial.legendre.legvander(nodes, EXP_DEGREE)
    moments = (basis * weights[:, None]).T @ np.exp(nodes) * (np.arange(EXP_DEGREE + 1) + 0.5)
    monomials = np.polynomial.legendre.leg2poly(moments)
    return tuple(float(c) for c in np.polynomial.chebyshev.poly2cheb(monomials))


def _goldschmidt(writer: Writer, x: Node) -> Node:
    """1/x = (2/R) (1 + b)(1 + b^2)(1 + b^4)..., b = 1 - 2 x / R, for x in (0, R), R the bound.

    Cheon, Kim, Kim, Lee and Lee, "Numerical method for comparison on homomorphically encrypted numbers" (2019). The first
    factor carries the 2 / R.
    """
    bound = INVERSE_BOUND
    b = writer.shifted(writer.negated(writer.scaled(x, 2.0 / bound)), 1.0)
    a = writer.shifted(writer.negated(writer.scaled(x, (2.0 / bound) ** 2)), 4.0 / bound)
    for _ in range(INVERSE_ROUNDS):
        b = writer.op("mul", b, b)
        a = writer.op("mul", a, writer.shifted(b, 1.0))
    return a
