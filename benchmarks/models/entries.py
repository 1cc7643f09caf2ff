"""What the tables of small modules share: an entry is a factory and the shapes of one sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Entry:
    """A model: how it is made, the shapes of its inputs without batch axis, the range its inputs are drawn from."""

    name: str
    group: str
    make: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    kind: str = "normal"


TABLE: list[Entry] = []


class Fn(nn.Module):
    """A function as a module; its layers as attributes."""

    def __init__(self, function: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args, **dict(self.named_children()))


def add(group: str, name: str, make: Callable[[], nn.Module], *shapes: tuple[int, ...], kind: str = "normal") -> None:
    TABLE.append(Entry(f"{group}.{name}", group, make, shapes, kind))


def fn(group: str, name: str, function: Callable[..., Any], *shapes: tuple[int, ...], **layers: Any) -> None:
    add(group, name, lambda: Fn(function, **{key: make() for key, make in layers.items()}), *shapes)


def seq(group: str, name: str, *layers: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    add(group, name, lambda: nn.Sequential(*(layer() for layer in layers)), shape)


def conv(i: int, o: int, k: int = 3, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Conv2d(i, o, k, **options)


V8, M4, IMG = (8,), (6, 4), (3, 8, 8)
# So many token ids there are.
TOKENS = 10
