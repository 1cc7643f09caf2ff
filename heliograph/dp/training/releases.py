"""Every release of a private training run: charged to budget and ledger first, then noised, then handed out.

Anything that leaves the training data passes one of the three functions of `Releaser`; each knows the sensitivity of
its release under adding or removing one record (the table of docs/private_training.md) and enforces it where it can:

| release | noise std | sensitivity | accounted as |
|---|---|---|---|
| number of records N~ | sigma_N | 1 | Gaussian(sigma_N) |
| sum of min(norm, C) | sigma_K C | C | Gaussian(sigma_K) |
| sum of the gradients of a step | std | K~/N~ or C | sampled Gaussian(p, std / sensitivity) |

The norms, sampling probabilities, coins and batch sizes are secret and pass none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

from heliograph.dp.accounting.filters import RenyiFilter
from heliograph.dp.accounting.ledger import Ledger, Release
from heliograph.dp.mechanisms import Gaussian, Mechanism
from heliograph.dp.training.budget import PlannedBudget
from heliograph.dp.training.group import Group
from heliograph.dp.training.noise import GaussianNoise
from heliograph.errors import InternalError

T = TypeVar("T")

Observer = Callable[[str, Any], None]
"""Told of every release: its name and the released value. For audits; what it sees is what an attacker may see."""


@dataclass
class Books:
    """Budget, ledger and journal of a run. `charge` enters a release in all of them, before any noise is drawn."""

    budget: PlannedBudget | RenyiFilter
    ledger: Ledger = field(default_factory=Ledger)
    journal: Callable[[Release], None] | None = None
    """Writes a charge where a crash does not lose it (see `checkpoint`)."""

    def charge(self, release: Release) -> None:
        """Charge a release, or raise BudgetError and charge nothing."""
        self.budget.spend(release.mechanism, release.count)
        self.ledger.charge(release)
        if self.journal is not None:
            self.journal(release)


class Releaser:
    """Makes the releases of a run, with the run's noise generator and books."""

    def __init__(
        self, books: Books, noise: GaussianNoise, observer: Observer | None = None, group: Group | None = None
    ) -> None:
        self.books = books
        self.group = group or Group()
        self.noise = noise
        self.observer = observer
        self.last: Release | None = None
        """What was charged last: an observer may see how the value that it is told of was made."""

    def size(self, count: int, noise_std: float) -> float:
        """N~: the number of records with noise; its sensitivity is 1."""
        self._charge("N~ (number of records)", Gaussian(noise_std), 1.0, noise_std)
        return self._told("N~", self._noised(count, noise_std, 1.0))

    def norm_sum(self, name: str, norms: Tensor, bound: float, multiplier: float) -> float:
        """The sum of min(norm, bound) over all records, with noise of `multiplier` times the bound.

        Each record adds a value in [0, bound] of its own, so the sensitivity is the bound; all records are summed (a sum
        over a p-sample, divided by p, would have sensitivity bound / p). A norm that is not a number counts as 0.
        """
        self._charge(name, Gaussian(multiplier), bound, multiplier * bound)
        clipped = torch.nan_to_num(norms.double(), nan=0.0, posinf=bound).clamp(0.0, bound)
        return self._told(name, self._noised(float(clipped.sum()), multiplier * bound, bound))

    def epoch(self, name: str, mechanism: Mechanism, sensitivity: float) -> None:
        """Charge an epoch of steps that is accounted for as a whole, before its first step."""
        self._charge(name, mechanism, sensitivity, mechanism.arguments()["noise_multiplier"] * sensitivity)

    def gradient_sum(
        self,
        name: str,
        sums: list[Tensor],
        *,
        sensitivity: float,
        noise_std: float,
        mechanism: Mechanism,
        charged: bool = False,
    ) -> list[Tensor]:
        """A step's sum of weighted gradients with noise of standard deviation `noise_std` in every coordinate.

        The caller sampled the records as in the mechanism, each with a vector of norm at most `sensitivity`; the
        mechanism's multiplier is noise_std / sensitivity. `charged`: whether the step's epoch was charged as a whole.
        """
        if abs(noise_std / sensitivity / mechanism.arguments()["noise_multiplier"] - 1) > 1e-9:
            raise InternalError("the noise of a step is not what it is accounted as", where=name)
        if not charged:
            self._charge(name, mechanism, sensitivity, noise_std)
        noisy = self.noise.release(sums, noise_std, sensitivity)
        # Processes draw the same noise, but their sums may differ in the last digits: one of them decides the release.
        self.group.agree(noisy)
        return self._told("gradients", noisy)

    def _charge(self, name: str, mechanism: Mechanism, sensitivity: float, noise_std: float) -> None:
        release = Release(name, mechanism, 1, sensitivity, noise_std, mechanism.arguments().get("p"))
        self.books.charge(release)
        self.last = release

    def _noised(self, value: float, noise_std: float, sensitivity: float) -> float:
        (noisy,) = self.noise.release([torch.tensor(value, dtype=torch.float64)], noise_std, sensitivity)
        self.group.agree([noisy])
        return float(noisy)

    def _told(self, name: str, value: T) -> T:
        if self.observer is not None:
            self.observer(name, value)
        return value
