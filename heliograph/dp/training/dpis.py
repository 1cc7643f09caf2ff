"""DPIS: importance-sampled DP-SGD (Wei et al. 2022), with every release accounted at its true sensitivity.

An epoch: the norms that were computed in neither of the last two epochs are computed at the current parameters (without
materialising gradients): recomputing all would cost most of what a step costs, and the estimate is unbiased whatever
they are; if clipping adapts, K* = sum of min(norm, C*) is released and sets C; K' = sum of min(norm, C) is released,
and K~ is K' clamped to (b C, N~ C]; the noise sigma_G is chosen. A step: record i is sampled with probability b norm_i
/ K~ (see `sampling.ImportanceSampler`) and adds (K~/N~) g_i / norm_i; N(0, (sigma_G C)^2) is added, the sum divided by
b. Given the past and all other records' coins, one record is in the sum with probability at most b C / K~, with a
vector of norm K~/N~ in a fixed direction: a sampled Gaussian with that probability and multiplier sigma_G N~ C / K~.
Given the same, its norm in a norm sum is a number in [0, C] by its own coins.

Differences from the paper: the norm sums are over all records, not over a sample (whose sensitivity is C / p_K, which
the paper's analysis leaves out); probabilities are capped; K* is taken at the start of the next epoch, from the same
norms as K'; the sum is divided by b once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heliograph.dp.accounting.filters import RenyiFilter
from heliograph.dp.language import parse
from heliograph.dp.mechanisms import Gaussian, Mechanism, SampledGaussian
from heliograph.dp.training.dp_sgd import ROUND_OFF, weighted_sum
from heliograph.dp.training.gradients import GradientEngine
from heliograph.dp.training.plan import least_noise
from heliograph.dp.training.records import Records
from heliograph.dp.training.releases import Releaser
from heliograph.dp.training.sampling import ImportanceSampler
from heliograph.dp.training.settings import Settings
from heliograph.errors import BudgetError, PlanningError

_ABOVE = 1e-3
"""K~ is kept above b C by this share (xi of the paper), so that the largest probability stays below 1."""


@dataclass
class Schedule:
    """The basis for the choice of an epoch's noise: only public and released values."""

    settings: Settings
    size: float
    steps: int
    """Steps of an epoch."""

    @property
    def norm_multiplier(self) -> float:
        """sigma_K: noise on a norm sum over its bound."""
        return self.settings.dpis.norm_noise * self.size

    def norm_total(self, released: float, bound: float) -> float:
        """K~: the released K' clamped to (b C, N~ C]."""
        least = self.settings.batch_size * bound * (1 + _ABOVE)
        return min(max(released, least), max(self.size * bound, least))

    def step(self, share: float, sigma: float) -> SampledGaussian:
        """The accounted mechanism of a step, with K~ = share * N~ * C and noise sigma * C."""
        return SampledGaussian(min(self.settings.batch_size / (self.size * share), 1.0), sigma / share)

    def noise(self, budget: RenyiFilter, epoch: int, share: float) -> float:
        """sigma_G of an epoch: the least one with which the rest of the run fits the filter's remaining budget.

        In the first epochs (a_E of all) later epochs are assumed to have K~ = N~ C, the worst case; in the rest, the
        present K~ (Wei et al. 2022, section 4.2). Raises BudgetError if no noise fits.
        """
        options = self.settings.dpis
        later = 1.0 if epoch + 1 <= options.worst_case_share * self.settings.epochs else share
        epochs_left = self.settings.epochs - 1 - epoch
        # The norm sums of those epochs are still to be released.
        kept = epochs_left * (2 if options.adapt_clipping else 1) * budget.cost(Gaussian(self.norm_multiplier))
        # Leave a little room for the rounding of that many charges.
        usable = budget.remaining * (1 - 1e-9) - kept

        def fits(sigma: float) -> bool:
            cost = self.steps * budget.cost(self.step(share, sigma))
            if epochs_left:
                cost += epochs_left * self.steps * budget.cost(self.step(later, sigma))
            return cost <= usable

        try:
            return least_noise(fits)
        except PlanningError as error:
            raise BudgetError(error.what, where="dpis", why=error.why, hint=error.hint) from None


@dataclass
class Epoch:
    """The released values with which an epoch runs."""

    bound: float
    norm_total: float
    sigma: float
    mechanism: Mechanism


@dataclass
class ImportanceSteps:
    """The epochs and steps of DPIS; noise is chosen by epoch, given, or planned with the mechanism of each epoch."""

    engine: GradientEngine
    records: Records
    releaser: Releaser
    schedule: Schedule
    sigma: float | None
    planned: tuple[Mechanism, ...] = ()
    sampler: ImportanceSampler = field(init=False)
    epochs: list[Epoch] = field(default_factory=list)

    def __post_init__(self) -> None:
        options = self.schedule.settings.dpis
        self.sampler = ImportanceSampler(
            batch_size=self.schedule.settings.batch_size,
            oversampling=options.oversampling,
            floor=options.norm_floor,
            noise=self.releaser.noise,
        )

    def start_epoch(self, epoch: int) -> None:
        """Renew the norms, release their sums, choose C, K~ and the noise. Raises BudgetError."""
        settings, options = self.schedule.settings, self.schedule.settings.dpis
        norms = self._last_norms()
        bound = settings.max_grad_norm
        if options.adapt_clipping and epoch > 0:
            low, high = settings.clip_range
            released = self.releaser.norm_sum("K* (norm sum clipped at C*)", norms, high, self.schedule.norm_multiplier)
            bound = min(max(options.clip_factor * released / self.schedule.size, low), high)
        shares = options.planned_shares(settings.epochs)
        if shares is not None:
            share = shares[epoch]
            norm_total = share * self.schedule.size * bound
        else:
            name = "K' (norm sum clipped at C)"
            released = self.releaser.norm_sum(name, norms, bound, self.schedule.norm_multiplier)
            norm_total = self.schedule.norm_total(released, bound)
            share = norm_total / (self.schedule.size * bound)
        sigma = self.sigma
        if sigma is None:
            budget = self.releaser.books.budget
            assert isinstance(budget, RenyiFilter)
            sigma = self.schedule.noise(budget, epoch, share)
        self.sampler.start(norms, bound, norm_total)
        mechanism = self.planned[epoch] if self.planned else self.schedule.step(share, sigma)
        self.epochs.append(Epoch(bound, norm_total, sigma, mechanism))

    def _last_norms(self) -> Tensor:
        """The last known norm of every record; those are computed now that were computed in neither of the last two epochs.

        Each is a function of its own record, its own coins and earlier releases, as the norm sums require. A planned run
        releases no norm sum: it begins with all norms at the bound, which makes every record a likely candidate.
        """
        options, sampler, count = self.schedule.settings.dpis, self.sampler, self.records.true_count
        norms, due = sampler.known[:count].clone(), sampler.age[:count] > 1
        if not len(norms):
            norms = torch.full((count,), self.schedule.settings.max_grad_norm, dtype=torch.float64)
            due = torch.full((count,), options.planned_norm_share is None)
        indices = torch.nonzero(due).flatten()
        fresh = torch.zeros(len(indices), dtype=torch.float64)
        for at, pair in self.records.chunks(indices, self.schedule.settings.physical_batch_size):
            fresh[at] = self.engine.norms(*pair).detach().cpu().double()
        self.records.group.add_up([fresh])
        norms[indices] = fresh
        if len(sampler.age):
            sampler.age[indices] = 0
        # An audit's canaries have given norms, which follow the true ones.
        return norms if self.records.canaries is None else torch.cat([norms, self.records.canaries.norms()])

    def step(self) -> list[Tensor]:
        """The private estimate of the mean gradient. Raises BudgetError if the budget does not admit a step."""
        settings, now = self.schedule.settings, self.epochs[-1]
        candidates = self.sampler.candidates()
        coins = self.sampler.coins(len(candidates))
        found = torch.zeros(len(candidates), dtype=torch.float64)
        length = now.norm_total / self.schedule.size

        def weights(positions: Tensor, norms: Tensor) -> Tensor:
            # One pass does both: the norms decide which records are sampled, and their gradients get the same length.
            found[positions] = norms.detach().cpu().double()
            taken = self.sampler.taken(candidates[positions], found[positions], coins[positions]).to(norms.device)
            return torch.where(taken, length * (1 - ROUND_OFF) / norms, torch.zeros_like(norms))

        sums = weighted_sum(self.engine, self.records, candidates, settings.physical_batch_size, weights)
        self.records.group.add_up([found])
        self.sampler.renew(candidates, found)
        noisy = self.releaser.gradient_sum(
            "gradient sum of a step",
            sums,
            sensitivity=length,
            noise_std=now.sigma * now.bound,
            mechanism=now.mechanism,
        )
        return [each / settings.batch_size for each in noisy]

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint: the released values, and the kept norms, which are secret."""
        epochs = [[e.bound, e.norm_total, e.sigma, e.mechanism.text()] for e in self.epochs]
        return {"epochs": epochs, **self.sampler.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from `state`."""
        self.epochs = [Epoch(c, k, sigma, parse(text).items[0][0]) for c, k, sigma, text in state["epochs"]]
        if self.epochs:
            self.sampler.restore(state, self.epochs[-1].bound, self.epochs[-1].norm_total)
