"""Trigonometric polynomials beside polynomials of twice the degree: as good, proved, and the same as polynomials."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heliograph import functions
from heliograph.approx.fits.fit import Fit, fit
from heliograph.approx.fits.trigonometric import SeriesFit, as_polynomial, fit_series
from heliograph.ckks.trigonometric import DEGREES, evaluate, levels_deeper, series_levels

STD = 0.25


def beside(name: str, degree: int, reach: float = 1.0, method: str = "gaussian") -> tuple[Fit, SeriesFit | None]:
    of = functions.function(name)
    moments = (0.0, STD * reach) if method == "gaussian" else (None, None)
    made = fit(of.evaluate, -reach, reach, degree, method, *moments, of.kinks)
    return made, fit_series(of, made, *moments)


@pytest.mark.parametrize(("name", "degree", "found"), [
    ("relu", 7, 3), ("relu", 15, 7), ("relu", 31, 15), ("leaky_relu", 31, 15), ("abs", 31, 15), ("gelu", 15, 7),
])  # fmt: skip
def test_half_of_the_degree_is_as_good(name: str, degree: int, found: int) -> None:
    reach = 8.0 if name == "gelu" else 1.0
    of = functions.function(name)
    polynomial, series = beside(name, degree, reach)
    assert series is not None
    assert series.degree == found
    t = np.linspace(-1, 1, 50_001)
    error = evaluate(series.coefficients, series.half_period, t) - of.evaluate(reach * t)
    weight = np.exp(-0.5 * (t / STD) ** 2)
    rms = math.sqrt(float((weight * error**2).sum() / weight.sum()))
    assert rms == pytest.approx(series.rms_error, rel=0.02)
    assert rms <= 1.001 * polynomial.rms_error
    assert series.proved
    assert (
        0.999 * np.abs(error).max() <= series.max_error <= min(1.03 * np.abs(error).max(), 1.03 * polynomial.max_error)
    )
    # What is small is amplified little.
    assert np.abs(series.coefficients).max() < 4 * reach


def test_where_none_is_as_good_there_is_none() -> None:
    # A smooth function is fitted far better by a polynomial.
    assert beside("tanh", 15)[1] is None
    # Degree 2 takes two levels, and so does the smallest series.
    assert beside("relu", 2)[1] is None


def test_a_degree_that_is_asked_for_is_made() -> None:
    of, (polynomial, _) = functions.function("tanh"), beside("tanh", 15)
    made = fit_series(of, polynomial, 0.0, STD, degree=7)
    assert made is not None
    assert made.degree == 7
    assert made.max_error > polynomial.max_error


def test_a_function_that_is_fitted_evenly_has_one_too() -> None:
    polynomial, series = beside("relu", 31, method="minimax")
    assert series is not None
    assert series.max_error <= 1.03 * polynomial.max_error


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("half_period", [1.1, 2.0, 4.0])
def test_it_is_a_polynomial_up_to_rounding(degree: int, half_period: float) -> None:
    coefficients = np.random.default_rng(degree).normal(size=(2, degree + 1))
    t = np.linspace(-1, 1, 2001)
    k = np.arange(degree + 1) * math.pi / half_period
    exact = np.cos(np.outer(t, k)) @ coefficients[0] + np.sin(np.outer(t, k)) @ coefficients[1]
    size = np.abs(coefficients).sum()
    np.testing.assert_allclose(evaluate(coefficients, half_period, t), exact, atol=1e-14 * size)
    made = np.polynomial.chebyshev.chebval(t, as_polynomial(coefficients, half_period))
    np.testing.assert_allclose(made, exact, atol=1e-13 * size)


def test_levels() -> None:
    assert [series_levels(degree) for degree in DEGREES] == [2, 3, 4, 5]
    assert [levels_deeper(degree) for degree in (0, *DEGREES)] == [0, 1, 2, 3, 4]
