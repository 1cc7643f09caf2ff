"""Proofs are never left by dense high-precision sampling, and come near it."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest

from heliograph.approx.compositions.sign import F4, G4
from heliograph.approx.evaluate import PowerStep, plan_polynomial
from heliograph.approx.fits.fit import fit
from heliograph.approx.proofs import proof
from heliograph.approx.proofs.fit_proof import largest_error
from heliograph.functions import function, names


def exact_values(coefficients: tuple[float, ...], points: np.ndarray) -> list[mpmath.mpf]:
    """sum c_i T_i(t) to 50 digits."""
    with mpmath.workdps(50):
        made = []
        for t in points:
            x = mpmath.mpf(float(t))
            upper = lower = mpmath.mpf(0)
            for c in coefficients[:0:-1]:
                upper, lower = mpmath.mpf(c) + 2 * x * upper - lower, upper
            made.append(mpmath.mpf(coefficients[0]) + x * upper - lower)
        return made


def random_series(seed: int, degree: int) -> tuple[float, ...]:
    rng = np.random.default_rng(seed)
    return tuple(float(c) for c in rng.normal(size=degree + 1) / (1 + np.arange(degree + 1)))


@pytest.mark.parametrize(
    ("coefficients", "low", "high"),
    [
        (random_series(0, 5), -1.0, 1.0),
        (random_series(1, 31), -0.3, 0.9),
        (random_series(2, 47), 1e-6, 1.0),
        (G4.coefficients, 4e-5, 1.0),
        (F4.coefficients, 0.75, 1.0),
        (F4.coefficients, 0.999, 1.0),
        ((0.25, 1e-9), -1.0, 1.0),
    ],
)
def test_images(coefficients: tuple[float, ...], low: float, high: float) -> None:
    bottom, top = proof.image(coefficients, low, high)
    points = np.concatenate((np.linspace(low, high, 3001), np.geomspace(max(low, 1e-9), high, 1001)))
    values = exact_values(coefficients, points)
    least, most = min(values), max(values)
    assert bottom <= least
    assert most <= top
    slack = 2e-3 * float(most - least) + 1e-15
    assert float(least) - bottom <= slack
    assert top - float(most) <= slack


def test_images_agree_with_interval_arithmetic() -> None:
    """mpmath's own intervals, on a subdivision, enclose about the same."""
    low, high = 0.6, 0.7
    ends = np.linspace(low, high, 2001)
    monomials = [5850, -34974, 97015, -113492, 46623]
    values = []
    for a, b in itertools.pairwise(ends):
        x = mpmath.iv.mpf([float(a), float(b)])
        y = x * x
        total = mpmath.iv.mpf(0)
        for c in reversed(monomials):
            total = total * y + c
        values.append(total * x / 1024)
    bottom, top = proof.image(G4.coefficients, low, high)
    wide = float(min(v.a for v in values)), float(max(v.b for v in values))
    assert wide[0] <= bottom * (1 + 1e-3) <= wide[0] + 0.06
    assert wide[1] - 0.06 <= top * (1 - 1e-3) <= wide[1]


@pytest.mark.parametrize("degree", [1, 2, 5, 31, 126])
@pytest.mark.parametrize("seed", range(4))
def test_values_in_doubles_err_by_less_than_their_bound(degree: int, seed: int) -> None:
    coefficients = random_series(seed, degree)
    low, high = sorted(np.random.default_rng(seed).uniform(-1.0, 1.0, 2))
    least, most, slip = proof._rounded_values(np.array(coefficients), low, high, points=8)
    exact = [proof.fixed(c) for c in coefficients]
    a, b = proof.fixed(low), proof.fixed(high)
    points = [((a + b) >> 1) + (((b - a) * int(c)) >> (proof.BITS + 1)) for c in proof.cosines(8 * degree)]
    values = [proof.clenshaw(exact, t) / 2**proof.BITS for t in points]
    assert abs(min(values) - least) <= slip <= 1e-9
    assert abs(max(values) - most) <= slip


def test_doubles_are_left_where_they_are_too_coarse() -> None:
    """A minimum of exactly zero: near it only integers say on which side of zero the image ends."""
    bottom, top = proof.image(np.polynomial.chebyshev.chebinterpolate(np.square, 8), 0.0, 1.0)
    assert -1e-12 <= bottom <= 1e-15
    assert 1.0 <= top <= 1.002


def test_small_lower_ends_are_found() -> None:
    """The first stage of a sign: a minimum of a thousandth of the maximum is bounded within a share of itself."""
    bottom, _ = proof.image(G4.coefficients, 1e-9, 1.0)
    assert 0.999 * 5850 / 1024 * 1e-9 <= bottom <= 5850 / 1024 * 1e-9


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("degree", [3, 15, 40])
def test_errors_of_fits(name: str, degree: int) -> None:
    of = function(name)
    low, high = (0.2, 9.0) if name in ("log", "reciprocal", "sqrt", "rsqrt") else (-3.0, 6.5)
    made = fit(of.evaluate, low, high, degree, kinks=of.kinks)
    bound, proved = largest_error(made.coefficients, low, high, of)
    assert proved
    x = np.unique(np.concatenate((np.linspace(low, high, 200_001), [0.0])))
    x = x[(x >= low) & (x <= high)]
    error = np.abs(made(x) - of.evaluate(x))
    floor = 1e-13 * (1 + float(np.abs(of.evaluate(x)).max()))  # what float64 itself is off by
    assert float(error.max()) <= bound + floor
    assert bound <= 1.03 * float(error.max()) + floor
    # The largest errors again, to 50 digits.
    worst = x[np.argsort(error)[-3:]]
    t = (2 * worst - low - high) / (high - low)
    with mpmath.workdps(50):
        for at, value in zip(worst, exact_values(made.coefficients, t), strict=True):
            true = (
                of.proof.exact(mpmath, mpmath.mpf(at))
                if hasattr(of.proof, "exact")
                else mpmath.mpf(float(of.evaluate(at)))
            )
            assert abs(value - true) <= bound + 1e-15 * (1 + abs(true))


@pytest.mark.parametrize("degree", [1, 7, 9, 31, 63])
@pytest.mark.parametrize("scale_bits", [35, 50])
def test_rounding_bounds_hold(degree: int, scale_bits: int) -> None:
    """Every operation off by as much as is allowed, with random signs."""
    coefficients = random_series(degree, degree)
    bound = proof.rounding_error(coefficients, scale_bits)
    rng = np.random.default_rng(5)
    t = rng.uniform(-1, 1, 4000)
    worst = 0.0
    for _ in range(20):
        worst = max(
            worst, float(np.abs(noisy(coefficients, t, proof.unit(scale_bits), rng) - exact(coefficients, t)).max())
        )
    assert worst <= bound
    assert bound <= 1000 * worst


def exact(coefficients: tuple[float, ...], t: np.ndarray) -> np.ndarray:
    return np.asarray(np.polynomial.chebyshev.chebval(t, np.array(coefficients)))


def noisy(coefficients: tuple[float, ...], t: np.ndarray, unit: float, rng: np.random.Generator) -> np.ndarray:
    def off() -> np.ndarray:
        return unit * rng.choice([-1.0, 1.0], t.shape)

    power = {1: t}
    value: dict[int, np.ndarray] = {}
    result = t
    for step in plan_polynomial(coefficients).steps:
        if isinstance(step, PowerStep):
            other = 1.0 if step.left == step.right else t
            power[step.index] = 2 * power[step.left] * power[step.right] - other + off()
        else:
            result = step.constant + off()
            for source, g in step.products:
                result = result + value[source] * power[g]
            for i, weight in step.weights:
                result = result + weight * power[i]
            value[step.target] = result
    return result


def test_unit_is_six_deviations_of_a_rescale() -> None:
    ring = 2**17
    deviation = math.sqrt((1 + 2 * ring / 3) / 12 * ring / 2)
    assert 6 * deviation <= 2**proof.NOISE_BITS * 1.01
