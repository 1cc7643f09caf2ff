"""DP-FTRL by banded matrix factorisation: noise of neighbouring steps is correlated, so that more of it cancels in sums.

With coefficients c (see `dp.banded`) a step releases u_t = sum over j < bands of c_j S_(t-j), plus Gaussian noise; S
are clipped sums. The estimate of S_t is x_t = (u_t - sum over j >= 1 of c_j x_(t-j)) / c_0, post-processing of
releases, so that x = S + C^-1 z with the noise made in a stream. Only u is released, and its noise is added like any
release's.

Records are put into `bands` groups by their own draws; group t mod bands takes its turn in step t, each of its records
by its own coin with probability bands b / N (cyclic Poisson sampling). So a record's steps are `bands` apart, and a
cycle of `bands` steps is one sampled Gaussian for each record: it is charged before the first step of the cycle. The
state (past sums, which are secret, and past estimates) is not kept in checkpoints: a resumed run begins a new cycle,
independent of its earlier releases.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from heliograph.dp.banded import Banded
from heliograph.dp.mechanisms import SampledGaussian
from heliograph.dp.training.dp_sgd import ClippedSteps
from heliograph.errors import InternalError

_NAME = "correlated gradient sums of a cycle"


@dataclass(eq=False)
class BandedSteps(ClippedSteps):
    """The steps of BandMF; a cycle is accounted as `mechanism`."""

    mechanism: SampledGaussian
    factor: Banded

    def __post_init__(self) -> None:
        if not self.factor.sensitivity() <= 1:
            raise InternalError("a column is longer than 1", where="BandedSteps", why="noise is accounted over norm 1")
        self.groups: Tensor | None = None
        self.taken = 0
        self._sums: deque[list[Tensor]] = deque(maxlen=max(self.factor.bands - 1, 1))
        self._estimates: deque[list[Tensor]] = deque(maxlen=max(self.factor.bands - 1, 1))

    def start_epoch(self, epoch: int) -> None:
        """Do nothing: no statistic is released."""

    def step(self) -> list[Tensor]:
        """The private estimate of the mean gradient. Raises BudgetError if the budget does not admit a cycle."""
        turn, c = self.taken % self.factor.bands, self.factor.coefficients
        if turn == 0:
            self.releaser.epoch(_NAME, self.mechanism, self.max_grad_norm)
        if self.groups is None:
            draws = self.releaser.noise.uniform(len(self.records))
            self.groups = (torch.ceil(draws * self.factor.bands).long() - 1).clamp(0, self.factor.bands - 1)
        coins = self.releaser.noise.uniform(len(self.records)) < self.mechanism.p
        taken = torch.nonzero(coins & (self.groups == turn)).flatten()
        sums = self.clipped(taken)
        mixed = [c[0] * each for each in sums]
        for weight, past in zip(c[1:], self._sums, strict=False):
            for total, each in zip(mixed, past, strict=True):
                total.add_(each, alpha=weight)
        noisy = self.released(_NAME, mixed, charged=True)
        for weight, past in zip(c[1:], self._estimates, strict=False):
            for total, each in zip(noisy, past, strict=True):
                total.sub_(each, alpha=weight)
        estimate = [each / c[0] for each in noisy]
        if self.factor.bands > 1:
            self._sums.appendleft(sums)
            self._estimates.appendleft(estimate)
        self.taken += 1
        return [each / self.batch_size for each in estimate]
