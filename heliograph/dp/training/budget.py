"""The budget for a run's releases: a plan fixed before the data, or a Renyi filter; and the stage that releases N~.

A run asks its budget before every release. `PlannedBudget` holds a plan: every mechanism and its count were fixed
beforehand, so that the numerical bracket of the plan is the guarantee, whenever the run stops (a run that stops early
releases less than planned, and may not report less). A `RenyiFilter` (see `accounting.filters`) is for mechanisms
chosen after seeing the outputs of earlier ones.

If the number of records N is not public, it is released first, as N~, and everything after it (probabilities, steps,
noise) may depend on it. This gives two stages, each with a guarantee fixed beforehand: N~ is (e1, d1)-private, the rest
is (e2, d2)-private for every value of N~, so that the whole is (e1 + e2, d1 + d2)-private (basic adaptive composition,
which has no other condition on the choice of the second stage).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.dp.accounting import epsilon_at
from heliograph.dp.accounting.filters import RenyiFilter
from heliograph.dp.composition import Composition
from heliograph.dp.language import parse
from heliograph.dp.mechanisms import Gaussian, Mechanism
from heliograph.errors import BudgetError, PlanningError, ProgramError

_SIZE_SHARE = 0.01
"""The share of delta that the stage of N~ gets."""


@dataclass
class PlannedBudget:
    """A budget that admits exactly the mechanisms of a plan, each as often as planned."""

    plan: Composition
    counts: dict[Mechanism, int] = field(default_factory=dict)

    def spend(self, mechanism: Mechanism, count: int = 1) -> None:
        """Charge a mechanism, or raise BudgetError and charge nothing."""
        used = self.counts.get(mechanism, 0) + count
        planned = dict(self.plan.items).get(mechanism, 0)
        if used > planned:
            raise BudgetError(
                f"the plan does not admit {mechanism.text()} * {count}",
                where="planned budget",
                why=f"it was planned {planned} times, and was charged {used - count} times",
                hint="stop here: what was released so far is within the plan",
            )
        self.counts[mechanism] = used

    @property
    def committed(self) -> float:
        """The share of the planned releases that is charged, for progress bars; no guarantee follows from it."""
        return sum(self.counts.values()) / max(self.plan.steps, 1)

    def to_json(self) -> dict[str, object]:
        """The state, for a checkpoint."""
        spent = {mechanism.text(): count for mechanism, count in self.counts.items()}
        return {"kind": "planned", "plan": self.plan.text(), "spent": spent}


def restored(state: dict[str, object]) -> PlannedBudget | RenyiFilter:
    """The budget of a checkpoint. Raises ProgramError for any other value."""
    if state.get("kind") == "renyi_filter":
        return RenyiFilter.from_json(state)
    plan, spent = state.get("plan"), state.get("spent")
    if state.get("kind") != "planned" or not isinstance(plan, str) or not isinstance(spent, dict):
        raise ProgramError("no state of a budget", where="checkpoint")
    counts: dict[Mechanism, int] = {}
    for text, count in spent.items():
        ((mechanism, _),) = parse(text).items
        counts[mechanism] = int(count)
    return PlannedBudget(parse(plan), counts)


@dataclass(frozen=True)
class SizeStage:
    """The guarantee of the release of N~: Gaussian noise of standard deviation `noise_std`, at its share of delta."""

    noise_std: float
    epsilon: float
    delta: float

    @classmethod
    def within(cls, epsilon: float, delta: float, noise_std: float) -> SizeStage:
        """The stage inside a target. Raises PlanningError if it would take more than half of epsilon."""
        share = delta * _SIZE_SHARE
        upper = epsilon_at(Gaussian(noise_std), share).upper
        assert upper is not None
        if upper > epsilon / 2:
            raise PlanningError(
                f"releasing the number of records with noise {noise_std:g} costs epsilon {upper:.4g} of {epsilon:g}",
                where="size_noise",
                hint="use more noise on the size, or give public_size where the number of records is public",
            )
        return cls(noise_std, upper, share)

    @property
    def plan(self) -> Composition:
        """The stage's releases."""
        return Composition.of(Gaussian(self.noise_std))
