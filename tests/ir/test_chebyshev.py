"""Series of many values: the compiled recurrence and numpy's give the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from heliograph.ir.ops import chebyshev
from heliograph.ir.ops.chebyshev import evaluate_chebyshev

SERIES = {
    "constant": [0.7],
    "line": [0.7, -1.3],
    "parabola": [0.7, 0.0, 2.5],
    "even": [0.3, 0.0, 1.0, 0.0, -0.2, 0.0, 0.05],
    "even and a line": [0.3, 0.5, 1.0, 0.0, -0.2, 0.0, 0.05],
    "odd": [0.0, 0.5, 0.0, 1.0, 0.0, -0.2],
    "odd and a constant": [0.3, 0.5, 0.0, 1.0, 0.0, -0.2],
    "full": [0.3, 0.5, -0.1, 1.0, 0.3, -0.2, 0.01, 0.003],
}


@pytest.mark.parametrize("name", SERIES)
def test_the_kernel_gives_the_bits_of_numpy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    coefficients = np.array(SERIES[name])
    values = np.random.default_rng(0).uniform(-3.1, 2.7, (3, 1001))
    # Far outside the interval, where everything overflows, and what is no number.
    values[0, :6] = 1e3, -1e300, np.inf, -np.inf, np.nan, 0.0
    with np.errstate(all="ignore"):
        expected = evaluate_chebyshev(values, coefficients, -3.0, 2.5)
        monkeypatch.setattr(chebyshev, "_EACH", 700)
        found = evaluate_chebyshev(values, coefficients, -3.0, 2.5)
    np.testing.assert_array_equal(found.view(np.int64), expected.view(np.int64))
    inside = np.abs(values + 0.25) <= 2.75
    exact = np.polynomial.chebyshev.chebval((2 * values[inside] - (-0.5)) / 5.5, coefficients)
    np.testing.assert_allclose(found[inside], exact, rtol=1e-12, atol=1e-12)


def test_complex_values_and_a_place_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    coefficients = np.array(SERIES["full"])
    values = np.random.default_rng(0).uniform(-1, 1, (2, 400))
    expected = np.polynomial.chebyshev.chebval(values, coefficients)
    monkeypatch.setattr(chebyshev, "_EACH", 100)
    np.testing.assert_allclose(evaluate_chebyshev(values + 0j, coefficients, -1.0, 1.0), expected, rtol=1e-12)
    monkeypatch.setattr(chebyshev, "_kernel", lambda: None)
    np.testing.assert_allclose(evaluate_chebyshev(values, coefficients, -1.0, 1.0), expected, rtol=1e-12)
