"""The test of votes, its target and the bounds of rates, against scipy's distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import heliograph as hg
from heliograph.certified.statistics import most_seen, p_value, target_count
from heliograph.compiler.reporting.held_out import rate_bound
from heliograph.errors import ProgramError


@pytest.mark.parametrize(("copies", "tau"), [(1, 0.6), (12, 0.7), (128, 0.76), (1024, 0.719), (4096, 0.99)])
def test_p_values_are_those_of_the_binomial_distribution(copies: int, tau: float) -> None:
    counts = np.unique(np.linspace(0, copies, 200).astype(int))
    expected = stats.binom.sf(counts - 1, copies, tau)
    found = [p_value(int(count), copies, tau) for count in counts]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-300)
    assert p_value(copies + 1, copies, tau) == 0.0


@pytest.mark.parametrize(
    ("copies", "tau", "alpha"), [(12, 0.7, 0.05), (128, 0.76, 0.001), (1024, 0.719, 0.001), (4096, 0.76, 1e-6)]
)
def test_the_target_is_the_smallest_count_that_is_allowed(copies: int, tau: float, alpha: float) -> None:
    target = target_count(copies, tau, alpha)
    assert stats.binom.sf(target - 1, copies, tau) <= alpha < stats.binom.sf(target - 2, copies, tau)


def test_phoenix_settings_have_its_target_and_radius() -> None:
    certificate = hg.Certificate("l2", sigma=0.5, tau=0.76, n=128, n0=32, alpha=0.001)
    assert certificate.target == 112
    assert certificate.radius == pytest.approx(0.34, abs=0.005)
    assert hg.Certificate("l1", eta=2.0, tau=0.635).radius == pytest.approx(0.5)


def test_too_few_copies_are_refused_with_the_number_that_would_do() -> None:
    with pytest.raises(ProgramError, match="n of at least 26") as caught:
        target_count(20, 0.76, 0.001)
    assert "20 copies cannot show" in caught.value.what
    assert target_count(26, 0.76, 0.001) == 26


@pytest.mark.parametrize(("seen", "samples"), [(0, 1000), (3, 1000), (999, 1000), (1, 2)])
def test_rates_are_bounded_as_clopper_and_pearson_do(seen: int, samples: int) -> None:
    bound = rate_bound(seen, samples, 0.95)
    assert bound == pytest.approx(stats.beta.ppf(0.95, seen + 1, samples - seen))
    assert stats.binom.cdf(seen, samples, bound) == pytest.approx(0.05, rel=1e-6)
    assert rate_bound(samples, samples, 0.95) == 1.0


@pytest.mark.parametrize(("samples", "rate", "escape"), [(2000, 0.01, 1e-3), (100, 0.2, 1e-2), (50, 0.001, 1e-3)])
def test_most_seen_lets_through_no_more_than_it_says(samples: int, rate: float, escape: float) -> None:
    most = most_seen(samples, rate, escape)
    assert most == -1 or stats.binom.cdf(most, samples, rate) <= escape
    assert stats.binom.cdf(most + 1, samples, rate) > escape


def test_the_threshold_of_fairness_follows_from_the_lipschitz_constant() -> None:
    certificate = hg.Certificate("fair", theta=[2.0, 1.0], lipschitz=4.0, n=1024, n0=32)
    assert certificate.threshold == pytest.approx(stats.norm.cdf(0.5) + 0.01)
    assert certificate.radius == pytest.approx(0.5)
    assert certificate.scale == pytest.approx(1.0)
    # A lower tau takes wider noise for the same constraint, as Phoenix's kappa does.
    wider = hg.Certificate("fair", theta=[2.0, 1.0], lipschitz=1.0, tau=0.719, n=1024, n0=1024)
    assert wider.scale == pytest.approx(1.0 / stats.norm.ppf(0.709))
    assert wider.radius == pytest.approx(1.0)
    np.testing.assert_allclose(wider.deviations((2,)), wider.scale * np.array([2.0, 1.0]))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"kind": "l3", "sigma": 0.5, "tau": 0.7}, "kind 'l3'"),
        ({"kind": "l2", "tau": 0.7}, "needs sigma"),
        ({"kind": "l2", "sigma": 0.5, "eta": 1.0, "tau": 0.7}, "does not take eta"),
        ({"kind": "l2", "sigma": -1.0, "tau": 0.7}, "sigma -1.0"),
        ({"kind": "l2", "sigma": math.nan, "tau": 0.7}, "sigma nan"),
        ({"kind": "l2", "sigma": 0.5}, "tau"),
        ({"kind": "l2", "sigma": 0.5, "tau": 0.505}, "tau 0.505"),
        ({"kind": "l2", "sigma": 0.5, "tau": 0.7, "n0": 33}, "n0 33"),
        ({"kind": "l2", "sigma": 0.5, "tau": 0.7, "n": 0}, "n 0"),
        ({"kind": "l2", "sigma": 0.5, "tau": 0.7, "n": True}, "n True"),
        ({"kind": "l2", "sigma": 0.5, "tau": 0.7, "alpha": 0.0}, "alpha 0.0"),
        ({"kind": "l2", "sigma": 0.5, "tau": 0.7, "zeta": 0.6}, "zeta 0.6"),
        ({"kind": "fair", "theta": [1.0, 0.0]}, "theta"),
        ({"kind": "fair", "theta": [1.0], "lipschitz": 0.01}, "lipschitz 0.01"),
    ],
)
def test_what_cannot_be_certified_is_refused(given: dict[str, object], what: str) -> None:
    with pytest.raises(ProgramError, match="a certificate") as caught:
        hg.Certificate(**given)  # type: ignore[arg-type]
    assert what in caught.value.what


def test_a_theta_of_another_size_is_refused() -> None:
    with pytest.raises(ProgramError, match="theta of 2 numbers"):
        hg.Certificate("fair", theta=[1.0, 1.0], n=1024).deviations((3,))
