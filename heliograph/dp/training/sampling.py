"""The records of a step of DPIS: importance sampling with rejection.

Every record is sampled by its own coin. Indices, norms and batch sizes are secret: nothing here is ever printed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from heliograph.dp.training.noise import GaussianNoise
from heliograph.errors import InternalError


@dataclass(kw_only=True, eq=False)
class ImportanceSampler:
    """Samples record i with probability b min(norm_i, g^_i, C) / K~, with its norm at the current parameters.

    `kept` holds g^, each record's last known norm times the oversampling factor, at most C < K~/b. A record is a
    candidate with probability b g^ / K~ <= 1; for a candidate the current norm is computed and clipped at g^, and it is
    accepted with probability norm / g^ <= 1 (rejection sampling; Wei et al. 2022, section 3.4). The product is b norm /
    K~, at most b C / K~. Without a cap at K~/b a candidate's probability would saturate at 1 while its weight went on
    growing: its vector would be longer than K~/N~. The cap at C gives the same law as one at K~/b (norms are clipped at
    C anyway) with fewer candidates, whose norms are the main cost of a step.
    """

    batch_size: float
    oversampling: float
    floor: float
    noise: GaussianNoise
    bound: float = 0.0
    norm_total: float = 0.0
    kept: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    known: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    """The norm that was last computed of each record, unclipped."""
    age: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int8))
    """How many epochs have begun since the norm of each record was computed."""

    def start(self, norms: Tensor, bound: float, norm_total: float) -> None:
        """Begin an epoch: all records' last norms, the clipping bound C and the released norm total K~ > b C."""
        if not self.batch_size * bound < norm_total:
            raise InternalError("K~ is not above b C", where="importance sampling")
        self.bound, self.norm_total = bound, norm_total
        self.known = norms.double()
        if len(self.age) != len(norms):
            self.age = torch.zeros(len(norms), dtype=torch.int8)
        self.age += 1
        self.kept = self._proposal(norms)

    def state(self) -> dict[str, Tensor]:
        """The norms' part of a checkpoint: all of it is secret."""
        return {"kept": self.kept, "known": self.known, "age": self.age}

    def restore(self, state: dict[str, Tensor], bound: float, norm_total: float) -> None:
        """Resume from `state` within an epoch of this bound and total."""
        self.bound, self.norm_total = bound, norm_total
        self.kept, self.known, self.age = state["kept"], state["known"], state["age"]

    def _proposal(self, norms: Tensor) -> Tensor:
        kept = self.oversampling * _usable(norms).clamp(self.floor * self.bound, self.bound)
        return kept.clamp(max=self.bound)

    def candidates(self) -> Tensor:
        """The indices of this step's candidates."""
        probability = self.kept * (self.batch_size / self.norm_total)
        return torch.nonzero(self.noise.uniform(self.kept.numel()) < probability).flatten()

    def coins(self, count: int) -> Tensor:
        """A coin for each of this step's candidates."""
        return self.noise.uniform(count)

    def taken(self, candidates: Tensor, norms: Tensor, coins: Tensor) -> Tensor:
        """A mask of the accepted candidates, given their norms at the current parameters.

        A record with a zero gradient, or one that is not a number, is never accepted.
        """
        kept = self.kept[candidates]
        return coins * kept < torch.minimum(_usable(norms), kept)

    def renew(self, candidates: Tensor, norms: Tensor) -> None:
        """Keep the candidates' norms, and g^ from them, for steps to come."""
        now = _usable(norms)
        self.kept[candidates] = self._proposal(now)
        self.known[candidates] = now
        self.age[candidates] = 0


def _usable(norms: Tensor) -> Tensor:
    return torch.nan_to_num(norms.double(), nan=0.0, posinf=0.0)
