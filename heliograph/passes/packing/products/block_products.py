"""Products of two encrypted matrices in blocks, as published: DiagABT and DiagATB (HETAL, ICML 2023, section 4.2, appendix
B.3), ColMajor and RowMajor (Crockett, "A low-depth homomorphic circuit for logistic regression model training", 2020).

The big matrix (a, b) stands row by row in blocks of s0 x s1 slots, which fill a ciphertext each: s0 is the least power of
two that a fits into, and the blocks lie beside each other. C is the least power of two that holds all classes.

* **DiagABT**: A B^T for a small B (classes, b), whose copies stand below each other. In turn k row i of A meets row i + k
  of B; the sum of each row is kept where its class belongs. Classes k and k + C/2 share a ciphertext as real and imaginary
  part, and a mask M - iM' takes the one to the one place and the other to the other.
* **fold** is ours: DiagABT, where sums are copied to the C columns that classes take, and not to the whole row.
* **DiagATB**: A^T B for a small A (a, classes), whose copies stand beside each other (who packs A makes them). In turn k
  column j of B meets column j + k of A; the sum of each column is kept where its class belongs. Columns turn within rows by
  two rotations and a mask, a level more; or A turns as a whole and the last columns of B go up by a row (**PRotUp**), for
  a mask of each block.
* **ColMajor**, **RowMajor**: one class after the other is cut out, copied to all rows or columns, multiplied and summed.

Operands that are summed over padding want zeros there: `wants_zeros` says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from heliograph.ir import Array
from heliograph.ir.node import next_power_of_two
from heliograph.passes.packing.products.product_writer import Writer, folds, summed

BlockWay = Literal["fold", "DiagABT", "DiagATB", "DiagATB with PRotUp", "ColMajor", "RowMajor"]
# Ways to compute A B^T, whose result has a row for each row of A, and ways to compute A^T B.
OF_ABT: tuple[BlockWay, ...] = ("fold", "DiagABT", "ColMajor")
OF_ATB: tuple[BlockWay, ...] = ("DiagATB", "DiagATB with PRotUp", "RowMajor")


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a product: the big matrix has `rows` and `columns`, the small one `classes`. `slots` are those of one
    sample.
    """

    slots: int
    classes: int
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

    def fits(self, way: BlockWay) -> bool:
        """Whether there is room for all classes, and for two of them to share a ciphertext."""
        least = 1 if way.endswith("Major") else 2
        return least <= self.room <= min(self.height, self.width)

    def small_ciphertexts(self, way: BlockWay) -> int:
        return self.ciphertexts if way in OF_ABT else 1

    def more_levels(self, way: BlockWay) -> int:
        """Beside the three of the others: columns of a small matrix that are turned twice lose two levels."""
        return int(way == "DiagATB" and self.room > 2)

    def wants_zeros(self, way: BlockWay) -> bool:
        """Whether the slots of the small operand beside its elements have to hold zeros."""
        return not way.endswith("Major")

    def tiled(self, way: BlockWay) -> tuple[int, ...]:
        """The copies of the small operand that the client makes (`Layout.tiled`)."""
        return (self.width // self.room, self.room) if way.startswith("DiagATB") else ()


@dataclass(frozen=True, slots=True)
class _Grid:
    """Row and column of each slot of a block, and the masks made of them."""

    blocks: Blocks

    @property
    def _row(self) -> Array:
        return np.arange(self.blocks.slots) // self.blocks.width

    @property
    def _column(self) -> Array:
        return np.arange(self.blocks.slots) % self.blocks.width

    def _there(self, block: int) -> Array:
        """The columns of one block that the matrix has."""
        there: Array = self._column < self.blocks.columns - block * self.blocks.width
        return there

    def first_columns(self, count: int) -> Array:
        return np.asarray(self._column < count, dtype=np.float64)

    def classes_of_rows(self, turn: int, scale: float) -> Array:
        """Column j of row i, where class i + turn belongs there."""
        b = self.blocks
        own = (self._column < b.classes) & ((self._column - self._row - turn) % b.room == 0) & (self._row < b.rows)
        return np.asarray(own * scale)

    def classes_of_columns(self, turn: int, block: int, scale: float) -> Array:
        """Row i of column j, where class j + turn belongs there; rows repeat with C."""
        b, row = self.blocks, self._row % self.blocks.room
        own = (row < b.classes) & ((row - self._column - turn) % b.room == 0) & self._there(block)
        return np.asarray(own * scale)

    def one_row(self, row: int, block: int) -> Array:
        return np.asarray((self._row == row) & self._there(block), dtype=np.float64)

    def one_column(self, column: int, scale: float = 1.0) -> Array:
        return np.asarray(((self._column == column) & (self._row < self.blocks.rows)) * scale)

    def every_row(self, row: int, block: int, scale: float) -> Array:
        """A row and those that repeat it."""
        return np.asarray(((self._row % self.blocks.room == row) & self._there(block)) * scale)


def write_in_blocks(
    writer: Writer, blocks: Blocks, way: BlockWay, small: Sequence[Any], big: Sequence[Any], scale: float
) -> list[Any]:
    """The slot vectors of the result, times `scale`."""
    grid = _Grid(blocks)
    if way in ("DiagABT", "fold"):
        return [_diag_abt(writer, grid, small, big, scale, blocks.room if way == "fold" else blocks.width)]
    if way == "ColMajor":
        return [_col_major(writer, grid, small, big, scale)]
    if way == "RowMajor":
        return _row_major(writer, grid, small[0], big, scale)
    return _diag_atb(writer, grid, small[0], big, scale, way == "DiagATB with PRotUp")


def _rotated(writer: Writer, value: Any, amount: int, slots: int) -> Any:
    return writer.rotate(value, amount % slots) if amount % slots else value


def _fold(writer: Writer, value: Any, above: int, down_to: int) -> Any:
    """Sums of slots that lie `down_to`, twice that, ... apart, in the first of them (in all, where `above` is all slots)."""
    for step in folds(above, down_to):
        value = writer.add(value, writer.rotate(value, step))
    return value


def _spread(writer: Writer, value: Any, width: int, slots: int) -> Any:
    """The first column of each row in all of them; the others hold zeros."""
    for step in folds(width, 1):
        value = writer.add(value, writer.rotate(value, slots - step))
    return value


def _diag_abt(writer: Writer, grid: _Grid, small: Sequence[Any], big: Sequence[Any], scale: float, copied: int) -> Any:
    """`copied`: to this many columns the sum of each row is copied."""
    b = grid.blocks
    half = b.room // 2
    both = [writer.complex(own, writer.rotate(own, half * b.width)) for own in small]
    total: Any = None
    for turn in range(half):
        turned = [_rotated(writer, own, turn * b.width, b.slots) for own in both]
        made = summed(writer, [writer.multiply(x, own) for x, own in zip(big, turned, strict=True)])
        made = writer.mask(_fold(writer, made, b.width, 1), grid.first_columns(1))
        made = _spread(writer, made, copied, b.slots)
        made = writer.mask(made, grid.classes_of_rows(turn, scale), -grid.classes_of_rows(turn + half, scale))
        total = made if total is None else writer.add(total, made)
    return writer.real(total)


def _turned_left(writer: Writer, grid: _Grid, value: Any, count: int) -> Any:
    """RotLeft: columns turned within each row."""
    b = grid.blocks
    turned = writer.rotate(value, count)
    kept = writer.mask(turned, grid.first_columns(b.width - count))
    return writer.add(kept, writer.rotate(writer.subtract(turned, kept), b.slots - b.width))


def _partly_up(writer: Writer, grid: _Grid, value: Any, count: int) -> Any:
    """PRotUp: the last columns a row higher."""
    b = grid.blocks
    kept = writer.mask(value, grid.first_columns(b.width - count))
    return writer.add(kept, writer.rotate(writer.subtract(value, kept), b.width))


def _diag_atb(writer: Writer, grid: _Grid, small: Any, big: Sequence[Any], scale: float, upwards: bool) -> list[Any]:
    b = grid.blocks
    half = b.room // 2
    both = writer.complex(small, _turned_left(writer, grid, small, half))
    totals: list[Any] = [None] * len(big)
    for turn in range(half):
        if not turn:
            own, others = both, big
        elif upwards:
            own, others = writer.rotate(both, turn), [_partly_up(writer, grid, x, turn) for x in big]
        else:
            own, others = _turned_left(writer, grid, both, turn), big
        for block, x in enumerate(others):
            made = _fold(writer, writer.multiply(own, x), b.slots, b.width)
            parts = (grid.classes_of_columns(turn + part, block, scale) for part in (0, half))
            made = writer.mask(made, next(parts), -next(parts))
            totals[block] = made if totals[block] is None else writer.add(totals[block], made)
    return [writer.real(total) for total in totals]


def _col_major(writer: Writer, grid: _Grid, small: Sequence[Any], big: Sequence[Any], scale: float) -> Any:
    b = grid.blocks
    total: Any = None
    for own in range(b.classes):
        rows = [writer.mask(x, grid.one_row(own, block)) for block, x in enumerate(small)]
        copied = [_fold(writer, x, b.slots, b.width) for x in rows]
        made = summed(writer, [writer.multiply(x, row) for x, row in zip(big, copied, strict=True)])
        made = writer.mask(_fold(writer, made, b.width, 1), grid.one_column(0, scale))
        made = _rotated(writer, made, -own, b.slots)
        total = made if total is None else writer.add(total, made)
    return total


def _row_major(writer: Writer, grid: _Grid, small: Any, big: Sequence[Any], scale: float) -> list[Any]:
    b = grid.blocks
    totals: list[Any] = [None] * len(big)
    for own in range(b.classes):
        column = _rotated(writer, writer.mask(small, grid.one_column(own)), own, b.slots)
        column = _spread(writer, column, b.width, b.slots)
        for block, x in enumerate(big):
            made = _fold(writer, writer.multiply(column, x), b.slots, b.width)
            made = writer.mask(made, grid.every_row(own, block, scale))
            totals[block] = made if totals[block] is None else writer.add(totals[block], made)
    return totals
