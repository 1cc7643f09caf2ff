"""Products of two encrypted matrices as published, in blocks (heliograph/passes/packing/products/fold.py).

DiagABT and DiagATB: HETAL (ICML 2023, section 4.2, appendix B.3). ColMajor and RowMajor: Crockett, "A low-depth homomorphic
circuit for logistic regression model training", 2020.

* **DiagABT**: A B^T for a small B (classes, b); sums are copied to the whole row.
* **DiagATB**: A^T B for a small A (a, classes), whose copies stand beside each other: the client packs them. In turn k
  column j of B meets column j + k of A; the sum of each column is kept where its class belongs. Columns turn within rows by
  two rotations and a mask, a level more; or A turns as a whole and the last columns of B go up by a row (**PRotUp**), for
  a mask of each block.
* **ColMajor**, **RowMajor**: one class after the other is cut out, copied to all rows or columns, multiplied and summed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heliograph.ir import Array, Node
from heliograph.ir.maps.layout import Layout, matrix_axes
from heliograph.ir.writer import SlotWriter
from heliograph.passes.packing.products.fold import Blocks, first_columns, fold_sums, rows_by_rows, spread_first
from heliograph.passes.packing.products.matrix_products import MatrixProduct


@dataclass(frozen=True, slots=True)
class Published(Blocks):
    """A published way. The big matrix is the left one of A B^T, and the right one of A^T B."""

    way: ClassVar[str]
    # "abt" or "atb".
    kind: ClassVar[str]
    # What a way of the product says too.
    wants_zeros: ClassVar[bool] = False
    more_levels: ClassVar[int] = 0

    def product(self) -> MatrixProduct:
        """The product with its layouts."""
        s, height, width, room = self.slots, self.height, self.width, self.room

        def layout(shape: tuple[int, int], period: int, *places: tuple[int, int, int]) -> Layout:
            return Layout(shape, s, period, matrix_axes(shape, *places))

        big = layout((self.rows, self.columns), s, (height, width, s), (width, 1, s))
        if self.kind == "abt":
            period = self.period
            small = layout((self.classes, self.columns), period, (room, width, period), (width, 1, period))
            out = layout((self.rows, self.classes), s, (height, width, s), (room, 1, s))
            return MatrixProduct(self, 0, big, small, out, 1.0)
        copied, period = self.copied_columns, room * width
        small = layout((self.rows, copied), s, (height, width, s), (copied, 1, s))
        # Rows of the result that stand for copies of a class are the same slots.
        out = layout((copied, self.columns), period, (room, width, 0), (width, 1, period))
        return MatrixProduct(self, 1, small, big, out, 1.0)

    @property
    def period(self) -> int:
        """Of the small matrix of A B^T, whose copies stand below each other."""
        return self.room * self.width

    @property
    def copied_columns(self) -> int:
        """The columns of the small matrix of A^T B with the copies that the client makes."""
        return self.classes

    # Masks of a block's slots.

    def _there(self, block: int) -> Array:
        """The columns of one block that the matrix has."""
        there: Array = self.column_of_slots < self.columns - block * self.width
        return there

    def _one_row(self, row: int, block: int) -> Array:
        return np.asarray((self.row_of_slots == row) & self._there(block), dtype=np.float64)

    def _one_column(self, column: int, scale: float = 1.0) -> Array:
        return np.asarray(((self.column_of_slots == column) & (self.row_of_slots < self.rows)) * scale)

    def _every_row(self, row: int, block: int, scale: float) -> Array:
        """A row and those that repeat it."""
        return np.asarray(((self.row_of_slots % self.room == row) & self._there(block)) * scale)

    def _classes_of_columns(self, turn: int, block: int, scale: float) -> Array:
        """Row i of column j, where class j + turn belongs there; rows repeat with C."""
        row = self.row_of_slots % self.room
        own = (row < self.classes) & ((row - self.column_of_slots - turn) % self.room == 0) & self._there(block)
        return np.asarray(own * scale)


@dataclass(frozen=True, slots=True)
class DiagABT(Published):
    way: ClassVar[str] = "DiagABT"
    kind: ClassVar[str] = "abt"

    def write(self, writer: SlotWriter, small: Sequence[Node], big: Sequence[Node], scale: float) -> list[Node]:
        return [rows_by_rows(writer, self, small, big, scale, self.width)]


@dataclass(frozen=True, slots=True)
class DiagATB(Published):
    way: ClassVar[str] = "DiagATB"
    kind: ClassVar[str] = "atb"

    @property
    def copied_columns(self) -> int:
        return self.width

    def write(self, writer: SlotWriter, small: Sequence[Node], big: Sequence[Node], scale: float) -> list[Node]:
        half = self.room // 2
        both = writer.op("complex_of", small[0], self._turned_left(writer, small[0], half))
        sums: list[list[Node]] = [[] for _ in big]
        for turn in range(half):
            own, others = self._met(writer, both, big, turn) if turn else (both, big)
            for block, x in enumerate(others):
                made = fold_sums(writer, writer.op("mul_ct", own, x), self.slots, self.width)
                real, imaginary = (self._classes_of_columns(turn + part, block, scale) for part in (0, half))
                made = writer.mask(made, real, -imaginary)
                sums[block].append(made)
        return [writer.op("real_part", writer.sum("add_ct", parts)) for parts in sums]

    def _met(self, writer: SlotWriter, both: Node, big: Sequence[Node], turn: int) -> tuple[Node, Sequence[Node]]:
        """What meets in a turn."""
        return self._turned_left(writer, both, turn), big

    def _turned_left(self, writer: SlotWriter, value: Node, count: int) -> Node:
        """RotLeft: columns turned within each row."""
        turned = writer.rotate(value, count)
        kept = writer.mask(turned, first_columns(self, self.width - count))
        return writer.op("add_ct", kept, writer.rotate(writer.op("sub_ct", turned, kept), self.slots - self.width))


@dataclass(frozen=True, slots=True)
class DiagATBUpwards(DiagATB):
    way: ClassVar[str] = "DiagATB with PRotUp"

    def _met(self, writer: SlotWriter, both: Node, big: Sequence[Node], turn: int) -> tuple[Node, Sequence[Node]]:
        return writer.rotate(both, turn), [self._partly_up(writer, x, turn) for x in big]

    def _partly_up(self, writer: SlotWriter, value: Node, count: int) -> Node:
        """PRotUp: the last columns a row higher."""
        kept = writer.mask(value, first_columns(self, self.width - count))
        return writer.op("add_ct", kept, writer.rotate(writer.op("sub_ct", value, kept), self.width))


@dataclass(frozen=True, slots=True)
class ColMajor(Published):
    way: ClassVar[str] = "ColMajor"
    kind: ClassVar[str] = "abt"

    @property
    def period(self) -> int:
        return self.slots

    def write(self, writer: SlotWriter, small: Sequence[Node], big: Sequence[Node], scale: float) -> list[Node]:
        parts = []
        for own in range(self.classes):
            rows = [writer.mask(x, self._one_row(own, block)) for block, x in enumerate(small)]
            copied = [fold_sums(writer, x, self.slots, self.width) for x in rows]
            made = writer.sum("add_ct", [writer.op("mul_ct", x, row) for x, row in zip(big, copied, strict=True)])
            made = writer.mask(fold_sums(writer, made, self.width, 1), self._one_column(0, scale))
            parts.append(writer.rotate(made, self.slots - own) if own else made)
        return [writer.sum("add_ct", parts)]


@dataclass(frozen=True, slots=True)
class RowMajor(Published):
    way: ClassVar[str] = "RowMajor"
    kind: ClassVar[str] = "atb"

    def write(self, writer: SlotWriter, small: Sequence[Node], big: Sequence[Node], scale: float) -> list[Node]:
        sums: list[list[Node]] = [[] for _ in big]
        for own in range(self.classes):
            column = writer.mask(small[0], self._one_column(own))
            column = spread_first(writer, writer.rotate(column, own) if own else column, self.width, self.slots)
            for block, x in enumerate(big):
                made = fold_sums(writer, writer.op("mul_ct", column, x), self.slots, self.width)
                made = writer.mask(made, self._every_row(own, block, scale))
                sums[block].append(made)
        return [writer.sum("add_ct", parts) for parts in sums]


PUBLISHED: dict[str, tuple[type[Published], ...]] = {
    "abt": (DiagABT, ColMajor),
    "atb": (DiagATB, DiagATBUpwards, RowMajor),
}
# Products with plaintexts, products of ciphertexts and rotations on s = 32,768 slots: HETAL, table 11 (the corrected one).
COUNTS: dict[tuple[int, int, int], dict[str, tuple[int, int, int]]] = {
    (128, 128, 4): {
        "DiagABT": (4, 2, 34), "DiagATB": (4, 2, 18), "DiagATB with PRotUp": (4, 2, 18),
        "ColMajor": (8, 4, 63), "RowMajor": (8, 4, 63),
    },
    (256, 256, 8): {
        "DiagABT": (8, 8, 64), "DiagATB": (12, 8, 72), "DiagATB with PRotUp": (15, 8, 75),
        "ColMajor": (24, 16, 191), "RowMajor": (24, 16, 191),
    },
    (512, 769, 4): {
        "DiagABT": (4, 26, 50), "DiagATB": (28, 26, 238), "DiagATB with PRotUp": (40, 26, 250),
        "ColMajor": (56, 52, 495), "RowMajor": (56, 52, 495),
    },
    (1024, 769, 8): {
        "DiagABT": (8, 100, 140), "DiagATB": (104, 100, 1008), "DiagATB with PRotUp": (176, 100, 1080),
        "ColMajor": (208, 200, 2047), "RowMajor": (208, 200, 2047),
    },
    (2048, 769, 16): {
        "DiagABT": (16, 392, 456), "DiagATB": (400, 392, 4328), "DiagATB with PRotUp": (736, 392, 4664),
        "ColMajor": (800, 784, 8703), "RowMajor": (800, 784, 8703),
    },
}  # fmt: skip
