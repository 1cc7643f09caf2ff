"""At ordinary parameters every mechanism, alone and in sums of two, reaches its tolerance in a few seconds."""

from __future__ import annotations

import time
from itertools import combinations_with_replacement

import pytest
from mpmath import mp, mpf

from heliograph.dp.accounting import epsilon
from heliograph.dp.batches import (
    AllocatedGaussian,
    FixedSizeGaussian,
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
    found = epsilon(composition, 1e-5)
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
    found = epsilon(DiscreteGaussian(sigma, sensitivity), at)
    assert found.lower is not None
    assert found.upper is not None
    assert found.upper - found.lower < 1e-6
    with mp.workdps(40):
        s = mpf(sigma)
        reach = int(30 * sigma) + 10
        law = {x: mp.exp(-(mpf(x) ** 2) / (2 * s * s)) for x in range(-reach, reach + 1)}
        total = mp.fsum(law.values())

        def delta(epsilon: float) -> mpf:
            gaps = (
                law[x - sensitivity] - mp.exp(mpf(epsilon)) * law[x] for x in range(-reach + sensitivity, reach + 1)
            )
            return mp.fsum(gap for gap in gaps if gap > 0) / total

        assert delta(found.upper) <= mpf(at) <= delta(found.lower)
