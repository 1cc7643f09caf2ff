"""Data sets that hold a record in several items are refused; ordinary ones are let through, whatever they read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset, random_split  # noqa: E402

from heliograph.dp.training.items import check_items  # noqa: E402
from heliograph.errors import UnsupportedError  # noqa: E402

COUNT = 60


class Normalised(Dataset):
    """Images normalised by channel, and scaled by a list of two numbers: every item reads all of these tables."""

    def __init__(self, kind: Any = torch.tensor) -> None:
        self.images = torch.randn(COUNT, 3, 4, 4)
        self.mean, self.std, self.range = kind([0.1, 0.2, 0.3]), kind([1.0, 1.0, 1.0]), [0.0, 1.0]

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = (self.images[index] - self.mean[:, None, None]) / self.std[:, None, None]
        return image * (self.range[1] - self.range[0]) + self.range[0], index % 2


PLAIN = TensorDataset(torch.randn(COUNT, 5), torch.arange(COUNT) % 2)


@pytest.mark.parametrize(
    "dataset",
    [
        Normalised(),
        Normalised(np.array),
        PLAIN,
        Subset(PLAIN, [5, 3, 1]),
        ConcatDataset([PLAIN, Normalised()]),
        ConcatDataset(random_split(PLAIN, [20, 40])),
        Subset(PLAIN, []),
    ],
)
def test_ordinary_data_sets_are_let_through(dataset: Any) -> None:
    check_items(dataset)


@pytest.mark.parametrize(
    "dataset",
    [
        Subset(PLAIN, [0, 1, 0]),
        ConcatDataset([PLAIN, PLAIN]),
        ConcatDataset([Subset(PLAIN, [1, 2]), Subset(Subset(PLAIN, [4, 2]), [1])]),
        Subset(ConcatDataset([PLAIN, Normalised()]), [3, 70, 70]),
    ],
)
def test_a_record_in_two_items_is_refused(dataset: Any) -> None:
    with pytest.raises(UnsupportedError, match="in several items") as caught:
        check_items(dataset)
    assert "are one" in (caught.value.why or "")
