"""The normal law of long compositions (P25): against enumeration, against the FFT, and where nothing else reaches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath import mp, mpf

from heliograph.dp.accounting import Tolerance, delta_at, epsilon_at
from heliograph.dp.accounting.discretize import Lattice
from heliograph.dp.accounting.exact import Exact
from heliograph.dp.accounting.normal import Normal, normal, tilt_for_delta, tilt_for_epsilon
from heliograph.dp.accounting.pld import Interval, _delta_by_normal_laws, _epsilon_by_normal_laws, epsilon_interval
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Gaussian, Laplace, RandomizedResponse, SampledGaussian, SampledLaplace


def two_points(each: float) -> Lattice:
    """The loss of a randomized response."""
    there = 1 / (1 + math.exp(-each))
    return Lattice(np.array([-1, 1]), np.array([1 - there, there]), each, 0.0, 0.0, 0.0)


def sum_of_two_points(each: float, count: int, epsilon: float) -> float:
    """Its delta, by enumeration: that of the masses as doubles."""
    masses = two_points(each).mass
    with mp.workdps(60):
        total = mpf(0)
        for lies in range(count + 1):
            loss = (count - 2 * lies) * mpf(each)
            if loss <= epsilon:
                break
            mass = mp.binomial(count, lies) * mpf(float(masses[1])) ** (count - lies) * mpf(float(masses[0])) ** lies
            total += mass * -mp.expm1(mpf(epsilon) - loss)
        return float(total)


@pytest.mark.parametrize("each", [0.003, 0.1, 2.0])
@pytest.mark.parametrize("count", [1, 7, 100, 700])
@pytest.mark.parametrize("theta", [1e-3, 0.1, 1.0, 30.0])
def test_delta_is_between_its_bounds_at_any_tilt(each: float, count: int, theta: float) -> None:
    law = normal([(two_points(each), count)], theta)
    deviation = each * math.sqrt(count)
    within = 0
    for epsilon in np.linspace(0, min(each * count, law.mean + 6 * deviation), 12):
        lower, upper = law.delta_at(float(epsilon))
        exact = sum_of_two_points(each, count, float(epsilon))
        assert lower <= exact * (1 + 1e-12)
        assert upper >= exact * (1 - 1e-12)
        within += lower > 0 and upper < 2 * lower
    # It says something where the tilt moves the mean by some deviations.
    if count == 700 and 1 < theta * deviation < 5:
        assert within > 0


def test_the_bound_is_not_larger_than_it_has_to_be() -> None:
    # No law has a smaller third moment for its variance than two points of equal mass.
    law = normal([(two_points(1e-9), 10_000)], 1e-6)
    assert law.error == pytest.approx(0.56 / 100, rel=1e-3)


def test_infinite_loss_is_counted() -> None:
    lattice = two_points(0.1)
    lost = Lattice(lattice.index, lattice.mass * (1 - 1e-7), lattice.step, 0.0, 1e-7, 0.0)
    law = normal([(lost, 1000)], 0.5)
    beyond = -math.expm1(1000 * math.log1p(-1e-7))
    assert law.infinite_below <= beyond <= law.infinite_above
    assert law.delta_at(1e6) == (pytest.approx(beyond), pytest.approx(beyond))


def test_gaussians_have_no_third_moment() -> None:
    law = normal([], 2.0, gaussian=9.0)
    assert law.error < 1e-13
    with mp.workdps(30):
        exact = Exact().delta(Gaussian(1 / 3) * 1, "remove", 20.0, Tolerance())
    lower, upper = law.delta_at(20.0)
    assert lower <= exact.upper
    assert upper >= exact.lower
    assert upper < lower * (1 + 1e-10)


@pytest.mark.parametrize("log_delta", [-1.2, -5.0, -40.0, -600.0])
def test_tilts_put_epsilon_in_the_middle(log_delta: float) -> None:
    terms = [(two_points(0.05), 5000)]
    theta = tilt_for_delta(terms, 1.0, log_delta)
    law = normal(terms, theta, 1.0)
    assert law.log_scale - theta * law.mean + law.log_share(law.mean) == pytest.approx(log_delta, rel=0.02)
    assert tilt_for_epsilon(terms, 1.0, law.mean) == pytest.approx(theta, rel=0.01)


COMPOSITIONS = [
    (SampledGaussian(0.01, 1.0) * 100_000, 1e-5),
    (SampledGaussian(0.01, 1.0) * 100_000, 1e-80),
    (SampledGaussian(0.3, 2.0) * 4000, 0.2),
    (Laplace(0.1) * 20_000, 1e-9),
    (SampledLaplace(0.2, 0.5) * 10_000, 1e-4),
    (RandomizedResponse(0.02) * 30_000, 1e-6),
    (SampledGaussian(0.02, 0.8) * 20_000 + Laplace(0.05) * 10_000 + Gaussian(3.0) * 50, 1e-8),
]


@pytest.mark.parametrize(("composition", "at"), COMPOSITIONS, ids=str)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_it_agrees_with_the_transform(composition: Composition, at: float, direction: str) -> None:
    pairs = [(mechanism.pair(direction), count) for mechanism, count in composition.merged()]
    nothing = Interval(0.0, math.inf)
    tolerance = Tolerance(absolute=0.02, relative=1e-3)
    found = _epsilon_by_normal_laws(pairs, nothing, at, tolerance)
    other = epsilon_interval(pairs, at, 1e-3, 1e-4)
    # Both are proved to hold epsilon.
    assert found.lower <= other.upper
    assert other.lower <= found.upper
    assert found.width < 0.2 + 0.03 * other.upper
    middle = (other.lower + other.upper) / 2
    delta = _delta_by_normal_laws(pairs, Interval(0.0, 1.0), middle, Tolerance(delta_share=0.1))
    assert delta.lower <= at * (1 + 0.05)
    assert delta.upper >= at * (1 - 0.05)
    assert delta.upper < 2 * at


@pytest.mark.parametrize(
    ("composition", "at"),
    [
        # No circle of 2^24 nodes holds these losses at a mesh that is fine enough.
        (SampledGaussian(0.0192, 3.64) * 826_314_032, 1.1e-4),
        (SampledGaussian(0.94, 0.277) * 74_571_774, 7e-107),
        (SampledGaussian(0.8, 0.0112) * 1_545_890, 1.5e-9),
        # A Gaussian that is wide and mechanisms that are not: no mesh suits both.
        (
            Gaussian(5.56) * 28_373_799 + SampledGaussian(0.16, 0.0518) * 32 + SampledGaussian(0.32, 18.6) * 865_795,
            7e-6,
        ),
        (Laplace(0.49) * 172_948_331 + SampledGaussian(1e-7, 0.04) * 534, 2e-44),
    ],
    ids=str,
)
def test_it_reaches_what_no_mesh_does(composition: Composition, at: float) -> None:
    found = epsilon_at(composition, at)
    assert found.reached
    moments = epsilon_at(composition, at, method="rdp")
    assert found.lower <= moments.upper
    if found.upper < 1e6:
        there = delta_at(composition, (found.lower + found.upper) / 2, tolerance=Tolerance(seconds=1.0))
        assert there.lower <= at * 1.5
        assert there.upper >= at / 1.5


def test_one_large_loss_is_no_normal_law() -> None:
    # A few rare large losses: the bound on the error says so, and the bracket stays wide.
    law = normal([(Lattice(np.array([0, 1]), np.array([1 - 1e-6, 1e-6]), 10.0, 0.0, 0.0, 0.0), 1000)], 1e-3)
    assert isinstance(law, Normal)
    assert law.error == 1.0
    assert law.delta_at(1.0)[0] == 0.0
