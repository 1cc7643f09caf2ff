"""Bootstraps on the native backend: raising the modulus, and shared storage for the factors of the transforms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heliograph.ckks.chains import Chain
from heliograph.execution.evaluator import Evaluator
from heliograph.ir import Array, Node, Program
from heliograph.ir.bootstraps.asked import factor_key
from heliograph.runtime.native import keyswitch
from heliograph.runtime.native.ciphertext import Ciphertext, SparseKeys, SwitchingKey
from heliograph.runtime.native.kernels import elementwise
from heliograph.runtime.native.primitives import NativePrimitives
from heliograph.runtime.native.shared import Shared


class Plaintexts(list[Array]):
    """The encoded diagonals of one factor of a transform: gigabytes at full size, shared while in use."""


_FACTORS: Shared[Plaintexts] = Shared()
# The plaintext factors of a server's bootstraps, by `factor_key`.
FactorTable = dict[Any, Sequence[Array]]


def shared_factor(program: Program, node: Node, make: Callable[[], Sequence[Array]]) -> Plaintexts:
    """The plaintexts of a `fourier_factor`, encoded unless a server of this process already has them."""
    return _FACTORS.get(factor_key(program, node), lambda: Plaintexts(make()))


class FactorEvaluator(Evaluator[Ciphertext]):
    """An evaluator that shares the factors of transforms within the process; `table` keeps those of its server."""

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


class BootstrappingPrimitives(NativePrimitives):
    """All primitives in one chain."""

    def raise_modulus(self, x: Ciphertext, slots: int, share: float | None = None) -> Ciphertext:
        """A ciphertext of the message plus multiples of the first prime; `slots` and `share` are not needed here."""
        keys: SparseKeys = self._key_of("encapsulation", 0)
        tables, known = self.tables, self.tables.known
        sparse = _switched(NativePrimitives(keys.tables, _no_key), x.residues, keys.there)
        scaled = np.empty((2, tables.words(0), tables.ring_dim), dtype=np.uint32)
        first = tables.rows[:1]
        keyswitch.coefficients(sparse, scaled, first, known.last[first[:, 0]], known)
        top = len(tables.primes) - 1
        raised = np.empty((2, tables.words(top), tables.ring_dim), dtype=np.uint32)
        keyswitch.raise_modulus(scaled, first[0, 0], raised, tables.rows, known)
        return Ciphertext(_switched(self, raised, keys.back), top)


def _switched(do: NativePrimitives, residues: Array, key: SwitchingKey) -> Array:
    """The ciphertext switched to the key's target secret."""
    made = do.switched(residues[1], key)
    rows = do.tables.basis(do.tables.level_of(residues.shape[1]), False)[1]
    elementwise.add(made, residues[:1], made, rows, do.tables.known)
    return made


def _no_key(kind: str, amount: int) -> SwitchingKey:
    raise AssertionError("the chain of the sparse secret has one key, which is given")
