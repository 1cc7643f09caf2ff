"""OpenFHE as the backend of a server: keys in OpenFHE's maps, under names unique to the server."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from heliograph.artifact.artifact import Artifact
from heliograph.ckks.ring import Ring
from heliograph.ir import Array, Node, Program
from heliograph.ir.bootstraps.asked import raising_chains
from heliograph.runtime.backend import OPENFHE, SentKeys, SentValues
from heliograph.runtime.openfhe import registry, serial
from heliograph.runtime.openfhe.evaluator import OpenFHEEvaluator
from heliograph.runtime.openfhe.primitives import Raise
from heliograph.runtime.openfhe.tags import chain_tag
from heliograph.runtime.openfhe.template import Bytes


class OpenFHEBackend:
    """See `Backend`. All keys stay in memory, and only one server of the process evaluates at a time."""

    name = OPENFHE
    loader = None

    def __init__(self, artifact: Artifact, keys: SentKeys) -> None:
        self._artifact, self._client = artifact, keys.client
        self._tag = secrets.token_hex(16)
        tags = {
            chain.ring: chain_tag(self._tag, artifact.ring, chain.ring) for chain in artifact.program.planned.chains
        }
        self.release = functools.partial(_release, tuple(tags.values()))
        sparse: dict[Ring, Any] = {}
        self._raising = _raising(artifact.program, sparse)
        try:
            for key in artifact.evaluation_keys:
                if key.kind == "encapsulation":
                    # OpenFHE has a sparse secret only inside its own bootstraps, so our kernels switch to it.
                    from heliograph.runtime.native.ciphertext import read_key

                    sparse[key.ring] = read_key(keys.blob(key.name), key, keys.client)
                else:
                    serial.install_key(key, serial.read_key(keys.blob(key.name), key, keys.client), tags[key.ring])
            for ring, tag in tags.items():
                serial.check_installed([key for key in artifact.evaluation_keys if key.ring == ring], tag)
        except BaseException:
            self.release()
            raise

    def evaluator(self, program: Program, cache_bytes: int) -> OpenFHEEvaluator:
        return OpenFHEEvaluator(program, self._tag, cache_bytes, self._raising)

    def using(self) -> AbstractContextManager[None]:
        return registry.alone()

    def read(self, message: SentValues, node: Node, name: str) -> Any:
        ring, what, level = self._artifact.ring, f"input ciphertext {name}", node.attrs["level"]
        found = serial.read_ciphertext(message.blobs[name], ring, level, self._client, what)
        return serial.retagged(found, self._tag)

    def written(self, values: Mapping[str, tuple[Any, int]]) -> dict[str, Bytes]:
        ring, client = self._artifact.ring, self._client
        return {name: serial.write_ciphertext(x, ring, level, client) for name, (x, level) in values.items()}


def _raising(program: Program, sparse: Mapping[Ring, Any]) -> dict[Ring, Raise]:
    """For each chain with bootstraps, how to raise the modulus: with our kernels and these sparse-secret keys."""
    if not raising_chains(program):
        return {}
    from heliograph.runtime.native.backend import tables_of
    from heliograph.runtime.native.bootstrapping import BootstrappingPrimitives
    from heliograph.runtime.native.ciphertext import Ciphertext, in_words, residues_of

    tables = tables_of(program)

    def way(ring: Ring) -> Raise:
        do = BootstrappingPrimitives(tables[ring], lambda kind, amount: sparse[ring])

        def raised(residues: Array) -> Array:
            x = Ciphertext(in_words(residues, ring.primes), residues.shape[1] - 1)
            return residues_of(do.raise_modulus(x, ring.slots), ring.primes)

        return raised

    chains = program.planned.chains
    return {chains[number].ring: way(chains[number].ring) for number in raising_chains(program)}


def _release(tags: tuple[str, ...]) -> None:
    """Remove a server's keys from the process."""
    for tag in tags:
        registry.release(tag)
