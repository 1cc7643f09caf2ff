"""Trade-off curves between bounds, Gaussian fits, and conversions between accounts of privacy."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from helpers import commands
from scipy.special import ndtr, ndtri

from heliograph.dp.accounting import delta_at, epsilon_at
from heliograph.dp.accounting.conversions import (
    epsilon_of_renyi,
    epsilon_of_zcdp,
    profile,
    renyi_curve,
    zcdp,
    zcdp_for,
)
from heliograph.dp.accounting.curves import gaussian_fit, gaussian_rates, trade_off
from heliograph.dp.composition import Composition
from heliograph.dp.custom import Profile, Table
from heliograph.dp.language import parse
from heliograph.dp.mechanisms import Approximate, Gaussian, Mechanism, Pure, SampledGaussian
from heliograph.errors import ProgramError, UnsupportedError

RATES = [0.0, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.8, 0.99, 1.0]


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_the_curve_of_the_gaussian(mu: float) -> None:
    curve = trade_off(Gaussian(1 / mu), RATES, points=60)
    for rate, low, high in zip(curve.false_positive_rate, curve.lower, curve.upper, strict=True):
        true = float(ndtr(ndtri(1 - rate) - mu))
        assert low <= true + 1e-12
        assert true <= high + 1e-12
        assert high - low < 0.01


def best_tests(pairs: list[tuple[float, float]], rate: float) -> float:
    """The least false-negative rate of two tables, by the lemma of Neyman and Pearson; (A, B) of each outcome."""
    left, found = rate, 0.0
    for a, b in sorted(pairs, key=lambda each: -each[0] / max(each[1], 1e-300)):
        if b <= left:
            left -= b
            found += a
        else:
            found += a * left / b
            break
    return 1 - found


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_curve_of_tables_by_their_best_tests(count: int) -> None:
    upper, lower = (0.5, 0.3, 0.15, 0.05), (0.3, 0.3, 0.25, 0.15)
    pairs = [(1.0, 1.0)]
    for _ in range(count):
        pairs = [(x * a, y * b) for x, y in pairs for a, b in zip(upper, lower, strict=True)]
    turned = [(b, a) for a, b in pairs]
    curve = trade_off(Table(upper, lower) * count, RATES, points=80)
    for rate, low, high in zip(RATES, curve.lower, curve.upper, strict=True):
        true = min(best_tests(pairs, rate), best_tests(turned, rate))
        assert low <= true + 1e-9
        assert true <= high + 1e-9
        assert high - low < 0.03


def test_the_curve_of_a_sampled_run() -> None:
    composition = SampledGaussian(0.01, 1.0) * 1000
    curve = trade_off(composition, RATES, points=40)
    assert all(low <= high <= 1 - rate + 1e-12 for rate, low, high in zip(RATES, curve.lower, curve.upper, strict=True))
    assert max(high - low for low, high in zip(curve.lower, curve.upper, strict=True)) < 5e-3
    # (epsilon, delta) is a line that no test passes.
    found = epsilon_at(composition, 1e-5)
    assert curve.upper[2] >= 1 - 1e-5 - math.exp(found.upper) * 0.01 - 1e-9


def test_gaussian_fits_enclose_the_curve() -> None:
    rates = gaussian_rates(0.01).tolist()
    own = gaussian_fit(trade_off(Gaussian(1.0), rates, points=60))
    assert own.private[0] <= 1 <= own.private[1]
    assert own.leaky[0] <= 1 <= own.leaky[1]
    assert own.private[1] - own.leaky[0] < 0.05
    run = gaussian_fit(trade_off(SampledGaussian(0.01, 1.0) * 1000, rates, points=60))
    # The central limit gives p sqrt(T (e - 1)): neither side of the fit is it.
    central = 0.01 * math.sqrt(1000 * math.expm1(1.0))
    assert run.leaky[0] <= run.leaky[1] < run.private[0] <= run.private[1]
    assert run.leaky[0] < central
    assert run.private[1] > central
    with pytest.raises(ProgramError, match="rates must rise"):
        gaussian_fit(trade_off(Gaussian(1.0), [0.0, 1.0], points=10))


def test_the_command_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "curve.png"
    code, printed, err = commands.run(
        capsys, "dp", "tradeoff", "gaussian(noise_multiplier=1.0)", "--points", "24", "--png", str(path), "--json"
    )
    assert code == 0, err
    assert path.read_bytes()[:4] == b"\x89PNG"
    found = json.loads(printed)
    assert found["private_mu"][0] <= 1 <= found["private_mu"][1]
    assert "mu-GDP" in commands.run(capsys, "dp", "tradeoff", "gaussian(noise_multiplier=1.0)", "--points", "12")[1]


# Conversions.


def test_zcdp_of_mechanisms() -> None:
    assert zcdp(Gaussian(2.0) * 3) == pytest.approx((0.375, 0.375))
    assert zcdp(SampledGaussian(0.01, 1.0) * 10) == pytest.approx((5.0, 5.0))
    low, high = zcdp(Pure(0.5) * 2)
    assert 0.2 < low <= high == pytest.approx(0.25)
    with pytest.raises(UnsupportedError, match="no finite rho"):
        zcdp(Approximate(0.1, 1e-6))


@pytest.mark.parametrize("rho", [1e-3, 0.1, 5.0])
def test_epsilon_of_zcdp_and_back(rho: float) -> None:
    low, high = epsilon_of_zcdp(rho, 1e-6)
    # What Bun and Steinke give is looser; the Gaussian is one mechanism that has it.
    assert low <= high <= rho + 2 * math.sqrt(rho * math.log(1e6))
    assert low == pytest.approx(epsilon_at(Gaussian(math.sqrt(1 / (2 * rho))), 1e-6).lower)
    assert zcdp_for(high, 1e-6) == pytest.approx(rho, rel=1e-6)
    assert epsilon_of_zcdp(zcdp_for(high, 1e-6), 1e-6)[1] <= high


def test_renyi_curves() -> None:
    composition = SampledGaussian(0.01, 1.0) * 1000
    orders = [1 + k / 4 for k in range(1, 200)]
    curve = renyi_curve(composition, orders)
    assert curve == sorted(curve)
    found = epsilon_of_renyi(orders, curve, 1e-5)
    assert found == pytest.approx(epsilon_at(composition, 1e-5, method="rdp").upper, rel=1e-3)
    assert found >= epsilon_at(composition, 1e-5).lower
    with pytest.raises(ProgramError, match="orders"):
        renyi_curve(composition, [1.0])


def test_a_profile_of_one_point_is_approximate() -> None:
    for e in (0.0, 0.05, 0.1, 0.2):
        ours, known = delta_at(Profile((0.1,), (1e-6,)) * 3, e), delta_at(Approximate(0.1, 1e-6) * 3, e)
        assert ours.lower <= known.upper
        assert known.lower <= ours.upper


@pytest.mark.parametrize("mechanism", [Gaussian(1.0), SampledGaussian(0.1, 1.0)], ids=str)
def test_a_profile_dominates_what_it_was_taken_of(mechanism: Mechanism) -> None:
    points = profile(mechanism, [0.1, 1e-2, 1e-3, 1e-5, 1e-8, 1e-12])
    worst = Profile(tuple(e for e, _ in points), tuple(d for _, d in points))
    for e, d in points:
        found = delta_at(worst, e)
        assert found.lower <= d * (1 + 1e-9)
        assert found.upper >= delta_at(mechanism, e).lower
    for e in (0.0, 0.3, 1.0, 2.0, 4.0):
        assert delta_at(worst * 4, e).upper >= delta_at(mechanism * 4, e).lower
    finer = [10 ** (-k / 8) for k in range(1, 96)]
    more = profile(mechanism, finer)
    better = Profile(tuple(e for e, _ in more), tuple(d for _, d in more))
    assert epsilon_at(better * 4, 1e-5).upper < epsilon_at(worst * 4, 1e-5).lower
    assert epsilon_at(better * 4, 1e-5).upper >= epsilon_at(mechanism * 4, 1e-5).lower


def test_profiles_are_written_and_read() -> None:
    mechanism = Profile((0.1, 1.0), (1e-3, 1e-6))
    assert parse((mechanism * 3).text()) == Composition(((mechanism, 3),))
    with pytest.raises(ProgramError, match="same length"):
        Profile((0.1,), (1e-3, 1e-6))
    with pytest.raises(ProgramError, match="takes lists"):
        parse("profile(epsilons=1, deltas=[0.1])")
    assert np.isfinite(Profile((400.0,), (1e-6,)).pair("add").atoms.loss).all()
