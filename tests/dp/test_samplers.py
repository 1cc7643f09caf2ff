"""Samplers and their accounting: against enumeration of all batches of small data sets, and the drawing against its law."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import combinations, combinations_with_replacement, product

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import binom, chisquare

from heliograph.dp.accounting import Tolerance, certificate, delta_at, epsilon_at
from heliograph.dp.allocation import _chords, allocated_pair
from heliograph.dp.batches import (
    AllocatedGaussian,
    FixedSizeGaussian,
    TruncatedGaussian,
    WithReplacementGaussian,
)
from heliograph.dp.composition import Composition
from heliograph.dp.language import parse
from heliograph.dp.mechanisms import Gaussian, Mechanism, SampledGaussian
from heliograph.dp.sampled_pairs import MixturePart
from heliograph.dp.samplers import (
    AllocationSampler,
    FixedSizeSampler,
    PoissonSampler,
    Sampler,
    TruncatedPoissonSampler,
)
from heliograph.dp.shuffling import ShuffledEpoch
from heliograph.errors import ProgramError, UnsupportedError

Law = list[tuple[float, float]]
"""A mixture of Gaussians: (weight, mean)."""
GRADIENTS = (-1.0, 0.0, 0.5, 1.0)


def hockey_stick(a: Law, b: Law, s: float, e: float) -> float:
    """The hockey-stick divergence of two mixtures of N(mean, s^2), by a fine sum over the line: good to about 1e-9."""
    means = [mean for _, mean in a + b]
    x = np.linspace(min(means) - 10 * s, max(means) + 10 * s, 40_001)

    def density(law: Law) -> np.ndarray:
        return sum(w * np.exp(-((x - mean) ** 2) / (2 * s * s)) for w, mean in law) / (s * math.sqrt(2 * math.pi))

    return float(np.maximum(density(a) - math.exp(e) * density(b), 0).sum() * (x[1] - x[0]))


def fixed_size(data: tuple[float, ...], size: int) -> Law:
    batches = list(combinations(data, size))
    return [(1 / len(batches), sum(batch)) for batch in batches]


def with_replacement(data: tuple[float, ...], size: int) -> Law:
    batches = list(product(data, repeat=size))
    return [(1 / len(batches), sum(batch)) for batch in batches]


def truncated(data: tuple[float, ...], p: float, most: int) -> Law:
    law: Law = []
    for taken in product((0, 1), repeat=len(data)):
        weight = math.prod(p if t else 1 - p for t in taken)
        chosen = [g for g, t in zip(data, taken, strict=True) if t]
        kept = list(combinations(chosen, min(most, len(chosen))))
        law += [(weight / len(kept), sum(each)) for each in kept]
    return law


def neighbours(count: int) -> Iterable[tuple[tuple[float, ...], tuple[float, ...]]]:
    """Data sets of `count` and `count` - 1 records of which one is missing."""
    for others in product(GRADIENTS, repeat=count - 1):
        for record in GRADIENTS:
            yield (record, *others), others


LAWS: list[tuple[str, Mechanism, int, Callable[[tuple[float, ...]], Law]]] = [
    ("fixed size", FixedSizeGaussian(2, 4, 1.7), 4, lambda data: fixed_size(data, 2)),
    ("fixed size, small", FixedSizeGaussian(1, 3, 0.9), 3, lambda data: fixed_size(data, 1)),
    ("with replacement", WithReplacementGaussian(2, 4, 1.7), 4, lambda data: with_replacement(data, 2)),
    ("with replacement, more draws", WithReplacementGaussian(3, 3, 2.5), 3, lambda data: with_replacement(data, 3)),
    ("truncated", TruncatedGaussian(0.3, 1.1, 2, 4), 4, lambda data: truncated(data, 0.3, 2)),
]


@pytest.mark.parametrize(("mechanism", "count", "law"), [case[1:] for case in LAWS], ids=[case[0] for case in LAWS])
@pytest.mark.parametrize("e", [0.0, 0.4, 1.3])
def test_no_data_set_is_above_the_bound(
    mechanism: Mechanism, count: int, law: Callable[[tuple[float, ...]], Law], e: float
) -> None:
    s = mechanism.arguments()["noise_multiplier"]
    found = delta_at(mechanism, e)
    worst = 0.0
    for larger, smaller in neighbours(count):
        for a, b in ((larger, smaller), (smaller, larger)):
            worst = max(worst, hockey_stick(law(a), law(b), s, e))
    assert worst <= found.upper + 1e-8
    if isinstance(mechanism, TruncatedGaussian):
        assert found.upper <= delta_at(SampledGaussian(0.3, s / 2), e).upper * (1 + 1e-9)
    else:
        # The bracket is of the worst data sets, which are among these.
        assert found.lower <= worst + 1e-8
        assert found.upper - found.lower <= 0.01 * found.upper + 1e-12


@pytest.mark.parametrize("e", [0.0, 0.4, 1.3])
def test_no_replaced_record_is_above_the_bound(e: float) -> None:
    mechanism = FixedSizeGaussian(2, 4, 1.7)
    found = delta_at(mechanism, e, neighboring="replace")
    worst = 0.0
    for others in product(GRADIENTS, repeat=3):
        for first, second in product(GRADIENTS, repeat=2):
            laws = fixed_size((first, *others), 2), fixed_size((second, *others), 2)
            worst = max(worst, hockey_stick(*laws, 1.7, e))
    assert found.lower - 1e-8 <= worst <= found.upper + 1e-8
    assert found.neighboring == "replace"
    # Over many steps the bounds are of different pairs: both directions have the same one above.
    many = epsilon_at(mechanism * 50, 1e-5, neighboring="replace")
    assert many.directions["add"].upper == many.directions["remove"].upper
    assert epsilon_at(mechanism * 50, 1e-5).lower <= many.upper


@pytest.mark.parametrize("e", [0.0, 1.3])
@pytest.mark.parametrize(("p", "most"), [(0.3, 2), (0.6, 1)])
def test_no_record_that_adds_nothing_is_above_the_bound(p: float, most: int, e: float) -> None:
    s = 1.7
    mechanism = TruncatedGaussian(p, s, most, 4)
    found = delta_at(mechanism, e, neighboring="zero_out")
    worst = 0.0
    for others in combinations_with_replacement(GRADIENTS, 3):
        there = [truncated((record, *others), p, most) for record in GRADIENTS]
        null = truncated((0.0, *others), p, most)
        worst = max(worst, *(hockey_stick(*pair, s, e) for law in there for pair in ((law, null), (null, law))))
    assert found.lower - 1e-8 <= worst <= found.upper + 1e-8
    assert found.neighboring == "zero_out"


def test_a_record_that_adds_nothing_is_one_that_is_absent_where_sums_are_all() -> None:
    for mechanism in (Gaussian(1.0), SampledGaussian(0.1, 1.0) * 10, AllocatedGaussian(4, 1.0)):
        found = epsilon_at(mechanism, 1e-5, neighboring="zero_out")
        assert (found.lower, found.upper) == pytest.approx(
            (lambda other: (other.lower, other.upper))(epsilon_at(mechanism, 1e-5)), rel=1e-9
        )
    with pytest.raises(UnsupportedError, match="zero_out"):
        epsilon_at(FixedSizeGaussian(4, 40, 1.0), 1e-5, neighboring="zero_out")


def test_two_steps_of_replacing_by_a_sum_over_the_plane() -> None:
    """Two steps: a record +1 among records -1, replaced by -1 in one direction: the sampled pair, composed."""
    p, s, e = 0.3, 2.0, 0.5
    x = np.linspace(-12, 16, 1401)
    phi = lambda m: np.exp(-((x - m) ** 2) / (2 * s * s)) / (s * math.sqrt(2 * math.pi)) * (x[1] - x[0])  # noqa: E731
    a, b = (1 - p) * phi(0) + p * phi(2), phi(0)
    true = float(np.maximum(np.outer(a, a) - math.exp(e) * np.outer(b, b), 0).sum())
    found = delta_at(FixedSizeGaussian(3, 10, s) * 2, e, neighboring="replace")
    assert found.lower <= true * (1 + 1e-5)
    assert true <= found.upper * (1 + 1e-5)


def test_a_bound_on_the_batch_costs_what_it_cuts_off() -> None:
    free = epsilon_at(SampledGaussian(0.01, 1.0) * 1000, 1e-5)
    cut = epsilon_at(TruncatedGaussian(0.01, 1.0, 800, 60_000) * 1000, 1e-5)
    assert cut.lower <= free.upper
    assert free.lower <= cut.upper <= free.upper + 1e-3
    assert epsilon_at(TruncatedGaussian(0.01, 1.0, 765, 60_000) * 1000, 1e-5).reached
    wide = epsilon_at(TruncatedGaussian(0.01, 1.0, 700, 60_000) * 1000, 1e-5)
    assert wide.lower < free.upper < wide.upper
    # By coupling, (e, d) of Poisson sampling is (e, d + (1 + e^e) steps distance) of this; the pair is better.
    spent = 1000 * float(binom.sf(765, 60_000, 0.01)) * (1 + math.exp(1.83))
    coupled = delta_at(SampledGaussian(0.01, 1.0) * 1000, 1.83).upper + spent
    assert delta_at(TruncatedGaussian(0.01, 1.0, 765, 60_000) * 1000, 1.83).upper <= coupled
    assert certificate.check(certificate.certificate(TruncatedGaussian(0.01, 1.0, 600, 60_000) * 10, 1e-5)).holds


@pytest.mark.parametrize("remove", [True, False])
def test_edges_of_a_mixture_err_by_no_more_than_they_say(remove: bool) -> None:
    weights, shifts = np.array([0.6, 0.3, 0.08, 0.02]), np.array([0.0, 0.8, 1.6, 2.4])
    part = MixturePart(weights, shifts, remove)
    low, high = part.loss_range(-50.0, -50.0)
    nodes = np.linspace(low, high, 300)[1:-1]
    sign = 1 if remove else -1
    with mp.workdps(50):
        for node, x in zip(nodes, part.edge(nodes), strict=True):
            at = sign * mpf(float(x))
            total = sum(
                mpf(w) * mpmath.exp(mpf(c) * at - mpf(c) ** 2 / 2) for w, c in zip(weights, shifts, strict=True)
            )
            assert abs(sign * mpmath.log(total) - mpf(float(node))) <= part.edge_error(float(np.abs(nodes).max()))
    assert bool(np.all(np.diff(part.edge(nodes)) > 0))


def two_bins(s: float, e: float, direction: str) -> float:
    """Delta of one epoch of two batches: E[((Y1 + Y2) / 2 - e^e)+], one term by a closed form, the other by quadrature."""
    mu, level = 1 / s, math.exp(e)

    def call(k: float) -> float:
        if k <= 0:
            return 1 - k
        d = (-math.log(k) + mu * mu / 2) / mu
        return float(ndtr(d) - k * ndtr(d - mu))

    def term(x: float) -> float:
        y = math.exp(mu * x - mu * mu / 2)
        density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        if direction == "remove":
            return density * call(2 * level - y) / 2
        k = 2 / level - y
        return density * level / 2 * (0.0 if k <= 0 else call(k) - 1 + k)

    return float(quad(term, -12, 12, limit=500, epsabs=1e-13)[0])


@pytest.mark.parametrize("s", [0.6, 1.0, 3.0])
@pytest.mark.parametrize("e", [0.0, 0.3, 1.0])
def test_two_bins_against_quadrature(s: float, e: float) -> None:
    found = delta_at(AllocatedGaussian(2, s), e, method="pld")
    for direction in ("add", "remove"):
        true = two_bins(s, e, direction)
        bounds = found.directions[direction]
        assert bounds.lower <= true + 1e-12
        assert true - 1e-12 <= bounds.upper
    # Two batches of little noise are the hardest for the lattice.
    assert found.upper - found.lower <= (0.08 if s < 1 else 0.011) * found.upper


@pytest.mark.parametrize("direction", ["add", "remove"])
def test_many_bins_against_draws(direction: str) -> None:
    """Delta as a mean over 400,000 draws, half of them under A: within five deviations of the bracket."""
    t, s, e, draws = 40, 1.0, 0.3, 200_000
    rng = np.random.default_rng(1)
    x = rng.standard_normal((draws, t))
    ratio = np.exp(x / s - 1 / (2 * s * s)).mean(axis=1)
    values = np.maximum(ratio - math.exp(e), 0) if direction == "remove" else np.maximum(1 - math.exp(e) * ratio, 0)
    mean, deviation = float(values.mean()), float(values.std() / math.sqrt(draws))
    bounds = delta_at(AllocatedGaussian(t, s), e, method="pld").directions[direction]
    assert bounds.lower <= mean + 5 * deviation
    assert mean - 5 * deviation <= bounds.upper
    assert bounds.upper - bounds.lower < 0.02 * bounds.upper


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize("direction", ["add", "remove"])
def test_the_pair_of_an_epoch_is_a_law(side: str, direction: str) -> None:
    pair = allocated_pair(100, 1.0, direction, side, math.log(1e-9))  # type: ignore[arg-type]
    total = float(pair.atoms.a.sum()) + pair.infinite
    under_b = float((pair.atoms.a * np.exp(-pair.atoms.loss)).sum())
    assert (total >= 1 - 1e-9) if side == "above" else (1 - 1e-3 <= total <= 1 + 1e-12)
    assert under_b == pytest.approx(1.0, abs=2e-3)


def test_blocks_of_nodes_lower_no_moment() -> None:
    rng = np.random.default_rng(0)
    mass, values = rng.random(1000), 0.3 + 0.01 * np.arange(1000)
    coarse, ends = _chords(mass, values)
    assert coarse.sum() == pytest.approx(mass.sum())
    assert coarse @ ends == pytest.approx(mass @ values)
    for t in (-5.0, -0.1, 0.1, 5.0):
        exact, bound = mass @ np.exp(t * values), coarse @ np.exp(t * ends)
        # A chord over a block is above the exponential by (t times its span)^2 / 8 or so.
        assert exact <= bound <= exact * (1 + (t * 0.31) ** 2 / 6)


def test_allocation_in_epochs_and_parts() -> None:
    one, ten = AllocatedGaussian(100, 1.0), AllocatedGaussian(100, 1.0) * 10
    poisson = SampledGaussian(0.01, 1.0)
    single, many = epsilon_at(one, 1e-5), epsilon_at(ten, 1e-5)
    assert single.upper - single.lower < 1.1e-3
    assert many.upper - many.lower < 2e-3
    # In direction remove an epoch is more private than as many Poisson samples; the other direction is less so.
    other = epsilon_at(poisson * 100, 1e-5)
    assert single.directions["remove"].upper < other.directions["remove"].lower
    assert single.directions["add"].lower > other.directions["add"].upper
    # In three of a hundred batches: no less than a third of the way to a Gaussian, no more than three epochs of 33.
    three = epsilon_at(AllocatedGaussian(100, 1.0, 3), 1e-5)
    assert three.lower <= three.upper <= epsilon_at(AllocatedGaussian(33, 1.0) * 3, 1e-5).upper
    assert three.lower == pytest.approx(epsilon_at(Gaussian(10.0 / 3.0), 1e-5).lower, rel=1e-9)
    # In all batches there is nothing left of chance.
    whole = epsilon_at(AllocatedGaussian(4, 2.0, 4), 1e-5)
    assert whole.upper == pytest.approx(epsilon_at(Gaussian(2.0) * 4, 1e-5).upper, rel=1e-9)


def test_batches_are_written_and_read() -> None:
    for mechanism in (*(case[1] for case in LAWS), AllocatedGaussian(100, 1.0, 3)):
        assert parse((mechanism * 7).text()) == mechanism * 7
    with pytest.raises(ProgramError, match="above"):
        FixedSizeGaussian(5, 4, 1.0)
    with pytest.raises(ProgramError, match="no one pair"):
        AllocatedGaussian(4, 1.0).pair("add")


# Shuffling.


def test_shuffling_is_bounded_from_below() -> None:
    """Two batches: the bound against the divergence of the pair itself, summed over the plane."""
    s, e = 1.2, 0.3
    x = np.linspace(-9, 12, 1201)
    width = x[1] - x[0]
    phi = lambda m: np.exp(-((x - m) ** 2) / (2 * s * s)) / (s * math.sqrt(2 * math.pi)) * width  # noqa: E731
    p = (np.outer(phi(2), phi(0)) + np.outer(phi(0), phi(2))) / 2
    q = (np.outer(phi(1), phi(0)) + np.outer(phi(0), phi(1))) / 2
    true = float(np.maximum(p - math.exp(e) * q, 0).sum())
    bound = ShuffledEpoch(2, s).delta_lower(e)
    assert 0.3 * true < bound <= true


def test_the_common_shortcut_is_wrong() -> None:
    epoch = ShuffledEpoch(100, 1.0)
    lower, poisson = epoch.epsilon_lower(1e-5), epoch.poisson(1e-5)
    assert lower > 4 > 5 * poisson.upper
    assert epoch.delta_lower(lower) >= 1e-5 * (1 - 1e-6)
    with pytest.raises(ProgramError, match="batches"):
        ShuffledEpoch(1, 1.0)


# Drawing.

SAMPLERS: list[Sampler] = [
    PoissonSampler(20),
    TruncatedPoissonSampler(20, 24),
    FixedSizeSampler(20),
    AllocationSampler(10, 200.0),
    AllocationSampler(10, 200.0, 3),
]


def uniform(seed: int) -> Callable[[int], np.ndarray]:
    generator = np.random.default_rng(seed)
    return lambda count: 1 - generator.random(count)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: f"{sampler.name}")
def test_every_record_is_drawn_as_often_as_any(sampler: Sampler) -> None:
    plan = sampler.plan(200, 1.0)
    assert plan.steps == 10
    counts, draw = np.zeros(200), uniform(3)
    sizes = []
    for _ in range(150):
        batches = list(sampler.epoch(200, plan, draw))
        assert len(batches) == plan.steps
        for batch in batches:
            sizes.append(batch.size)
            np.add.at(counts, batch, 1)
    expected = sampler.expected_size if not isinstance(sampler, TruncatedPoissonSampler) else np.mean(sizes)
    assert counts.sum() / len(sizes) == pytest.approx(expected, rel=0.03)
    assert chisquare(counts).pvalue > 1e-6
    if isinstance(sampler, TruncatedPoissonSampler):
        assert max(sizes) == sampler.most
    if isinstance(sampler, FixedSizeSampler):
        assert set(sizes) == {20}


@pytest.mark.parametrize("times", [1, 3])
def test_allocation_puts_a_record_into_so_many_batches(times: int) -> None:
    sampler = AllocationSampler(6, 400.0, times)
    plan, draw = sampler.plan(400, 1.0), uniform(4)
    seen: dict[tuple[int, ...], int] = {}
    for _ in range(60):
        places: list[list[int]] = [[] for _ in range(400)]
        for at, batch in enumerate(sampler.epoch(400, plan, draw)):
            for record in batch:
                places[record].append(at)
        for each in places:
            assert len(set(each)) == times
            seen[tuple(each)] = seen.get(tuple(each), 0) + 1
    assert len(seen) == math.comb(6, times)
    assert chisquare(list(seen.values())).pvalue > 1e-6


def test_sampler_and_accountant_are_one() -> None:
    assert PoissonSampler(600).plan(60_000, 1.0).composition(10) == SampledGaussian(0.01, 1.0) * 1000
    assert FixedSizeSampler(600).plan(60_000, 1.0).composition(2) == FixedSizeGaussian(600, 60_000, 1.0) * 200
    assert AllocationSampler(100, 60_000).plan(60_000, 1.0).composition(5) == AllocatedGaussian(100, 1.0) * 5
    truncated_plan = TruncatedPoissonSampler(600, 800).plan(60_000, 1.0)
    assert truncated_plan.composition(1) == TruncatedGaussian(0.01, 1.0, 800, 60_000) * 100
    for wrong in (lambda: PoissonSampler(0), lambda: TruncatedPoissonSampler(20, 10), lambda: FixedSizeSampler(0)):
        with pytest.raises(ProgramError):
            wrong()


def test_filters_charge_batches_by_their_bound() -> None:
    from heliograph.dp.accounting.filters import divergence

    assert divergence(FixedSizeGaussian(600, 60_000, 2.0), 3.0) == pytest.approx(
        divergence(SampledGaussian(0.01, 1.0), 3.0), rel=1e-9
    )
    cut, free = divergence(TruncatedGaussian(0.01, 1.0, 600, 60_000), 3.0), divergence(SampledGaussian(0.01, 1.0), 3.0)
    assert free < cut < divergence(SampledGaussian(0.01, 0.5), 3.0)


def test_rough_methods_take_batches() -> None:
    composition = Composition(((FixedSizeGaussian(600, 60_000, 2.0), 100), (AllocatedGaussian(50, 2.0), 1)))
    best = epsilon_at(composition, 1e-5, tolerance=Tolerance(absolute=0.01))
    assert epsilon_at(composition, 1e-5, method="rdp").upper >= best.lower
