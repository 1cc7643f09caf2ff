"""The privacy report of a run: its releases, their bounds, and the omissions, as JSON and in words.

The JSON is a privacy report of `accounting.ledger`: `heliograph dp verify` recomputes epsilon from its releases alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from heliograph.dp.accounting import Bracket, Tolerance, epsilon_at
from heliograph.dp.accounting.filters import RenyiFilter
from heliograph.dp.accounting.ledger import FORMAT, VERSION, Ledger
from heliograph.dp.accounting.rdp import log_moment
from heliograph.dp.accounting.result import json_number
from heliograph.dp.composition import Composition
from heliograph.dp.mechanisms import DIRECTIONS, Mechanism, Neighboring
from heliograph.dp.training.budget import PlannedBudget, SizeStage
from heliograph.dp.training.settings import Settings

NOT_ACCOUNTED = (
    "the choice of hyperparameters (learning rate, epochs, batch size, clipping bound, architecture), where the training"
    " data were looked at for it",
    "preprocessing that depends on the training data (vocabularies, means, selected features)",
    "data sets whose item i is made of other items too (mixup, mosaics, pairs, triplets): a record is then in many items",
    "running time and memory, which vary with the batches drawn",
)

_DIFFERENCE = {
    "add_remove": "one record added or removed",
    "replace": "one record replaced by another (their number is fixed)",
    "zero_out": "one record that is there, or adds nothing in its place (their number is fixed)",
}
_ROUGH = Tolerance(absolute=0.01, relative=0.01)


@dataclass(frozen=True)
class PrivacyReport:
    """A run's releases and their bounds, proved (P10 to P20, test_a_step_has_the_law_that_is_accounted).

    `epsilon_upper` is the guarantee, at `delta`, for data sets that differ as `settings.neighboring` says;
    `epsilon_lower` (None if probabilities were chosen adaptively) shows how tight it is. `noise_multiplier` is the
    standard deviation of the noise divided by the clipping bound, the smallest of the run.
    """

    settings: Settings
    epsilon_lower: float | None
    epsilon_upper: float
    budget: PlannedBudget | RenyiFilter
    bracket: Bracket | None
    ledger: Ledger
    size: float
    size_stage: SizeStage | None
    steps: int
    steps_planned: int
    noise_multiplier: float
    stopped: str = ""
    replayed: int = 0
    seconds: float = 0.0
    accuracy: float | None = None
    public_set: bool = False
    earlier: tuple[tuple[float, float], ...] = ()
    """Epsilon and delta of other runs on these data that this one was told of."""
    released: dict[str, Any] = field(default_factory=dict)
    """Released values, and public ones derived from them: sizes, bounds, norm totals, noise."""

    @property
    def delta(self) -> float:
        """The delta of the guarantee."""
        return self.settings.delta

    @property
    def together(self) -> tuple[float, float]:
        """Epsilon and delta of this run and the earlier ones: their sums.

        This is basic composition, which also holds if a run was planned after the results of earlier ones were seen.
        """
        epsilons, deltas = zip((self.epsilon_upper, self.delta), *self.earlier, strict=True)
        return math.fsum(epsilons) * (1 + 1e-12), math.fsum(deltas) * (1 + 1e-12)

    @property
    def accounting(self) -> str:
        """`fixed`: a plan fixed before the data, under the numerical bracket; `filter`: adaptive, under a filter."""
        return "fixed" if isinstance(self.budget, PlannedBudget) else "filter"

    def not_accounted(self) -> list[str]:
        """The facts that the guarantee does not include, and the ones that would void it."""
        found = list(NOT_ACCOUNTED)
        if self.public_set:
            found.append("the metrics on the public set: its records are not covered by the guarantee")
        if self.settings.seed is not None:
            found.insert(0, "THE SEED: anyone who knows it can recompute the noise; against them there is no guarantee")
        elif not self.settings.secure_noise:
            found.append(
                "a generator that is not cryptographically secure, and the least significant bits of floating-point noise"
                " (secure_noise=True uses a secure generator and a safe sampler)"
            )
        return found

    def by_mechanism(self) -> list[dict[str, Any]]:
        """Each kind of release: an upper bound on its epsilon alone, in both directions, and its part of a filter.

        `renyi_divergence` is at the filter's order. The epsilons of the kinds add up to more than the run's.
        """
        rows = []
        for release in self.ledger.releases:
            alone = _alone(release.mechanism, release.count, self.delta, self.settings.neighboring)
            row = release.to_json() | {"epsilon_alone": dict(alone)}
            if isinstance(self.budget, RenyiFilter) and not (self.size_stage and release.name.startswith("N~")):
                theta = self.budget.order - 1
                row["renyi_divergence"] = {
                    name: release.count * log_moment(release.mechanism, theta, name) / theta for name in DIRECTIONS
                }
            rows.append(row)
        return rows

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object."""
        value: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "method": self.settings.method,
            "neighboring_relation": self.settings.neighboring,
            "delta": self.delta,
            "epsilon_lower": json_number(self.epsilon_lower),
            "epsilon_upper": json_number(self.epsilon_upper),
            "accounting": self.accounting,
            "releases": self.by_mechanism(),
            "size": {"value": self.size, "source": "public" if self.size_stage is None else "released"},
            "steps": self.steps,
            "steps_planned": self.steps_planned,
            "stopped": self.stopped,
            "replayed_charges": self.replayed,
            "noise_multiplier": self.noise_multiplier,
            "secure_noise": self.settings.secure_noise,
            "seed_known": self.settings.seed is not None,
            "seconds": round(self.seconds, 3),
            "accuracy": self.accuracy,
            "released_values": self.released,
            # Leave out the seed: anyone who read it here could subtract the noise.
            "settings": {key: value for key, value in self.settings.to_json().items() if key != "seed"},
            "not_accounted": self.not_accounted(),
        }
        if self.earlier:
            value["earlier_runs"] = [{"epsilon": json_number(e), "delta": d} for e, d in self.earlier]
            value["together"] = {"epsilon": json_number(self.together[0]), "delta": self.together[1]}
        if self.bracket is not None:
            value["bracket"] = self.bracket.to_json()
        if isinstance(self.budget, RenyiFilter):
            state = self.budget
            value["filter"] = {"epsilon": state.epsilon, "delta": state.delta, "order": state.order}
        if self.size_stage is not None:
            value["size_stage"] = {"epsilon": self.size_stage.epsilon, "delta": self.size_stage.delta}
        return value

    def words(self) -> str:
        """The report in words."""
        settings = self.settings
        lower = "no lower bound is known" if self.epsilon_lower is None else f"lower bound {self.epsilon_lower:.4f}"
        lines = [
            f"Private training by {settings.method}: epsilon <= {self.epsilon_upper:.4f} ({lower}) at delta"
            f" {self.delta:g},",
            f"for data sets that differ by {_DIFFERENCE[settings.neighboring]}.",
        ]
        if self.earlier:
            lines.append(
                f"With {len(self.earlier)} earlier runs on the same data: epsilon <= {self.together[0]:.4f} at delta"
                f" {self.together[1]:g} for all of them."
            )
        if settings.seed is not None:
            lines.append("The seed of the noise is known: for whoever knows it THERE IS NO GUARANTEE.")
        lines += ["", *self._how(), "", "Released:"]
        rows = self.by_mechanism()
        for row in rows:
            p = row["sampling_probability"]
            sampled = "" if p is None else f", probability {p:.6g}"
            alone = max(float(each) for each in row["epsilon_alone"].values())
            lines.append(
                f"  {row['name']}: {row['count']} x noise {row['noise_std']:.6g} at sensitivity"
                f" {row['sensitivity']:.6g}{sampled}; alone epsilon <= {alone:.4f}"
            )
        if self.bracket is not None:
            for name, each in self.bracket.directions.items():
                lines.append(f"  direction {name}: epsilon in [{each.lower:.4f}, {each.upper:.4f}]")
        elif isinstance(self.budget, RenyiFilter):
            for name in DIRECTIONS:
                total = sum(row.get("renyi_divergence", {}).get(name, 0.0) for row in rows)
                lines.append(f"  direction {name}: Renyi divergence {total:.6g} of the budget {self.budget.budget:.6g}")
        source = "public" if self.size_stage is None else "released with noise"
        lines.append(f"Number of records: {self.size:.6g}, {source}; sampling and steps follow from it alone.")
        generator = "a cryptographically secure generator" if settings.secure_noise else "numpy's SFC64"
        lines.append(f"Noise: from {generator}{'' if settings.seed is None else ', seeded'}.")
        if settings.precision != "full":
            lines.append("Forward and backward passes in bfloat16; norms, clipping and sums in float32 and float64.")
        lines.append(f"Steps: {self.steps} of {self.steps_planned}.{' ' + self.stopped if self.stopped else ''}")
        if self.replayed:
            lines.append(f"Charges that a resumed run made twice: {self.replayed}.")
        lines += ["", "Not accounted:", *(f"  - {each}" for each in self.not_accounted())]
        return "\n".join(lines)

    def _how(self) -> list[str]:
        stage = self.size_stage
        first = (
            []
            if stage is None
            else [
                f"First N~ was released (epsilon {stage.epsilon:.4g} at delta {stage.delta:.3g}); what follows has the rest."
            ]
        )
        if isinstance(self.budget, PlannedBudget):
            return [*first, "All mechanisms and their number were fixed beforehand; both bounds are those of the plan."]
        return [
            *first,
            f"Probabilities and noise were chosen by what had been released, under a Renyi filter of order"
            f" {self.budget.order:.4g} that was fixed beforehand.",
            "Epsilon is the filter's budget, whatever of it was used.",
        ]


@lru_cache(maxsize=4096)
def _alone(mechanism: Mechanism, count: int, delta: float, neighboring: Neighboring) -> tuple[tuple[str, Any], ...]:
    """An upper bound on the epsilon of some runs of one mechanism, by direction."""
    found = epsilon_at(Composition(((mechanism, count),)), delta, tolerance=_ROUGH, neighboring=neighboring)
    return tuple((name, json_number(each.upper)) for name, each in found.directions.items())
