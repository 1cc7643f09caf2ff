"""Evaluation of a program on OpenFHE ciphertexts: the server's half. No secret key is ever here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from heliograph.ckks.chains import chain_at
from heliograph.ckks.ring import Ring
from heliograph.execution.memory import PLAINTEXT_CACHE_BYTES
from heliograph.ir import Array, Program
from heliograph.runtime.backend import ServerEvaluator
from heliograph.runtime.openfhe.context import refusal
from heliograph.runtime.openfhe.primitives import OpenFHEPrimitives, Raise
from heliograph.runtime.openfhe.serial import openfhe_ciphertext, residues_of
from heliograph.runtime.openfhe.tags import chain_tag
from heliograph.runtime.openfhe.template import moved


class OpenFHEEvaluator(ServerEvaluator):
    """An evaluator of a program on OpenFHE. Keys are installed under `tag`.

    If the program has keys for lower parts of its chain, a ciphertext is in the context of its type's chain, under the
    tag of this chain (see `chain_tag`); `switch_chain` moves it. `raising` has, for each chain with bootstraps, the
    function that raises the modulus.
    """

    def __init__(
        self,
        program: Program,
        tag: str,
        cache_bytes: int = PLAINTEXT_CACHE_BYTES,
        raising: Mapping[Ring, Raise] = MappingProxyType({}),
    ) -> None:
        whole = program.ring
        self._tag = tag
        super().__init__(
            program, lambda chain: OpenFHEPrimitives(whole, chain.ring, raising.get(chain.ring)), cache_bytes
        )

    def refusal(self, error: Exception) -> str | None:
        return refusal(error) if isinstance(error, RuntimeError) else None

    def residues(self, x: Any) -> Array:
        level = self.describe(x)[0]
        return residues_of(moved(x, self.ring, level, self._tag), self.ring, level)

    def example(self, level: int) -> Any:
        ring = chain_at(self.chains, level).ring
        random = np.random.default_rng(level)
        rows = [random.integers(prime, size=(2, ring.ring_dim), dtype=np.uint64) for prime in ring.primes[: level + 1]]
        return openfhe_ciphertext(np.stack(rows, axis=1), ring, chain_tag(self._tag, self.ring, ring))
