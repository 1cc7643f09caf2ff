"""DP-SGD: Poisson sampling with probability b/N or another sampler, gradients clipped at C, Gaussian noise on their sum.

A step adds up min(1, C / norm) g over the sampled records and N(0, (sigma C)^2), and divides by b: a sampled Gaussian
with probability b/N and multiplier sigma (Abadi et al. 2016). N is public or the released N~, never the length of the
data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

import torch
from torch import Tensor

from heliograph.dp.batches import AllocatedGaussian
from heliograph.dp.mechanisms import Mechanism
from heliograph.dp.samplers import EpochPlan, Indices, PoissonSampler, Sampler
from heliograph.dp.training.gradients import GradientEngine
from heliograph.dp.training.layers import trained
from heliograph.dp.training.records import Records
from heliograph.dp.training.releases import Releaser

ROUND_OFF = 1e-5
"""Weights are smaller by this share, so that round-off in a computed norm does not pass the bound."""


def clipped_sum(engine: GradientEngine, records: Records, taken: Tensor, bound: float, physical: int) -> list[Tensor]:
    """The sum of the sampled records' gradients, each clipped at `bound`, in physical batches.

    Zero gradients stay zero; a record whose gradient is not finite adds nothing (guaranteed by the engine).
    """

    def weights(_: Tensor, norms: Tensor) -> Tensor:
        return (bound / norms).clamp(max=1.0) * (1 - ROUND_OFF)

    return weighted_sum(engine, records, taken, physical, weights)


def weighted_sum(
    engine: GradientEngine,
    records: Records,
    indices: Tensor,
    physical: int,
    weights: Callable[[Tensor, Tensor], Tensor],
) -> list[Tensor]:
    """The sum of the records' gradients; weights from positions in `indices` and the norms of the records there.

    Sums of physical batches are added in float64: round-off does not grow with their number.
    """
    sums: list[Tensor] = []
    real, canaries = records.apart(indices)
    for at, (inputs, targets) in records.chunks(indices[real], physical):
        found, _ = engine.weighted_sum(inputs, targets, partial(weights, real[at]))
        if not sums:
            sums = [each.double() for each in found]
            continue
        for total, each in zip(sums, found, strict=True):
            total += each
    if not sums:
        sums = [torch.zeros_like(p, dtype=torch.float64) for p in trained(engine.module)]
    if records.canaries is not None:
        numbers = indices[canaries] - records.true_count
        records.canaries.add(sums, numbers, partial(weights, canaries), records.group)
    records.group.add_up(sums)
    return sums


@dataclass(eq=False)
class ClippedSteps:
    """Steps that release sums of clipped gradients, accounted as `mechanism`: its multiplier is noise over C."""

    engine: GradientEngine
    records: Records
    releaser: Releaser
    _: KW_ONLY
    mechanism: Mechanism
    max_grad_norm: float
    batch_size: float
    physical: int

    def clipped(self, taken: Tensor) -> list[Tensor]:
        """The sum of some records' clipped gradients."""
        return clipped_sum(self.engine, self.records, taken, self.max_grad_norm, self.physical)

    def released(self, name: str, sums: list[Tensor], charged: bool) -> list[Tensor]:
        """The sum with noise; `charged`: as a part of what is accounted for as a whole."""
        std = self.mechanism.arguments()["noise_multiplier"] * self.max_grad_norm
        return self.releaser.gradient_sum(
            name, sums, sensitivity=self.max_grad_norm, noise_std=std, mechanism=self.mechanism, charged=charged
        )


@dataclass(eq=False)
class PoissonSteps(ClippedSteps):
    """The steps of DP-SGD, with a sampler's batches; without one, with Poisson samples."""

    sampler: Sampler | None = None
    steps: int = 1
    plan: EpochPlan = field(init=False)

    def __post_init__(self) -> None:
        self.plan = EpochPlan(self.steps, self.mechanism, isinstance(self.mechanism, AllocatedGaussian))
        self._batches: Iterator[Indices] = iter(())

    def start_epoch(self, epoch: int) -> None:
        """Draw the batches of an epoch; if the epoch is accounted for as a whole, charge it. Raises BudgetError."""
        if self.plan.by_epoch:
            self.releaser.epoch("gradient sums of an epoch", self.mechanism, self.max_grad_norm)
        self._batches = self._drawn()

    def _drawn(self) -> Iterator[Indices]:
        sampler = self.sampler or PoissonSampler(self.batch_size)
        return sampler.epoch(len(self.records), self.plan, lambda count: self.releaser.noise.uniform(count).numpy())

    def step(self) -> list[Tensor]:
        """The private estimate of the mean gradient. Raises BudgetError if the budget does not admit a step."""
        taken = next(self._batches, None)
        if taken is None:
            # The run resumes within an epoch: its batches are drawn one by one, independently of each other.
            self._batches = self._drawn()
            taken = next(self._batches)
        noisy = self.released("gradient sum of a step", self.clipped(torch.from_numpy(taken)), self.plan.by_epoch)
        return [each / self.batch_size for each in noisy]
