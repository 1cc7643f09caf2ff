"""An index whose vectors are encrypted too: its program, and the order in which its owner encrypts the vectors.

The rows of a block stand one after the other in the slots. Input `index_b_k` has, for row i of block b, component
i + k (modulo the components), and the query repeats over the slots: turned by k, it meets the same components. So the
scores of a block are the sum of as many products as a row has components, without a rotation of the index; the turned
queries serve all blocks. (The diagonals of Halevi and Shoup, CRYPTO 2014, with an encrypted matrix.)

Few rows leave slots for several turns in one ciphertext: copy t of the rows begins at slot t P, where P is one more than
a multiple of the components. The query that repeats over the slots is then turned by t there, and a map adds up the
copies after the products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.sparse

from heliograph.ir import Array, Builder, Node, SparseMatrix
from heliograph.ir.maps.gather import gather_matrix
from heliograph.ir.node import next_power_of_two

# The most slots of a block where the server returns scores: the ring for one product at 128 bits has as many.
_SCORED = 1 << 12
# The slots where it decides over few entries, and the most of them: the rings for many levels at 128 bits.
_DECIDED, _MOST_DECIDED = 1 << 14, 1 << 15


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
    def of(entries: int, components: int, decides: bool, log_ring: int | None = None) -> Blocks:
        """The blocks for an index; `decides` says that the server compares scores, `log_ring` is that of the options."""
        lost = 0 if components.bit_count() == 1 else components - 1
        least, wanted = next_power_of_two(components + lost), next_power_of_two(entries + lost)
        slots = max(_DECIDED, min(_MOST_DECIDED, wanted)) if decides else _SCORED
        if log_ring is not None:
            slots = min(slots, 1 << (log_ring - 1))
        if Blocks(entries, components, slots).turns == 1:
            slots = min(slots, wanted)
        return Blocks(entries, components, max(least, slots))

    @property
    def stride(self) -> int:
        """The distance of two copies of the rows."""
        return self.entries + (1 - self.entries) % self.components

    @property
    def turns(self) -> int:
        """The copies of the rows in a ciphertext, each turned by one more."""
        # Behind them there is room for the largest turn of the query.
        return max(1, min(self.components, (self.slots - self.components + 1) // self.stride))

    @property
    def groups(self) -> int:
        """The ciphertexts of a block."""
        return -(-self.components // self.turns)

    @property
    def rows(self) -> int:
        """The rows of a block; the last one is filled with zeros unless it is the only one."""
        # Where the components do not divide the slots, a query that repeats over them breaks at their end.
        most = self.slots if self.slots % self.components == 0 else self.slots - self.components + 1
        return min(self.entries, most)

    @property
    def count(self) -> int:
        return -(-self.entries // self.rows)

    @property
    def size(self) -> int:
        """The elements of an encrypted input."""
        return self.rows if self.turns == 1 else self.turns * self.stride

    @property
    def inputs(self) -> list[str]:
        """The names of the encrypted inputs."""
        return [_name(number, group) for number in range(self.count) for group in range(self.groups)]

    def query(self, query: Array) -> Array:
        """The query (components,) as the program takes it, (slots,)."""
        return np.resize(query, self.slots)

    def values(self, vectors: Array) -> Iterator[tuple[str, Array]]:
        """The encrypted inputs of the vectors (entries, components), by name, (size,) each."""
        row, zero = np.arange(self.rows), np.zeros((self.count * self.rows - self.entries, self.components))
        blocks = np.concatenate([vectors, zero]).reshape(self.count, self.rows, self.components)
        for number, block in enumerate(blocks):
            for group in range(self.groups):
                made = np.zeros(self.size)
                for copy in range(self.turns):
                    if (turn := group * self.turns + copy) < self.components:
                        start = copy * self.stride
                        made[start : start + self.rows] = block[row, (row + turn) % self.components]
                yield _name(number, group), made

    def scores(self, builder: Builder, bound: float, largest: float) -> list[Node]:
        """The scores of each block, (rows,); `bound` bounds the components of the query, `largest` those of the index."""
        query = builder.input("query", shape=(self.slots,), low=-bound, high=bound)
        turned = [self._turned(builder, query, group) for group in range(self.groups)]
        made = []
        for number in range(self.count):
            total: Node | None = None
            for group, own in enumerate(turned):
                name = _name(number, group)
                product = builder.op("mul", (builder.input(name, shape=(self.size,), low=-largest, high=largest), own))
                total = product if total is None else builder.op("add", (total, product))
            assert total is not None
            made.append(total if self.turns == 1 else self._summed(builder, total))
        return made

    def _turned(self, builder: Builder, query: Node, group: int) -> Node:
        """The query turned for the first copy of a group."""
        take = (np.arange(self.size) + group * self.turns) % self.slots
        matrix = builder.constant(SparseMatrix.of(gather_matrix(take, self.slots)), f"turn{group}")
        return builder.op("affine", (query,), matrices=(matrix,), shape=(self.size,))

    def _summed(self, builder: Builder, products: Node) -> Node:
        """The sums over the copies."""
        row, start = np.arange(self.rows), self.stride * np.arange(self.turns)
        places = (np.tile(row, self.turns), (start[:, np.newaxis] + row).ravel())
        entries = (np.ones(self.turns * self.rows), places)
        matrix = SparseMatrix.of(scipy.sparse.csr_array(entries, shape=(self.rows, self.size)))
        return builder.op("affine", (products,), matrices=(builder.constant(matrix, "copies"),), shape=(self.rows,))


def power_above(size: float) -> float:
    """The least power of two that is not below a size."""
    return math.ldexp(1.0, math.frexp(size)[1] - (math.frexp(size)[0] == 0.5))


def _name(block: int, group: int) -> str:
    return f"index_{block}_{group}"
