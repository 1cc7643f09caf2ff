"""An index whose vectors are encrypted too: its program, and the order in which its owner encrypts the vectors.

The rows of a block stand one after the other in the slots. Input `index_b_k` has, for row i of block b, component
i + k (modulo the components), and the query repeats over the slots: turned by k, it meets the same components. So the
scores of a block are the sum of as many products as a row has components, without a rotation of the index; the turned
queries serve all blocks. (The diagonals of Halevi and Shoup, CRYPTO 2014, with an encrypted matrix.)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from heliograph.ir import Array, Builder, Node, SparseMatrix
from heliograph.ir.maps.gather import gather_matrix
from heliograph.ir.node import next_power_of_two

# The most slots of a block where the server returns scores: the ring for one product at 128 bits has as many.
_SCORED = 1 << 12
# The same where it decides, which takes a larger ring.
_DECIDED = 1 << 15


@dataclass(frozen=True, slots=True)
class Blocks:
    """How the rows of an encrypted index are laid out.

    entries, components: the shape of the index.
    slots: the slots of a block, a power of two; the query repeats over them.
    """

    entries: int
    components: int
    slots: int

    @staticmethod
    def of(entries: int, components: int, decides: bool) -> Blocks:
        """The blocks for an index; `decides` says that the server compares scores."""
        lost = 0 if components.bit_count() == 1 else components - 1
        least, most = next_power_of_two(components + lost), _DECIDED if decides else _SCORED
        return Blocks(entries, components, max(least, min(most, next_power_of_two(entries + lost))))

    @property
    def rows(self) -> int:
        """The rows of a block; the last one is filled with zeros unless it is the only one."""
        # Where the components do not divide the slots, a query that repeats over them breaks at their end.
        most = self.slots if self.slots % self.components == 0 else self.slots - self.components + 1
        return min(self.entries, most)

    @property
    def count(self) -> int:
        return -(-self.entries // self.rows)

    def query(self, query: Array) -> Array:
        """The query (components,) as the program takes it, (slots,)."""
        return np.resize(query, self.slots)

    def inputs(self, vectors: Array) -> Iterator[tuple[str, Array]]:
        """The encrypted inputs of the vectors (entries, components), by name, (rows,) each."""
        row, zero = np.arange(self.rows), np.zeros((self.count * self.rows - self.entries, self.components))
        blocks = np.concatenate([vectors, zero]).reshape(self.count, self.rows, self.components)
        for number, block in enumerate(blocks):
            for turn in range(self.components):
                yield _name(number, turn), block[row, (row + turn) % self.components]

    def scores(self, builder: Builder, bound: float, largest: float) -> list[Node]:
        """The scores of each block, (rows,); `bound` bounds the components of the query, `largest` those of the index."""
        query = builder.input("query", shape=(self.slots,), low=-bound, high=bound)
        turned = [self._turned(builder, query, turn) for turn in range(self.components)]
        made = []
        for number in range(self.count):
            products = [
                builder.op(
                    "mul", (builder.input(_name(number, turn), shape=(self.rows,), low=-largest, high=largest), own)
                )
                for turn, own in enumerate(turned)
            ]
            total = products[0]
            for product in products[1:]:
                total = builder.op("add", (total, product))
            made.append(total)
        return made

    def _turned(self, builder: Builder, query: Node, turn: int) -> Node:
        """The query's component i + turn in place i of the rows."""
        take = (np.arange(self.rows) + turn) % self.slots
        matrix = builder.constant(SparseMatrix.of(gather_matrix(take, self.slots)), f"turn{turn}")
        return builder.op("affine", (query,), matrices=(matrix,), shape=(self.rows,))


def power_above(size: float) -> float:
    """The least power of two that is not below a size."""
    return math.ldexp(1.0, math.frexp(size)[1] - (math.frexp(size)[0] == 0.5))


def _name(block: int, turn: int) -> str:
    return f"index_{block}_{turn}"
