"""Evaluation plans: value, depth, and counts of products."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.approx.evaluate import Plan, PowerStep, plan_polynomial
from heliograph.approx.fits.fit import fit
from heliograph.ir.analysis.depth import depth_of_degree, trim

T = np.cos(np.linspace(0, math.pi, 201))


def evaluate_plan(plan: Plan, t: np.ndarray) -> np.ndarray:
    """The plan's value at t in [-1, 1], in floating point."""
    power = {1: t}
    value: dict[int, np.ndarray] = {}
    result = np.zeros_like(t)
    for step in plan.steps:
        if isinstance(step, PowerStep):
            other = 1.0 if step.left == step.right else t
            power[step.index] = 2.0 * power[step.left] * power[step.right] - other
        else:
            result = np.full_like(t, step.constant)
            for source, g in step.products:
                result = result + value[source] * power[g]
            for i, weight in step.weights:
                result = result + weight * power[i]
            value[step.target] = result
    return result


def check(coefficients: np.ndarray) -> None:
    plan = plan_polynomial([float(c) for c in coefficients])
    expected = np.polynomial.chebyshev.chebval(T, coefficients)
    scale = np.abs(coefficients).sum()
    assert np.abs(evaluate_plan(plan, T) - expected).max() <= 1e-12 * len(coefficients) ** 2 * scale
    degree = len(trim(coefficients)) - 1
    assert plan.degree == degree
    assert plan.depth == max(1, math.ceil(math.log2(degree + 1))) == depth_of_degree(degree)
    # Every operand is made before it is read.
    powers, values = {1}, set()
    for step in plan.steps:
        if isinstance(step, PowerStep):
            assert step.left + step.right == step.index
            assert step.left - step.right in (0, 1)
            assert {step.left, step.right} <= powers
            powers.add(step.index)
        else:
            assert {source for source, _ in step.products} <= values
            assert {g for _, g in step.products} | {i for i, _ in step.weights} <= powers
            values.add(step.target)


@pytest.mark.parametrize("degree", [*range(1, 70), 88, 100, 127, 128, 154, 210, 255])
def test_plans_are_the_polynomial(degree: int) -> None:
    check(np.random.default_rng(degree).normal(size=degree + 1))


@given(
    degree=st.integers(1, 100),
    zeros=st.floats(0, 1),
    seed=st.integers(0, 10**6),
    tiny=st.booleans(),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_plans_of_sparse_polynomials(degree: int, zeros: float, seed: int, tiny: bool) -> None:
    random = np.random.default_rng(seed)
    coefficients = random.normal(size=degree + 1) * (random.random(degree + 1) >= zeros)
    check(coefficients * (1e-200 if tiny else 1.0))


# (degree, products, relinearizations) of dense polynomials and of ReLU on a symmetric range, as found; no more is allowed.
DENSE = {3: (2, 2), 7: (5, 4), 15: (8, 7), 27: (11, 8), 31: (13, 10), 63: (18, 15), 127: (27, 20), 255: (36, 29)}
RELU = {7: 3, 15: 6, 31: 11, 63: 15}


@pytest.mark.parametrize("degree", DENSE)
def test_products_of_dense_polynomials(degree: int) -> None:
    plan = plan_polynomial([float(c) for c in np.random.default_rng(0).normal(size=degree + 1)])
    assert plan.products <= DENSE[degree][0]
    # Any plan in this model takes at least about sqrt(2 d) products (Paterson and Stockmeyer, 1973).
    assert plan.products >= math.sqrt(2 * degree) - 1
    if degree > 15:
        assert plan.products <= 1.2 * (math.sqrt(2 * degree) + math.log2(degree + 1))
    assert plan.relinearizations <= DENSE[degree][1]


@pytest.mark.parametrize("degree", RELU)
def test_zeros_save_products(degree: int) -> None:
    made = fit(lambda x: np.maximum(x, 0), -1.0, 1.0, degree)
    sparse = plan_polynomial(made.coefficients)
    dense = plan_polynomial([float(c) for c in np.random.default_rng(0).normal(size=degree + 1)])
    assert sparse.products <= RELU[degree]
    assert sparse.products <= dense.products


@pytest.mark.parametrize("coefficients", [[0.0], [3.0], [3.0, 0.0, 0.0], [0.0, 0.0], [1.0, 1e-30]])
def test_constants_take_one_level(coefficients: list[float]) -> None:
    plan = plan_polynomial(coefficients)
    assert plan.depth == 1
    assert plan.products == 0
    np.testing.assert_allclose(evaluate_plan(plan, T), coefficients[0], atol=1e-15)


def test_plans_of_high_degree_are_stable() -> None:
    """Rounding grows slowly: the Chebyshev basis is kept throughout."""
    made = fit(lambda x: np.maximum(x, 0), -1.0, 1.0, 255, "interpolation")
    value = evaluate_plan(plan_polynomial(made.coefficients), T)
    assert np.abs(value - made(T)).max() < 1e-12


def test_plans_are_deterministic() -> None:
    coefficients = [float(c) for c in np.random.default_rng(0).normal(size=40)]
    assert plan_polynomial(coefficients) == plan_polynomial(list(coefficients))
