"""The certified bracket against closed forms, enumeration and 50-digit quadrature, and against known figures."""

from __future__ import annotations

import importlib
import math
import sys
from itertools import product
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf

from heliograph.dp.accounting import Tolerance, delta_at, epsilon_at, methods
from heliograph.dp.composition import Composition
from heliograph.dp.custom import Densities, Table
from heliograph.dp.mechanisms import (
    DIRECTIONS,
    Approximate,
    DiscreteGaussian,
    DiscreteLaplace,
    Gaussian,
    Laplace,
    Mechanism,
    Pure,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
)
from heliograph.dp.pairs import normal_cells


def published(module: str) -> Any:
    """A module of the benchmarks with an accountant that papers are compared with."""
    folder = str(Path(__file__).resolve().parents[2] / "benchmarks")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(module)


def gaussian_delta(mu: mpf, e: mpf) -> mpf:
    return mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)


@pytest.mark.parametrize(("multiplier", "count"), [(1.0, 1), (5.0, 30), (80.0, 10_000), (0.3, 2), (50.0, 7)])
@pytest.mark.parametrize("at", [1e-2, 1e-5, 1e-15])
def test_k_gaussians_are_one_gaussian(multiplier: float, count: int, at: float) -> None:
    with mp.workdps(50):
        mu = mpmath.sqrt(count) / mpf(multiplier)
        bracket = epsilon_at(Gaussian(multiplier) * count, at)
        if bracket.upper == 0:
            assert gaussian_delta(mu, mpf(0)) <= at
            return
        assert bracket.width <= 1e-9
        assert gaussian_delta(mu, mpf(bracket.lower)) >= mpf(at)
        assert gaussian_delta(mu, mpf(bracket.upper)) <= mpf(at)
        by_fft = epsilon_at(Gaussian(multiplier) * count, at, method="pld")
        assert by_fft.lower <= bracket.estimate <= by_fft.upper
        assert by_fft.reached


def quadrature_delta(p: float, multiplier: float, e: float, direction: str) -> mpf:
    """delta of one sampled step, by integrating the positive part of A - e^e B with 50 digits."""
    s = mpf(multiplier)

    def still(x: mpf) -> mpf:
        return mpmath.npdf(x, 0, s)

    def mixed(x: mpf) -> mpf:
        return (1 - mpf(p)) * mpmath.npdf(x, 0, s) + mpf(p) * mpmath.npdf(x, 1, s)

    a, b = (mixed, still) if direction == "remove" else (still, mixed)

    # The sign changes once; bisect for it, so that the integrand is smooth on what is integrated.
    def sign(x: mpf) -> bool:
        return a(x) > mpmath.exp(e) * b(x)

    low, high = -40 * s, 40 * s + 1
    if sign(low) == sign(high):
        return mpf(0)
    rising = sign(high)
    for _ in range(180):
        middle = (low + high) / 2
        low, high = (low, middle) if sign(middle) == rising else (middle, high)
    edges = (
        [low, low + s, low + 3 * s, low + 8 * s, low + 20 * s]
        if rising
        else [low - 20 * s, low - 8 * s, low - 3 * s, low]
    )
    return mpmath.quad(lambda x: a(x) - mpmath.exp(e) * b(x), edges)


@pytest.mark.parametrize(("p", "multiplier"), [(0.01, 1.0), (0.2, 0.6), (1e-4, 2.0), (0.7, 4.0)])
@pytest.mark.parametrize("method", ["exact", "pld"])
def test_one_sampled_step_against_quadrature(p: float, multiplier: float, method: str) -> None:
    with mp.workdps(50):
        bracket = delta_at(SampledGaussian(p, multiplier), 0.004, method=method)
        for direction in DIRECTIONS:
            true = quadrature_delta(p, multiplier, 0.004, direction)
            each = bracket.directions[direction]
            assert mpf(each.lower) <= true <= mpf(each.upper)
            if true > 0:
                assert each.upper - each.lower <= 0.011 * float(true)


def losses_of(mechanism: Mechanism) -> list[tuple[mpf, mpf]]:
    """Loss and mass of each outcome, straight from the definition."""
    if isinstance(mechanism, RandomizedResponse):
        e, n = mpmath.exp(mechanism.epsilon), mechanism.categories
        total = e + n - 1
        a, b = [e, 1] + [1] * (n - 2), [1, e] + [1] * (n - 2)
        return [(mpmath.log(mpf(x) / y), mpf(x) / total) for x, y in zip(a, b, strict=True)]
    if isinstance(mechanism, DiscreteLaplace):
        e, shift = mpf(mechanism.epsilon), mechanism.sensitivity
        weight = [(mpmath.exp(-e * abs(x - shift)), mpmath.exp(-e * abs(x))) for x in range(-400, 400)]
        total = mpmath.fsum(mpmath.exp(-e * abs(x)) for x in range(-4000, 4001))
        return [(mpmath.log(a / b), a / total) for a, b in weight]
    assert isinstance(mechanism, DiscreteGaussian)
    s, shift = mpf(mechanism.sigma), mechanism.sensitivity
    reach = int(30 * s) + 10
    total = mpmath.fsum(mpmath.exp(-(mpf(x) ** 2) / (2 * s * s)) for x in range(-reach, reach + 1))
    found = []
    for x in range(-reach, reach + 1):
        a, b = -(mpf(x - shift) ** 2) / (2 * s * s), -(mpf(x) ** 2) / (2 * s * s)
        found.append((a - b, mpmath.exp(a) / total))
    return found


@pytest.mark.parametrize(
    "mechanism",
    [
        RandomizedResponse(0.7),
        RandomizedResponse(1.1, 5),
        DiscreteLaplace(0.4),
        DiscreteLaplace(0.3, 3),
        DiscreteGaussian(1.5),
        DiscreteGaussian(0.6, 2),
    ],
    ids=lambda m: m.text(),
)
@pytest.mark.parametrize("count", [1, 2])
def test_discrete_mechanisms_by_enumeration(mechanism: Mechanism, count: int) -> None:
    with mp.workdps(30):
        losses = losses_of(mechanism)
        merged: dict[float, mpf] = {}
        for loss, mass in losses:
            merged[round(float(loss), 9)] = merged.get(round(float(loss), 9), mpf(0)) + mass
        for e in (0.0, 0.31, 1.1):
            true = mpf(0)
            for combination in product(merged.items(), repeat=count):
                total = mpmath.fsum(loss for loss, _ in combination)
                if total > e:
                    true += mpmath.fprod(mass for _, mass in combination) * -mpmath.expm1(e - total)
            bracket = delta_at(mechanism * count, e, method="pld")
            assert bracket.lower <= float(true) * (1 + 1e-7) + 1e-15
            assert bracket.upper >= float(true) * (1 - 1e-7) - 1e-15
            assert bracket.width <= 0.011 * float(true) + 1e-12


def test_laplace_compositions_by_fine_enumeration() -> None:
    # Three Laplace mechanisms: the continuous part in fine bins, rounded down and up, composed by numpy alone.
    e, bins = 0.8, 4000
    x = np.linspace(0, 1, bins + 1)
    still = np.exp(-e * x) / 2
    shifted = np.exp(-e * (1 - x)) / 2
    mass = np.concatenate(([np.exp(-e) / 2], np.diff(shifted), [0.5]))
    low = np.concatenate(([-e], e * (2 * x[:-1] - 1), [e]))
    high = np.concatenate(([-e], e * (2 * x[1:] - 1), [e]))
    assert mass.sum() == pytest.approx(1.0, abs=1e-12)
    assert still[0] == 0.5
    step = 2 * e / bins
    for at in (0.2, 1.0, 2.0):
        ends = []
        for losses in (low, high):
            law = np.zeros(bins + 2)
            np.add.at(law, np.round((losses + e) / step).astype(int), mass)
            three = np.convolve(np.convolve(law, law), law)
            total = -3 * e + step * np.arange(three.size)
            ends.append(float((three * np.maximum(-np.expm1(at - total), 0)).sum()))
        bracket = delta_at(Laplace(e) * 3, at, tolerance=Tolerance(delta_share=1e-3))
        assert bracket.lower <= ends[1]
        assert bracket.upper >= ends[0]
        assert bracket.width <= 1.1e-3 * bracket.lower


FIGURES = [
    (SampledGaussian(0.01, 1.0) * 1000, 1e-5, 1.82824, 1.5e-4),
    (SampledGaussian(0.001, 0.8) * 10_000, 1e-5, 0.78239, 3e-4),
    (SampledGaussian(0.05, 1.0) * 100, 1e-5, 3.50215, 3e-4),
    (
        SampledGaussian(0.01, 1.0) * 1000 + SampledGaussian(0.004, 0.8) * 2000 + Laplace(0.1) * 5 + Gaussian(5) * 3,
        1e-5,
        2.95882,
        3e-4,
    ),
    (SampledGaussian(0.2, 4.0) * 10_000, 1e-5, 33.7601, 1e-4),
    (SampledGaussian(1e-4, 0.5) * 100_000, 1e-12, 7.2793, 4e-4),
    (SampledGaussian(0.2, 10.0) * 100_000, 1e-12, 64.02795, 6e-4),
    (SampledGaussian(0.2, 1.0) * 100_000, 1e-12, 3193.5135, 8e-3),
]


@pytest.mark.parametrize(("composition", "at", "known", "slack"), FIGURES, ids=lambda v: str(v)[:30])
@pytest.mark.parametrize("method", ["auto", "pld"])
def test_known_figures(composition: Composition, at: float, known: float, slack: float, method: str) -> None:
    bracket = epsilon_at(composition, at, method=method)
    assert bracket.lower - slack <= known <= bracket.upper + slack
    assert bracket.width <= max(1e-3, 1e-4 * known)
    assert bracket.reached


def test_renyi_figure() -> None:
    assert epsilon_at(SampledGaussian(0.01, 1.0) * 1000, 1e-5, method="rdp").upper == pytest.approx(2.10137, abs=1e-4)


@pytest.mark.parametrize(
    ("composition", "at"),
    [
        (SampledGaussian(0.01, 10.0) * 10**7, 1e-15),
        (SampledGaussian(1e-3, 2.0) * 10**6, 1e-15),
        (SampledGaussian(1e-7, 1.0) * 10**6, 1e-9),
        (SampledGaussian(0.5, 100.0) * 10**6, 1e-12),
        (Composition.of(SampledGaussian(0.3, 0.1)), 1e-10),
    ],
    ids=lambda v: str(v)[:40],
)
def test_extremes_reach_the_tolerance(composition: Composition, at: float) -> None:
    bracket = epsilon_at(composition, at, method="pld")
    assert bracket.reached
    assert 0 <= bracket.lower <= bracket.upper < math.inf


def test_the_hardest_case_is_wide_but_sound() -> None:
    # One large loss among ten million steps; reference by a Poisson law of jumps over a Gaussian bulk, to 2e-3.
    bracket = epsilon_at(SampledGaussian(1e-7, 0.5) * 10**7, 1e-10, method="pld")
    assert bracket.width < 0.02
    assert bracket.lower > 0.12
    assert not bracket.reached
    assert "tolerance was not reached" in bracket.reason


@pytest.mark.parametrize("composition", [SampledGaussian(0.02, 1.0) * 200, Laplace(0.3) * 4 + Gaussian(4.0)], ids=str)
def test_all_methods_agree(composition: Composition) -> None:
    best = epsilon_at(composition, 1e-5)
    prv, central = (
        published("published_accountants").PrivacyRandomVariables(),
        published("central_limit").CentralLimit(),
    )
    for method in ("auto", "pld", "rdp", prv):
        other = epsilon_at(composition, 1e-5, method=method)
        assert other.lower <= best.upper
        assert other.upper >= best.lower
    estimate = epsilon_at(composition, 1e-5, method=central)
    assert estimate.upper is None
    assert not estimate.proved
    assert "an estimate, not a bound" in repr(estimate)
    assert "none" not in str(estimate) + estimate._repr_html_()
    assert methods() == ("auto", "pld", "exact", "rdp")


@pytest.mark.parametrize(
    ("composition", "at", "known"), [figure[:3] for figure in FIGURES[:4]], ids=lambda v: str(v)[:30]
)
def test_the_accountant_of_the_paper_is_reproduced(composition: Composition, at: float, known: float) -> None:
    found = epsilon_at(composition, at, method=published("published_accountants").PrivacyRandomVariables())
    assert found.lower <= known <= found.upper
    assert found.width <= 0.05


def test_infinite_is_said_with_its_reason() -> None:
    bracket = epsilon_at(Approximate(0.1, 1e-6) * 20, 1e-5)
    assert bracket.lower == bracket.upper == math.inf
    assert "no finite epsilon" in bracket.reason
    assert bracket.to_json()["upper"] == "inf"
    # One delta less and it is finite.
    assert epsilon_at(Approximate(0.1, 1e-6) * 9, 1e-5).upper < 3


def test_pure_mechanisms_compose_as_the_binomial() -> None:
    for count in (1, 3, 40):
        exact = epsilon_at(Pure(0.2) * count, 1e-6, method="exact")
        fft = epsilon_at(Pure(0.2) * count, 1e-6, method="pld")
        assert fft.lower <= exact.upper
        assert exact.lower <= fft.upper
        assert fft.width < 1e-6


def test_sampled_laplace_single_step() -> None:
    for e in (0.01, 0.2):
        exact = delta_at(SampledLaplace(0.3, 1.2), e, method="exact")
        fft = delta_at(SampledLaplace(0.3, 1.2), e, method="pld")
        for direction in DIRECTIONS:
            assert fft.directions[direction].lower <= exact.directions[direction].upper
            assert fft.directions[direction].upper >= exact.directions[direction].lower


def test_a_table_is_its_mechanism() -> None:
    # Randomized response as a table; and a table with an outcome that gives the record away.
    t = math.exp(0.5) / (1 + math.exp(0.5))
    by_table = epsilon_at(Table((t, 1 - t), (1 - t, t)) * 30, 1e-5)
    by_name = epsilon_at(RandomizedResponse(0.5) * 30, 1e-5)
    assert by_table.lower <= by_name.upper
    assert by_name.lower <= by_table.upper
    assert by_table.width < 1e-3
    leaky = Table((0.5, 0.499, 0.001), (0.5, 0.5, 0.0))
    assert delta_at(leaky, 1.0).lower == pytest.approx(0.001, rel=1e-8)
    assert epsilon_at(leaky, 1e-4).directions["add"].upper < 1
    assert epsilon_at(leaky, 1e-4).upper == math.inf


def test_densities_are_their_mechanism() -> None:
    s = 1.3
    points = tuple(np.linspace(-12 * s, 1 + 12 * s, 400))
    pair = Densities(
        lambda x: -((x - 1) ** 2) / (2 * s * s) - math.log(s * math.sqrt(2 * math.pi)),
        lambda x: -(x**2) / (2 * s * s) - math.log(s * math.sqrt(2 * math.pi)),
        points,
        1e-30,
    )
    found, true = epsilon_at(pair * 5, 1e-5), epsilon_at(Gaussian(s) * 5, 1e-5)
    assert found.lower <= true.estimate <= found.upper
    assert found.width <= 1.1e-3
    for direction in DIRECTIONS:
        assert found.directions[direction].lower <= true.estimate <= found.directions[direction].upper


def test_replacing_a_record() -> None:
    from heliograph.errors import UnsupportedError

    assert epsilon_at(Gaussian(2.0), 1e-5, neighboring="replace").estimate == epsilon_at(Gaussian(1.0), 1e-5).estimate
    # Not sampled, that is the Gaussian mechanism; sampled, it is less private than with a record added or removed.
    assert (
        epsilon_at(SampledGaussian(1.0, 2.0), 1e-5, neighboring="replace").estimate
        == epsilon_at(Gaussian(1.0), 1e-5).estimate
    )
    sampled = epsilon_at(SampledGaussian(0.1, 1.0), 1e-5, neighboring="replace")
    assert epsilon_at(SampledGaussian(0.1, 1.0), 1e-5).upper < sampled.lower
    with pytest.raises(UnsupportedError, match="replace"):
        epsilon_at(SampledLaplace(0.1, 1.0), 1e-5, neighboring="replace")


def test_round_off_of_the_normal_tail_is_bounded() -> None:
    edges = np.concatenate((np.linspace(-37, -5, 60), np.linspace(-5, 12, 200)))
    mass, error = normal_cells(edges)
    with mp.workdps(90):
        for left, right, m, e in zip(edges[:-1], edges[1:], mass, error, strict=True):
            true = mpmath.ncdf(mpf(right)) - mpmath.ncdf(mpf(left))
            assert abs(true - mpf(float(m))) <= mpf(float(e))
