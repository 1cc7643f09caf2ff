"""Audits: they catch broken mechanisms, and do not cry wolf on sound ones (false-alarm rates stated)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from heliograph.dp.accounting import epsilon_at
from heliograph.dp.audit import _Crowds, clopper_pearson, many_runs, measure, one_run, one_run_bound, split
from heliograph.dp.mechanisms import Gaussian
from heliograph.errors import ProgramError

DELTA = 1e-5


def scores(noise: float, count: int, seed: int, present: bool) -> list[float]:
    """What an attacker sees of a sum of one-hot canaries with Gaussian noise: 1 + noise, or noise."""
    generator = np.random.default_rng(seed)
    return (float(present) + noise * generator.standard_normal(count)).tolist()


def test_clopper_pearson_has_its_coverage() -> None:
    for n, p in ((20, 0.1), (50, 0.5), (200, 0.97)):
        low_fails = sum(binom.pmf(k, n, p) for k in range(n + 1) if clopper_pearson(k, n, 0.95)[0] > p)
        high_fails = sum(binom.pmf(k, n, p) for k in range(n + 1) if clopper_pearson(k, n, 0.95)[1] < p)
        assert low_fails <= 0.05
        assert high_fails <= 0.05


def test_a_forgotten_noise_is_caught() -> None:
    claimed = epsilon_at(Gaussian(2.0), DELTA).upper
    # The mechanism was to add noise 2 and adds a tenth of it.
    found = many_runs(scores(0.2, 4000, 1, True), scores(0.2, 4000, 2, False), threshold=0.5, delta=DELTA)
    assert found.epsilon_lower > claimed
    chosen = split(scores(0.2, 4000, 3, True), scores(0.2, 4000, 4, False), delta=DELTA)
    assert chosen.epsilon_lower > claimed


@pytest.mark.parametrize("seed", range(8))
def test_a_sound_mechanism_is_not_accused(seed: int) -> None:
    # Confidence 0.999999: eight runs of two audits raise a false alarm with probability below 2e-5.
    claimed = epsilon_at(Gaussian(1.0), DELTA).upper
    members, others = scores(1.0, 3000, 10 + seed, True), scores(1.0, 3000, 50 + seed, False)
    for found in (
        many_runs(members, others, threshold=1.5, delta=DELTA, confidence=0.999999),
        split(members, others, delta=DELTA, confidence=0.999999),
    ):
        assert 0 < found.epsilon_lower <= claimed


def test_one_run_catches_raw_release_and_spares_the_sound() -> None:
    generator = np.random.default_rng(7)
    included = generator.random(1000) < 0.5
    raw = included.astype(float) + 0.1 * generator.standard_normal(1000)
    found = one_run(raw.tolist(), included.tolist(), guess_in=100, guess_out=100, delta=DELTA)
    assert found.epsilon_lower > epsilon_at(Gaussian(2.0), DELTA).upper
    for seed in range(5):
        noise = np.random.default_rng(100 + seed).standard_normal(1000)
        sound = one_run(
            (included + noise).tolist(), included.tolist(), guess_in=50, guess_out=50, delta=DELTA, confidence=0.99999
        )
        assert sound.epsilon_lower <= epsilon_at(Gaussian(1.0), DELTA).upper


def test_one_run_bound_is_the_binomial_without_delta() -> None:
    bound = one_run_bound(95, 100, 500, 0.0, 0.95)
    rate = 1 / (1 + math.exp(-bound))
    assert binom.sf(94, 100, rate) == pytest.approx(0.05, rel=1e-6)
    # The delta term only weakens the bound, and for the worse the more canaries there were.
    bounds = [one_run_bound(95, 100, m, 1e-4, 0.95) for m in (100, 500, 5000)]
    assert bound > bounds[0] > bounds[1] > bounds[2]
    assert one_run_bound(50, 100, 100, 0.0, 0.95) == 0.0


def test_p_value_by_simulation_of_the_worst_mechanism() -> None:
    # Randomized response at epsilon 1 on every canary is (1, 0)-private: at 95 % at most one in twenty bounds exceeds 1.
    generator = np.random.default_rng(3)
    right = generator.binomial(200, 1 / (1 + math.exp(-1.0)), size=400)
    alarms = sum(one_run_bound(int(v), 200, 200, 0.0, 0.95) > 1.0 for v in right)
    # Binomial(400, 0.05) exceeds 38 with probability below 1e-4.
    assert alarms <= 38


def test_bad_input_is_refused() -> None:
    with pytest.raises(ProgramError):
        many_runs([], [1.0], threshold=0, delta=DELTA)
    with pytest.raises(ProgramError):
        many_runs([math.nan], [1.0], threshold=0, delta=DELTA)
    with pytest.raises(ProgramError):
        one_run([1.0, 2.0], [True], guess_in=1, guess_out=0, delta=DELTA)
    with pytest.raises(ProgramError):
        one_run([1.0, 2.0], [True, False], guess_in=2, guess_out=1, delta=DELTA)


def crowds(rng: Any, steps: int, size: int, *, clipping: float = 1.0, inclusion: float = 1.0) -> tuple[Any, Any]:
    """Values of crowds below the bound and far above it, with probability 0.2 and noise 1; and their lengths."""
    lengths = np.tile([0.9, 20.0], steps * 4)
    there = rng.binomial(size, 0.2 * inclusion, size=lengths.size)
    return np.minimum(lengths, clipping) * there + rng.normal(size=lengths.size), lengths


def test_measurements_hold_with_their_confidence() -> None:
    rng, wrong, runs = np.random.default_rng(6), 0, 60
    for _ in range(runs):
        values, lengths = crowds(rng, 5, 12)
        found = measure(rng.normal(size=2000), values, 12, 1.0, 0.2, lengths)
        assert found.probability is not None
        assert found.clipping is not None
        wrong += not all(low < 1 < high for low, high in (found.noise, found.probability, found.clipping))
    # At most 5 % of the runs; the count is above 10 with probability 2e-4.
    assert wrong <= 10
    broken = measure(0.98 * rng.normal(size=35_000))
    assert broken.refuted
    assert broken.probability is None
    with pytest.raises(ProgramError):
        measure([])


@pytest.mark.parametrize(("clipping", "inclusion"), [(1.1, 1.0), (1.0, 1.2), (1.1, 1 / 1.1)])
def test_measurements_find_a_looser_bound_and_a_larger_probability(clipping: float, inclusion: float) -> None:
    rng = np.random.default_rng(7)
    values, lengths = crowds(rng, 200, 60, clipping=clipping, inclusion=inclusion)
    found = measure(rng.normal(size=20_000), values, 60, 1.0, 0.2, lengths)
    assert found.refuted
    assert found.probability is not None
    assert found.clipping is not None
    assert found.probability[0] < inclusion < found.probability[1]
    assert found.clipping[0] < clipping < found.clipping[1]
    assert found.noise[0] < 1 < found.noise[1]


def test_the_gradient_of_the_likelihood_is_that_of_differences() -> None:
    rng = np.random.default_rng(8)
    values, lengths = crowds(rng, 5, 12)
    law = _Crowds(12, (0.9, 1.1), values, np.ones(40), np.full(40, 0.2), lengths)
    # Below the length of the shorter crowds, above it, and in general.
    for point in ([0.1, 0.2, 0.01], [-0.3, -0.4, 0.05], [0.0, 0.0, 0.0]):
        found = law._likelihood(point)[1]
        for n, step in enumerate(1e-6 * np.eye(3)):
            difference = law.likelihood(np.array(point) + step) - law.likelihood(np.array(point) - step)
            assert found[n] == pytest.approx(difference / 2e-6, rel=1e-4, abs=1e-3)
