"""Activations that the bootstraps before them compute: offered to the planner, and taken into what is said of the program.

Only a plan says which activations follow a bootstrap. So the planner gets polynomials with an offer beside each, and once it
has chosen, the polynomial program, its ranges and what held-out samples show are made anew with the series in place of the
polynomials that they replace.
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
    """A plan whose bootstraps compute activations, with the polynomial program that means them and what samples show."""

    plan: Plan
    polynomial: Program
    observation: Observation
    step: Step


@dataclass(frozen=True)
class Merging:
    """Of one compilation: the fused program, what was observed of it, and the polynomial program, with output ranges."""

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
        """The polynomial program with a series beside each polynomial for which there is one; as it is, where bootstraps do
        not compute any.
        """
        if not self.options.bootstrap_activations or self.polynomial.stage is Stage.PACKED:
            return self.polynomial
        return self._offered[1]

    def settled(self, plan: Plan, ranges: Callable[[Program], Program]) -> Settled | None:
        """What a plan makes of the offers, None where it takes up none; `ranges` sets the ranges of outputs."""
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
        """What the held-out samples show of the program whose ranges were set without them."""
        seen = self.observation
        if seen.trial is None or seen.partly is None:
            return seen
        offers: dict[int, Offer] = {}
        kept = {entry: offer for entry, offer in self._offered[0].items() if entry in entries}
        trial = apply(approximate_pass(self.options, seen.partly, offers=offers, alike=kept), self.fused)
        trial = apply(MergeActivations(offers, entries), apply(OfferSeries(offers), trial))
        unseen = look(trial, apart_of(self.fused, self.options.samples_apart), seen.unseen.setting)
        return replace(seen, unseen=unseen) if unseen.samples and unseen.samples[0].shape[0] else seen
