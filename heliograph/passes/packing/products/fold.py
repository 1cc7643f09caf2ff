"""Products of two encrypted matrices in blocks: *fold*, after DiagABT (HETAL, ICML 2023, section 4.2, appendix B.3).

The product is A B^T for a big A (a, b) and a small B (classes, b). The big matrix stands row by row in blocks of s0 x
s1 slots, each of which fills a ciphertext: s0 is the least power of two with a <= s0, and the blocks lie side by side.
C is the least power of two that holds all classes. Copies of the small matrix stand below each other.

In turn k, row i of A meets row i + k of B; the sum of each row is kept in the column of its class. Classes k and k +
C/2 share a ciphertext as real and imaginary part, and a mask M - iM' moves each of them to its own place. Sums are
copied to the C columns of the classes; DiagABT copies them to the whole row. benchmarks/products.py compares the
published ways with ours.
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
        """C: the least power of two that holds all classes."""
        return next_power_of_two(self.classes)

    @property
    def height(self) -> int:
        """s0: the rows of a block."""
        return next_power_of_two(self.rows)

    @property
    def width(self) -> int:
        """s1: the columns of a block."""
        return self.slots // self.height

    @property
    def ciphertexts(self) -> int:
        """The number of ciphertexts of the big matrix."""
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
    """The way described in this module."""

    way: ClassVar[str] = "fold"
    # Sums include slots of the small operand beside its elements, which must hold zeros.
    wants_zeros: ClassVar[bool] = True
    # Levels beyond the usual three.
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
    """A mask of the first `count` columns of each row."""
    return np.asarray(blocks.column_of_slots < count, dtype=np.float64)


def _classes_of_rows(blocks: Blocks, turn: int, scale: float) -> Array:
    """A mask times `scale`: column j of row i, where class i + turn belongs there."""
    row, column = blocks.row_of_slots, blocks.column_of_slots
    own = (column < blocks.classes) & ((column - row - turn) % blocks.room == 0) & (row < blocks.rows)
    return np.asarray(own * scale)


def folds(above: int, down_to: int) -> Iterator[int]:
    """above / 2, above / 4, ..., `down_to`: the rotations that fold a row, or fill it with copies."""
    step = above // 2
    while step >= down_to:
        yield step
        step //= 2


def fold_sums(writer: SlotWriter, value: Node, above: int, down_to: int) -> Node:
    """The sum of all slots `down_to` apart within `above`, in the first of them; in all of them if `above` is all
    slots.
    """
    for step in folds(above, down_to):
        value = writer.op("add_ct", value, writer.rotate(value, step))
    return value


def spread_first(writer: SlotWriter, value: Node, width: int, slots: int) -> Node:
    """The first column of each row, copied to the first `width` columns; all other columns must hold zeros."""
    for step in folds(width, 1):
        value = writer.op("add_ct", value, writer.rotate(value, slots - step))
    return value
