"""Evaluation of a program on OpenFHE ciphertexts: the server's half. No secret key is ever here."""

from __future__ import annotations

import functools
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from heliograph.ckks.chains import chain_at
from heliograph.ckks.ring import Ring
from heliograph.ir import Array, CipherType, Node, Program
from heliograph.ir.bootstraps import bootstrap_slots, paired_slots
from heliograph.ir.diagonals import DiagonalMap
from heliograph.ir.slot_ops import transform_diagonals
from heliograph.ir.transforms import BabySteps, share_babies, transform_terms
from heliograph.runtime.openfhe import bootstrapping
from heliograph.runtime.openfhe.context import make_context, working_context
from heliograph.runtime.openfhe.plaintexts import EncodeAhead, Encoding, PlaintextCache
from heliograph.runtime.openfhe.run import OpenFHERun
from heliograph.runtime.openfhe.serial import retagged
from heliograph.runtime.openfhe.tags import chain_levels, chain_tag
from heliograph.runtime.openfhe.template import meaningless, moved, transferred

DEFAULT_CACHE_BYTES = 1 << 30


class OpenFHEEvaluator:
    """What all runs of one executable program share; evaluation keys are found by the tag that ciphertexts carry.

    Where the program has keys for lower parts of its chain, every ciphertext is in the context of the lowest part that
    holds its level, under that part's tag (see `chain_tag`); it moves when its level crosses the border.
    """

    def __init__(self, program: Program, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self.program = program
        self.chains = program.planned.chains
        self.ring = self.chains[0].ring
        self._contexts = {chain.ring: working_context(chain.ring) for chain in self.chains}
        # Half of it for plaintexts that stay, half for those that are encoded ahead of their use.
        self.cache = PlaintextCache(cache_bytes - cache_bytes // 2)
        self.ahead = EncodeAhead(self._encodings, cache_bytes // 2)
        self.paths = program.planned.rotation_paths
        self.paired = paired_slots(program)
        self.index = {node: i for i, node in enumerate(program.nodes)}
        # How many rotations a value has that share its decomposition.
        self.rotations = Counter(node.inputs[0] for node in program.nodes if node.op == "rotate")
        # Called with a node's position before it is evaluated, where its keys may have to be loaded.
        self.before: Callable[[int], None] | None = None
        self._lock = threading.Lock()
        self._lent = self._closed = False

    def begin(self) -> OpenFHERun:
        """A run of the program; `close` it when it is over."""
        with self._lock:
            lent, self._lent = self._lent, True
        return OpenFHERun(self, None if lent else self.ahead)

    def end(self, ahead: EncodeAhead | None) -> None:
        """Take back what a run borrowed."""
        if ahead is not None:
            with self._lock:
                self._lent = False
                if self._closed:
                    self.ahead.clear()

    def close(self) -> None:
        """Drop the encoded plaintexts; a run that still goes on drops those that are ahead when it ends."""
        with self._lock:
            self._closed = True
            self.cache.close()
            if not self._lent:
                self.ahead.clear()

    @functools.cached_property
    def babies(self) -> dict[tuple[Node, int], BabySteps]:
        """Which transform makes which rotations, and which of them it keeps for a later one of the same value."""
        return share_babies(self.program.nodes, self.diagonals, self.paths)

    @property
    def whole_context(self) -> Any:
        """The context of the whole chain, where the keys of bootstraps are."""
        return self._contexts[self.ring]

    def describe(self, value: Any) -> tuple[int, int]:
        return chain_levels(str(value.GetKeyTag()), self.ring) - value.GetLevel(), value.NumberCiphertextElements()

    def prepare(self) -> None:
        """Set up the bootstraps of the program, before its first evaluation; later calls cost nothing."""
        for slots in bootstrap_slots(self.program):
            bootstrapping.prepare(self.ring, slots, self.pairs(slots))

    def adopt(self, x: Any, level: int, tag: str) -> Any:
        """A ciphertext of the whole chain as evaluation takes it, under a tag under which the keys are installed."""
        ring = self.ring_at(level)
        if ring == self.ring and ring.bootstrap is None:
            return retagged(x, tag)
        return moved(x, ring, level, chain_tag(tag, self.ring, ring))

    def released(self, x: Any, tag: str) -> Any:
        """Any value of an evaluation as a ciphertext of the whole chain under the key named `tag`, for its owner."""
        return transferred(x, self.ring, self.describe(x)[0], tag, make_context)

    def example(self, level: int, tag: str) -> Any:
        """A ciphertext of that level, of no meaning, for timing operations; `tag` as for `adopt`."""
        ring = self.ring_at(level)
        return meaningless(ring, level, chain_tag(tag, self.ring, ring))

    def ring_at(self, level: int) -> Ring:
        """The lowest part of the chain that holds the level."""
        return chain_at(self.chains, level).ring

    def context_at(self, level: int) -> Any:
        """The context in which ciphertexts of that level are."""
        return self._contexts[self.ring_at(level)]

    def pairs(self, slots: int) -> bool:
        """Whether bootstraps of so many slots keep imaginary parts."""
        return slots in self.paired

    def encode(self, values: Array, log_scale: float, degree: int, level: int) -> Any:
        """A plaintext whose true scale is 2**log_scale; OpenFHE is told the nominal one of that degree."""
        factor = 2.0 ** (log_scale - degree * self.ring.scale_bits)
        context, slots = self.context_at(level), values.size
        spent = self.ring_at(level).levels - level
        scaled = np.ascontiguousarray(values * factor)
        try:
            return context.MakeCKKSPackedPlaintext(scaled, degree, spent, None, slots)
        except RuntimeError as error:
            # OpenFHE refuses what would be rounded to zero everywhere; zero is then what it is.
            if "Scaling factor too small" not in str(error):
                raise
            return context.MakeCKKSPackedPlaintext(np.zeros_like(scaled), degree, spent, None, slots)

    def add_vector(self, x: Any, values: Array, kind: CipherType) -> Any:
        """The ciphertext of that type plus a vector; not one of the program's calls."""
        plain = self.encode(values, kind.log_scale, x.GetNoiseScaleDeg(), kind.level)
        return self.context_at(kind.level).EvalAdd(x, plain)

    def plaintext_bytes(self, level: int) -> int:
        """What an encoded plaintext takes in memory."""
        # One polynomial, and the complex vector that it was encoded from.
        return self.ring.ciphertext_bytes(level, parts=1) + 16 * self.ring.slots

    def transform_encodings(self, node: Node) -> Iterator[Encoding]:
        """The diagonals of a transform in the order in which they are used."""
        a, number, diagonals = node.attrs, self.index[node], self.diagonals(node)
        assert isinstance(node.type, CipherType)
        level = node.type.level
        size = self.plaintext_bytes(level)
        for g, terms in transform_terms(diagonals, a["baby_steps"], a["giant_steps"]).items():
            for position, b, offset in terms:

                def make(position: int = position, b: int = b, offset: int = offset, g: int = g) -> Any:
                    # What repeats over the slots is encoded in as many slots as it fills: a smaller transform.
                    values = np.roll(diagonals[position].one_run(offset, g + b), g)
                    return self.encode(values, a["plain_log_scales"][position], 1, level)

                yield Encoding((number, position, offset), make, size)

    def _encodings(self, key: Hashable) -> Iterator[Encoding]:
        """The diagonals of the program that are not kept, from that of the key on, and over again."""
        assert isinstance(key, tuple)
        nodes = [node for node in self.program.nodes if node.op == "linear_transform"]
        start = [self.index[node] for node in nodes].index(key[0])
        there = False
        for node in itertools.chain(nodes[start:], itertools.cycle(nodes)):
            for encoding in self.transform_encodings(node):
                there = there or encoding.key == key
                if there and encoding.key not in self.cache:
                    yield encoding

    def diagonals(self, node: Node) -> list[DiagonalMap]:
        """The maps of a transform, one for each operand."""
        return transform_diagonals(node.attrs, self.program.matrix, self.ring.slots)
