"""Evaluation of a program on OpenFHE ciphertexts: the server's half. No secret key is ever here."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from heliograph.ckks.chains import chain_at
from heliograph.ckks.ring import Ring
from heliograph.execution.memory import PLAINTEXT_CACHE_BYTES
from heliograph.ir import Array, Node, Program
from heliograph.runtime.backend import ServerEvaluator
from heliograph.runtime.openfhe.context import refusal
from heliograph.runtime.openfhe.primitives import OpenFHEPrimitives, Raise
from heliograph.runtime.openfhe.serial import residues_of, retagged
from heliograph.runtime.openfhe.sums import Coefficients
from heliograph.runtime.openfhe.tags import chain_tag
from heliograph.runtime.openfhe.template import Bytes, meaningless, moved
from heliograph.runtime.wire.forms import read_ciphertext


class OpenFHEEvaluator(ServerEvaluator):
    """A program on OpenFHE, and how ciphertexts come into its evaluation and out of it. Keys are installed under `tag`.

    Where the program has keys for lower parts of its chain, a ciphertext is in the context of the chain that its type names,
    under that chain's tag (see `chain_tag`); `switch_chain` moves it. `raising` has the way in which modulus is raised in
    each chain that bootstraps.
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

    @functools.cached_property
    def summed(self) -> frozenset[Node]:
        """The inputs that only weighted sums read, in stacks and at lower levels: nobody needs them as OpenFHE's objects."""
        objects = set(self.program.outputs)
        for node in reversed(self.program.nodes):
            if node.op != "weighted_sum" and (node in objects or node.op not in ("stack", "level_drop")):
                objects.update(node.inputs)
        return frozenset(node for node in self.program.inputs if node not in objects)

    def coefficients(self, data: Bytes, level: int, client: str, what: str) -> Coefficients:
        """Such an input from a client's bytes; a WireError for others."""
        return Coefficients.of(read_ciphertext(data, self.ring, level, client, what), self._tag)

    def refusal(self, error: Exception) -> str | None:
        return refusal(error) if isinstance(error, RuntimeError) else None

    def adopt(self, x: Any, level: int) -> Any:
        """A ciphertext of the whole chain as evaluation takes it."""
        return retagged(x, self._tag)

    def residues(self, x: Any) -> Array:
        level = self.describe(x)[0]
        return residues_of(moved(x, self.ring, level, self._tag), self.ring, level)

    def example(self, level: int) -> Any:
        ring = chain_at(self.chains, level).ring
        return meaningless(ring, level, chain_tag(self._tag, self.ring, ring))
