"""Data sets in which one record is several items: the guarantee is for items, and would be none for that record.

What is certain is refused: two items of torch's `Subset` and `ConcatDataset`, however nested, that are the same item of one
data set. Items made of several records (mixup, mosaics, pairs, windows) look like any others and are not seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Subset

from heliograph.errors import UnsupportedError


def check_items(dataset: Dataset[Any]) -> None:
    """Raise UnsupportedError if two items of a data set are the same item of a data set inside of it."""
    origins = _origins(dataset)
    _, first, counts = np.unique(origins, axis=0, return_index=True, return_counts=True)
    if counts.size and counts.max() > 1:
        at = int(first[counts.argmax()])
        again = np.flatnonzero((origins == origins[at]).all(1)).tolist()
        raise UnsupportedError(
            "a record is in several items of the data set",
            where="train_set",
            why=f"items {again[0]} and {again[1]} are one; leaving out that record would change more than one item",
            hint="give every record once; weigh losses if classes are unequal",
        )


def _origins(dataset: Any) -> Any:
    """For each item: the number of the innermost data set in memory, and the item's index there."""
    if isinstance(dataset, Subset):
        return _origins(dataset.dataset)[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, ConcatDataset):
        return np.concatenate([_origins(each) for each in dataset.datasets])
    count = len(dataset)
    return np.stack((np.full(count, id(dataset)), np.arange(count)), axis=1)
