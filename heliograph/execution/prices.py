"""Prices of homomorphic calls by a cost table: of an execution, and of work that may begin at any level."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from heliograph.ckks.chains import MOST_CHAINS, Chain, chain_at
from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.execution.primitives import PRIMITIVES
from heliograph.execution.protocol import Call
from heliograph.ir import Program

SWITCH = "switch_chain"
# A primitive, the levels between the beginning of the work and the call, and the size of the call.
Spent: TypeAlias = "tuple[str, int, int]"


@dataclass(frozen=True, slots=True)
class Work:
    """Homomorphic calls relative to the level at which their work begins."""

    # Each kind of call once, sorted, with its count.
    calls: tuple[tuple[Spent, int], ...] = ()

    @staticmethod
    def of(calls: Mapping[Call, int], begin: int) -> Work:
        """The work of calls at absolute levels that begins at this level."""
        return Work.joined({(call.primitive, begin - call.level, call.size): n} for call, n in calls.items())

    @staticmethod
    def joined(parts: Iterable[Mapping[Spent, int]]) -> Work:
        total: Counter[Spent] = Counter()
        for part in parts:
            total.update(part)
        return Work(tuple(sorted((spent, number) for spent, number in total.items() if number)))

    @staticmethod
    def products(depth: int, count: int) -> Work:
        """`count` products of ciphertexts, relinearized and rescaled, spread evenly over `depth` levels."""
        places = Counter(number * depth // count for number in range(count))
        names = (("mul", 2), ("relinearize_wide", 3), ("narrow_rescale", 2))
        return Work.joined({(name, below, size): n} for below, n in places.items() for name, size in names)


class Prices:
    """Milliseconds of each call on a chain or, with sub-chains, on the lowest one that holds its level.

    `rings` are the whole chain and its sub-chains, in any order. Values switch to a sub-chain when they come down to
    its top: `switch_chain` costs nothing at other levels. With more sub-chains than are possible, prices bound the
    savings of any choice of them: switches are then free.
    """

    def __init__(self, rings: Sequence[Ring], costs: CostTable) -> None:
        self.rings, self.costs = sorted(rings, key=lambda ring: -ring.levels), costs
        self._tops = {ring.levels for ring in self.rings[1:]} if len(rings) <= MOST_CHAINS else set()
        self._known: dict[tuple[str, int, int], float] = {}
        # By primitive and size: the prices at all levels.
        self._tables: dict[tuple[str, int], npt.NDArray[np.float64]] = {}

    def at(self, primitive: str, level: int, size: int = 2) -> float:
        """The price of a call at a level."""
        key = primitive, level, size
        found = self._known.get(key)
        if found is None:
            kind = PRIMITIVES[primitive]
            if primitive == SWITCH and level not in self._tops:
                found = 0.0
            else:
                fitting = (ring for ring in reversed(self.rings) if ring.levels >= level)
                ring = self.rings[0] if kind.own_chain else next(fitting)
                found = kind.price(self.costs, ring, level, size)
            self._known[key] = found
        return found

    def ms(self, calls: Iterable[tuple[Spent, Any]], begin: int) -> Any:
        """The price of work that begins at a level: one number, or an array if the counts are arrays."""
        top = self.rings[0].levels
        return sum(
            number * self.at(primitive, min(max(begin - below, 0), top), size)
            for (primitive, below, size), number in calls
        )

    def by_begin(self, spent: Spent) -> npt.NDArray[np.float64]:
        """The price of a call, by the level at which its work begins."""
        primitive, below, size = spent
        top, key = self.rings[0].levels, (primitive, size)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = np.array([self.at(primitive, level, size) for level in range(top + 1)])
        return np.asarray(table[np.clip(np.arange(top + 1) - below, 0, top)])


class Works:
    """Works that are priced together."""

    def __init__(self, works: Iterable[Work]) -> None:
        rows, columns, counts = [], [], []
        self._places: dict[Spent, int] = {}
        number = -1
        for number, work in enumerate(works):
            for spent, count in work.calls:
                rows.append(number)
                columns.append(self._places.setdefault(spent, len(self._places)))
                counts.append(float(count))
        shape = (number + 1, len(self._places))
        # Sparse products do not use BLAS: they are the same on every processor.
        self._counts = scipy.sparse.csr_array((counts, (rows, columns)), shape=shape)

    def ms(self, prices: Prices) -> npt.NDArray[np.float64]:
        """Milliseconds of each work by the level at which it begins: (works, levels)."""
        table = [prices.by_begin(spent) for spent in self._places]
        return np.asarray(self._counts @ np.reshape(table, (len(table), prices.rings[0].towers)))


@functools.lru_cache(maxsize=1 << 12)
def prices_on(rings: tuple[Ring, ...], costs: CostTable) -> Prices:
    """The prices on these chains, cached because planners need them again and again."""
    return Prices(rings, costs)


def call_ms(call: Call, ring: Ring, costs: CostTable) -> float:
    """The price of one homomorphic call."""
    return PRIMITIVES[call.primitive].price(costs, ring, call.level, call.size)


def priced_ms(call: Call, chains: Sequence[Chain], costs: CostTable) -> float:
    """The price of one homomorphic call of a compiled program, in the chain in which it happens."""
    return call_ms(call, chain_of(call, chains).ring, costs)


def chain_of(call: Call, chains: Sequence[Chain]) -> Chain:
    """The chain in which a call happens: by its level, or the one that it names if the level does not determine it."""
    return chains[call.chain] if PRIMITIVES[call.primitive].own_chain else chain_at(chains, call.level)


def total_ms(calls: Mapping[Call, int], program: Program, costs: CostTable) -> float:
    """The total price of a compiled program's calls, predicted from a cost table."""
    chains = program.planned.chains
    return sum(count * priced_ms(call, chains, costs) for call, count in calls.items())
