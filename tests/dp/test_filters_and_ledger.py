"""Filters, odometer, the running accountant, the ledger and its verification, calibration and curves."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf, quad

from heliograph.dp.accounting import Tolerance, delta_at, epsilon_at
from heliograph.dp.accounting.curves import advantage, epsilon_by_steps, group_epsilon, trade_off
from heliograph.dp.accounting.filters import (
    BudgetError,
    RenyiFilter,
    RenyiOdometer,
    best_order,
    divergence,
)
from heliograph.dp.accounting.ledger import Ledger, Release, read_history, verify
from heliograph.dp.accounting.rdp import conversion, log_moment
from heliograph.dp.accounting.running import RunningAccountant
from heliograph.dp.batches import FixedSizeGaussian, TruncatedGaussian
from heliograph.dp.calibrate import largest_p, most_steps, noise_multiplier
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import Approximate, Gaussian, Laplace, RandomizedResponse, SampledGaussian, SampledLaplace
from heliograph.errors import PlanningError, ProgramError, UnsupportedError, WireError


@pytest.mark.parametrize(("p", "noise"), [(0.01, 1.0), (0.2, 0.7), (1e-4, 5.0)])
def test_integer_orders_of_the_sampled_gaussian(p: float, noise: float) -> None:
    with mp.workdps(40):
        for alpha in (2, 3, 8, 40):
            total = sum(
                mp.binomial(alpha, m)
                * (1 - mpf(p)) ** (alpha - m)
                * mpf(p) ** m
                * mp.exp(mpf(m * m - m) / (2 * mpf(noise) ** 2))
                for m in range(alpha + 1)
            )
            true = float(mp.log(total))
            found = log_moment(SampledGaussian(p, noise), alpha - 1, "remove")
            assert true <= found <= true + 1e-11 * (1 + true)
            assert log_moment(SampledGaussian(p, noise), alpha - 1, "add") <= found + 1e-12


@pytest.mark.parametrize("theta", [0.3, 1.7, 6.2])
@pytest.mark.parametrize("direction", ["add", "remove"])
def test_fractional_orders_against_quadrature(theta: float, direction: str) -> None:
    p, s = mpf("0.05"), mpf("0.9")
    with mp.workdps(30):
        power = theta + 1 if direction == "remove" else -theta
        true = mp.log(
            quad(
                lambda x: mp.npdf(x) * (1 - p + p * mp.exp(x / s - 1 / (2 * s * s))) ** power,
                [-30, -10, -3, 0, 3, 6, 12, 40],
            )
        )
        found = log_moment(SampledGaussian(0.05, 0.9), theta, direction)  # type: ignore[arg-type]
        assert float(true) <= found <= float(true) + 1e-10


def test_a_filter_stops_before_its_budget_is_passed() -> None:
    plan = SampledGaussian(0.01, 1.0) * 1000
    filter_ = RenyiFilter.for_plan(plan, 2.2, 1e-5)
    step = SampledGaussian(0.01, 1.0)
    admitted = filter_.steps_left(step)
    filter_.spend(step, admitted)
    assert filter_.steps == admitted
    assert filter_.spent <= filter_.budget
    before = filter_.spent
    with pytest.raises(BudgetError, match="does not admit"):
        filter_.spend(step)
    assert filter_.spent == before
    # The budget buys about what Renyi accounting of the fixed composition says, and never more than is true.
    assert epsilon_at(step * admitted, 1e-5).upper <= 2.2
    assert epsilon_at(step * (admitted + 1), 1e-5, method="rdp").upper == pytest.approx(2.2, rel=2e-3)
    assert filter_.epsilon_spent <= 2.2


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.floats(0.001, 0.3), st.floats(0.7, 8.0), st.integers(1, 50)), min_size=1, max_size=12))
def test_a_filter_never_admits_more_than_its_epsilon(choices: list[tuple[float, float, int]]) -> None:
    filter_ = RenyiFilter(1.5, 1e-6, 12.0)
    admitted = Composition()
    for p, noise, count in choices:
        try:
            filter_.spend(SampledGaussian(p, noise), count)
        except BudgetError:
            continue
        admitted = admitted + SampledGaussian(p, noise) * count
    spent = sum(count * divergence(mechanism, 12.0) for mechanism, count in admitted)
    assert spent <= filter_.budget
    assert epsilon_at(admitted, 1e-6, method="rdp").upper <= 1.5 * (1 + 1e-9)


def test_a_filter_survives_a_checkpoint() -> None:
    filter_ = RenyiFilter(1.0, 1e-6, 20.0)
    filter_.spend(Gaussian(30.0), 3)
    again = RenyiFilter.from_json(json.loads(json.dumps(filter_.to_json())))
    assert again == filter_
    with pytest.raises(ProgramError):
        RenyiFilter.from_json({"epsilon": 1})


def test_filters_refuse_what_they_cannot_hold() -> None:
    with pytest.raises(PlanningError, match="larger order"):
        RenyiFilter(0.5, 1e-6, 2.0)
    assert not RenyiFilter(5.0, 1e-6, 10.0).fits(Approximate(0.1, 1e-9))


@pytest.mark.parametrize("count", [-100, 0, 0.5, True])
def test_nothing_is_refunded(count: Any) -> None:
    filter_, odometer = RenyiFilter(5.0, 1e-6, 10.0), RenyiOdometer(1e-6)
    for each in (filter_, odometer):
        with pytest.raises(ProgramError, match="positive integer"):
            each.spend(Gaussian(10.0), count)
        assert each.steps == 0


def test_filters_and_running_accountants_hold_for_one_relation() -> None:
    response, step = RandomizedResponse(0.1), SampledGaussian(0.01, 2.0)
    for each in (RenyiFilter(5.0, 1e-6, 10.0), RenyiOdometer(1e-6)):
        with pytest.raises(ProgramError, match="under replace"):
            each.spend(response)
    for each in (RenyiFilter(5.0, 1e-6, 10.0, neighboring="replace"), RenyiOdometer(1e-6, neighboring="replace")):
        each.spend(response)
        with pytest.raises(UnsupportedError, match="no pair"):
            each.spend(SampledLaplace(0.01, 0.5))
        assert each.steps == 1
    changed = RenyiFilter(5.0, 1e-6, 10.0, neighboring="replace")
    assert changed.cost(Gaussian(10.0)) == RenyiFilter(5.0, 1e-6, 10.0).cost(Gaussian(5.0))
    assert RenyiFilter.from_json(json.loads(json.dumps(changed.to_json()))) == changed
    running = RunningAccountant(1e-5)
    running.step(step)
    with pytest.raises(ProgramError, match="cannot be combined"):
        running.step(response)
    running.step(FixedSizeGaussian(10, 1000, 4.0), 3)
    assert running.epsilon().proved


def test_an_odometer_rises_and_covers_what_was_spent() -> None:
    odometer = RenyiOdometer(1e-5)
    readings, step = [], SampledGaussian(0.05, 1.5)
    for _ in range(6):
        odometer.spend(step, 200)
        readings.append(odometer.epsilon)
    assert readings == sorted(readings)
    assert readings[-1] >= epsilon_at(step * 1200, 1e-5).lower
    assert readings[-1] <= 6 * epsilon_at(step * 1200, 1e-5).upper
    share = odometer.delta / 2
    assert odometer.budgets[0] + conversion(odometer.orders[0] - 1, share) <= readings[0]


def test_the_running_accountant_agrees_at_every_stop() -> None:
    running = RunningAccountant(1e-5)
    step, other = SampledGaussian(0.02, 1.1), Gaussian(20.0)
    taken = 0
    assert running.epsilon().upper == 0
    for more in (1, 9, 90, 100, 37, 500):
        running.step(step, more)
        running.step(other)
        taken += more
        found, whole = running.epsilon(), epsilon_at(running.composition, 1e-5)
        assert found.lower <= whole.upper
        assert whole.lower <= found.upper
        assert found.reached


def test_a_running_step_does_not_cost_more_later() -> None:
    running = RunningAccountant(1e-5, Tolerance(absolute=5e-3))
    costs = []
    for block in range(3):
        running.step(SampledGaussian(0.01, 1.0), 200 * 8**block)
        running.epsilon()
        times = []
        for _ in range(5):
            started = time.perf_counter()
            running.step(SampledGaussian(0.01, 1.0))
            running.epsilon()
            times.append(time.perf_counter() - started)
        costs.append(min(times))
    # Sixty times the steps; a cost that followed them would grow as much.
    assert costs[-1] < 20 * costs[0] + 0.03


def report(**changes: Any) -> dict[str, Any]:
    ledger = Ledger()
    ledger.charge(Release("steps", SampledGaussian(0.01, 1.0), 600, 1.0, 1.0, 0.01))
    ledger.charge(Release("steps", SampledGaussian(0.01, 1.0), 400, 1.0, 1.0, 0.01))
    ledger.charge(Release("size", Gaussian(50.0)))
    found = epsilon_at(ledger.composition, 1e-5)
    return {
        "format": "heliograph-privacy-report",
        "version": 1,
        "neighboring_relation": "add_remove",
        "delta": 1e-5,
        "epsilon_lower": found.lower,
        "epsilon_upper": found.upper,
        "accounting": "fixed",
        "releases": ledger.to_json(),
    } | changes


def written(tmp_path: Path, data: object) -> Path:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data))
    return path


def test_verify_recomputes(tmp_path: Path) -> None:
    found = verify(written(tmp_path, report()))
    assert found.holds
    assert found.releases == 2
    low = verify(written(tmp_path, report(epsilon_upper=1.5)))
    assert not low.holds
    assert "below the proved lower bound" in low.problems[0]
    # A generous claim stands; a lower bound above the truth does not.
    assert verify(written(tmp_path, report(epsilon_upper=3.0))).holds
    assert not verify(written(tmp_path, report(epsilon_lower=2.5))).holds


def test_a_claim_inside_the_bracket_does_not_hold(tmp_path: Path) -> None:
    """Where the bracket is wide a claim far too small is above its lower bound; that proves nothing."""
    wide = TruncatedGaussian(0.01, 1.0, 600, 60_000) * 1000
    ledger = Ledger([Release("steps", wide.items[0][0], 1000)])
    found = verify(written(tmp_path, report(releases=ledger.to_json(), epsilon_lower=0.0, epsilon_upper=5.0)))
    assert found.bracket is not None
    assert found.bracket.lower is not None
    assert found.bracket.lower < 5.0 < found.bracket.upper
    assert (found.verdict, found.holds) == ("undecided", False)
    assert "NOT PROVED" in str(found)
    low = verify(written(tmp_path, report(releases=ledger.to_json(), epsilon_lower=0.0, epsilon_upper=0.01)))
    assert low.verdict == "refuted"
    discrete = report(releases=[{"mechanism": "discrete_gaussian(sigma=10)"}], epsilon_lower=0.0, epsilon_upper=1e-4)
    assert verify(written(tmp_path, discrete)).verdict == "refuted"


def test_a_claim_finer_than_the_bracket_is_decided(tmp_path: Path) -> None:
    fine = epsilon_at(Laplace(0.5) * 4, 1e-5, tolerance=Tolerance(1e-6, 1e-6))
    assert fine.lower is not None
    assert fine.upper is not None
    releases = [{"mechanism": "laplace(epsilon=0.5)", "count": 4}]

    def verdict(lower: float, upper: float) -> str:
        data = report(releases=releases, epsilon_lower=lower, epsilon_upper=upper)
        return verify(written(tmp_path, data)).verdict

    assert verdict(fine.lower, fine.upper) == "holds"
    assert verdict(fine.lower, fine.lower - 1e-5) == "refuted"
    assert verdict(fine.upper + 1e-5, fine.upper) == "refuted"


def test_nothing_claimed_is_nothing_verified(tmp_path: Path) -> None:
    silent = report(epsilon_lower=None, epsilon_upper=None)
    history = {"history": [[1.0, 0.01, 100]], "delta": 1e-5}
    for data in (silent, history):
        found = verify(written(tmp_path, data))
        assert (found.verdict, found.holds) == ("nothing claimed", False)
        assert "stands" not in str(found)
    assert verify(written(tmp_path, history | {"epsilon": 9.0})).holds


def test_both_stages_of_a_report_are_proved(tmp_path: Path) -> None:
    step = {"mechanism": "laplace(epsilon=0.5)", "count": 4}
    size = {"mechanism": "gaussian(noise_multiplier=50.0)"}
    first, second = epsilon_at(Gaussian(50.0), 1e-7).upper, epsilon_at(Laplace(0.5) * 4, 1e-5 - 1e-7).upper
    assert first is not None
    assert second is not None

    def verdict(first_claimed: float, claimed: float | None) -> str:
        stage = {"epsilon": first_claimed, "delta": 1e-7}
        data = report(releases=[size, step], size_stage=stage, epsilon_lower=None, epsilon_upper=claimed)
        return verify(written(tmp_path, data)).verdict

    assert verdict(first, first + second) == "holds"
    assert verdict(first, first + second - 0.01) == "refuted"
    assert verdict(first * 0.9, first + second) == "refuted"
    assert verdict(9.0, 5.0) == "refuted"
    assert verdict(first, None) == "refuted"


def test_verify_of_an_adaptive_run(tmp_path: Path) -> None:
    order = best_order(SampledGaussian(0.01, 1.0) * 1000 + Gaussian(50.0), 1e-5)
    state = {"epsilon": 2.5, "delta": 1e-5, "order": order}
    fine = verify(written(tmp_path, report(accounting="filter", filter=state, epsilon_upper=2.5)))
    assert fine.holds
    # What was spent is no guarantee, the budget is; and the releases must fit it.
    assert not verify(written(tmp_path, report(accounting="filter", filter=state, epsilon_upper=1.9))).holds
    tight = {"epsilon": 2.0, "delta": 1e-5, "order": order}
    assert not verify(written(tmp_path, report(accounting="filter", filter=tight, epsilon_upper=2.0))).holds


@pytest.mark.parametrize(
    "data",
    [
        {},
        [],
        "x",
        {"format": "heliograph-privacy-report", "version": 2},
        report(releases="x"),
        report(releases=[{"mechanism": "gaussian(noise_multiplier=0)"}]),
        report(releases=[{"mechanism": "gaussian(noise_multiplier=1)", "count": 0}]),
        report(releases=[{"mechanism": "gaussian(noise_multiplier=1) * 2 + laplace(epsilon=1)"}]),
        report(releases=[{"mechanism": "gaussian(noise_multiplier=1) * 0", "count": 1000}]),
        report(releases=[{"mechanism": "gaussian(noise_multiplier=1)", "noise_std": 2.0, "sensitivity": 1.0}]),
        report(delta=None),
        report(accounting="magic"),
        {"history": [[1.0, 0.01]], "delta": 1e-5},
        {"class_name": "NonPrivateDpEvent", "delta": 1e-5},
    ],
)
def test_verify_refuses_what_is_no_report(tmp_path: Path, data: object) -> None:
    with pytest.raises((WireError, ProgramError)):
        verify(written(tmp_path, data))


def test_verify_refuses_files_that_are_not_json(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(WireError, match="cannot be read"):
        verify(path)
    path.write_text("[" * 100_000)
    with pytest.raises(WireError, match="not JSON"):
        verify(path)


def test_opacus_histories(tmp_path: Path) -> None:
    history = [[1.0, 0.01, 600], [1.0, 0.01, 400], [5.0, 1, 3]]
    expected = SampledGaussian(0.01, 1.0) * 1000 + Gaussian(5.0) * 3
    assert read_history([tuple(entry) for entry in history]) == expected
    assert read_history({"history": history, "mechanism": "rdp"}) == expected
    assert verify(written(tmp_path, {"history": history}), 1e-5).bracket.upper == epsilon_at(expected, 1e-5).upper


@dataclass
class GaussianDpEvent:
    noise_multiplier: float


@dataclass
class LaplaceDpEvent:
    noise_multiplier: float


@dataclass
class PoissonSampledDpEvent:
    sampling_probability: float
    event: Any


@dataclass
class SelfComposedDpEvent:
    event: Any
    count: int


@dataclass
class ComposedDpEvent:
    events: list[Any]


def test_dp_accounting_events() -> None:
    event = ComposedDpEvent(
        [
            SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 100),
            SelfComposedDpEvent(LaplaceDpEvent(4.0), 5),
            PoissonSampledDpEvent(0.5, LaplaceDpEvent(2.0)),
        ]
    )
    expected = SampledGaussian(0.01, 1.0) * 100 + Laplace(0.25) * 5 + SampledLaplace(0.5, 0.5)
    assert read_history(event) == expected
    as_json = {
        "class_name": "SelfComposedDpEvent",
        "event": {
            "class_name": "PoissonSampledDpEvent",
            "sampling_probability": 0.01,
            "event": {"class_name": "GaussianDpEvent", "noise_multiplier": 1.0},
        },
        "count": 100,
    }
    assert read_history(as_json) == SampledGaussian(0.01, 1.0) * 100
    with pytest.raises(WireError, match="not accounted for"):
        read_history({"class_name": "RepeatAndSelectDpEvent"})


@pytest.mark.parametrize(
    ("p", "steps", "target"), [(0.01, 1000, 2.0), (0.2, 50, 8.0), (1.0, 3, 0.5), (1e-3, 20_000, 0.1)]
)
def test_noise_is_the_smallest(p: float, steps: int, target: float) -> None:
    found = noise_multiplier(target, 1e-6, p=p, steps=steps)
    assert found.bracket.upper <= target
    assert found.tight
    less = found.value * 0.999
    mechanism = Gaussian(less) if p == 1.0 else SampledGaussian(p, less)
    assert epsilon_at(mechanism * steps, 1e-6, tolerance=Tolerance(1e-5, 1e-5)).lower > target


def test_other_calibrations() -> None:
    step = SampledGaussian(0.01, 1.0)
    steps = most_steps(2.0, 1e-5, step)
    assert epsilon_at(step * int(steps.value), 1e-5, tolerance=Tolerance(2e-4, 1e-5)).upper <= 2.0
    assert epsilon_at(step * int(steps.value * 1.001 + 1), 1e-5, tolerance=Tolerance(2e-4, 1e-5)).lower > 2.0
    p = largest_p(2.0, 1e-5, noise_multiplier=1.0, steps=1000)
    assert p.tight
    assert epsilon_at(SampledGaussian(p.value, 1.0) * 1000, 1e-5, tolerance=Tolerance(2e-4, 1e-5)).upper <= 2.0
    assert epsilon_at(SampledGaussian(p.value * 1.0011, 1.0) * 1000, 1e-5, tolerance=Tolerance(2e-4, 1e-5)).lower > 2.0
    assert largest_p(50.0, 1e-5, noise_multiplier=5.0).value == 1.0
    with pytest.raises(PlanningError, match="cannot be reached"):
        noise_multiplier(1.0, 1e-6, steps=1, besides=Laplace(2.0) * 3)
    with pytest.raises(PlanningError, match="not even one"):
        most_steps(0.5, 1e-9, Gaussian(1.0))


def test_curves_and_readings_beside_epsilon() -> None:
    gaussian = Gaussian(1.0)
    with mp.workdps(30):
        assert advantage(gaussian).estimate == pytest.approx(float(2 * mp.ncdf(mpf("0.5")) - 1), rel=1e-12)
        curve = trade_off(gaussian, [0.0, 0.05, 0.3, 0.9, 1.0], points=60)
        for rate, lower in zip(curve.false_positive_rate[1:-1], curve.lower[1:-1], strict=True):
            # The trade-off of the Gaussian: Phi(Phi^-1(1 - fpr) - mu).
            true = float(mp.ncdf(mp.sqrt(2) * mp.erfinv(2 * (1 - mpf(rate)) - 1) - 1))
            assert true - 0.01 <= lower <= true + 1e-9
    assert curve.lower[-1] == 0.0
    steps = epsilon_by_steps(SampledGaussian(0.02, 1.0), [10, 100, 1000], 1e-5)
    assert [b.upper for b in steps] == sorted(b.upper for b in steps)


def test_group_privacy() -> None:
    assert group_epsilon(Gaussian(4.0), 4, 1e-5) == pytest.approx(epsilon_at(Gaussian(1.0), 1e-5).upper)
    composition = SampledGaussian(0.01, 2.0) * 100
    singles = [group_epsilon(composition, g, 1e-5) for g in (1, 2, 4)]
    assert singles == sorted(singles)
    # The bound follows from a pair (e, d) that holds for one record.
    e = singles[1] / 2
    assert delta_at(composition, e).upper * (1 + math.exp(e)) <= 1e-5 * (1 + 1e-6)
