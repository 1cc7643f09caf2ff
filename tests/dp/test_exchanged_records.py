"""Poisson samples where a record is exchanged, mixtures, zCDP, and cut samples near their mean."""

from __future__ import annotations

import math
from itertools import product

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf

from heliograph.dp.accounting import Tolerance, delta_at, epsilon_at
from heliograph.dp.accounting.conversions import epsilon_of_zcdp
from heliograph.dp.accounting.filters import RenyiFilter, divergence
from heliograph.dp.batches import FixedSizeGaussian, TruncatedGaussian
from heliograph.dp.composition import Composition
from heliograph.dp.concentrated import Zcdp
from heliograph.dp.language import parse
from heliograph.dp.mechanisms import Gaussian, Laplace, MixtureGaussian, SampledGaussian, SampledReplaced
from heliograph.dp.pairs import LaplaceBase, normal_cells
from heliograph.dp.sampled_pairs import EitherPart, ExchangedPart
from heliograph.errors import HeliographError, ProgramError, UnsupportedError

Law = list[tuple[float, float]]
GRADIENTS = (-1.0, 0.0, 0.5, 1.0)


def hockey_stick(a: Law, b: Law, s: float, e: float) -> float:
    """The divergence of two mixtures of N(mean, s^2), each given as (weight, mean), by a fine sum: good to 1e-9."""
    means = [mean for _, mean in a + b]
    x = np.linspace(min(means) - 10 * s, max(means) + 10 * s, 40_001)

    def density(law: Law) -> np.ndarray:
        return sum(w * np.exp(-((x - mean) ** 2) / (2 * s * s)) for w, mean in law) / (s * math.sqrt(2 * math.pi))

    return float(np.maximum(density(a) - math.exp(e) * density(b), 0).sum() * (x[1] - x[0]))


def poisson(data: tuple[float, ...], p: float) -> Law:
    return [
        (math.prod(p if t else 1 - p for t in taken), sum(g for g, t in zip(data, taken, strict=True) if t))
        for taken in product((0, 1), repeat=len(data))
    ]


@pytest.mark.parametrize(("p", "s"), [(0.3, 1.0), (0.05, 0.6), (0.8, 2.0)])
@pytest.mark.parametrize("e", [0.0, 0.4, 1.3])
def test_no_exchanged_record_is_above_the_pair(p: float, s: float, e: float) -> None:
    """All small data sets, by enumeration; the worst of them has the pair, so the bracket is of the truth."""
    found = delta_at(SampledGaussian(p, s), e, neighboring="replace")
    worst = max(
        hockey_stick(poisson((one, *others), p), poisson((two, *others), p), s, e)
        for others in product(GRADIENTS, repeat=1)
        for one, two in product(GRADIENTS, repeat=2)
    )
    assert found.lower - 1e-8 <= worst <= found.upper + 1e-8
    assert found.neighboring == "replace"
    assert found.method == "exact"
    again = delta_at(SampledGaussian(p, s), e, neighboring="replace", method="pld")
    assert again.lower <= found.upper
    assert found.lower <= again.upper
    assert again.upper - again.lower <= 0.01 * again.upper


@pytest.mark.parametrize("e", [-0.7, 0.0, 0.5])
def test_no_vectors_are_above_their_opposites(e: float) -> None:
    """P24 in the plane: gradients of norm at most 1 in any directions, also at negative epsilon."""
    p, s, rng = 0.4, 0.9, np.random.default_rng(5)
    x = np.linspace(-6.5, 6.5, 521)
    cell = (x[1] - x[0]) ** 2 / (2 * math.pi * s * s)

    def density(mean: np.ndarray) -> np.ndarray:
        return np.exp(-((x[:, None] - mean[0]) ** 2 + (x[None, :] - mean[1]) ** 2) / (2 * s * s)) * cell

    def divergence_of(a: np.ndarray, b: np.ndarray) -> float:
        still = (1 - p) * density(np.zeros(2))
        return float(np.maximum(still + p * density(a) - math.exp(e) * (still + p * density(b)), 0).sum())

    largest = divergence_of(np.array([1.0, 0.0]), np.array([-1.0, 0.0]))
    for _ in range(60):
        angles, norms = rng.uniform(0, 2 * math.pi, 2), rng.uniform(0, 1, 2) ** 0.3
        a, b = (norm * np.array([math.cos(angle), math.sin(angle)]) for norm, angle in zip(norms, angles, strict=True))
        assert divergence_of(a, b) <= largest + 1e-9
    if e >= 0:
        assert largest == pytest.approx(delta_at(SampledGaussian(p, s), e, neighboring="replace").upper, rel=1e-3)


def test_two_steps_of_exchanging_by_a_sum_over_the_plane() -> None:
    p, s, e = 0.3, 1.0, 0.5
    x = np.linspace(-9, 9, 1801)
    phi = lambda m: np.exp(-((x - m) ** 2) / (2 * s * s)) / (s * math.sqrt(2 * math.pi)) * (x[1] - x[0])  # noqa: E731
    a, b = (1 - p) * phi(0) + p * phi(1), (1 - p) * phi(0) + p * phi(-1)
    true = float(np.maximum(np.outer(a, a) - math.exp(e) * np.outer(b, b), 0).sum())
    found = delta_at(SampledGaussian(p, s) * 2, e, neighboring="replace", tolerance=Tolerance(delta_share=1e-4))
    assert found.lower <= true * (1 + 1e-5)
    assert true <= found.upper * (1 + 1e-5)
    assert found.upper - found.lower <= 1e-4 * found.upper


def test_exchanging_lies_between_adding_and_two_of_them() -> None:
    steps = SampledGaussian(0.01, 1.0) * 1000
    one, found = epsilon_at(steps, 1e-5), epsilon_at(steps, 1e-5, neighboring="replace")
    assert one.upper < found.lower < found.upper < 2 * one.upper
    assert found.reached
    assert found.upper <= epsilon_at(steps, 1e-5, neighboring="replace", method="rdp").upper
    # The ends of p: nothing is drawn, and everything.
    assert epsilon_at(SampledGaussian(0.0, 1.0) * 9, 1e-5, neighboring="replace").upper == 0
    whole = epsilon_at(SampledGaussian(1.0, 1.0) * 9, 1e-5, neighboring="replace")
    assert whole.upper == pytest.approx(epsilon_at(Gaussian(0.5) * 9, 1e-5).upper, rel=1e-9)
    both = SampledGaussian(0.01, 1.0) * 100 + Laplace(0.1) + FixedSizeGaussian(10, 1000, 2.0) * 3
    assert epsilon_at(both, 1e-5, neighboring="replace").upper > found.directions["add"].lower * 0.1
    guard = RenyiFilter(8.0, 1e-5, 6.0, neighboring="replace")
    guard.spend(SampledGaussian(0.01, 1.0), 100)
    alone = 100 * divergence(SampledGaussian(0.01, 1.0), 6.0)
    assert alone < guard.spent < 5 * alone


@pytest.mark.parametrize(("p", "mu"), [(0.3, 1.0), (1e-9, 0.01), (1e-6, 30.0), (0.999, 5.0), (0.5, 700.0)])
def test_edges_of_an_exchanged_record_err_by_no_more_than_they_say(p: float, mu: float) -> None:
    part = ExchangedPart(p, mu)
    low, high = part.loss_range(-60.0, -60.0)
    nodes = np.concatenate((np.linspace(low, high, 100), [-1e-9, 0.0, 1e-9]))
    with mp.workdps(60):
        k = (1 - mpf(p)) / mpf(p) * mpmath.exp(mpf(mu) ** 2 / 2)

        def loss(x: float) -> mpf:
            m = mpf(mu) * mpf(float(x))
            return mpmath.log((k + mpmath.exp(m)) / (k + mpmath.exp(-m)))

        for node, x in zip(nodes, part.edge(nodes), strict=True):
            assert abs(loss(x) - mpf(float(node))) <= part.edge_error(float(np.abs(nodes).max()))
            assert float(part.loss(np.array([x]))[0]) == pytest.approx(float(loss(x)), rel=1e-9, abs=1e-9 * (1 + mu))


def test_a_mixture_is_the_law_of_a_random_length() -> None:
    sizes, shares, s, e = (0.5, 0.0, 2.0), (0.3, 0.6, 0.1), 1.4, 0.4
    mechanism = MixtureGaussian(s, sizes, shares)
    law = list(zip(shares, sizes, strict=True))
    found = delta_at(mechanism, e)
    for direction, true in (
        ("remove", hockey_stick(law, [(1.0, 0.0)], s, e)),
        ("add", hockey_stick([(1.0, 0.0)], law, s, e)),
    ):
        bounds = found.directions[direction]
        assert bounds.lower - 1e-8 <= true <= bounds.upper + 1e-8
        assert bounds.upper - bounds.lower <= 0.01 * bounds.upper
    # A record is no further than the lengths say, whatever the directions: here in the plane.
    steps = epsilon_at(MixtureGaussian(1.0, (0.0, 1.0), (0.99, 0.01)) * 1000, 1e-5)
    poisson_steps = epsilon_at(SampledGaussian(0.01, 1.0) * 1000, 1e-5)
    assert steps.lower <= poisson_steps.upper
    assert poisson_steps.lower <= steps.upper
    certain = epsilon_at(MixtureGaussian(2.0, (1.0,), (1.0,)) * 10, 1e-5)
    assert certain.lower <= epsilon_at(Gaussian(2.0) * 10, 1e-5).upper <= certain.upper + 1e-9
    assert epsilon_at(MixtureGaussian(2.0, (0.0, 1.0), (1.0, 0.0)), 1e-5).upper <= 1e-9
    assert parse((mechanism * 3).text()) == mechanism * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: MixtureGaussian(1.0, (1.0,), (0.9,)),
        lambda: MixtureGaussian(1.0, (1.0, 2.0), (1.0,)),
        lambda: MixtureGaussian(1.0, (-1.0, 2.0), (0.5, 0.5)),
        lambda: MixtureGaussian(0.0, (1.0,), (1.0,)),
        lambda: Zcdp(0.0),
        lambda: epsilon_at(Zcdp(1e3), 1e-5),
        lambda: epsilon_at(MixtureGaussian(1.0, (1.0,), (1.0,)), 1e-5, neighboring="replace"),
        lambda: Zcdp(1.0).pair("add"),
        lambda: parse("zcdp(rho=[1])"),
        lambda: parse("mixture_gaussian(standard_deviation=1, sensitivities=1, probabilities=[1])"),
    ],
)
def test_what_is_no_mixture_or_has_no_profile_is_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(HeliographError):
        make()


@pytest.mark.parametrize("rho", [0.01, 0.5])
def test_zcdp_has_the_epsilon_that_follows_from_it_and_adds_up(rho: float) -> None:
    lower, upper = epsilon_of_zcdp(rho, 1e-5)
    found = epsilon_at(Zcdp(rho / 4) * 2 + Zcdp(rho / 2), 1e-5)
    assert found.lower == pytest.approx(lower, rel=1e-9)
    assert upper * (1 - 1e-9) <= found.upper <= upper * (1 + 1e-4) + 1e-6
    assert divergence(Zcdp(rho, 0.1), 3.0) == pytest.approx(0.1 + 3 * rho)
    # A Gaussian with this rho is one of those meant; beside others too.
    other = SampledGaussian(0.01, 1.0) * 100
    beside = epsilon_at(Zcdp(rho) + other, 1e-5)
    assert beside.upper >= epsilon_at(Gaussian(math.sqrt(1 / (2 * rho))) + other, 1e-5).lower
    assert Composition.of(Zcdp(rho) * 3).simplified().items == ((Zcdp(rho), 3),)


def test_cut_samples_near_their_mean_have_a_bracket() -> None:
    """Half of all samples are cut: what was [0, 13.36] and [0, 14.82]."""
    cut = TruncatedGaussian(0.01, 1.0, 600, 60_000) * 1000
    free, moved = (
        epsilon_at(SampledGaussian(0.01, 1.0) * 1000, 1e-5),
        epsilon_at(SampledGaussian(0.01, 0.5) * 1000, 1e-5),
    )
    found = epsilon_at(cut, 1e-5)
    nulled = epsilon_at(cut, 1e-5, neighboring="zero_out", tolerance=Tolerance(absolute=0.05))
    assert 0.95 * free.lower < found.lower < free.upper < found.upper < 0.8 * moved.upper
    assert found.lower <= nulled.upper
    assert nulled.upper < 11
    # With fewer places, less is known of the record: in the end a batch of one size.
    few = epsilon_at(TruncatedGaussian(0.01, 1.0, 300, 60_000) * 1000, 1e-5)
    assert few.upper == pytest.approx(epsilon_at(FixedSizeGaussian(300, 60_000, 1.0) * 1000, 1e-5).upper, rel=1e-3)
    all_drawn = epsilon_at(TruncatedGaussian(1.0, 1.0, 300, 60_000) * 1000, 1e-5)
    assert all_drawn.upper == pytest.approx(few.upper, rel=1e-3)
    whole = epsilon_at(TruncatedGaussian(0.01, 1.0, 60_000, 60_000) * 1000, 1e-5)
    assert (whole.lower, whole.upper) == pytest.approx((free.lower, free.upper), rel=1e-6)


def test_an_observer_who_sees_the_choice_has_the_mean_of_both() -> None:
    p, s, full, taken, e = 0.3, 1.2, 0.4, 0.2, 0.5
    first, other = SampledGaussian(p, s).pair("remove").part, SampledGaussian(taken, s / 2).pair("remove").part
    part = EitherPart((first, other), (1 - full, full), 0.0)
    nodes = np.linspace(-3, 8, 4001)
    cells = part.cells(np.concatenate(([-np.inf], nodes, [np.inf])))
    above = np.concatenate((nodes, [np.inf])) > e
    seen = float(np.maximum(cells.a - math.exp(e) * cells.b, 0)[above].sum())
    true = (1 - full) * delta_at(SampledGaussian(p, s), e).directions["remove"].upper
    true += full * delta_at(SampledGaussian(taken, s / 2), e).directions["remove"].upper
    assert seen == pytest.approx(true, rel=1e-4)
    assert float(cells.a.sum()) == pytest.approx(1.0)


def test_empty_cells_and_far_tails_count_as_nothing() -> None:
    """An error bound of 1e-300 a step, or of a rounding beyond the last outcome, was taken for infinite loss."""
    cells = LaplaceBase(0.003).cells(np.array([0.5, 1.0, np.inf]))
    assert cells.a_error[1] == cells.b_error[1] == cells.a[1] == 0
    edges = np.array([-np.inf, -40.0, -37.9, -37.67, -37.6, -36.0])
    mass, error = normal_cells(edges)
    with mp.workdps(40):
        exact = [mpmath.ncdf(b) - mpmath.ncdf(a) for a, b in zip(map(mpf, edges), map(mpf, edges[1:]), strict=False)]
    assert all(abs(mpf(m) - t) <= mpf(e) for m, t, e in zip(mass, exact, error, strict=True))
    found = epsilon_at(Laplace(0.00309) * 12_121_037, 1.2e-11)
    assert found.reached
    assert epsilon_at(SampledGaussian(2e-4, 111.0) * 107_760_844, 9.6e-294).reached


def test_replaced_records_of_samples_are_no_mechanism_of_expressions() -> None:
    with pytest.raises(ProgramError, match="no mechanism"):
        parse(SampledReplaced(0.1, 1.0).text())
    with pytest.raises(UnsupportedError, match="zero_out"):
        epsilon_at(SampledReplaced(0.1, 1.0), 1e-5, neighboring="zero_out")
