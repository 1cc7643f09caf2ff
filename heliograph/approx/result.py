"""The results of the constructions: polynomials with their costs and proved errors.

Conventions. A `Stage` is a polynomial in the Chebyshev basis of its interval [low, high]: its value at x is sum c_i
T_i(t), t = (2 x - low - high) / (high - low). In a `Composite`, the interval of every stage holds the image of the one
before, so the map from x to t folds into the preceding coefficients and costs no level (`Composite.folded`). Depth is
the number of levels of the plan of `evaluate.plan_polynomial`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from heliograph.approx.evaluate import Plan, plan_polynomial
from heliograph.ir.analysis.depth import depth_of_degree

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Stage:
    """A polynomial by its Chebyshev coefficients on [low, high]."""

    coefficients: tuple[float, ...]
    low: float = -1.0
    high: float = 1.0

    @property
    def degree(self) -> int:
        return len(self.coefficients) - 1

    @property
    def depth(self) -> int:
        return depth_of_degree(self.degree)

    @cached_property
    def plan(self) -> Plan:
        return plan_polynomial(self.coefficients)

    @property
    def multiplications(self) -> int:
        """Non-scalar multiplications (ciphertext by ciphertext)."""
        return self.plan.products

    @property
    def plaintext_multiplications(self) -> int:
        return self.plan.scalar_products

    def argument(self, x: Vector) -> Vector:
        """t in [-1, 1] for x in [low, high]."""
        return np.asarray((2.0 * np.asarray(x) - (self.high + self.low)) / (self.high - self.low))

    def __call__(self, x: Vector) -> Vector:
        return np.asarray(np.polynomial.chebyshev.chebval(self.argument(x), np.array(self.coefficients)))

    def scaled(self, factor: float, shift: float = 0.0) -> Stage:
        """factor * p + shift."""
        values = [factor * c for c in self.coefficients]
        values[0] += shift
        return Stage(tuple(values), self.low, self.high)

    def as_json(self) -> dict[str, Any]:
        return {
            "degree": self.degree,
            "depth": self.depth,
            "basis": "chebyshev",
            "interval": [self.low, self.high],
            "coefficients": list(self.coefficients),
        }


@dataclass(frozen=True)
class Composite:
    """Stages applied in order.

    `domain`: a union of intervals.
    `error`: the proved bound on |computed - function| on `domain`: the polynomials' own error plus `rounding`.
    `rounding`: the bound on the error that evaluation at 2^scale_bits adds (`proof.rounding_error`).
    """

    stages: tuple[Stage, ...]
    domain: tuple[tuple[float, float], ...]
    error: float
    rounding: float
    scale_bits: int

    @property
    def degrees(self) -> tuple[int, ...]:
        return tuple(stage.degree for stage in self.stages)

    @property
    def depth(self) -> int:
        return sum(stage.depth for stage in self.stages)

    @property
    def multiplications(self) -> int:
        return sum(stage.multiplications for stage in self.stages)

    @property
    def plaintext_multiplications(self) -> int:
        return sum(stage.plaintext_multiplications for stage in self.stages)

    def __call__(self, x: Vector) -> Vector:
        for stage in self.stages:
            x = stage(x)
        return np.asarray(x)

    def folded(self) -> tuple[Stage, ...]:
        """The same stages with every interval [-1, 1], as they are evaluated: the map to the next interval is folded
        into the coefficients before it.

        The first stage's argument is t of its own interval.
        """
        made = []
        for stage, following in zip(self.stages, (*self.stages[1:], None), strict=True):
            if following is not None and (following.low, following.high) != (-1.0, 1.0):
                width = following.high - following.low
                stage = stage.scaled(2.0 / width, -(following.high + following.low) / width)
            made.append(Stage(stage.coefficients))
        return tuple(made)


@dataclass(frozen=True)
class SignPlan(Composite):
    """sign(x) for gap <= |x| <= 1; every value on [-1, 1] stays in [-1, 1], also inside the gap.

    `closeness_bits`: proved for the true polynomials: for gap <= |x| <= 1, sign(x) * p(x) is in [1 - 2^-closeness_bits,
    1]. `error` is 2^-closeness_bits + `rounding`.
    `dq`, `dp`: the numbers of widening and sharpening polynomials of family `iterated`.
    """

    gap: float
    closeness_bits: float
    family: str
    dq: int | None = None
    dp: int | None = None


@dataclass(frozen=True)
class ArgmaxPlan:
    """One-hot argmax of rows of `classes` values normalised to [0, 1], the largest at least `gap` above the second.

    Evaluation (Phoenix, Algorithm 2): the differences of all ordered pairs; `sign1` of each; their sum s for each
    class; x = `score_scale` * s + `score_shift`; `sign2` of x, near -1 for all classes but the largest; (1 + sign2) /
    2. All affine maps fold into coefficients (`folded1`, `offset2`, `folded2`); one level is counted for the scaling of
    the differences. Other classes may be arbitrarily close to each other. C = 2 needs no second sign: `sign2` is None,
    and the result is (1 + sign1) / 2.

    `psi1`, `psi2`: -log2 of the proved distance of the signs from 1.
    `phi2`: the smallest |x| for the second sign.
    `max_count`: the number of results that may be summed before the rounding of their sum can fail, for the true
    polynomials.
    `max_count_at_scale`: the same with the evaluation's rounding at 2^scale_bits.
    """

    classes: int
    gap: float
    count: int
    family: str
    sign1: SignPlan
    psi1: float
    phi2: float
    sign2: Composite | None
    psi2: float
    max_count: int
    max_count_at_scale: int
    score_scale: float
    score_shift: float

    @property
    def depth(self) -> int:
        return 1 + self.sign1.depth + (self.sign2.depth if self.sign2 else 0)

    @property
    def multiplications(self) -> int:
        """Products for one evaluation of each sign, which all pairs share."""
        return self.sign1.multiplications + (self.sign2.multiplications if self.sign2 else 0)

    @property
    def plaintext_multiplications(self) -> int:
        second = self.sign2.plaintext_multiplications if self.sign2 else 0
        return 1 + self.sign1.plaintext_multiplications + second

    def folded1(self) -> tuple[Stage, ...]:
        """The stages of the first sign, each from [-1, 1], with the output scaled so that a row's sum plus `offset2` is
        t.
        """
        stages = self.sign1.folded()
        if self.sign2 is None:
            return (*stages[:-1], stages[-1].scaled(0.5, 0.5))
        first = self.sign2.stages[0]
        return (*stages[:-1], stages[-1].scaled(2.0 * self.score_scale / (first.high - first.low)))

    @property
    def offset2(self) -> float:
        """The offset to the sum of `folded1` values that gives the argument t of the second sign's first stage."""
        if self.sign2 is None:
            return 0.0
        first = self.sign2.stages[0]
        return (2.0 * self.score_shift - first.high - first.low) / (first.high - first.low)

    def folded2(self) -> tuple[Stage, ...]:
        """The stages of the second sign, each from [-1, 1]; the last one gives (1 + sign2) / 2."""
        if self.sign2 is None:
            return ()
        stages = self.sign2.folded()
        return (*stages[:-1], stages[-1].scaled(0.5, 0.5))

    def __call__(self, rows: Vector) -> Vector:
        """One-hot rows of (count, classes) values in [0, 1]."""
        z = np.asarray(rows, dtype=np.float64)
        c = self.classes
        total = np.zeros_like(z)
        for offset in range(1, c):
            total += self.sign1(z - np.roll(z, -offset, axis=-1))
        if self.sign2 is None:
            return np.asarray((1.0 + total) / 2.0)
        return np.asarray((1.0 + self.sign2(self.score_scale * total + self.score_shift)) / 2.0)


def bits(closeness: float) -> float:
    """-log2 of a positive closeness, rounded down a little: still a proved number."""
    return math.inf if closeness <= 0 else -math.log2(closeness) - 1e-12
