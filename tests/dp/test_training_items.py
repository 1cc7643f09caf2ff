"""Data sets whose items share records are found out, and the usual others are let through."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from torch import Tensor, nn  # noqa: E402
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset  # noqa: E402

from heliograph.dp.training import DPTrainer  # noqa: E402
from heliograph.dp.training.items import check_items  # noqa: E402
from heliograph.errors import UnsupportedError  # noqa: E402

COUNT = 60


class Plain(Dataset):
    """Images and targets, as most data sets hold them; names of classes and a vocabulary beside."""

    def __init__(self, kind: str = "tensor") -> None:
        inputs, targets = torch.randn(COUNT, 5), torch.arange(COUNT) % 2
        self.inputs: Any = {"tensor": inputs, "array": inputs.numpy(), "list": list(inputs)}[kind]
        self.targets = targets
        self.vocabulary = [f"word {n}" for n in range(2 * COUNT)]
        self.embedding = torch.randn(2 * COUNT, 5)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        assert " ".join(self.vocabulary[7 * n % COUNT] for n in range(index + 2))
        moved = torch.as_tensor(self.inputs[index]) + self.embedding[torch.tensor([3, 9, 40])].mean(0)
        return moved + 0.1 * torch.randn(5), self.targets[index]


class Mixup(Plain):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        other = random.randrange(COUNT)
        if random.random() < 0.5:
            return torch.as_tensor(self.inputs[index]), self.targets[index]
        return 0.7 * torch.as_tensor(self.inputs[index]) + 0.3 * torch.as_tensor(self.inputs[other]), self.targets[
            index
        ]


class MixupOf(Dataset):
    """A wrapper around any data set."""

    def __init__(self, base: Dataset) -> None:
        self.base = base

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> Any:
        (x, y), (other, _) = self.base[index], self.base[random.randrange(len(self.base))]
        return 0.7 * x + 0.3 * other, y


class Recursive(Plain):
    """Calls itself for the other item, once."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        return x + (0 if random.random() < 0.5 else 0.1 * self[(index + 1) % COUNT][0]), y


class Pairs(Dataset):
    """All pairs of a data set, from a list."""

    def __init__(self, base: Dataset) -> None:
        self.base = base
        self.pairs = [(n, (5 * n + 1) % COUNT) for n in range(COUNT)]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        a, b = self.pairs[index]
        return torch.cat((self.base[a][0], self.base[b][0])), self.base[a][1]


class Windows(Plain):
    def __len__(self) -> int:
        return COUNT - 3

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.as_tensor(np.asarray(self.inputs[index : index + 4])).flatten(), self.targets[index]


class Repeats(Dataset):
    def __init__(self, base: Dataset, way: str) -> None:
        self.base, self.way = base, way

    def __len__(self) -> int:
        return 3 * COUNT

    def __getitem__(self, index: int) -> Any:
        return self.base[index // 3 if self.way == "next" else index % COUNT]


class RepeatedTensor(Plain):
    def __len__(self) -> int:
        return 2 * COUNT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.inputs[index % COUNT], self.targets[index % COUNT]


SHARED = {
    "mixup of tensors": Mixup,
    "mixup of arrays": lambda: Mixup("array"),
    "mixup of lists": lambda: Mixup("list"),
    "mixup of a data set": lambda: MixupOf(Plain()),
    "mixup of a part": lambda: MixupOf(Subset(Plain(), list(range(7, 50)))),
    "mixup in a part": lambda: Subset(MixupOf(Plain()), list(range(7, 50))),
    "mixup beside others": lambda: ConcatDataset([Plain(), MixupOf(Plain())]),
    "its own items": Recursive,
    "pairs": lambda: Pairs(Plain()),
    "windows": Windows,
    "windows of arrays": lambda: Windows("array"),
    "repeats, one after another": lambda: Repeats(Plain(), "next"),
    "repeats, all once more": lambda: Repeats(Plain(), "more"),
    "a tensor once more": RepeatedTensor,
}
APART = {
    "tensors": Plain,
    "arrays": lambda: Plain("array"),
    "lists": lambda: Plain("list"),
    "a part": lambda: Subset(Plain(), list(range(7, 50))),
    "parts": lambda: ConcatDataset([Plain(), Subset(Plain("list"), [3, 1, 20])]),
    "no attributes": lambda: TensorDataset(torch.randn(COUNT, 5), torch.arange(COUNT) % 2),
}


def trained(dataset: Dataset) -> DPTrainer:
    width = len(dataset[0][0])
    return DPTrainer(
        nn.Linear(width, 2),
        nn.CrossEntropyLoss(reduction="none"),
        lambda p: torch.optim.SGD(p, lr=0.1),
        dataset,
        noise_multiplier=2.0,
        delta=1e-3,
        epochs=1,
        batch_size=10,
        max_grad_norm=1.0,
        public_size=len(dataset),
    )


@pytest.mark.parametrize("name", SHARED)
def test_items_that_share_records_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="made of several records") as caught:
        trained(SHARED[name]())
    assert "read" in caught.value.why


@pytest.mark.parametrize("name", APART)
def test_items_of_one_record_are_let_through(name: str) -> None:
    trained(APART[name]())


def test_the_data_set_and_random_numbers_are_left_as_they_were() -> None:
    dataset = Plain()
    kept = dict(vars(dataset))
    random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), torch.get_rng_state()
    check_items(dataset)
    assert type(dataset) is Plain
    assert all(vars(dataset)[name] is value for name, value in kept.items())
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


class Stubborn(Plain):
    """Cannot be copied."""

    def __copy__(self) -> Any:
        raise TypeError("no")


def test_what_cannot_be_watched_is_let_through() -> None:
    check_items(Stubborn())
