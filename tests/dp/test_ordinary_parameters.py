"""At ordinary parameters every mechanism, alone and in sums of two, reaches its tolerance in a few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
from mpmath import mp, mpf

from heliograph.dp.accounting import delta_at, epsilon_at
from heliograph.dp.accounting.conversions import renyi_curve, zcdp
from heliograph.dp.accounting.curves import group_epsilon
from heliograph.dp.accounting.exchange import read_history
from heliograph.dp.accounting.rdp import log_moment
from heliograph.dp.batches import (
    AllocatedGaussian,
    FixedSizeGaussian,
    FixedSizeReplaced,
    TruncatedGaussian,
    WithReplacementGaussian,
)
from heliograph.dp.composition import Composition
from heliograph.dp.custom import Profile, Table
from heliograph.dp.mechanisms import (
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
from heliograph.errors import HeliographError

MECHANISMS: list[Mechanism] = [
    Gaussian(3.0),
    SampledGaussian(0.01, 1.0),
    Laplace(0.5),
    SampledLaplace(0.1, 1.0),
    DiscreteGaussian(3.0),
    DiscreteGaussian(10.0),
    DiscreteGaussian(21.44, 2),
    DiscreteLaplace(0.4, 3),
    RandomizedResponse(0.7, 4),
    Pure(0.3),
    Approximate(0.2, 1e-7),
    Table((0.5, 0.3, 0.2), (0.4, 0.35, 0.25)),
    Profile((0.5, 1.0), (1e-3, 1e-6)),
    FixedSizeGaussian(100, 10_000, 1.0),
    TruncatedGaussian(0.01, 1.0, 200, 10_000),
]


def reached(composition: Composition | Mechanism, seconds: float) -> None:
    began = time.thread_time()
    found = epsilon_at(composition, 1e-5)
    assert time.thread_time() - began < seconds
    assert found.reached, found
    assert found.proved
    assert found.lower is not None
    assert found.upper is not None
    assert 0 < found.lower <= found.upper


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism.text())
def test_alone(mechanism: Mechanism) -> None:
    reached(mechanism, 2.0)


@pytest.mark.parametrize(
    "mechanism", [WithReplacementGaussian(100, 10_000, 1.0), AllocatedGaussian(50, 2.0)], ids=lambda m: m.name
)
def test_alone_where_the_pair_takes_a_second(mechanism: Mechanism) -> None:
    reached(mechanism, 6.0)


@pytest.mark.parametrize("first", MECHANISMS, ids=lambda mechanism: mechanism.text())
def test_in_sums_of_two(first: Mechanism) -> None:
    for one, other in combinations_with_replacement(MECHANISMS, 2):
        relations = {one.relation, other.relation} - {None}
        if one is first and len(relations) < 2:
            reached(one * 3 + other, 2.0)


@pytest.mark.parametrize(
    ("sigma", "sensitivity", "at"),
    [(3.0, 1, 1e-5), (5.0, 1, 1e-5), (10.0, 1, 1e-5), (20.0, 1, 1e-6), (21.44, 2, 0.00285)],
)
def test_the_discrete_gaussian_against_a_sum_of_forty_digits(sigma: float, sensitivity: int, at: float) -> None:
    found = epsilon_at(DiscreteGaussian(sigma, sensitivity), at)
    assert found.lower is not None
    assert found.upper is not None
    assert found.upper - found.lower < 1e-6
    with mp.workdps(40):
        s = mpf(sigma)
        reach = int(30 * sigma) + 10
        law = {x: mp.exp(-(mpf(x) ** 2) / (2 * s * s)) for x in range(-reach, reach + 1)}
        total = mp.fsum(law.values())

        def mass(epsilon: float) -> mpf:
            gaps = (
                law[x - sensitivity] - mp.exp(mpf(epsilon)) * law[x] for x in range(-reach + sensitivity, reach + 1)
            )
            return mp.fsum(gap for gap in gaps if gap > 0) / total

        assert mass(found.upper) <= mpf(at) <= mass(found.lower)


def test_moments_of_the_replaced_record_hold_at_large_orders() -> None:
    """The moments of the sampled pair alone are a lower bound: two data sets have it."""
    orders = [2.0, 10.0, 30.0, 100.0, 1000.0]
    found = renyi_curve(FixedSizeReplaced(100, 10_000, 1.0), orders)
    for order, upper in zip(orders, found, strict=True):
        least = log_moment(SampledGaussian(0.01, 0.5), order - 1, "remove") / (order - 1)
        assert least * (1 - 1e-9) <= upper <= least * 1.001 + 0.01
    bounds = epsilon_at(FixedSizeGaussian(100, 10_000, 1.0), 1e-38, neighboring="replace", method="rdp")
    assert bounds.upper is not None
    assert 22.288 <= bounds.upper <= 23


def test_a_bracket_upside_down_is_no_bracket() -> None:
    right = epsilon_at(Gaussian(2.0), 1e-5)
    with pytest.raises(AssertionError, match="above the upper"):
        replace(right, lower=3.0, upper=2.0)


def test_zcdp_of_truncated_batches_counts_the_displaced_record() -> None:
    # Nine gradients of -1 and one of +1: some two data sets have a ratio of at least 1.977.
    assert zcdp(TruncatedGaussian(1.0, 1.0, 1, 10))[1] >= 1.977
    assert zcdp(SampledGaussian(0.1, 1.0) * 3) == (1.5, 1.5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: epsilon_at(WithReplacementGaussian(100, 1, 1.0), 1e-5),
        lambda: epsilon_at(WithReplacementGaussian(400, 2, 10.0), 1e-5),
        lambda: RandomizedResponse(1.0, "3"),  # type: ignore[arg-type]
        lambda: read_history({"class_name": "LaplaceDpEvent", "noise_multiplier": 0}),
    ],
)
def test_what_cannot_be_accounted_for_is_refused_with_a_reason(make: Callable[[], object]) -> None:
    with pytest.raises(HeliographError):
        make()


def test_allowed_sizes_have_an_answer() -> None:
    assert epsilon_at(AllocatedGaussian(10**6, 1.0), 1e-5).upper is not None
    assert group_epsilon(SampledGaussian(0.01, 10.0) * 100, 50_000, 1e-6) > 0
    assert Gaussian(2.0) * np.int64(5) == np.int64(5) * Gaussian(2.0)
    assert epsilon_at(Gaussian(2.0), np.float32(1e-5)).reached
    assert "-0" not in str(delta_at(SampledGaussian(0.01, 1.0), 1e6, method="pld"))
