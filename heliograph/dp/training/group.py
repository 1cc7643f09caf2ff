"""Several processes that train one module together: one run, one release a step, whatever their number.

Every process has all records, draws the same coins (from one generator, whose state comes from the first process) and
computes a share of the sampled records; the sums of the shares are added up, noised once, and all processes take the
first one's release. So mechanism, sensitivity and accounting are the same as for one process; journal and checkpoint
are the first's. The processes trust each other: their exchange is not private. One process alone is a group, too, with
the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from heliograph.errors import HeliographError, ProgramError

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """The processes of a run. `rank` is this one's number, `count` how many there are."""

    rank: int = 0
    count: int = 1
    device: torch.device | None = None
    """Where tensors are exchanged: NCCL takes those of a GPU only."""

    @staticmethod
    def found(device: torch.device) -> Group:
        """torch's default process group, or this process alone if there is none."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return Group()
        return Group(distributed.get_rank(), distributed.get_world_size(), device)

    @property
    def alone(self) -> bool:
        """Whether this is the only process."""
        return self.count == 1

    @property
    def first(self) -> bool:
        """Whether this process writes the journal and checkpoints, and makes the releases."""
        return self.rank == 0

    def share(self, positions: Tensor) -> Tensor:
        """This process's share of some positions."""
        return positions[self.rank :: self.count]

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over all processes."""
        self._exchange(tensors, distributed.all_reduce)

    def agree(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by the first process's."""
        self._exchange(tensors, lambda whole: distributed.broadcast(whole, 0))

    def _exchange(self, tensors: Sequence[Tensor], exchange: Callable[[Tensor], Any]) -> None:
        """Replace tensors by what comes of an exchange of all of them as one vector."""
        if self.alone or not tensors:
            return
        whole = torch.cat([each.detach().to(self.device).flatten() for each in tensors])
        exchange(whole)
        parts = whole.split([each.numel() for each in tensors])
        with torch.no_grad():
            for each, part in zip(tensors, parts, strict=True):
                each.copy_(part.view(each.shape))

    def of_first(self, make: Callable[[], T]) -> T:
        """The result of `make` in the first process; if it raises there, ProgramError everywhere else."""
        if self.alone:
            return make()
        sent: list[Any] = [None, ""]
        error = None
        if self.first:
            try:
                sent[0] = make()
            except HeliographError as raised:
                error, sent[1] = raised, raised.what
        distributed.broadcast_object_list(sent, 0, device=self.device)
        if error is not None:
            raise error
        if sent[1]:
            raise ProgramError(f"the first process stopped: {sent[1]}", where=f"process {self.rank}")
        return sent[0]  # type: ignore[no-any-return]

    def check_same(self, value: str, what: str) -> None:
        """Raise ProgramError in every process unless all pass the same value."""
        if self.alone:
            return
        values: list[Any] = [None] * self.count
        distributed.all_gather_object(values, value)
        if len(set(values)) > 1:
            raise ProgramError(
                f"the processes have different {what}",
                where=f"process {self.rank}",
                why="they make one run: a share of each batch is computed by each, of the same records",
                hint="give every process the same parameters and the whole data set",
            )
