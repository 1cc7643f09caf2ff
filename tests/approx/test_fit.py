"""Polynomials for functions: known optima, optimality conditions, measured errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special

from heliograph.approx.fits.fit import fit, smallest_degree
from heliograph.errors import ProgramError


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def extrema(error: np.ndarray) -> np.ndarray:
    """The largest error of each run of one sign."""
    runs = np.split(error, np.flatnonzero(np.diff(np.sign(error))) + 1)
    return np.array([run[np.argmax(np.abs(run))] for run in runs if np.abs(run).max() > 0])


@pytest.mark.parametrize("degree", [2, 6, 16, 30])
def test_best_errors_of_the_absolute_value(degree: int) -> None:
    """Degree 2: 1/8, by x^2 + 1/8. Degree times error rises to Bernstein's constant (Varga and Carpenter, 1985)."""
    error = fit(np.abs, -1.0, 1.0, degree).max_error
    if degree == 2:
        assert error == pytest.approx(0.125, rel=1e-4)
    assert degree * error < 0.2801694990
    assert degree * error > 0.2801694990 * (1 - 0.5 / degree)


def test_best_lines() -> None:
    """exp on [0, 1] by a line: slope e - 1, error (2 - e + (e - 1) log(e - 1)) / 2."""
    line = fit(np.exp, 0.0, 1.0, 1)
    slope = 2 * line.coefficients[1]
    assert slope == pytest.approx(math.e - 1, rel=1e-5)
    assert line.max_error == pytest.approx((2 - math.e + (math.e - 1) * math.log(math.e - 1)) / 2, rel=1e-5)


@pytest.mark.parametrize(
    ("function", "low", "high", "degree"),
    [(special.expit, -3.0, 5.0, 7), (np.tanh, -1.0, 4.0, 9), (relu, -2.0, 3.0, 12), (np.exp, -1.0, 1.0, 11)],
)
def test_minimax_errors_alternate(function: object, low: float, high: float, degree: int) -> None:
    """Chebyshev's condition: degree + 2 extrema of alternating sign, all of one size."""
    made = fit(function, low, high, degree)  # type: ignore[arg-type]
    x = (low + high) / 2 + (high - low) / 2 * np.cos(np.linspace(0, math.pi, 40001))
    heights = np.abs(extrema(made(x) - function(x)))  # type: ignore[operator]
    assert len(heights) >= degree + 2
    assert np.sort(heights)[-(degree + 2)] >= 0.97 * made.max_error


def test_minimax_is_never_worse_than_interpolation() -> None:
    """Where the error is far below the solver's tolerance too."""
    for degree in (7, 15, 23, 31):
        best = fit(special.expit, -4.0, 4.0, degree).max_error
        assert best <= fit(special.expit, -4.0, 4.0, degree, "interpolation").max_error * (1 + 1e-9)


def test_gaussian_fits_meet_the_normal_equations() -> None:
    low, high, degree, mean, std = -5.0, 6.0, 9, 0.3, 1.2
    made = fit(relu, low, high, degree, "gaussian", mean, std)
    x = np.linspace(low, high, 200_001)
    weight = np.exp(-0.5 * ((x - mean) / std) ** 2) + 0.001
    t = (2 * x - low - high) / (high - low)
    basis = np.polynomial.chebyshev.chebvander(t, degree)
    gram, moments = basis.T @ (weight[:, None] * basis), basis.T @ (weight * relu(x))
    best = basis @ np.linalg.solve(gram, moments)

    def loss(values: np.ndarray) -> float:
        return float(np.mean(weight * (values - relu(x)) ** 2))

    assert loss(best) <= loss(made(x)) <= 1.003 * loss(best)


def test_gaussian_fits_on_a_symmetric_interval_are_the_best_with_few_products() -> None:
    """The weight is not even: the even part is fitted for itself, not cut out of a fit of all degrees."""
    high, degree, mean, std = 7.0, 15, -0.6, 0.8
    made = fit(relu, -high, high, degree, "gaussian", mean, std)
    assert np.asarray(made.coefficients)[1::2].tolist() == [high / 2] + [0.0] * 7
    x = np.linspace(-high, high, 100_001)
    weight = np.exp(-0.5 * ((x - mean) / std) ** 2) + 0.001
    basis = np.polynomial.chebyshev.chebvander(x / high, degree)[:, ::2]
    gram, moments = basis.T @ (weight[:, None] * basis), basis.T @ (weight * np.abs(x) / 2)
    best = x / 2 + basis @ np.linalg.solve(gram, moments)
    loss, least = (float(np.mean(weight * (values - relu(x)) ** 2)) for values in (made(x), best))
    assert least <= loss * (1 + 1e-9) <= 1.003 * least


def test_a_spread_moves_the_error_from_the_middle_to_the_tails() -> None:
    x = np.linspace(-8, 8, 4001)
    narrow, wide = (fit(relu, -8.0, 8.0, 15, "gaussian", 0.0, 1.0, spread=spread) for spread in (1.0, 3.0))
    assert narrow.rms_error < 0.95 * wide.rms_error  # under the distribution itself
    tails = np.abs(x) > 3
    worst = {name: np.abs(made(x) - relu(x))[tails].max() for name, made in (("narrow", narrow), ("wide", wide))}
    assert worst["wide"] < 0.7 * worst["narrow"]
    assert fit(relu, -8.0, 8.0, 15, "gaussian", 0.0, 3.0).coefficients == wide.coefficients


def test_gaussian_fits_beat_minimax_under_their_density() -> None:
    x = np.random.default_rng(0).normal(0.0, 1.0, size=100_000)
    x = x[np.abs(x) < 8]
    error = {
        method: float(np.mean((fit(relu, -8.0, 8.0, 15, method, 0.0, 1.0)(x) - relu(x)) ** 2))
        for method in ("gaussian", "minimax")
    }
    assert error["gaussian"] < 0.7 * error["minimax"]


@pytest.mark.parametrize("method", ["minimax", "gaussian", "interpolation"])
@pytest.mark.parametrize("degree", [1, 2, 7, 30])
def test_errors_and_image_hold_on_other_points(method: str, degree: int) -> None:
    made = fit(relu, -2.0, 5.0, degree, method, 0.5, 1.0)
    x = np.random.default_rng(1).uniform(-2.0, 5.0, size=100_000)
    assert np.abs(made(x) - relu(x)).max() <= made.max_error * (1 + 1e-3)
    low, high = made.image()
    assert low <= made(x).min()
    assert made(x).max() <= high
    assert high - low <= 1.05 * (made(x).max() - made(x).min()) + 1e-9


@pytest.mark.parametrize(("function", "odd"), [(relu, False), (np.tanh, True), (special.expit, True), (np.abs, False)])
def test_symmetry_leaves_exact_zeros(function: object, odd: bool) -> None:
    made = fit(function, -3.0, 3.0, 15)  # type: ignore[arg-type]
    coefficients = np.array(made.coefficients)
    assert (coefficients[2::2] == 0).all() if odd else (coefficients[3::2] == 0).all()
    assert made.max_error < 0.075


@pytest.mark.parametrize("method", ["minimax", "gaussian", "interpolation"])
@pytest.mark.parametrize("target", [0.2, 0.05, 0.03])
def test_smallest_degree_is_smallest(method: str, target: float) -> None:
    made = smallest_degree(relu, -3.0, 2.0, target, method, 0.1, 0.7)
    assert made.max_error <= target
    for degree in range(1, made.degree):
        assert fit(relu, -3.0, 2.0, degree, method, 0.1, 0.7).max_error > target


def test_an_unreachable_target_is_refused() -> None:
    with pytest.raises(ProgramError, match="no polynomial of degree up to 15 reaches") as caught:
        smallest_degree(relu, -1.0, 1.0, 1e-6, "minimax", None, None, max_degree=15)
    assert "degree 15 has error 0.00997" in str(caught.value)


@pytest.mark.parametrize(
    ("low", "high", "degree", "method", "words"),
    [
        (1.0, 1.0, 3, "minimax", "low < high"),
        (0.0, math.inf, 3, "minimax", "low < high"),
        (0.0, 1.0, 0, "minimax", "degree 0"),
        (0.0, 1.0, 512, "minimax", "degree 512"),
        (0.0, 1.0, 3, "remez", "no method"),
        (0.0, 1.0, 3, "gaussian", "needs a mean"),
    ],
)
def test_fits_refuse(low: float, high: float, degree: int, method: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words):
        fit(relu, low, high, degree, method)


def test_a_function_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ProgramError, match="not finite"), np.errstate(divide="ignore"):
        fit(lambda x: 1 / (x - x), 0.0, 1.0, 3, "interpolation")


@pytest.mark.parametrize(("low", "high"), [(-1e-3, 1e3), (1e6, 1e6 + 1), (-1e-9, 1e-9), (-1e9, 1e9)])
def test_very_unequal_ranges(low: float, high: float) -> None:
    made = fit(relu, low, high, 7)
    assert made.max_error <= 0.05 * (high - low)
    assert np.isfinite(made.coefficients).all()
