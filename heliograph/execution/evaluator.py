"""The state that all runs of an executable program share on a backend: tables, kept plaintexts, the chains."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from heliograph.ckks.chains import Chain
from heliograph.execution.evaluation import Run
from heliograph.execution.plaintexts import EncodeAhead, Encoding, PlaintextCache
from heliograph.execution.protocol import C, Primitives
from heliograph.ir import CipherType, Node, Program
from heliograph.ir.bootstraps.asked import factor_key
from heliograph.ir.maps.diagonals import DiagonalMap
from heliograph.ir.maps.steps import BabySteps, share_babies, transform_terms
from heliograph.ir.ops.slots.bootstraps import fourier_factor
from heliograph.ir.ops.slots.runs import cipher
from heliograph.ir.ops.slots.transforms import transform_diagonals
from heliograph.ir.ops.table import Role, role_of


@dataclass(frozen=True, slots=True)
class Transform(Generic[C]):
    """The evaluation of a `linear_transform`.

    `number`: its position in the program.
    `kept`: for each operand, the first transform and operand in the program with the same plaintexts, by their numbers,
    and whether several have them.
    `diagonals`: the map of each operand.
    `groups`: for each giant step its (operand, baby step, offset), in this order.
    `terms`: all of them in one list, (giant step, operand, baby step, offset).
    `factors`: the different (operand, baby step).
    `products`: for each giant step its (place in `factors`, place in `terms`).
    `sizes`: the bytes of an encoded diagonal of each operand.
    """

    node: Node
    number: int
    kept: Sequence[tuple[tuple[int, int], bool]]
    diagonals: Sequence[DiagonalMap]
    groups: Mapping[int, Sequence[tuple[int, int, int]]]
    do: Primitives[C]
    sizes: Sequence[int]
    terms: Sequence[tuple[int, int, int, int]]
    factors: Sequence[tuple[int, int]]
    products: Sequence[Sequence[tuple[int, int]]]

    def encoding(self, g: int, position: int, b: int, offset: int) -> Encoding:
        """The plaintext of one diagonal."""

        def make() -> Any:
            assert isinstance(self.node.type, CipherType)
            # Values that repeat over the slots are encoded in only as many slots as one period fills: a smaller
            # transform.
            values = np.roll(self.diagonals[position].one_run(offset, g + b), g)
            return self.do.diagonal(values, self.node.attrs["plain_log_scales"][position], self.node.type.level)

        first, often = self.kept[position]
        return Encoding((self.number, position, offset), make, self.sizes[position], (*first, offset), often)

    def encodings(self) -> Iterator[Encoding]:
        """The plaintexts of all diagonals, in the order of their use."""
        for term in self.terms:
            yield self.encoding(*term)


def _numbered(
    groups: Mapping[int, Sequence[tuple[int, int, int]]],
) -> tuple[list[tuple[int, int, int, int]], list[tuple[int, int]], list[list[tuple[int, int]]]]:
    """The terms, factors and products of a `Transform` with these groups."""
    terms = [(g, *term) for g, group in groups.items() for term in group]
    numbers: dict[tuple[int, int], int] = {}
    count, products = itertools.count(), []
    for group in groups.values():
        products.append([(numbers.setdefault((position, b), len(numbers)), next(count)) for position, b, _ in group])
    return terms, list(numbers), products


def _plaintexts(node: Node) -> list[Hashable]:
    """A key of the plaintexts of each operand of a transform: equal for equal plaintexts; empty for other nodes."""
    if node.op != "linear_transform":
        return []
    assert isinstance(node.type, CipherType)
    apart = ("matrices", "plain_log_scales")
    shape = (node.type.level, node.type.chain, *((k, v) for k, v in sorted(node.attrs.items()) if k not in apart))
    return [
        (str(name), scale, shape)
        for name, scale in zip(node.attrs["matrices"], node.attrs["plain_log_scales"], strict=True)
    ]


# One part in this many of the plaintexts' memory is for plaintexts encoded ahead.
_AHEAD = 8


class Evaluator(Generic[C]):
    """An executable program on a backend; `begin` returns a run; several runs may be active, each in its own thread.

    `primitives` returns the backend's primitives for each chain. `cache_bytes` bounds the encoded plaintexts: most of
    it is for plaintexts that stay, a part for those encoded ahead of their use.
    """

    def __init__(self, program: Program, primitives: Callable[[Chain], Primitives[C]], cache_bytes: int) -> None:
        self.program = program
        self.chains = program.planned.chains
        self.ring = self.chains[0].ring
        self._parts = [primitives(chain) for chain in self.chains]
        self.index = {node: i for i, node in enumerate(program.nodes)}
        self.kept_bytes = cache_bytes - cache_bytes // _AHEAD
        self.cache = PlaintextCache(self.kept_bytes, self._often_bytes)
        self.ahead = EncodeAhead(self._encodings, cache_bytes // _AHEAD)
        self.paths = program.planned.rotation_paths
        # Plaintexts of the factors of bootstraps, by `factor_key`.
        self.factors: dict[Hashable, Sequence[Any]] = {}
        # The number of parts that are taken of each complex value, which share its conjugate.
        self.parts = Counter(node.inputs[0] for node in program.nodes if role_of(node) is Role.PART)
        # The number of rotations of each value, which share its decomposition.
        self.rotations = Counter(
            node.inputs[0] for node in program.nodes if node.op == "rotate" and node.attrs["amount"] % self.ring.slots
        )
        # The number of reads of each row of a matrix by weighted sums of a stack, at one scale.
        self.sums: dict[tuple[Node, str, float], Counter[int]] = {}
        for node in program.nodes:
            if node.op == "weighted_sum":
                key = node.inputs[0], str(node.attrs["matrix"]), node.attrs["plain_log_scale"]
                self.sums.setdefault(key, Counter())[node.attrs["row"]] += 1
        # Called with a node's position before the node is evaluated, if its keys may have to be loaded.
        self.before: Callable[[int], None] | None = None
        # Always replaced as a whole, because threads may read it at any time.
        self._last: tuple[Node | None, Transform[C] | None] = None, None
        self._lock = threading.Lock()
        self._lent = self._closed = False

    def begin(self) -> Run[C]:
        """A run of the program; `close` it when it is over.

        Only one run at a time encodes ahead, because the memory for that is bounded; the others encode each plaintext
        where they use it.
        """
        with self._lock:
            lent, self._lent = self._lent, True
        return Run(self, None if lent else self.ahead)

    def end(self, ahead: EncodeAhead | None) -> None:
        """Take back the thread that a run used for encoding ahead."""
        if ahead is not None:
            with self._lock:
                self._lent = False
                if self._closed:
                    self.ahead.clear()

    def close(self) -> None:
        """Drop the encoded plaintexts; a run that is still active drops those encoded ahead when it ends."""
        with self._lock:
            self._closed = True
            self.cache.close()
            if not self._lent:
                self.ahead.clear()

    def refusal(self, error: Exception) -> str | None:
        """The reason if the backend's library refused a call with this error; None for an error of our own."""
        return None

    def describe(self, value: C) -> tuple[int, int]:
        """(level, parts) of a ciphertext, or of a stack's first, on the backend, for a comparison with the plan."""
        return self._parts[0].describe(value[0] if isinstance(value, list) else value)

    def part(self, chain: int) -> Primitives[C]:
        """The primitives in one chain of the parameters, by its number."""
        return self._parts[chain]

    @functools.cached_property
    def babies(self) -> dict[tuple[Node, int], BabySteps]:
        """The rotations that each transform computes, and those that it keeps for a later one of the same value."""
        return share_babies(self.program.nodes, self.diagonals, self.paths)

    def diagonals(self, node: Node) -> list[DiagonalMap]:
        """The maps of a transform, one for each operand."""
        return transform_diagonals(node.attrs, self.program.linear_map)

    @functools.cached_property
    def _kept(self) -> dict[Hashable, tuple[tuple[int, int], bool]]:
        """The first (transform, operand) with given plaintexts, and whether others have them too."""
        places: dict[Hashable, list[tuple[int, int]]] = {}
        for node in self.program.nodes:
            for position, plaintexts in enumerate(_plaintexts(node)):
                places.setdefault(plaintexts, []).append((self.index[node], position))
        return {plaintexts: (found[0], len(found) > 1) for plaintexts, found in places.items()}

    @functools.cached_property
    def _often_bytes(self) -> int:
        """A bound on the bytes of the diagonals' plaintexts that a run uses more than once."""
        return self.diagonals_bytes(self.diagonal_bytes, often=True)

    def diagonals_bytes(self, size: Callable[[int, float, DiagonalMap], int], often: bool = False) -> int:
        """The bytes of the plaintexts of all diagonals, or only of those that a run uses more than once (`often`);
        `size` is a function like `diagonal_bytes`.
        """
        total = 0
        for (number, position), repeated in self._kept.values():
            node = self.program.nodes[number]
            if repeated or not often:
                assert isinstance(node.type, CipherType)
                diagonals, log_scale = self.diagonals(node)[position], node.attrs["plain_log_scales"][position]
                total += len(diagonals.offsets) * size(node.type.level, log_scale, diagonals)
        return total

    def plaintext_bytes(self, level: int) -> int:
        """The bytes of an encoded plaintext in memory."""
        # One polynomial, and the complex vector from which it was encoded.
        return self.ring.ciphertext_bytes(level, parts=1) + 16 * self.ring.slots

    def diagonal_bytes(self, level: int, log_scale: float, diagonals: DiagonalMap) -> int:
        """The bytes in memory of the plaintext of one of these diagonals, encoded at that scale."""
        return self.plaintext_bytes(level)

    def transform(self, node: Node) -> Transform[C]:
        """The evaluation of a `linear_transform`; the last one is kept."""
        known, found = self._last
        if known is not node:
            a, diagonals = node.attrs, self.diagonals(node)
            assert isinstance(node.type, CipherType)
            groups = transform_terms(diagonals, a["baby_steps"], a["giant_steps"])
            sizes = [
                self.diagonal_bytes(node.type.level, log_scale, each)
                for log_scale, each in zip(a["plain_log_scales"], diagonals, strict=True)
            ]
            kept = [self._kept[plaintexts] for plaintexts in _plaintexts(node)]
            do, number = self.part(node.type.chain), self.index[node]
            found = Transform(node, number, kept, diagonals, groups, do, sizes, *_numbered(groups))
            self._last = node, found
        assert found is not None
        return found

    def factor(self, node: Node) -> Sequence[Any]:
        """The plaintexts of a `fourier_factor`, one for each diagonal; they are kept for all bootstraps."""
        key = factor_key(self.program, node)
        if key not in self.factors:
            self.factors[key] = self.encoded_factor(node)
        return self.factors[key]

    def encoded_factor(self, node: Node) -> Sequence[Any]:
        """The plaintexts of a `fourier_factor`, newly encoded."""
        kind = cipher(node)
        do, log_scale = self.part(kind.chain), node.attrs["plain_log_scale"]
        encode = do.wide_constant if self.is_wide(node) else do.constant
        return [encode(each, log_scale, kind.level) for each in fourier_factor(node.attrs).values()]

    def is_wide(self, node: Node) -> bool:
        """Whether a `fourier_factor` is evaluated on wide values."""
        kind = cipher(node)
        return self.chains[kind.chain].ring.hoists_twice(kind.level)

    def adds_wide(self, node: Node) -> bool:
        """Whether the giant steps of a `linear_transform` are added in the extended basis."""
        return sum(map(bool, node.attrs["giant_steps"])) > 1

    @functools.cached_property
    def undivided(self) -> frozenset[Node]:
        """The values of key switches that a rescale alone reads (`Run.divides`)."""
        wide = {
            "relinearize": lambda node: True,
            "fourier_factor": self.is_wide,
            "linear_transform": self.adds_wide,
        }
        users = self.program.users()
        return frozenset(
            node
            for node in self.program.nodes
            if node.op in wide
            and [user.op for user in users[node]] == ["rescale"]
            and node not in self.program.outputs
            and wide[node.op](node)
        )

    def diagonal(self, encoding: Encoding, ahead: EncodeAhead | None) -> Any:
        """The plaintext of a diagonal, from the cache or encoded ahead."""
        # Once plaintexts are encoded ahead, the cache takes no more: the choice of plaintexts to encode ahead depends
        # on its contents.
        room = not self.ahead.begun and self.cache.has_room(encoding.size, encoding.often)
        if encoding.kept in self.cache or room:
            return self.cache.get(encoding.kept, encoding.make, encoding.size, encoding.often)
        return encoding.make() if ahead is None else ahead.take(encoding)

    def _encodings(self, key: Hashable) -> Iterator[Encoding]:
        """The diagonals of the program that are not kept, from the key's on, cyclically."""
        assert isinstance(key, tuple)
        nodes = [node for node in self.program.nodes if node.op == "linear_transform"]
        start = [self.index[node] for node in nodes].index(key[0])
        there = False
        for node in itertools.chain(nodes[start:], itertools.cycle(nodes)):
            for encoding in self.transform(node).encodings():
                there = there or encoding.key == key
                if there and encoding.kept not in self.cache:
                    yield encoding
