"""The training records, by index; their number is secret unless it is declared public.

Order does not matter, and no sampler or loader of the user's is used: each step's records are drawn here.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from heliograph.dp.training.gradients import mapped
from heliograph.dp.training.group import Group
from heliograph.errors import CompositionWarning, ProgramError

Pair = tuple[Any, Any]

_trained: dict[int, tuple[weakref.ReferenceType[Any], int]] = {}
"""The data that runs of this process have trained on, by identity, as long as they live; and how many runs."""


@dataclass
class Canaries:
    """Records of an audit with given gradients: canary n's is `lengths[n]` at entry `entries[n]` of all parameters.

    They go through sampling, clipping and noise like all records; only their gradients are not computed. None resembles
    a true gradient, and two canaries with different entries do not interfere: an attacker sees each by itself.
    """

    entries: Tensor
    lengths: Tensor
    present: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    """The numbers of those that are in the training set."""
    others: Tensor | None = None
    """What the true records of the last sum hold at the entries: an auditor may know it."""

    def __len__(self) -> int:
        return len(self.present)

    def norms(self) -> Tensor:
        """The norms of the canaries in the training set."""
        return self.lengths[self.present].double()

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
        lengths = self.norms()[numbers]
        added.index_add_(0, self.entries[self.present[numbers]], weights(lengths).double() * lengths)
        for total, part in zip(sums, added.split(sizes), strict=True):
            total += part.view(total.shape).to(total)


class Records:
    """A map-style dataset, or a pair (inputs, targets) of tensors or arrays whose first axis counts records.

    Inputs may be several tensors: a tuple or dictionary of them, the first ones of a TensorDataset, or items of more
    than two values, of which the last is the target. An item may be a dictionary with its target under `labels`.
    `collate` makes batches of lists of one item; sequences of integers are cut or filled up with zeros to the public
    `length`. `workers` threads read items.
    """

    def __init__(
        self,
        source: object,
        device: torch.device,
        where: str = "train_set",
        group: Group | None = None,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        length: int | None = None,
        workers: int = 0,
    ) -> None:
        _refuse(source, where)
        self._collate = collate or default_collate
        self._length = length
        self._pool = ThreadPoolExecutor(workers) if workers else None
        self.device = device
        self.group = group or Group()
        self.canaries: Canaries | None = None
        self._dataset: Dataset[Any] | None = None
        self._tensors: Pair | None = None
        if isinstance(source, TensorDataset):
            tensors = source.tensors
            source = tensors if len(tensors) == 2 else (tensors[:-1], tensors[-1])
        if isinstance(source, tuple | list) and len(source) == 2 and _is_array(source[1]) and _leaves(source[0]):
            self._identity: Any = _leaves(source[0])[0]
            targets = torch.as_tensor(source[1])
            for each in _leaves(source[0]):
                if len(each) != len(targets):
                    raise ProgramError(f"{len(each)} inputs, but {len(targets)} targets", where=where)
            self._tensors = (mapped(source[0], torch.as_tensor), targets)
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
        return len(self._tensors[1]) if self._tensors is not None else len(self._dataset)  # type: ignore[arg-type]

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
            inputs, targets = mapped(self._tensors, lambda each: each[indices.to(each.device)].to(self.device))
            return inputs, targets
        read = (map if self._pool is None else self._pool.map)(self._record, indices.tolist())
        records = list(read)
        shapes = {str(mapped(each, lambda t: list(t.shape))) for each in records}
        if len(shapes) > 1:
            raise ProgramError(
                "records have different shapes",
                where="train_set",
                why=f"{' and '.join(sorted(shapes)[:2])}; the longest of a batch would decide the shape of the others",
                hint="give length=, to which sequences of tokens are cut or filled up, or a collate function that pads to"
                " one public length",
            )
        inputs, targets = default_collate(records)
        inputs, targets = mapped((inputs, targets), lambda each: each.flatten(0, 1).to(self.device))
        return inputs, targets

    def _record(self, index: int) -> Pair:
        """A batch of one record."""
        found = self._collate([self._dataset[index]])  # type: ignore[index]
        if isinstance(found, Mapping) and "labels" in found:
            pair: Pair = ({name: value for name, value in found.items() if name != "labels"}, found["labels"])
        elif isinstance(found, tuple | list) and len(found) >= 2:
            pair = (found[0] if len(found) == 2 else tuple(found[:-1]), found[-1])
        else:
            raise ProgramError(
                "a record must be a pair (input, target), or a dictionary with its target under labels",
                where="train_set",
            )
        return mapped(pair[0], self._sized), pair[1]

    def _sized(self, value: Any) -> Tensor:
        if not isinstance(value, Tensor):
            raise ProgramError(
                f"an input is a {type(value).__name__}, not a tensor",
                where="train_set",
                hint="let items hold numbers, arrays and tensors; a collate function may make them (a tokenizer)",
            )
        if self._length is None or value.dim() < 2 or value.is_floating_point():
            return value
        kept = value[:, : self._length]
        rest = torch.zeros((len(kept), self._length - kept.shape[1], *kept.shape[2:]), dtype=kept.dtype)
        return torch.cat((kept, rest), 1)

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


def _leaves(value: object) -> list[Any]:
    """The arrays of a tuple or dictionary, or an array alone; none if anything else is among them."""
    parts = list(value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else [value])
    return parts if all(_is_array(each) for each in parts) else []


def _random(value: Any, count: int, real: Callable[..., Tensor]) -> Any:
    def drawn(like: Tensor) -> Tensor:
        shape, generator = (count, *like.shape[1:]), torch.Generator().manual_seed(0)
        if like.is_floating_point():
            return real(shape, generator=generator, dtype=like.dtype).to(like.device)
        return torch.randint(2, shape, generator=generator).to(like.dtype).to(like.device)

    return mapped(value, drawn)


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
