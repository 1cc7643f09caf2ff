"""Activations that the bootstraps before them compute: offered to the planner, then merged into the program and its
report.

Only a plan shows which activations follow a bootstrap. So the planner gets polynomials with an offer beside each. Once
it has chosen, the polynomial program, its ranges and the held-out figures are computed again, with the series in place
of the polynomials.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from heliograph.compiler.options import Options
from heliograph.compiler.planning.plan import Plan
from heliograph.compiler.reporting.held_out import Observation, apart_of, approximate_pass, look
from heliograph.ir import Program, Stage
from heliograph.passes.base import Step, apply
from heliograph.passes.polynomials.fold_scaling import FoldScaling
from heliograph.passes.polynomials.merge_activations import (
    MergeActivations,
    Offer,
    OfferSeries,
    merged_entries,
    merged_ranges,
)


@dataclass(frozen=True, slots=True)
class Settled:
    """A plan with bootstraps that compute activations.

    `polynomial`: the polynomial program with their series.
    `observation`: the observation of that program.
    `step`: the step that merged the series.
    """

    plan: Plan
    polynomial: Program
    observation: Observation
    step: Step


@dataclass(frozen=True)
class Merging:
    """The merging of activations into bootstraps in one compilation.

    `fused`: the fused program.
    `observation`: its observation on samples.
    `polynomial`: the polynomial program with output ranges.
    """

    fused: Program
    options: Options
    observation: Observation
    polynomial: Program

    @functools.cached_property
    def _offered(self) -> tuple[dict[int, Offer], Program]:
        offers: dict[int, Offer] = {}
        approximated = apply(approximate_pass(self.options, self.observation.observed, offers=offers), self.fused)
        offered = apply(FoldScaling(), apply(OfferSeries(offers), approximated))
        return offers, replace(offered, interface=self.polynomial.interface)

    def offered(self) -> Program:
        """The polynomial program with the series beside the polynomials that have one; unchanged if bootstraps may not
        compute any.
        """
        if not self.options.bootstrap_activations or self.polynomial.stage is Stage.PACKED:
            return self.polynomial
        return self._offered[1]

    def settled(self, plan: Plan, ranges: Callable[[Program], Program]) -> Settled | None:
        """The plan with the offers that it uses, None if it uses none; `ranges` sets the ranges of outputs."""
        entries = merged_entries(plan.program)
        if not entries:
            return None
        offers, offered = self._offered
        made = apply(MergeActivations(offers, entries), offered)
        polynomial = ranges(made)
        known = {spec.name: spec for spec in polynomial.interface.outputs}
        outputs = tuple(
            replace(
                spec, low=known[spec.name].low, high=known[spec.name].high, range_source=known[spec.name].range_source
            )
            for spec in plan.program.interface.outputs
        )
        program = replace(
            plan.program,
            ranges=tuple(merged_ranges(plan.program.ranges, offers, entries)),
            interface=replace(plan.program.interface, outputs=outputs),
        )
        observation = self._observed(entries)
        return Settled(replace(plan, program=program), polynomial, observation, Step(MergeActivations.name, made))

    def _observed(self, entries: frozenset[int]) -> Observation:
        """The observation, with held-out samples run through the merged program of the trial."""
        seen = self.observation
        if seen.trial is None or seen.partly is None:
            return seen
        offers: dict[int, Offer] = {}
        kept = {entry: offer for entry, offer in self._offered[0].items() if entry in entries}
        trial = apply(approximate_pass(self.options, seen.partly, offers=offers, alike=kept), self.fused)
        trial = apply(MergeActivations(offers, entries), apply(OfferSeries(offers), trial))
        unseen = look(trial, apart_of(self.fused, self.options.samples_apart), seen.unseen.setting)
        return replace(seen, unseen=unseen) if unseen.samples and unseen.samples[0].shape[0] else seen
