"""Softmax, exp, inverses, Hermite fits: published figures, proofs against sampling, refusals."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from heliograph.approx.compositions.exp import exp, least_relative, relative_exp
from heliograph.approx.compositions.inverse import inverse
from heliograph.approx.compositions.sampling import SampledError, sampled_error, softmax_values
from heliograph.approx.compositions.softmax import SoftmaxPlan, softmax
from heliograph.approx.compositions.written import Written
from heliograph.approx.fits import hermite
from heliograph.errors import ProgramError
from heliograph.functions import function
from heliograph.interpret import interpret_batch, run_nodes
from heliograph.ir import Node


def run(plan: Written, rows: np.ndarray) -> np.ndarray:
    """The values of the nodes that a plan is written as: of a softmax on rows, of the others on numbers."""
    return interpret_batch(plan.program, rows[..., np.newaxis])[0][..., 0]


def sampled(plan: SoftmaxPlan, samples: int, seed: int) -> SampledError:
    return sampled_error(lambda rows: run(plan, rows), plan.columns, plan.limit, samples, seed)


def extreme_rows(columns: int, limit: float) -> np.ndarray:
    rng = np.random.default_rng(1)
    flat = limit * np.array([[-1.0] * columns, [1.0] * columns, [0.0] * columns])
    corners = limit * rng.choice([-1.0, 1.0], (2000, columns))
    near = rng.uniform(-limit, limit, (2000, 1)) + rng.normal(size=(2000, columns)) * rng.uniform(0, 4, (2000, 1))
    return np.concatenate((flat, corners, np.clip(near, -limit, limit), rng.uniform(-limit, limit, (2000, columns))))


@pytest.mark.parametrize(("columns", "limit", "most"), [(10, 128.0, 32), (10, 32.0, 26), (3, 4.0, 15), (2, 0.5, 12)])
def test_best_softmax(columns: int, limit: float, most: int) -> None:
    plan = softmax(columns, limit)
    assert plan.depth <= most
    assert plan.error <= 1e-5
    rows = extreme_rows(columns, limit)
    error = np.abs(run(plan, rows) - softmax_values(rows)).max()
    exact = plan.error - plan.rounding
    assert error <= exact + 1e-13
    assert exact <= 60 * error + 1e-12


def test_proved_softmax_error_is_met() -> None:
    """With room to err, the part of the proof that is no rounding is met within a factor of four."""
    plan = softmax(10, 32.0, max_error=1e-2, scale_bits=80)
    error = np.abs(run(plan, extreme_rows(10, 32.0)) - softmax_values(extreme_rows(10, 32.0))).max()
    assert error <= plan.error <= 4 * error


def test_rounding_of_a_softmax_stays_in_its_proof() -> None:
    plan = softmax(5, 16.0, scale_bits=52)
    rows = extreme_rows(5, 16.0)
    rng = np.random.default_rng(3)
    unit = 2.0 ** (17 - 52)
    made = noisy(plan, rows, unit, rng)
    error = np.abs(made - softmax_values(rows)).max()
    assert np.abs(run(plan, rows) - softmax_values(rows)).max() < error <= plan.error


def noisy(plan: SoftmaxPlan, rows: np.ndarray, unit: float, rng: np.random.Generator) -> np.ndarray:
    """The plan with an error after every node that takes a level or sums up rows; that of the input is in its units."""
    program = plan.program
    sizes = {"pad_rows": unit * plan.limit, **dict.fromkeys(("poly", "mul", "repeat_row"), unit)}
    met = set()

    def spoil(node: Node, value: np.ndarray) -> None:
        if node.op in sizes:
            met.add(node.op)
            value += sizes[node.op] * rng.choice([-1.0, 1.0], value.shape)

    (made,) = run_nodes(program, {program.inputs[0]: rows[..., np.newaxis]}, spoil)
    assert met == set(sizes)
    return made[..., 0]


@pytest.mark.parametrize(("reach", "degree"), [(1.0, 7), (2.0, 7), (4.0, 15)])
def test_relative_error_of_exp(reach: float, degree: int) -> None:
    made = relative_exp(reach, degree)
    t = np.linspace(-1, 1, 20_001)
    error = np.abs(made.stage(t) * np.exp(-reach * t) - 1).max()
    assert error <= made.relative_error * (1 + 1e-3) + 1e-13
    # Pieces on which exp varies by reach / 16 cost that share.
    assert made.relative_error <= (1.03 + reach / 14) * error


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-20.0, 0.0), (-6.0, 3.0)])
@pytest.mark.parametrize("target", [1e-2, 1e-6])
def test_exp_by_squaring(low: float, high: float, target: float) -> None:
    plan = exp(low, high, target)
    assert plan.relative_error <= target
    x = np.linspace(low, high, 50_001)
    error = np.abs(run(plan, x) * np.exp(-x) - 1).max()
    assert error <= plan.relative_error + 1e-12
    assert plan.relative_error <= 1.25 * error + 1e-12
    # No deeper than the polynomial alone.
    alone = next(d for d in (3, 7, 15, 31, 63, 127) if d == 127 or least_relative((high - low) / 2, d).level <= target)
    assert plan.depth <= 1 + alone.bit_length()


@pytest.mark.parametrize("name", ["reciprocal", "rsqrt", "sqrt"])
@pytest.mark.parametrize(("low", "high"), [(0.1, 1.0), (1.0, 1.5), (0.5, 30.0)])
def test_inverses(name: str, low: float, high: float) -> None:
    plan = inverse(low, high, 1e-4, name)
    assert plan.relative_error <= 1e-4
    x = np.geomspace(low, high, 50_001)
    error = np.abs(run(plan, x) / function(name).evaluate(x) - 1).max()
    assert error <= plan.relative_error + 1e-12
    assert plan.relative_error <= 1.3 * error + 1e-12


@pytest.mark.parametrize("name", ["reciprocal", "rsqrt", "sqrt"])
@pytest.mark.parametrize(("low", "high", "most"), [(2e-4, 20.0, 18), (2e-5, 10.0, 19)])
def test_inverses_on_wide_intervals(name: str, low: float, high: float, most: int) -> None:
    """Where the best start is wrong by more than Newton's rounds bring back: by cubics for each round's interval."""
    plan = inverse(low, high, 2.0**-10, name)
    assert plan.relative_error <= 2.0**-10
    x = np.geomspace(low, high, 20_001)
    error = np.abs(run(plan, x) / function(name).evaluate(x) - 1).max()
    assert error <= plan.relative_error + 1e-12
    assert plan.relative_error <= 1.3 * error + 1e-9
    assert plan.depth <= most


def test_below_its_interval_an_inverse_gives_too_little() -> None:
    plan = inverse(0.01, 4.0, 2.0**-10, "rsqrt")
    x = np.geomspace(1e-6, 0.01, 1001)
    found = run(plan, x) * np.sqrt(x)
    assert (found > 0).all()
    assert (found < 1 + 2.0**-9).all()


def test_what_is_too_wide_is_refused() -> None:
    with pytest.raises(ProgramError, match="no start of degree up to 63") as caught:
        inverse(1e-12, 1e3, 1e-3, "rsqrt")
    assert "narrower range" in caught.value.hint


RELU = {2: 0.0112676, 3: 0.0112676, 7: 0.00264669, 15: 7.81018e-4, 31: 2.53663e-4, 63: 8.60707e-5}
CHECKED = [
    *(("relu", 0.0, 1.0, degree, error) for degree, error in RELU.items()),
    ("gelu", 0.0, 1.0, 3, 0.00611936),
    ("gelu", 0.0, 1.0, 7, 1.76949e-4),
    ("relu", 0.329, 1.948, 7, 0.00958566),
    ("relu", 0.329, 1.948, 31, 9.20238e-4),
    ("relu", 0.329, 1.948, 88, 1.94127e-4),
]


@pytest.mark.parametrize(("name", "mu", "sigma", "degree", "error"), CHECKED)
def test_gaussian_errors(name: str, mu: float, sigma: float, degree: int, error: float) -> None:
    of = function(name)
    made = hermite.least_squares(of.evaluate, mu, sigma, degree, of.kinks)
    assert made.mean_squared_error == pytest.approx(error, rel=5e-6)
    assert hermite.errors(of.evaluate, mu, sigma, degree, of.kinks)[-1] == pytest.approx(error, rel=5e-6)


def test_gaussian_error_against_quadrature_in_many_digits() -> None:
    made = hermite.least_squares(np.tanh, 0.5, 2.0, 5)
    with mpmath.workdps(30):

        def integrand(z: mpmath.mpf) -> mpmath.mpf:
            x = mpmath.mpf(0.5) + 2 * z
            value, h = mpmath.mpf(0), [mpmath.mpf(1), z]
            for l in range(1, 5):
                h.append((z * h[l] - mpmath.sqrt(l) * h[l - 1]) / mpmath.sqrt(l + 1))
            for c, basis in zip(made.hermite, h, strict=True):
                value += c * basis
            return (mpmath.tanh(x) - value) ** 2 * mpmath.npdf(z)

        true = mpmath.quad(integrand, [-20, -8, -4, -1, 0, 1, 4, 8, 20])
    assert made.mean_squared_error == pytest.approx(float(true), rel=1e-9)
    x = np.linspace(-6, 7, 1001)
    basis = hermite.hermite_values((x - 0.5) / 2.0, 5)
    np.testing.assert_allclose(made.stage(x), np.array(made.hermite) @ basis, rtol=1e-10, atol=1e-10)


def test_samples_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = softmax(4, 8.0)
    first = sampled(plan, 20_001, 7)
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    assert sampled(plan, 20_001, 7) == first
    assert first.rows == 20_001
    assert sampled(plan, 20_001, 8) != first


def test_refusals() -> None:
    with pytest.raises(ProgramError, match="nearest has"):
        softmax(10, 128.0, scale_bits=40)
    with pytest.raises(ProgramError, match="range"):
        softmax(10, 0.0)
    with pytest.raises(ProgramError, match="softmax of 1 column"):
        softmax(1, 1.0)
    with pytest.raises(ProgramError, match="above zero"):
        inverse(0.0, 1.0, 1e-3)
    with pytest.raises(ProgramError, match="no function"):
        function("frobnicate")
