"""Where the elements of a tensor stand in the slots of its ciphertexts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.diagonals import positions_in_slots
from heliograph.ir.node import Array


@dataclass(frozen=True, slots=True)
class Layout:
    """A periodic layout of a tensor of `shape` in one or more ciphertexts.

    Element i of the flattened tensor has place `place(i)`: ciphertext `place // period`, position `place % period`. The
    period repeats over the slots; each copy is moved left by `shift` more than the one before, counting anew
    every `run` slots (see ir/diagonals.py).
    Places are those of the gap layout: channel c, row y, column x of a (C, H, W) tensor with `gap` g stand at
    `(c // g²) * block + (g*y + (c % g²) // g) * width + g*x + c % g`; vectors have gap 1 and stand in order.
    `block` is the room for one group of channels, `width` that for one row.
    """

    shape: tuple[int, ...]
    slots: int
    period: int
    shift: int = 0
    gap: int = 1
    width: int = 0
    block: int = 0
    run: int = 0

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def channels_rows_columns(self) -> tuple[int, int, int]:
        """The shape as (C, H, W): one-dimensional signals have one row, vectors one channel."""
        if len(self.shape) == 3:
            return self.shape[0], self.shape[1], self.shape[2]
        if len(self.shape) == 2:
            return self.shape[0], 1, self.shape[1]
        return 1, 1, self.size

    def places(self) -> Array:
        """The place of each element, (size,)."""
        channels, rows, columns = self.channels_rows_columns
        width = self.width or columns * self.gap
        block = self.block or rows * self.gap * width
        g = self.gap
        c, y, x = np.ogrid[:channels, :rows, :columns]
        inner = c % (g * g)
        place = (c // (g * g)) * block + (g * y + inner // g) * width + g * x + inner % g
        return np.broadcast_to(place, (channels, rows, columns)).reshape(-1).astype(np.int64)

    @property
    def ciphertexts(self) -> int:
        return int(self.places().max()) // self.period + 1

    def pack(self, tensor: Array) -> list[Array]:
        """The slot vectors of one sample, one per ciphertext; slots without an element hold zero."""
        if tensor.shape != self.shape:
            raise ProgramError(f"expected shape {self.shape}, got {tensor.shape}")
        places = self.places()
        flat = np.zeros(self.ciphertexts * self.period)
        flat[places] = tensor.reshape(-1)
        where = positions_in_slots(self.slots, self.period, self.shift, self.run)
        return [flat[i * self.period : (i + 1) * self.period][where] for i in range(self.ciphertexts)]

    def unpack(self, vectors: list[Array]) -> Array:
        """The tensor from its slot vectors (the first copy of each)."""
        flat = np.concatenate([vector[: self.period] for vector in vectors])
        if self.shift:
            raise ProgramError("a shifted layout is for inputs only")
        return flat[self.places()].reshape(self.shape)

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "slots": self.slots,
            "period": self.period,
            "shift": self.shift,
            "gap": self.gap,
            "width": self.width,
            "block": self.block,
            "run": self.run,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> Layout:
        return Layout(
            tuple(value["shape"]),
            value["slots"],
            value["period"],
            value["shift"],
            value["gap"],
            value["width"],
            value["block"],
            value["run"],
        )
