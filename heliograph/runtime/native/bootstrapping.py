"""Bootstraps on the native backend: the raised modulus, the factors of the transforms as they are kept, and bootstraps
that are one op, with OpenFHE's keys and at OpenFHE's levels, as the program that they are written out as.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.ckks.chains import Chain
from heliograph.ckks.parameters import Parameters
from heliograph.ckks.ring import Ring
from heliograph.execution.evaluator import Evaluator
from heliograph.execution.loop import execute
from heliograph.ir import Array, Builder, Node, Program, Stage
from heliograph.ir.bootstrap_writer import write_bootstrap
from heliograph.ir.bootstraps import factor_key
from heliograph.ir.location import UNKNOWN
from heliograph.runtime.native import elementwise, keyswitch
from heliograph.runtime.native.ciphertext import Ciphertext, SparseKeys, SwitchingKey
from heliograph.runtime.native.plaintext_file import PlaintextFile
from heliograph.runtime.native.primitives import KeyOf, NativePrimitives
from heliograph.runtime.native.shared import Shared
from heliograph.runtime.native.tables import ChainTables


class Plaintexts(list[Array]):
    """The encoded diagonals of one factor of a transform: gigabytes at full size, shared while somebody has them."""


_FACTORS: Shared[Plaintexts] = Shared()
# The plaintexts that a server's bootstraps multiply by, by `factor_key`.
FactorTable = dict[Any, Sequence[Array]]


def shared_factor(program: Program, node: Node, make: Callable[[], Sequence[Array]]) -> Plaintexts:
    """The plaintexts of a `fourier_factor`, made unless some server of the process has them."""
    return _FACTORS.get(factor_key(program, node), lambda: Plaintexts(make()))


class FactorEvaluator(Evaluator[Ciphertext]):
    """An evaluator whose factors are those of the process; `table` keeps a server's."""

    def __init__(
        self,
        program: Program,
        primitives: Callable[[Chain], BootstrappingPrimitives],
        cache_bytes: int,
        table: FactorTable,
    ) -> None:
        super().__init__(program, primitives, cache_bytes)
        self.factors = table

    def encoded_factor(self, node: Node) -> Sequence[Array]:
        encoded = super().encoded_factor
        return shared_factor(self.program, node, lambda: encoded(node))


@dataclass(frozen=True, slots=True, eq=False)
class WholeBootstrap:
    """A bootstrap that is one op of a program, written out as a program of its own."""

    program: Program
    evaluator: FactorEvaluator

    @staticmethod
    def of(
        ring: Ring, slots: int, paired: bool, primitives: BootstrappingPrimitives, table: FactorTable
    ) -> WholeBootstrap:
        """Of so many slots in the chain of these primitives."""
        builder = Builder("bootstrap", Stage.EXECUTABLE)
        builder.parameters = Parameters((Chain(ring),))
        scale = float(ring.scale_bits)
        x = builder.input("x", slots=ring.slots, chunk=0, level=ring.bootstrap_input_level, log_scale=scale)
        program = builder.finish([write_bootstrap(builder, ring, x, slots, paired, UNKNOWN)])
        return WholeBootstrap(program, FactorEvaluator(program, lambda chain: primitives, 0, table))

    def prepare(self) -> None:
        """Encode its factors, unless that was done."""
        for node in self.program.nodes:
            if node.op == "fourier_factor":
                self.evaluator.factor(node)

    def run(self, x: Ciphertext) -> Ciphertext:
        (made,), _ = execute(self.program, self.evaluator, {self.program.inputs[0]: x})
        assert isinstance(made, Ciphertext)
        return made


class BootstrappingPrimitives(NativePrimitives):
    """All primitives in one chain; `whole` finds bootstraps of so many slots, with imaginary parts or without."""

    def __init__(
        self,
        tables: ChainTables,
        key_of: KeyOf,
        whole: Callable[[int, bool], WholeBootstrap],
        kept: PlaintextFile | None = None,
    ) -> None:
        super().__init__(tables, key_of, kept)
        self._whole = whole

    def raise_modulus(self, x: Ciphertext, slots: int, share: float | None = None) -> Ciphertext:
        """Of the message and multiples of the first prime; what its coefficients are does not matter here."""
        keys: SparseKeys = self._key_of("encapsulation", 0)
        tables, known = self.tables, self.tables.known
        sparse = _switched(NativePrimitives(keys.tables, _no_key), x.residues, keys.there)
        scaled = np.empty((2, 1, tables.ring_dim), dtype=np.uint64)
        first = tables.rows[:1]
        keyswitch.coefficients(sparse[:, :1], scaled, first, known.last[first], known.moduli, known.outer, known.inner)
        raised = np.empty((2, len(tables.primes), tables.ring_dim), dtype=np.uint64)
        prime = np.uint64(tables.primes[0])
        keyswitch.raise_modulus(scaled[:, 0], prime, raised, tables.rows, known.moduli, known.outer, known.inner)
        return Ciphertext(_switched(self, raised, keys.back))

    def bootstrap(self, x: Ciphertext, slots: int) -> Ciphertext:
        return self._whole(slots, False).run(x)

    def bootstrap_pair(self, x: Ciphertext, slots: int) -> Ciphertext:
        return self._whole(slots, True).run(x)


def _switched(do: NativePrimitives, residues: Array, key: SwitchingKey) -> Array:
    """A ciphertext under the secret that a key leads to."""
    made = do.switched(residues[1], key)
    elementwise.add(made, residues[:1], made, do.tables.rows[: residues.shape[1]], do.tables.known.moduli)
    return made


def _no_key(kind: str, amount: int) -> SwitchingKey:
    raise AssertionError("the chain of the sparse secret has one key, which is given")
