"""Data sets with items made of several records: mixup, mosaics, pairs, triplets, windows, repeats.

The guarantee is for items. If a record is in many of them, it is not a guarantee for a record. Some items of a copy of
the data set are read here, under observation of every read: of the data set itself, of data sets inside it, and of the
tensors, arrays and lists in it. Two things are refused:

- an item that reads several elements of one data set, or of a tensor, array or list of which every item reads its own;
- two items that read the same element of one data set.

A lookup table for items (words, names of classes) is none of these. Reads in other ways (files, data
frames, functions of whole tensors) are not observed: this finds the usual ways, it proves nothing.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from heliograph.errors import UnsupportedError

_DRAWN = 2
"""How often each item is read: what is mixed may be up to chance."""

_Note = Callable[[str, set[int]], None]


def check_items(dataset: Dataset[Any], where: str = "train_set") -> None:
    """Raise UnsupportedError if items of a map-style data set are seen to share records."""
    found: dict[str, dict[int, set[int]]] = {}
    at = 0

    def note(name: str, rows: set[int]) -> None:
        found.setdefault(name, {}).setdefault(at, set()).update(rows)

    # A data set that cannot be copied, or whose copy does not work, is not watched.
    with contextlib.suppress(Exception), _random_numbers_kept():
        watch = _Watch(note)
        watched, count = watch.dataset(dataset, ""), len(dataset)  # type: ignore[arg-type]
        read = {0, 1, 2, 3, count // 2, count // 2 + 1, count - 2, count - 1}
        # If the data set is longer than its contents, some of it repeats: read there, too.
        read |= {size for size in watch.sizes.values() if size < count}
        for at in sorted(n for n in read if 0 <= n < count):
            for _ in range(_DRAWN):
                watched[at]
    for name, rows in found.items():
        whole = name in watch.datasets
        if not whole and not all(at in reads or at >= watch.sizes[name] for at, reads in rows.items()):
            continue
        for at, reads in rows.items():
            if len(reads) > 1:
                shown = ", ".join(map(str, sorted(reads)[:4])) + (", ..." if len(reads) > 4 else "")
                raise _shared(f"item {at} reads {name or 'items'} {shown}", where)
            others = [n for n, theirs in rows.items() if n < at and theirs & reads]
            if others and (whole or at >= watch.sizes[name]):
                raise _shared(f"items {others[0]} and {at} both read {name or 'item'} {next(iter(reads))}", where)


def _shared(why: str, where: str) -> UnsupportedError:
    return UnsupportedError(
        "an item of the data set is made of several records, or a record is in several items",
        where=where,
        why=f"{why}; the guarantee is for items, and leaving out one record would change more than one of them",
        hint="augment records one by one (mixing them in the loss of a record is no help); where what is read besides is"
        " public, make the items beforehand and give them as tensors",
    )


@contextlib.contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """Keep the generators for training unchanged while items are read here."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - data sets use it
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


class _Watch:
    """Makes copies that report to `note`, by name, the elements that are read."""

    def __init__(self, note: _Note) -> None:
        self.note = note
        self.datasets: set[str] = set()
        self.sizes: dict[str, int] = {}

    def dataset(self, dataset: Dataset[Any], name: str) -> Any:
        """A copy of a data set with its items and parts under watch."""
        kind, note = type(dataset), self.note

        class Watched(kind):  # type: ignore[misc, valid-type]
            def __getitem__(self, index: Any) -> Any:
                note(name, {int(index)})
                return kind.__getitem__(self, index)

        if hasattr(kind, "__getitems__"):

            def several(self: Any, indices: Any) -> Any:
                note(name, {int(n) for n in indices})
                return kind.__getitems__(self, indices)

            Watched.__getitems__ = several
        made = copy.copy(dataset)
        made.__class__ = Watched
        self.datasets.add(name)
        self.sizes[name] = len(dataset)  # type: ignore[arg-type]
        for key, value in vars(dataset).items():
            object.__setattr__(made, key, self._part(value, f"{name}.{key}" if name else key))
        return made

    def _part(self, value: Any, name: str) -> Any:
        if isinstance(value, Dataset):
            return self.dataset(value, name)
        if isinstance(value, list | tuple) and value and all(isinstance(each, Dataset) for each in value):
            return type(value)(self.dataset(each, f"{name}[{n}]") for n, each in enumerate(value))
        if type(value) is Tensor and value.dim():
            found: Any = value.detach().as_subclass(_WatchedTensor)
        elif isinstance(value, np.ndarray) and value.ndim:
            found = value.view(_WatchedArray)
        elif type(value) is list and value and not isinstance(value[0], int):
            # A list of integers holds indices of records, not records.
            found = _WatchedList(value)
        else:
            return value
        self.sizes[name] = len(value)

        def rows(index: Any) -> None:
            taken = np.arange(len(value))[_plain(index)]
            self.note(name, set(np.atleast_1d(taken).tolist()))

        found.rows = rows
        return found


def _plain(index: Any) -> Any:
    """The part of an index that picks rows, for numpy."""
    first = index[0] if isinstance(index, tuple) else index
    return first.numpy() if isinstance(first, Tensor) else first


class _WatchedTensor(Tensor):
    rows: Any

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if args and isinstance(args[0], cls) and hasattr(args[0], "rows"):
                if function is Tensor.__getitem__:
                    args[0].rows(args[1])
                elif function in (torch.index_select, Tensor.index_select) and len(args) == 3 and args[1] == 0:
                    args[0].rows(args[2])
            return function(*args, **(kwargs or {}))


class _WatchedArray(np.ndarray[Any, Any]):
    rows: Any = None

    def __getitem__(self, index: Any) -> Any:
        if self.rows is not None:
            self.rows(index)
        return self.view(np.ndarray)[index]


class _WatchedList(list[Any]):
    rows: Any

    def __getitem__(self, index: Any) -> Any:
        self.rows(index)
        return super().__getitem__(index)
