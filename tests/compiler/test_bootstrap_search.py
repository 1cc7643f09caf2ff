"""How the planner goes through chains that bootstrap: which of them it plans to the end, and when it stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import heliograph as hg
from heliograph.ckks.noise import bootstrap_error
from heliograph.ckks.ring import Ring
from heliograph.compiler.planning import bootstrapped, chain_plans, planner
from heliograph.compiler.planning.chain_plans import simulated_plan
from heliograph.compiler.planning.placements import Choice
from heliograph.compiler.planning.plan import Plan, Refusal, Wanted
from heliograph.errors import PlanningError
from heliograph.ir import CipherType
from heliograph.passes.base import Trail
from heliograph.passes.bootstraps import place_bootstraps, placement
from heliograph.passes.levels.plan_levels import TooFewLevelsError

# Squared forty times: a value near one, which is bootstrapped several times.
PROGRAM = "program deep\ninput x: secret slots[8] in [-1, 1]\na = x\n" + 40 * "a = a * a\n" + "output y = a\n"
TOY = {"security_bits": None, "log_ring": 12, "bootstrap": True, "precision_bits": 6.0}
# Secure chains are of many scales, those without security all of the finest.
SECURE = {"security_bits": 128, "log_ring": 15}


class Search:
    """What the planner did: the choices it had, those it planned, and how often it simulated a finished plan."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[Sequence[Choice]] = []
        self.lowered: list[Choice] = []
        self.finished: list[Choice] = []
        # What lowering raises and finishing returns, where something is given.
        self.refuses: Any = lambda choice: None
        self.coarse: Any = lambda choice: None
        choices, lower, finish = bootstrapped.choices, bootstrapped._lowered, bootstrapped._Fitting._finished

        def placed(*given: Any) -> Any:
            made = choices(*given)
            self.found.append(made[0])
            return made

        def lowered(choice: Choice, *given: Any) -> Any:
            self.lowered.append(choice)
            if (error := self.refuses(choice)) is not None:
                raise error
            return lower(choice, *given)

        def finished(fitting: Any, lowered: Any, *given: Any) -> Any:
            self.finished.append(lowered.choice)
            refusal = self.coarse(lowered.choice)
            return finish(fitting, lowered, *given) if refusal is None else refusal

        monkeypatch.setattr(bootstrapped, "choices", placed)
        monkeypatch.setattr(bootstrapped, "_lowered", lowered)
        monkeypatch.setattr(bootstrapped._Fitting, "_finished", finished)


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    return Search(monkeypatch)


def compiled(**options: Any) -> hg.Artifact:
    return hg.compile(hg.parse(PROGRAM), hg.Options(**{**TOY, **options}))


def test_where_one_placement_is_a_level_short_others_with_other_room_are_tried(search: Search) -> None:
    compiled()
    searches, first = len(search.found), search.lowered[-1].room
    search.found, search.lowered = [], []
    search.refuses = lambda choice: TooFewLevelsError(40, 39) if choice.room == first else None
    compiled()
    # Found in the same search, without levels to spare. Each number of levels between bootstraps was tried once.
    assert len(search.found) == searches
    rooms = [choice.room for choice in search.lowered]
    assert rooms[-1] != first
    assert first in rooms
    assert len(set(rooms)) == len(rooms)


def test_coarse_bootstraps_end_the_comparison_at_the_first_plan(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (planner, bootstrapped):
        monkeypatch.setattr(module, "wanted_fastest", lambda *given: True)
    error, refused = bootstrap_error, []

    def coarse(choice: Choice) -> Refusal | None:
        if refused:
            return None
        refused.append(len(search.lowered))
        return Refusal(PlanningError("its error would be large"), finer_bits=1, serves=0.5 * error(choice.ring))

    search.coarse = coarse
    compiled(**SECURE)
    first, second, *last = search.finished
    # Nothing was planned beside the one that was refused, and of the others those that may be the fastest, each finer.
    assert search.lowered[refused[0] - 1] is first
    assert len(search.lowered) > refused[0] + 1
    assert all(error(choice.ring) <= 0.5 * error(first.ring) for choice in search.lowered[refused[0] :])
    # The fastest of those was simulated beside the first of them, where it was another.
    assert len(last) <= 1
    assert second in search.lowered[refused[0] :]


def test_bootstraps_count_in_a_bound_on_memory_as_they_are_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written out, they may fit where whole ones would not; where they would by no means, no plan is tried."""
    bound = compiled().report.to_dict()["server_peak_bytes"]
    monkeypatch.setattr(Choice, "bootstrap_bytes", property(lambda choice: 2 * bound))
    assert compiled(memory_bytes=bound).report.to_dict()["server_peak_bytes"] <= bound
    monkeypatch.setattr(Choice, "bootstrap_bytes", property(lambda choice: 3 * bound))
    with pytest.raises(PlanningError, match="keys and tables of bootstraps alone"):
        compiled(memory_bytes=bound)


@pytest.mark.parametrize(("excess", "share"), [(1.02, 2.0**-0.5), (4.0, 0.25)])
def test_after_a_plan_that_is_too_coarse_only_finer_ones_are_tried(
    search: Search, monkeypatch: pytest.MonkeyPatch, excess: float, share: float
) -> None:
    """A chain of one bit more is among them where little is missing, though it errs by a little more than half as much."""
    finish, simulate = bootstrapped._Fitting._finished, chain_plans.simulated
    tolerance: list[float] = []
    served: list[float] = []

    def finished(fitting: Any, *given: Any) -> Any:
        tolerance.append(fitting.wanted.tolerance)
        found = finish(fitting, *given)
        if isinstance(found, Refusal):
            served.append(found.serves)
        return found

    def simulated(*given: Any) -> Any:
        found = simulate(*given)
        # Only the first plan is refused.
        return found if served else replace(found, error=excess * tolerance[0])

    monkeypatch.setattr(bootstrapped._Fitting, "_finished", finished)
    monkeypatch.setattr(chain_plans, "simulated", simulated)
    compiled(**SECURE)
    first, *others = (choice.error for choice in search.finished)
    assert served == [pytest.approx(share * first)]
    assert others
    assert max(others) <= share * first


def test_a_large_program_holds_few_searches_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    program, options = hg.parse(PROGRAM.replace(30 * "a = a * a\n", "")), hg.Options(**TOY, scale_bits=30, chains=1)
    usual = hg.compile(program, options)
    held: list[int] = []
    run = placement._Together.run
    monkeypatch.setattr(placement._Together, "run", lambda self: held.append(len(self.searches)) or run(self))
    monkeypatch.setattr(place_bootstraps, "_MOST_STEPS", 100)
    assert hg.compile(program, options).fingerprint == usual.fingerprint
    # Of eleven nodes that the packed program has.
    assert max(held) == 9


def test_rotations_are_made_exact_before_the_scale_is_finer(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[Ring, tuple[int, ...]]] = []

    def refusing(trail: Trail, ring: Ring, options: hg.Options, wanted: Wanted) -> Plan | Refusal:
        """The plan, unless it is the first: that is said to be too coarse."""
        rotations = (node.type for node in trail[-1].program.nodes if node.op == "rotate")
        tried.append((ring, tuple(kind.level for kind in rotations if isinstance(kind, CipherType))))
        found = simulated_plan(trail, ring, options, wanted)
        return found if len(tried) > 1 else Refusal(PlanningError("too coarse"), finer_bits=1, inexact=True)

    monkeypatch.setattr(bootstrapped, "simulated_plan", refusing)
    weights = np.random.default_rng(3).uniform(-0.1, 0.1, (8, 64))
    text = (
        "program p\nparam w: tensor[8, 64]\ninput x: secret tensor[64] in [-1, 1]\n"
        "a = tanh(w @ x)\nb = tanh(2 * a)\noutput y = tanh(2 * b)\n"
    )
    options = hg.Options(security_bits=None, log_ring=11, bootstrap=True, degree=15, precision_bits=6.0)
    artifact = hg.compile(hg.parse(text, parameters={"w": weights}), options)
    (ring, levels), (again, exact) = tried
    assert ring == again == artifact.program.ring
    # The sums over the copies of x come before the rescale, one level higher.
    assert len(levels) == len(exact)
    assert sum(exact) > sum(levels)
