"""The training records, by index; their number is secret unless it is declared public.

Order does not matter, and no sampler or loader of the user's is used: each step's records are drawn here.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from heliograph.dp.training.group import Group
from heliograph.errors import CompositionWarning, ProgramError

Pair = tuple[Any, Any]

_trained: dict[int, tuple[weakref.ReferenceType[Any], int]] = {}
"""The data that runs of this process have trained on, by identity, as long as they live; and how many runs."""


@dataclass
class Canaries:
    """Records of an audit with given gradients: canary n's is `length` at entry `entries[n]` of all parameters.

    They go through sampling, clipping and noise like all records; only their gradients are not computed. None resembles
    a true gradient, and two canaries with different entries do not interfere: an attacker sees each by itself.
    """

    entries: Tensor
    length: float
    present: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    """The numbers of those that are in the training set."""
    others: Tensor | None = None
    """What the true records of the last sum hold at the entries: an auditor may know it."""

    def __len__(self) -> int:
        return len(self.present)

    def norms(self) -> Tensor:
        """The norms of the canaries in the training set."""
        return torch.full((len(self.present),), self.length, dtype=torch.float64)

    def at_entries(self, values: list[Tensor]) -> Tensor:
        """The values of a vector, given in parts, at the entries."""
        return torch.cat([value.detach().flatten().double().cpu() for value in values])[self.entries]

    def add(self, sums: list[Tensor], numbers: Tensor, weights: Callable[[Tensor], Tensor], group: Group) -> None:
        """Add some of the canaries in the training set, weighted like records of their norm, to this process's share of
        the sums.

        Only the first process adds them.
        """
        self.others = self.at_entries(sums)
        group.add_up([self.others])
        if not group.first or not numbers.numel():
            return
        sizes = [each.numel() for each in sums]
        added = torch.zeros(sum(sizes), dtype=torch.float64)
        added.index_add_(0, self.entries[self.present[numbers]], weights(self.norms()[numbers]).double() * self.length)
        for total, part in zip(sums, added.split(sizes), strict=True):
            total += part.view(total.shape).to(total)


class Records:
    """A map-style dataset of (input, target) pairs, or a pair of tensors or arrays whose first axis counts records."""

    def __init__(
        self, source: object, device: torch.device, where: str = "train_set", group: Group | None = None
    ) -> None:
        _refuse(source, where)
        self.device = device
        self.group = group or Group()
        self.canaries: Canaries | None = None
        self._dataset: Dataset[Any] | None = None
        self._tensors: tuple[Tensor, Tensor] | None = None
        if isinstance(source, TensorDataset):
            source = source.tensors
        if isinstance(source, tuple | list) and len(source) == 2 and all(_is_array(each) for each in source):
            self._identity: Any = source[0]
            inputs, targets = (torch.as_tensor(each) for each in source)
            if len(inputs) != len(targets):
                raise ProgramError(f"{len(inputs)} inputs, but {len(targets)} targets", where=where)
            self._tensors = (inputs, targets)
        elif hasattr(source, "__getitem__") and hasattr(source, "__len__"):
            self._identity = source
            self._dataset = source  # type: ignore[assignment]
        else:
            raise ProgramError(
                f"{type(source).__name__} is not a data set",
                where=where,
                hint="give (inputs, targets) as tensors or arrays, or a map-style torch Dataset of such pairs",
            )

    @property
    def true_count(self) -> int:
        """The number of records without an audit's canaries."""
        return len(self._tensors[0]) if self._tensors is not None else len(self._dataset)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self.true_count + (0 if self.canaries is None else len(self.canaries))

    def begin(self, resumed: bool, earlier: int) -> None:
        """Begin a run on these records; warn with CompositionWarning if this process made more runs on them than the
        `earlier` ones that its report includes.

        Data count as the same if they are the same object here (for a pair, the inputs): copies, and other processes,
        are not seen. A run resumed from a checkpoint has been counted.
        """
        known, runs = _trained.get(id(self._identity), (None, 0))
        if known is None or known() is not self._identity:
            runs = 0
        if runs > earlier and not resumed:
            warnings.warn(
                "the same data are used for another training: every run is a separate release, and no report includes the"
                " others unless it is told of them (DPTrainer(earlier=[report, ...])). What is proved of all of them"
                " together is the sum of their epsilons and deltas, or less by composing their reports' mechanisms"
                " (heliograph dp epsilon). Runs made to choose parameters count, too.",
                CompositionWarning,
                stacklevel=4,
            )
        # A data set that does not support weak references, such as a list, cannot be recognised later.
        with contextlib.suppress(TypeError):
            _trained[id(self._identity)] = (weakref.ref(self._identity), runs + (not resumed))

    def batch(self, indices: Tensor) -> Pair:
        """The inputs and targets of some records, stacked, on the device of the module."""
        if self._tensors is not None:
            inputs, targets = (each[indices.to(each.device)].to(self.device) for each in self._tensors)
            return inputs, targets
        assert self._dataset is not None
        found = default_collate([self._dataset[int(i)] for i in indices])
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise ProgramError("a record must be a pair (input, target)", where="train_set")
        return _moved(found[0], self.device), _moved(found[1], self.device)

    def made_up(self, count: int) -> Pair:
        """Random records with the shapes and types of the true ones, for trying a module: true ones would be a look at
        the data.

        Real numbers are normal (in targets uniform), integers 0 or 1.
        """
        if len(self) == 0:
            raise ProgramError("the training set has no records", where="train_set")
        inputs, targets = self.batch(torch.zeros(1, dtype=torch.long))
        return _random(inputs, count, torch.randn), _random(targets, count, torch.rand)

    def apart(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Positions within `indices` of true records, and of an audit's canaries."""
        true = indices < self.true_count
        return torch.nonzero(true).flatten(), torch.nonzero(~true).flatten()

    def chunks(self, indices: Tensor, size: int) -> Iterator[tuple[Tensor, Pair]]:
        """This process's share of some indices in physical batches: the positions within `indices`, and the records.

        For a process alone the share is everything; otherwise results from the shares must be added up (`group`).
        """
        for positions in self.group.share(torch.arange(indices.numel())).split(size):
            # Without indices, torch returns one empty part; a data set has no empty batch.
            if positions.numel():
                yield positions, self.batch(indices[positions])


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _random(value: Any, count: int, real: Callable[..., Tensor]) -> Any:
    if isinstance(value, tuple | list):
        return tuple(_random(each, count, real) for each in value)
    shape, generator = (count, *value.shape[1:]), torch.Generator().manual_seed(0)
    if value.is_floating_point():
        return real(shape, generator=generator, dtype=value.dtype).to(value.device)
    return torch.randint(2, shape, generator=generator).to(value.dtype).to(value.device)


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, tuple | list):
        return tuple(_moved(each, device) for each in value)
    return value


def _refuse(source: object, where: str) -> None:
    if isinstance(source, DataLoader):
        raise ProgramError(
            "a DataLoader cannot be trained on privately",
            where=where,
            why="it shuffles, or takes batches of a fixed size without replacement; the bounds hold for Poisson sampling,"
            " where every record is taken by its own coin",
            hint="give the loader's dataset; batches are drawn by the trainer",
        )
    if isinstance(source, IterableDataset):
        raise ProgramError(
            "a stream of records cannot be sampled from",
            where=where,
            why="every step takes each record by its own coin, so records are needed by index",
            hint="load it into tensors, or write a map-style Dataset",
        )
