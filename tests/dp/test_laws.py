"""Laws that every bracket obeys, by random compositions."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heliograph.dp.accounting import Tolerance, delta_at, epsilon_at
from heliograph.dp.accounting.running import RunningAccountant
from heliograph.dp.composition import Composition
from heliograph.dp.language import parse
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

COARSE = Tolerance(absolute=0.02, relative=1e-3)

probabilities = st.floats(1e-5, 0.9)
noises = st.floats(0.6, 20.0)
epsilons = st.floats(0.01, 1.5)

mechanisms: st.SearchStrategy[Mechanism] = st.one_of(
    st.builds(Gaussian, noises),
    st.builds(SampledGaussian, probabilities, noises),
    st.builds(Laplace, epsilons),
    st.builds(SampledLaplace, probabilities, epsilons),
    st.builds(DiscreteGaussian, st.floats(0.8, 20.0)),
    st.builds(DiscreteLaplace, epsilons, st.integers(1, 3)),
    st.builds(RandomizedResponse, epsilons, st.integers(2, 6)),
    st.builds(Pure, epsilons),
    st.builds(Approximate, epsilons, st.floats(1e-12, 1e-7)),
)
add_remove = mechanisms.filter(lambda mechanism: mechanism.relation != "replace")
deltas = st.floats(-12.0, -3.0).map(lambda x: 10.0**x)


@settings(max_examples=25, deadline=None)
@given(mechanisms, st.integers(1, 30), st.integers(1, 30), deltas)
def test_more_steps_more_epsilon(mechanism: Mechanism, few: int, more: int, at: float) -> None:
    less = epsilon_at(mechanism * few, at, tolerance=COARSE, method="pld")
    larger = epsilon_at(mechanism * (few + more), at, tolerance=COARSE, method="pld")
    assert less.lower <= larger.upper


@settings(max_examples=25, deadline=None)
@given(mechanisms, deltas)
def test_five_are_three_and_two(mechanism: Mechanism, at: float) -> None:
    # The same law by another route: a spectrum made for a horizon, of which three steps and two more are read.
    five = epsilon_at(mechanism * 5, at, tolerance=COARSE, method="pld")
    parts = RunningAccountant(at, COARSE)
    parts.step(mechanism, 3)
    parts.epsilon()
    parts.step(mechanism, 2)
    found = parts.epsilon()
    assert five.lower <= found.upper
    assert found.lower <= five.upper


@settings(max_examples=15, deadline=None)
@given(st.floats(0.01, 0.5), noises, deltas)
def test_splitting_between_nearly_equal_records(p: float, noise: float, at: float) -> None:
    # With two records the composition takes two discretizations and two spectra; their laws differ by 1e-9.
    one = epsilon_at(SampledGaussian(p, noise) * 5, at, method="pld")
    two = epsilon_at(SampledGaussian(p, noise) * 3 + SampledGaussian(p, noise * (1 + 1e-9)) * 2, at, method="pld")
    assert one.lower <= two.upper + 1e-6
    assert two.lower <= one.upper + 1e-6


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(add_remove, st.integers(1, 10)), min_size=2, max_size=3), deltas)
def test_order_does_not_matter(items: list[tuple[Mechanism, int]], at: float) -> None:
    there = epsilon_at(Composition(tuple(items)), at, tolerance=COARSE, method="pld")
    back = epsilon_at(Composition(tuple(reversed(items))), at, tolerance=COARSE, method="pld")
    if math.isinf(there.lower):
        assert math.isinf(back.lower)
        return
    assert there.lower <= back.upper
    assert back.lower <= there.upper


@settings(max_examples=20, deadline=None)
@given(mechanisms, st.integers(1, 20), deltas)
@example(Laplace(1.0), 8, 1e-8)
def test_delta_and_epsilon_are_inverse(mechanism: Mechanism, count: int, at: float) -> None:
    found = epsilon_at(mechanism * count, at, method="pld")
    if math.isinf(found.upper):
        return
    assert delta_at(mechanism * count, found.upper, method="pld").lower <= at * (1 + 1e-9)
    if found.lower > 0:
        assert delta_at(mechanism * count, found.lower, method="pld").upper >= at * (1 - 1e-9)


@pytest.mark.parametrize("count", range(1, 13))
@pytest.mark.parametrize("at", [1e-4, 1e-6, 1e-8, 1e-10])
def test_the_largest_loss_of_a_laplace_mechanism_counts(count: int, at: float) -> None:
    """All losses are 1 with probability 2^-count: delta is at least 2^-count (1 - e^(epsilon - count)).

    There the tilt is so steep that one node of the lattice is all that matters.
    """
    found = epsilon_at(Laplace(1.0) * count, at, method="pld")
    assert found.lower <= found.upper
    if at * 2.0**count < 0.5:
        assert found.upper >= count + math.log1p(-at * 2.0**count) - 1e-12


@settings(max_examples=8, deadline=None)
@given(st.floats(1e-4, 0.9), noises, st.integers(1, 200), deltas)
def test_both_directions_below_the_renyi_bound(p: float, noise: float, count: int, at: float) -> None:
    found = epsilon_at(SampledGaussian(p, noise) * count, at, method="pld", tolerance=COARSE)
    renyi = epsilon_at(SampledGaussian(p, noise) * count, at, method="rdp")
    for direction in DIRECTIONS:
        assert found.directions[direction].lower <= renyi.directions[direction].upper * (1 + 1e-9)
    assert found.lower == max(each.lower for each in found.directions.values())
    assert found.upper == max(each.upper for each in found.directions.values())


@settings(max_examples=20, deadline=None)
@given(st.floats(0.01, 0.4), st.floats(0.7, 3.0), st.integers(1, 100), deltas)
def test_less_noise_and_more_sampling_cost_more(p: float, noise: float, count: int, at: float) -> None:
    base = epsilon_at(SampledGaussian(p, noise) * count, at, method="pld", tolerance=COARSE)
    assert base.lower <= epsilon_at(SampledGaussian(p, noise * 0.8) * count, at, method="pld", tolerance=COARSE).upper
    assert (
        base.lower
        <= epsilon_at(SampledGaussian(min(2 * p, 1.0), noise) * count, at, method="pld", tolerance=COARSE).upper
    )


def test_add_and_remove_are_computed_apart() -> None:
    found = epsilon_at(SampledGaussian(0.01, 0.7) * 100, 1e-5)
    add, remove = found.directions["add"], found.directions["remove"]
    assert remove.lower > add.upper + 0.1
    assert found.direction == "remove"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(mechanisms, st.integers(1, 10**6)), min_size=1, max_size=4))
def test_text_reads_back(items: list[tuple[Mechanism, int]]) -> None:
    composition = Composition(tuple(items))
    assert parse(composition.text()) == composition
