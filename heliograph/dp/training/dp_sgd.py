"""DP-SGD: Poisson sampling with probability b/N or another sampler, gradients clipped at C, Gaussian noise on their sum.

A step adds up min(1, C / norm) g over the sampled records and N(0, (sigma C)^2), and divides by b: a sampled Gaussian
with probability b/N and multiplier sigma (Abadi et al. 2016). N is public or the released N~, never the length of the
data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from heliograph.dp.batches import AllocatedGaussian
from heliograph.dp.mechanisms import Mechanism, SampledGaussian
from heliograph.dp.samplers import EpochPlan, Sampler
from heliograph.dp.training.gradients import GradientEngine
from heliograph.dp.training.layers import trained
from heliograph.dp.training.records import Records
from heliograph.dp.training.releases import Releaser
from heliograph.dp.training.sampling import poisson_sample

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


class PoissonSteps:
    """The steps of DP-SGD, accounted as `mechanism`: its multiplier is noise standard deviation over C."""

    def __init__(
        self,
        engine: GradientEngine,
        records: Records,
        releaser: Releaser,
        *,
        mechanism: Mechanism,
        max_grad_norm: float,
        batch_size: float,
        physical: int,
        sampler: Sampler | None = None,
        steps: int = 1,
    ) -> None:
        self.engine = engine
        self.records = records
        self.releaser = releaser
        self.mechanism = mechanism
        self.max_grad_norm = max_grad_norm
        self.batch_size = batch_size
        self.physical = physical
        self.sampler = sampler
        self.plan = EpochPlan(steps, mechanism, isinstance(mechanism, AllocatedGaussian))
        self._batches: Iterator[Any] = iter(())

    def start_epoch(self, epoch: int) -> None:
        """Draw the batches of an epoch; if the epoch is accounted for as a whole, charge it. Raises BudgetError."""
        if self.plan.by_epoch:
            self.releaser.epoch("gradient sums of an epoch", self.mechanism, self.max_grad_norm)
        if self.sampler is not None:
            self._batches = self.sampler.epoch(len(self.records), self.plan, self._uniform)

    def _uniform(self, count: int) -> Any:
        return self.releaser.noise.uniform(count).numpy()

    def _taken(self) -> Tensor:
        if self.sampler is None:
            assert isinstance(self.mechanism, SampledGaussian)
            return poisson_sample(len(self.records), self.mechanism.p, self.releaser.noise)
        found = next(self._batches, None)
        if found is None:
            # The run resumes within an epoch: its batches are drawn one by one, independently of each other.
            self._batches = self.sampler.epoch(len(self.records), self.plan, self._uniform)
            found = next(self._batches)
        return torch.from_numpy(found)

    def step(self) -> list[Tensor]:
        """The private estimate of the mean gradient. Raises BudgetError if the budget does not admit a step."""
        taken = self._taken()
        sums = clipped_sum(self.engine, self.records, taken, self.max_grad_norm, self.physical)
        noisy = self.releaser.gradient_sum(
            "gradient sum of a step",
            sums,
            sensitivity=self.max_grad_norm,
            noise_std=self.mechanism.arguments()["noise_multiplier"] * self.max_grad_norm,
            mechanism=self.mechanism,
            charged=self.plan.by_epoch,
        )
        return [each / self.batch_size for each in noisy]
