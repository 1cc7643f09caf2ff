"""Products of two encrypted matrices in blocks: *fold*, after DiagABT (HETAL, ICML 2023, section 4.2, appendix B.3).

It is A B^T for a big A (a, b) and a small B (classes, b). The big matrix stands row by row in blocks of s0 x s1 slots, which
fill a ciphertext each: s0 is the least power of two that a fits into, and the blocks lie beside each other. C is the least
power of two that holds all classes. Copies of the small matrix stand below each other.

In turn k row i of A meets row i + k of B; the sum of each row is kept where its class belongs. Classes k and k + C/2 share a
ciphertext as real and imaginary part, and a mask M - iM' takes the one to the one place and the other to the other. Sums are
copied to the C columns that classes take; DiagABT copies them to the whole row. The published ways are compared with ours in
benchmarks/products.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heliograph.ir import Array, Node
from heliograph.ir.node import next_power_of_two
from heliograph.ir.writer import SlotWriter


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a product."""

    # The slots of one sample.
    slots: int
    # The rows of the small matrix.
    classes: int
    # The shape of the big matrix.
    rows: int
    columns: int

    @property
    def room(self) -> int:
        """C."""
        return next_power_of_two(self.classes)

    @property
    def height(self) -> int:
        """s0."""
        return next_power_of_two(self.rows)

    @property
    def width(self) -> int:
        """s1."""
        return self.slots // self.height

    @property
    def ciphertexts(self) -> int:
        """Of the big matrix."""
        return -(-self.columns // self.width)

    @property
    def row_of_slots(self) -> Array:
        """The row of each slot of a block."""
        return np.arange(self.slots) // self.width

    @property
    def column_of_slots(self) -> Array:
        """The column of each slot of a block."""
        return np.arange(self.slots) % self.width


@dataclass(frozen=True, slots=True)
class Fold(Blocks):
    """The way that this module describes."""

    way: ClassVar[str] = "fold"
    # Slots of the small operand are added up that hold none of its elements.
    wants_zeros: ClassVar[bool] = True
    # Levels beside the three of the others.
    more_levels: ClassVar[int] = 0

    @property
    def fits(self) -> bool:
        """Whether there is room for all classes, and for two of them to share a ciphertext."""
        return 2 <= self.room <= min(self.height, self.width)

    def write(self, writer: SlotWriter, small: Sequence[Node], big: Sequence[Node], scale: float) -> list[Node]:
        """The slot vectors of the result, times `scale`."""
        return [rows_by_rows(writer, self, small, big, scale, self.room)]


def rows_by_rows(
    writer: SlotWriter, blocks: Blocks, small: Sequence[Node], big: Sequence[Node], scale: float, copied: int
) -> Node:
    """A B^T times `scale`; the sum of each row is copied to `copied` columns."""
    half = blocks.room // 2
    both = [writer.op("complex_of", own, writer.rotate(own, half * blocks.width)) for own in small]
    parts = []
    for turn in range(half):
        turned = [writer.rotate(own, turn * blocks.width) if turn else own for own in both]
        made = writer.sum("add_ct", [writer.op("mul_ct", x, own) for x, own in zip(big, turned, strict=True)])
        made = writer.mask(fold_sums(writer, made, blocks.width, 1), first_columns(blocks, 1))
        made = spread_first(writer, made, copied, blocks.slots)
        real, imaginary = (_classes_of_rows(blocks, turn + part, scale) for part in (0, half))
        parts.append(writer.mask(made, real, -imaginary))
    return writer.op("real_part", writer.sum("add_ct", parts))


def first_columns(blocks: Blocks, count: int) -> Array:
    """One in the first columns of each row."""
    return np.asarray(blocks.column_of_slots < count, dtype=np.float64)


def _classes_of_rows(blocks: Blocks, turn: int, scale: float) -> Array:
    """Column j of row i, where class i + turn belongs there."""
    row, column = blocks.row_of_slots, blocks.column_of_slots
    own = (column < blocks.classes) & ((column - row - turn) % blocks.room == 0) & (row < blocks.rows)
    return np.asarray(own * scale)


def folds(above: int, down_to: int) -> Iterator[int]:
    """Half of `above`, half of that, and so on to `down_to`: the rotations that fold a row, or fill it with copies."""
    step = above // 2
    while step >= down_to:
        yield step
        step //= 2


def fold_sums(writer: SlotWriter, value: Node, above: int, down_to: int) -> Node:
    """Sums of slots that lie `down_to`, twice that, ... apart, in the first of them (in all, where `above` is all slots)."""
    for step in folds(above, down_to):
        value = writer.op("add_ct", value, writer.rotate(value, step))
    return value


def spread_first(writer: SlotWriter, value: Node, width: int, slots: int) -> Node:
    """The first column of each row in `width` of them; the others hold zeros."""
    for step in folds(width, 1):
        value = writer.op("add_ct", value, writer.rotate(value, slots - step))
    return value
