"""Writes nodes at one location: what stands in place of a node of another program, or a program of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.ir.builder import Builder
from heliograph.ir.location import UNKNOWN, Location
from heliograph.ir.node import Node, shape_of


@dataclass(slots=True)
class Writer:
    """Adds nodes of any stage to a program that is being built."""

    builder: Builder
    # Where the nodes come from.
    loc: Location = UNKNOWN
    # What the names of its constants begin with.
    name: str = "written"

    def op(self, op: str, *operands: Node, **attrs: Any) -> Node:
        """A node of that op; a ProgramError with the location where it refuses its operands."""
        return self.builder.op(op, operands, self.loc, **attrs)

    def sum(self, op: str, values: Sequence[Node]) -> Node:
        """The sum of at least one value by that op, from the first on."""
        total = values[0]
        for value in values[1:]:
            total = self.op(op, total, value)
        return total

    # Of tensors.

    def constant(self, value: Any, name: str = "constant") -> Node:
        """A value that is known when the program is written."""
        return self.op("constant", value=self.builder.constant(np.asarray(value, dtype=np.float64), name))

    def poly(
        self, x: Node, coefficients: Sequence[float], low: float = -1.0, high: float = 1.0, entry: int | None = None
    ) -> Node:
        """The polynomial of these Chebyshev coefficients on [low, high]; `entry` is its place in the range table."""
        name = self.builder.constant(np.array(coefficients), f"{self.name}.poly")
        return self.op("poly", x, coefficients=name, low=low, high=high, range=entry)

    def scaled(self, x: Node, factor: float) -> Node:
        """x times a number, for a level."""
        return self.poly(x, (0.0, factor))

    def shifted(self, x: Node, value: float) -> Node:
        """x plus a number."""
        return self.op("add", x, self.constant(np.full(shape_of(x), value)))

    def negated(self, x: Node) -> Node:
        """-x."""
        return self.op("sub", self.constant(np.zeros(shape_of(x)), "zero"), x)

    def rows_summed(self, x: Node) -> Node:
        """The sum of all rows in each of them."""
        return self.op("repeat_row", self.op("sum_rows", x), rows=shape_of(x)[0])
