"""What is proved of every function of the table holds on fine grids, and is near the true error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from helpers import own_functions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heliograph import functions
from heliograph.approx import register_function
from heliograph.approx.fits.fit import Fit, fit
from heliograph.approx.proofs.fit_proof import largest_error
from heliograph.functions import Function

# Parameters that are tried beside none.
PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "leaky_relu": [{"negative_slope": 0.2}, {"negative_slope": -0.5}, {"negative_slope": 1.0}],
    "gelu": [{"approximate": "tanh"}],
    "softplus": [{"beta": 2.0, "threshold": 3.0}, {"beta": 0.5}, {"beta": 1.0, "threshold": 1.0}],
    "clamp": [{"min": -0.5, "max": 1.0}, {"min": 0.5}, {"max": 2.5}, {"min": 1.0, "max": -1.0}],
}
FUNCTIONS = [functions.function(name) for name in functions.names()] + [
    functions.function(name, **given) for name, cases in PARAMETERS.items() for given in cases
]


def true_error(made: Fit, of: Function) -> float:
    """The largest error on a fine grid, refined around its largest places."""
    angle = np.linspace(0.0, math.pi, 100_001)
    middle, half = (made.low + made.high) / 2, (made.high - made.low) / 2
    kinks = [k + d for k in of.kinks for d in (-1e-9, 0.0, 1e-9)]
    x = np.concatenate((np.linspace(made.low, made.high, 100_001), middle + half * np.cos(angle), kinks))
    x = np.clip(x, made.low, made.high)
    error = np.abs(made(x) - of.evaluate(x))
    near = x[np.argsort(error)[-5:]]
    x = np.clip((near[:, None] + half * np.linspace(-2e-5, 2e-5, 2001)).ravel(), made.low, made.high)
    return max(float(error.max()), float(np.abs(made(x) - of.evaluate(x)).max()))


def floor(made: Fit, of: Function) -> float:
    """What float64 itself may be off by in the test's own evaluation."""
    x = np.linspace(made.low, made.high, 101)
    return 1e-14 * (made.degree + 3) ** 2 * (1.0 + float(np.abs(of.evaluate(x)).max()))


@pytest.mark.parametrize("of", FUNCTIONS, ids=lambda of: of.name)
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_proved_errors_hold_and_are_near(of: Function, data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(("minimax", "gaussian", "interpolation")))
    degree = data.draw(st.sampled_from((1, 2, 5, 7, 15, 23, 31)))
    width = data.draw(st.floats(0.1, 30.0))
    low = data.draw(st.floats(0.01, 5.0)) if of.positive else data.draw(st.floats(-20.0, 10.0))
    if data.draw(st.booleans()) and not of.positive:
        low = -width / 2
    high = low + width
    made = fit(of.evaluate, low, high, degree, method, (low + high) / 2, width / 6, of.kinks)
    bound, proved = largest_error(made.coefficients, low, high, of)
    true, slip = true_error(made, of), floor(made, of)
    assert proved
    assert true <= bound + slip
    assert bound <= 1.05 * true + slip


def test_negative_reciprocals_and_roots_from_zero() -> None:
    below = functions.function("reciprocal")
    made = fit(below.evaluate, -6.0, -0.3, 12)
    bound, proved = largest_error(made.coefficients, -6.0, -0.3, below)
    assert proved
    assert true_error(made, below) <= bound <= 1.05 * true_error(made, below)
    root = functions.function("sqrt")
    made = fit(root.evaluate, 0.0, 4.0, 15)
    bound, proved = largest_error(made.coefficients, 0.0, 4.0, root)
    assert proved
    assert true_error(made, root) <= bound <= 1.05 * true_error(made, root)


def test_floats_and_fixed_point_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where float64 is not enough, the same bound comes out of exact arithmetic."""
    from heliograph.approx.proofs import fit_proof

    for of in FUNCTIONS:
        low, high = (0.5, 3.0) if of.positive else (-1.5, 3.0)
        made = fit(of.evaluate, low, high, 9, kinks=of.kinks)
        quick = largest_error(made.coefficients, low, high, of)[0]
        if of.proof is None or quick < 1e-9:
            continue
        with monkeypatch.context() as patch:
            patch.setattr(fit_proof, "_FUNCTION_UNIT", 1.0)
            exact = largest_error(made.coefficients, low, high, of)[0]
        assert quick == pytest.approx(exact, rel=0.01)


@pytest.fixture
def _own_functions() -> Iterator[None]:
    with own_functions.forgotten():
        yield


@pytest.mark.usefixtures("_own_functions")
@pytest.mark.parametrize(
    ("evaluate", "slope", "low", "high", "degree"),
    [
        (lambda x: np.abs(x - 1.0), 1.0, -3.0, 3.0, 15),
        (lambda x: np.abs(x - 1.0), 1.0, -3.0, 3.0, 127),
        (lambda x: np.clip(x, 0.0, 6.0), 1.0, -9.0, 9.5, 31),
        (lambda x: np.exp(-x * x), 0.8578, -4.0, 4.0, 12),
    ],
)
def test_a_slope_proves(evaluate: Callable[..., Any], slope: float, low: float, high: float, degree: int) -> None:
    """Kinks that nobody told: the grid of the fit misses the peak, the proof does not."""
    of = register_function("own", evaluate, slope=slope)
    made = fit(of.evaluate, low, high, degree)
    bound, proved = largest_error(made.coefficients, low, high, of)
    true = true_error(made, of)
    assert proved
    assert true <= bound <= 1.05 * true


@pytest.mark.usefixtures("_own_functions")
def test_a_slope_counts_where_it_was_given() -> None:
    of = register_function("square", lambda x: x * x, low=-1.0, high=1.0, slope=2.0)
    made = fit(of.evaluate, -1.0, 1.0, 1)
    assert largest_error(made.coefficients, -1.0, 1.0, of)[1]
    made = fit(of.evaluate, -4.0, 4.0, 1)
    assert not largest_error(made.coefficients, -4.0, 4.0, of)[1]
