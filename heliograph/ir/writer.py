"""Writes nodes at one location: the replacement of a node of another program, or a program of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.ir.builder import Builder
from heliograph.ir.location import UNKNOWN, Location
from heliograph.ir.maps.diagonals import MapGeometry, diagonal_offsets
from heliograph.ir.maps.steps import pair_offsets
from heliograph.ir.node import Array, Node, SparseMatrix, shape_of
from heliograph.ir.types import TensorType


@dataclass(slots=True)
class Writer:
    """Adds nodes of any stage to a program that is being built."""

    builder: Builder
    # The location of the nodes.
    loc: Location = UNKNOWN
    # The prefix of the names of its constants.
    name: str = "written"

    def op(self, op: str, *operands: Node, **attrs: Any) -> Node:
        """A node of that op; a ProgramError with the location if it refuses its operands."""
        return self.builder.op(op, operands, self.loc, **attrs)

    def sum(self, op: str, values: Sequence[Node]) -> Node:
        """The sum of at least one value by that op, in order."""
        total = values[0]
        for value in values[1:]:
            total = self.op(op, total, value)
        return total

    # On tensors.

    def constant(self, value: Any, name: str = "constant") -> Node:
        """A value that is known when the program is written."""
        return self.op("constant", value=self.builder.constant(value, name))

    def poly(
        self, x: Node, coefficients: Sequence[float], low: float = -1.0, high: float = 1.0, entry: int | None = None
    ) -> Node:
        """The polynomial of these Chebyshev coefficients on [low, high]; `entry` is its place in the range table."""
        name = self.builder.constant(np.array(coefficients), f"{self.name}.poly")
        return self.op("poly", x, coefficients=name, low=low, high=high, range=entry)

    def scaled(self, x: Node, factor: float) -> Node:
        """x times a number, for one level."""
        return self.poly(x, (0.0, factor))

    def shifted(self, x: Node, value: float) -> Node:
        """x plus a number."""
        return self.op("add", x, self.constant(np.full(shape_of(x), value)))

    def negated(self, x: Node) -> Node:
        """-x."""
        return self.op("sub", self.constant(np.zeros(shape_of(x)), "zero"), x)

    def rows_summed(self, x: Node) -> Node:
        """The sum of all rows, in each row."""
        return self.op("repeat_row", self.op("sum_rows", x), rows=shape_of(x)[0])


@dataclass(slots=True)
class SlotWriter(Writer):
    """Writes operations on slot vectors; amounts, vectors and maps count slots of one sample."""

    # The number of samples side by side.
    batch: int = 1

    def rotate(self, x: Node, amount: int) -> Node:
        """x rotated: slot i takes the value of slot i + amount."""
        return self.op("rotate", x, amount=amount * self.batch)

    def mask(self, x: Node, real: Array, imaginary: Array | None = None) -> Node:
        """The product with a plaintext, which repeats over the slots."""
        names = [
            None if part is None else self.builder.constant(np.repeat(part, self.batch), f"{self.name}.mask")
            for part in (real, imaginary)
        ]
        return self.op("mul_plain", x, value=names[0], imaginary=names[1])

    def transform(
        self,
        values: Sequence[Node],
        maps: Sequence[SparseMatrix],
        baby: Sequence[int] | None = None,
        giant: Sequence[int] | None = (0,),
    ) -> Node:
        """The sum of maps between the slots of one period; None stands for all steps that they need."""
        period, slots = maps[0].shape[0], values[0].type
        assert not isinstance(slots, TensorType)
        offsets = [diagonal_offsets(matrix, MapGeometry(period, period, period)) for matrix in maps]
        every = sorted(set().union(*offsets))
        used: set[tuple[int, int]] = set()
        for each in offsets:
            pairs = pair_offsets(each, every if baby is None else baby, every if giant is None else giant, period)
            used |= {(b, g) for g, group in pairs.items() for b, _ in group}
        return self.op(
            "linear_transform",
            *values,
            matrices=tuple(self.builder.constant(matrix, f"{self.name}.move") for matrix in maps),
            geometry=MapGeometry(slots.slots, period, period, samples=self.batch),
            baby_steps=tuple(sorted({b * self.batch for b, _ in used})),
            giant_steps=tuple(sorted({g * self.batch for _, g in used})),
        )
