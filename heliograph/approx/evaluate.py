"""Plans that evaluate a Chebyshev series on a ciphertext in the least depth with few products.

Paterson-Stockmeyer in the Chebyshev basis: p = q * T_g + r with g the largest power of two not above the degree, down
to combinations of a few low T_i. The depth is ceil(log2(degree + 1)), coefficients included: a leaf on the critical
path is split further where the plain product by its coefficients would cost a level. A square times a whole number
takes one level: the product with the number is not a product with a plaintext. The products of one value are summed
before the rescale and the relinearization, so a sum of products takes one key switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heliograph.ir.analysis.depth import depth_of_degree, trim, whole_square

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PowerStep:
    """T_index = 2 T_left T_right - T_(left - right), left >= right, left - right in {0, 1}."""

    index: int
    left: int
    right: int


@dataclass(frozen=True, slots=True)
class SumStep:
    """The value `target` = sum of value[source] * T_power over `products` + sum of weight * T_i + `constant`."""

    target: int
    products: tuple[tuple[int, int], ...]
    weights: tuple[tuple[int, float], ...]
    constant: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in order; the last one is the polynomial's value."""

    degree: int
    steps: tuple[PowerStep | SumStep, ...]
    depth: int

    @property
    def products(self) -> int:
        """Ciphertext-ciphertext products."""
        return sum(1 if isinstance(step, PowerStep) else len(step.products) for step in self.steps)

    @property
    def relinearizations(self) -> int:
        return sum(1 for step in self.steps if isinstance(step, PowerStep) or step.products)

    @property
    def scalar_products(self) -> int:
        return sum(
            len(step.weights) if isinstance(step, SumStep) else int(step.left != step.right) for step in self.steps
        )


def power_depth(index: int) -> int:
    """Levels between T_1 and T_index."""
    return (index - 1).bit_length()


def _divide(c: Vector, g: int) -> tuple[Vector, Vector]:
    """(q, r) with sum c_i T_i = q * T_g + r, degree of c below 2 g."""
    q = np.zeros(max(1, len(c) - g))
    r = c[:g].copy()
    q[0] = c[g] if len(c) > g else 0.0
    for i in range(g + 1, len(c)):
        # 2 T_g T_(i-g) = T_i + T_(2g-i)
        q[i - g] = 2.0 * c[i]
        r[2 * g - i] -= c[i]
    return q, r


class _Planner:
    def __init__(self, babies: int) -> None:
        self.babies = babies
        self.sums: list[SumStep] = []
        self.powers: set[int] = {1}

    def need(self, index: int) -> None:
        if index in self.powers:
            return
        left, right = (index + 1) // 2, index // 2
        self.need(left)
        self.need(right)
        self.powers.add(index)

    def value(self, c: Vector, budget: int) -> int:
        """Plan the value of a series, rescaled at depth `budget` at most, and return its number."""
        products: list[tuple[int, int]] = []
        weights: dict[int, float] = {}
        rest = np.array(trim(c))
        while True:
            degree = len(rest) - 1
            leaf = [i for i in range(1, degree + 1) if rest[i] != 0.0]
            if degree < self.babies and all(power_depth(i) + 1 <= budget for i in leaf):
                break
            if degree < 2:
                break
            g = 1 << (degree.bit_length() - 1)
            q, r = _divide(rest, g)
            q = np.array(trim(q))
            if len(q) == 1 and power_depth(g) + 1 <= budget:
                weights[g] = float(q[0])
            else:
                products.append((self.value(q, budget - 1), g))
            rest = np.array(trim(r))
        for i in range(1, len(rest)):
            if rest[i] != 0.0:
                weights[i] = weights.get(i, 0.0) + float(rest[i])
        for _, g in products:
            self.need(g)
        for i in weights:
            self.need(i)
        step = SumStep(len(self.sums), tuple(products), tuple(sorted(weights.items())), float(rest[0]))
        self.sums.append(step)
        return step.target


def _depth(steps: Sequence[PowerStep | SumStep]) -> int:
    """The depth of the last step, counted on the plan itself."""
    power = {1: 0}
    value: dict[int, int] = {}
    result = 0
    for step in steps:
        if isinstance(step, PowerStep):
            power[step.index] = 1 + max(power[step.left], power[step.right])
        else:
            operands = [max(value[source], power[g]) for source, g in step.products]
            operands += [power[i] for i, _ in step.weights]
            result = value[step.target] = (1 + max(operands)) if operands else 0
    return result


def plan_polynomial(coefficients: Sequence[float], product_cost: float = 1.0, scalar_cost: float = 0.05) -> Plan:
    """The cheapest plan of least depth; `product_cost` is one relinearized product, `scalar_cost` one plain product."""
    c = trim(coefficients)
    degree = len(c) - 1
    if degree == 0:
        return Plan(0, (SumStep(0, (), ((1, 0.0),), c[0]),), 1)
    if whole_square(c) is not None:
        return Plan(2, (PowerStep(2, 1, 1), SumStep(0, (), ((2, c[2]),), c[0])), 1)
    budget = depth_of_degree(degree)
    best: tuple[float, Plan] | None = None
    for log_babies in range(1, budget + 1):
        planner = _Planner(1 << log_babies)
        planner.value(np.asarray(c, dtype=np.float64), budget)
        powers = [PowerStep(i, (i + 1) // 2, i // 2) for i in sorted(planner.powers) if i > 1]
        # T_(2a-1) = 2 T_a T_(a-1) - T_1 only reads T_1, which is always there.
        plan = Plan(degree, (*powers, *planner.sums), 0)
        depth = _depth(plan.steps)
        if depth > budget:
            continue
        plan = Plan(degree, plan.steps, depth)
        # A key switch costs about six tenths of a relinearized product.
        cost = product_cost * (0.4 * plan.products + 0.6 * plan.relinearizations) + scalar_cost * plan.scalar_products
        if best is None or cost < best[0] - 1e-12:
            best = (cost, plan)
    assert best is not None, "splitting down to degree one always meets the depth"
    return best[1]
