"""Settings at the edge of what is accounted: brackets that were once wrong, infinite without need, slow, or a crash."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf

from heliograph.dp.accounting import Tolerance, convolve, delta_at, epsilon_at
from heliograph.dp.accounting.curves import group_epsilon
from heliograph.dp.accounting.discretize import Lattice, _ratio
from heliograph.dp.accounting.pld import _aligned, _Clock
from heliograph.dp.accounting.result import Estimate
from heliograph.dp.composition import Composition
from heliograph.dp.custom import Densities, Table
from heliograph.dp.mechanisms import (
    Approximate,
    Gaussian,
    Laplace,
    Mechanism,
    Pure,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
)
from heliograph.dp.pairs import GaussianBase, LaplaceBase, SampledPart, atomic_pair, sampled_loss
from heliograph.errors import ProgramError


@pytest.mark.parametrize("group", [2, 3, 7])
@pytest.mark.parametrize("count", [1, 100, 10_000])
def test_a_group_counts_every_run(group: int, count: int) -> None:
    whole = epsilon_at(Gaussian(50.0 / group) * count, 1e-6)
    found = group_epsilon(Gaussian(50.0) * count, group, 1e-6)
    assert whole.lower <= found <= whole.upper * (1 + 1e-9) + 1e-9
    assert group_epsilon(Gaussian(50.0) * count + Gaussian(20.0), group, 1e-6) > found


# Sampling probabilities near 1.


@pytest.mark.parametrize("p", [0.3, 0.9, 1 - 1e-9, 0.9999999999999954, 1 - 2.0**-53])
def test_losses_of_a_sampled_pair_have_no_cancellation(p: float) -> None:
    t = np.concatenate((-np.geomspace(1e-12, 60, 80)[::-1], [0.0], np.geomspace(1e-12, 60, 80)))
    found = sampled_loss(t, p)
    with mp.workdps(60):
        for each, value in zip(t, found, strict=True):
            true = mpmath.log(1 - mpf(p) + mpf(p) * mpmath.exp(mpf(each)))
            assert abs(mpf(float(value)) - true) <= 8 * 2.0**-53 * (1 + abs(true))


@pytest.mark.parametrize("p", [1e-9, 0.3, 1 - 1e-9, 0.9999999999999954, 1 - 2.0**-53])
@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("base", [GaussianBase(2.0), LaplaceBase(33.0)], ids=["gaussian", "laplace"])
def test_edges_err_by_no_more_than_they_say(p: float, remove: bool, base: GaussianBase | LaplaceBase) -> None:
    part = SampledPart(base, p, remove)
    low, high = part.loss_range(-60.0, -60.0)
    nodes = np.linspace(low, high, 400)[1:-1]
    edges = part.edge(nodes)
    sign = 1 if remove else -1
    with mp.workdps(60):
        for node, x in zip(nodes, edges, strict=True):
            at = sign * mpf(float(x))
            t = (
                mpf(base.mu) * (at - mpf(base.mu) / 2)
                if isinstance(base, GaussianBase)
                else base.epsilon * (2 * at - 1)
            )
            if isinstance(base, LaplaceBase) and not 0 < at < 1:
                continue
            true = sign * mpmath.log(1 - mpf(p) + mpf(p) * mpmath.exp(t))
            # A rounding of x moves t by as much times the slope, which 32 units of the largest loss cover too.
            assert abs(true - mpf(float(node))) <= part.edge_error(float(np.abs(nodes).max()))


def _laplace_and_response(p: float, e: float, at: float) -> mpf:
    """Epsilon of sampled_laplace(p, e) and a response whose direction add has losses log(0.5 / (1e-6, 1 - 1e-6))."""
    p_, e_ = mpf(p), mpf(e)

    def survival(t: mpf) -> tuple[mpf, mpf]:
        """Masses of the shifted and the unshifted law where log(shifted / unshifted) < t."""
        if t <= -e_:
            return mpf(0), mpf(0)
        x = (min(t, e_) / e_ + 1) / 2
        if t > e_:
            return mpf(1), mpf(1)
        return mpmath.exp(-e_ * (1 - x)) / 2, 1 - mpmath.exp(-e_ * x) / 2

    def curve(level: mpf) -> mpf:
        # Direction add: A is unshifted, B the mixture; the loss is above `level` where e^t < (e^-level - 1 + p) / p.
        rest = mpmath.expm1(-level) + p_
        if rest <= 0:
            return mpf(0)
        shifted, still = survival(mpmath.log(rest / p_))
        return still - mpmath.exp(level) * ((1 - p_) * still + p_ * shifted)

    def whole(level: mpf) -> mpf:
        total = mpf(0)
        for b in (mpf(1e-6), mpf(1 - 1e-6)):
            total += mpf("0.5") * curve(level - mpmath.log(mpf("0.5") / b))
        return total

    low, high = mpf(20), mpf(100)
    for _ in range(140):
        middle = (low + high) / 2
        low, high = (middle, high) if whole(middle) > mpf(at) else (low, middle)
    return low


@pytest.mark.parametrize(
    ("p", "e", "at"),
    [
        (0.9999999999999954, 33.764, 1e-3),
        (0.9999999999999856, 32.569, 1e-3),
        (0.9999999999999934, 32.161, 1e-9),
        (0.999999999999, 27.3, 1e-5),
    ],
)
def test_probabilities_near_one(p: float, e: float, at: float) -> None:
    table = Table((1e-6, 1 - 1e-6), (0.5, 0.5))
    found = epsilon_at(SampledLaplace(p, e) + table, at).directions["add"]
    with mp.workdps(60):
        true = float(_laplace_and_response(p, e, at))
    assert found.lower <= true * (1 + 1e-12)
    assert true * (1 - 1e-12) <= found.upper


# Deltas far below round-off of 1.


@pytest.mark.parametrize("small", [1e-10, 1e-15, 1e-17, 1e-44, 1e-62, 1e-200])
@pytest.mark.parametrize("method", ["auto", "exact", "rdp", "pld"])
def test_small_deltas_keep_their_digits(small: float, method: str) -> None:
    found = delta_at(Approximate(0.1, small) * 3, 5.0, method=method)
    with mp.workdps(250):
        true = 1 - (1 - mpf(small)) ** 3
    assert mpf(found.lower) <= true
    assert true <= mpf(found.upper)
    assert found.upper <= 3.01 * small
    assert epsilon_at(Approximate(0.1, small), small / 10).lower == math.inf


def test_a_delta_that_is_all_lost_has_a_finite_epsilon() -> None:
    found = epsilon_at(Approximate(0.1, 1e-6), 1e-6, method="exact")
    assert found.lower == pytest.approx(0.1, rel=1e-12)
    assert found.upper == pytest.approx(0.1, rel=1e-12)


# Infinite where finite.


def test_large_epsilons_are_not_infinite() -> None:
    found = epsilon_at(Gaussian(0.01) * 10**9, 1e-5)
    assert found.upper < 5.0005e12
    assert found.lower > 5.0e12 * (1 - 1e-9)


@pytest.mark.parametrize(
    ("composition", "at"),
    [
        (SampledGaussian(0.9, 0.05) * 30_000, 1e-5),
        (SampledGaussian(0.98, 0.42) * 783_697_843, 2e-107),
        (SampledLaplace(2.34e-7, 0.876) * 2, 1.6e-16),
        (Laplace(1.27e-6) * 10, 1.7e-58),
    ],
    ids=str,
)
def test_a_finite_bound_that_is_known_is_given(composition: Composition, at: float) -> None:
    found = epsilon_at(composition, at, tolerance=Tolerance(seconds=2.0))
    moments = epsilon_at(composition, at, method="rdp")
    assert found.upper <= moments.upper * (1 + 1e-9) + 1e-9
    assert found.lower <= found.upper
    # No loss is larger than all of the largest together.
    pairs = [(mechanism.pair("remove"), count) for mechanism, count in composition]
    largest = sum(
        count * max(float(pair.atoms.loss[-1]) if pair.atoms.loss.size else 0.0, pair.part.high)
        for pair, count in pairs
    )
    assert found.directions["remove"].upper <= largest * (1 + 1e-9) + 2e-12


# Crashes.


@pytest.mark.parametrize(
    ("mechanism", "at", "absolute"),
    [
        (SampledLaplace(2.77e-10, 5.4e-8), 2.6e-9, 1e-3),
        (SampledLaplace(4e-10, 0.15), 7e-20, 1e-3),
        (SampledLaplace(3.1e-5, 1.7e-4), 1e-75, 1e-5),
        (Laplace(1e-8), 1e-12, 1e-12),
    ],
    ids=str,
)
def test_losses_near_round_off_are_bounded(mechanism: Mechanism, at: float, absolute: float) -> None:
    found = epsilon_at(
        mechanism * 2, at, tolerance=Tolerance(absolute=absolute, relative=0.0, seconds=2.0), method="pld"
    )
    pair = mechanism.pair("remove")
    assert 0 <= found.lower <= found.upper <= 2 * float(pair.atoms.loss[-1]) * (1 + 1e-9) + 2e-12


def test_a_table_that_tells_everything() -> None:
    table = Table((1.0, 0.0), (0.0, 1.0))
    found = delta_at(table, 1.0)
    assert found.upper == 1.0
    assert found.lower > 1 - 1e-9
    assert epsilon_at(table, 0.5).lower == math.inf
    assert epsilon_at(table + Gaussian(1.0) * 3, 0.5).lower == math.inf


# Tables, densities.


def test_a_table_of_many_outcomes_is_bounded_from_below() -> None:
    n = 20_000
    upper = [0.99 / n] * n + [0.01]
    found = delta_at(Table(tuple(upper), tuple([1.0 / n] * n + [0.0])), 5.0)
    true = 0.01 / math.fsum(upper)
    assert found.lower <= true * (1 + 1e-15)
    assert found.upper >= true * (1 - 1e-15)
    assert found.upper - found.lower < 1e-11


def test_close_losses_are_merged_within_round_off_only() -> None:
    # A chain in which every loss is within the slack of the one before it, and the ends are far apart.
    loss = 0.5 + 1e-15 * np.arange(5000)
    pair = atomic_pair(np.log(np.full(5000, 1 / 5000)), np.log(np.full(5000, 1 / 5000)) - loss)
    assert pair.atoms.loss.size > 100
    for representative in pair.atoms.loss:
        assert float(np.abs(loss - representative).min()) <= 32 * 2.0**-53 * 1.5
    assert pair.atoms.a.sum() == pytest.approx(1.0)


def test_a_loss_that_turns_back_between_the_points_is_refused() -> None:
    h = 0.25

    def lower(x: np.ndarray) -> np.ndarray:
        return -0.5 * x**2 - 0.5 * math.log(2 * math.pi)

    def upper(x: np.ndarray) -> np.ndarray:
        return lower(x) + np.log1p(0.5 * np.sin(2 * math.pi * x / h))

    pair = Densities(upper, lower, tuple(np.arange(-40, 41) * h), 1e-22)
    with pytest.raises(ProgramError, match="not monotone"):
        epsilon_at(pair, 1e-6)


def test_quadrature_is_not_called_proved() -> None:
    points = tuple(np.linspace(-14, 15, 300))
    log = -0.5 * math.log(2 * math.pi)
    pair = Densities(lambda x: log - 0.5 * (x - 1) ** 2, lambda x: log - 0.5 * x**2, points, 1e-30)
    found = epsilon_at(pair, 1e-5)
    assert not found.proved
    assert "estimated" in found.reason
    assert epsilon_at(Gaussian(1.0), 1e-5).proved


# One number, one neighbouring relation.


def test_relations_are_not_mixed() -> None:
    with pytest.raises(ProgramError, match="randomized_response cannot be combined"):
        epsilon_at(RandomizedResponse(0.5) + Gaussian(2.0), 1e-5)
    alone = epsilon_at(RandomizedResponse(0.5) * 3, 1e-5)
    assert alone.neighboring == "replace"
    assert epsilon_at(RandomizedResponse(0.5) + Gaussian(2.0), 1e-5, neighboring="replace").neighboring == "replace"
    assert epsilon_at(Pure(0.5) + Gaussian(2.0), 1e-5).neighboring == "add_remove"


# Errors that no figure shows.


@pytest.mark.parametrize("count", [1, 2])
def test_a_transform_that_vanishes_errs_by_what_it_says(count: int) -> None:
    """Two equal masses half a circle apart: every other frequency is exactly 0."""
    length = 256
    index = np.array([0, length // 2], dtype=np.int64)
    lattice = Lattice(index, np.array([0.5, 0.5]), 0.01, 0.0, 0.0, 0.0)
    found = convolve.combine([(convolve.spectrum(lattice, 0.0, length), count)], 0.01, 0.0, -1.0, 3.0, 40.0, length)
    true = np.zeros(length)
    true[[0, length // 2]] = 0.5
    if count == 2:
        true[0], true[length // 2] = 0.5, 0.5
    # The law may be turned on the circle: its origin says by how much.
    turned = round((found.origin - 0.0) / 0.01) % length
    assert float(np.abs(np.roll(found.values, turned) - true).max()) <= found.entry_error
    assert found.entry_error < 1e-12


def test_what_lies_beyond_the_terms_that_are_added_is_bounded() -> None:
    """All mass on the node after the last within reach: the tail's bound starts at whole nodes, not at the reach."""
    values = np.zeros(64)
    values[2] = 1.0
    law = convolve.Composed(
        step=1.0, values=values, theta=10.0, log_scale=0.0, origin=0.0, entry_error=0.0, relative=0.0, infinite_above=0.0,
        infinite_below=0.0, low=0.0, high=40.0, need=15.0, shift=0.0,
    )  # fmt: skip
    at = 0.999
    true = math.exp(-10 * 2.0) * -math.expm1(at - 2.0)
    lower, upper = law.delta_at(at)
    assert lower <= true <= upper


# Time.


def test_a_bracket_keeps_to_its_seconds() -> None:
    composition = SampledGaussian(1e-5, 0.6) * 10**8
    began = time.process_time()
    found = epsilon_at(composition, 1e-5, method="pld", tolerance=Tolerance(absolute=1e-6, relative=0.0, seconds=1.0))
    # Two directions, and a last round that took longer than it was thought to.
    assert time.process_time() - began < 8.0
    assert not found.reached
    assert "tolerance was not reached" in found.reason
    assert found.lower <= 1.5120712373356389
    assert found.upper >= 1.5109500532933913


def test_seconds_are_for_both_directions() -> None:
    given: list[float] = []

    class Burning:
        """An accountant that takes a third of a second, and notes what it was given."""

        name, proved, remark = "burning", True, ""

        def epsilon(self, composition: Composition, direction: str, delta: float, tolerance: Tolerance) -> Estimate:
            given.append(tolerance.seconds)
            end = time.thread_time() + 0.3
            while time.thread_time() < end:
                pass
            return Estimate(0.0, 1.0, 2.0)

        delta = epsilon

    epsilon_at(SampledGaussian(0.1, 1.0) * 3, 1e-5, method=Burning(), tolerance=Tolerance(seconds=2.0))  # type: ignore[arg-type]
    assert given[0] == pytest.approx(1.0, abs=0.1)
    assert given[1] == pytest.approx(1.7, abs=0.1)


SLOW = [
    (SampledGaussian(1.9276701693645615e-07, 53.56354387720811) * 37_916_255, 1.3e-167),
    (
        SampledGaussian(0.0002155950001590318, 111.34962379543677) * 107_760_844
        + SampledLaplace(7.778960631407893e-08, 0.0002847997173653876) * 636,
        9.6e-294,
    ),
    (
        SampledGaussian(3.144384914333949e-05, 181.95170080511645) * 17_131_176
        + Gaussian(219.6896152030063) * 1_050_022
        + SampledLaplace(0.0003910764959253073, 1.2361977339845196e-06) * 255,
        3.35e-5,
    ),
]


@pytest.mark.parametrize(
    ("composition", "at", "most"),
    [(*case, most) for case, most in zip(SLOW, (1 << 20, 1 << 20, 1 << 16), strict=True)],
    ids=["small deltas", "fine atoms", "a wide law and fine atoms"],
)
def test_first_meshes_are_no_finer_than_it_takes(
    composition: Composition, at: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these took 5 to 30 s, its first transform being of 2^24 nodes, or its first lattice of a million."""
    nodes: list[int] = []
    original = convolve.compose

    def noted(terms: convolve.Terms, *rest: Any, **named: Any) -> Any:
        law = original(terms, *rest, **named)
        nodes.append(max(law.values.size, *(lattice.mass.size for lattice, _ in terms)))
        return law

    monkeypatch.setattr(convolve, "compose", noted)
    found = epsilon_at(composition, at, tolerance=Tolerance(seconds=2.0))
    assert nodes[0] <= most
    assert 0 < found.lower < found.upper < 1.01 * found.lower + 0.01


def test_atoms_that_hardly_matter_force_no_fine_mesh() -> None:
    pair = SampledLaplace(1e-3, 1e-6).pair("remove")
    gap = _aligned([(pair, 100)], 1e-12, 1e-3)
    assert gap <= 1e-12
    assert _aligned([(pair, 100)], 1e-3, 1e-3) == 1e-3
    # A hundred million of them matter: rounding each by a step of 1e-3 would cost 1e5.
    fine = _aligned([(pair, 10**8)], 1e-3, 1e-3)
    assert float(pair.atoms.loss[-1] - pair.atoms.loss[0]) * (1 - 1e-9) <= fine <= 1e-8


def test_a_fine_step_for_two_lattices_is_found_in_a_moment() -> None:
    """Of millions of steps on which the atoms of one lie, those of the other were tried on each: 190 s in one bracket."""
    pairs = [(SampledLaplace(0.02, 6.1).pair("remove"), 2098), (Laplace(7.9e-5).pair("remove"), 4)]
    began = time.process_time()
    found = _aligned(pairs, 2e-11, 1e-9)
    assert time.process_time() - began < 1.0
    assert 0 < found <= 2e-11
    gap = max(float(np.diff(pair.atoms.loss).max()) for pair, _ in pairs)
    assert abs(gap / found - round(gap / found)) < 1e-4


def test_atoms_force_no_finer_mesh_once_time_is_up() -> None:
    """They did, four rounds in a row: 60 s of the processor for a bracket that was to take 20."""
    pairs = [
        (SampledLaplace(0.0014318852361693936, 0.005545617738698544).pair("remove"), 59_186_128),
        (SampledLaplace(0.006384099629925721, 0.005120334964472886).pair("remove"), 60),
    ]
    step = 1.54e-7
    assert _aligned(pairs, step, 1e-3) < 0.5 * step
    assert _Clock(0.0).refined(pairs, step, 0.7 * step, 1e-3) == step
    assert _Clock(1e9).refined(pairs, step, 0.7 * step, 1e-3) == _aligned(pairs, 0.7 * step, 1e-3)


def test_moments_of_many_kinds_take_a_moment() -> None:
    many = Composition(tuple((SampledGaussian(0.001 + 1e-5 * i, 0.8 + 0.001 * i), 10) for i in range(300)))
    began = time.process_time()
    found = epsilon_at(many, 1e-5, method="rdp")
    assert time.process_time() - began < 5.0
    assert 0.5 < found.upper < 2.0


def test_a_law_whose_origin_is_far_away_is_read_at_once() -> None:
    # numpy wraps an index by subtracting the length again and again: for these it would not end today.
    law = convolve.Composed(
        step=1e-9,
        values=np.full(64, 1 / 64),
        theta=1.0,
        log_scale=0.0,
        origin=-3e5,
        entry_error=1e-16,
        relative=1e-12,
        infinite_above=0.0,
        infinite_below=0.0,
        low=-1.0,
        high=1.0,
        need=40.0,
        shift=0.0,
    )
    values = np.arange(64.0)
    assert np.array_equal(replace(law, values=values)._around(10**17 + 3, 5), values[(10**17 + 3) % 64 + np.arange(5)])
    began = time.perf_counter()
    law.delta_at(1.0)
    law.likelihood(np.zeros(3), 1.0)
    assert time.perf_counter() - began < 5


def test_a_loss_that_is_one_number_up_to_rounding_divides_by_nothing() -> None:
    """With so little noise the tilted loss has no variance that doubles can hold."""
    found = epsilon_at(SampledGaussian(1.88e-7, 0.0208) * 160_205, 4.7e-6)
    assert 2500 < found.lower <= found.upper < 2501
    assert delta_at(SampledGaussian(1.88e-7, 0.0208) * 160_205, found.upper).lower <= 4.7e-6


def test_a_share_of_next_to_nothing_is_infinite_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = _ratio(np.array([1.0, 1.0, 1.0]), np.array([5e-324, 0.0, 2.0]))
    assert found.tolist() == [math.inf, 0.0, 0.5]
