"""The native backend of a server: each server has its own arrays of keys and shares only tables with others."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from heliograph.artifact.artifact import Artifact
from heliograph.ckks.chains import Chain
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.errors import ProgramError
from heliograph.execution.key_use import key_use
from heliograph.execution.keys import program_keys
from heliograph.files import Bytes
from heliograph.ir import Array, Node, Program
from heliograph.ir.bootstraps.asked import factors
from heliograph.ir.maps.diagonals import DiagonalMap
from heliograph.runtime.backend import NATIVE, SentKeys, SentValues, ServerEvaluator
from heliograph.runtime.keyloader import KeyLoader, KeyTable, place_of
from heliograph.runtime.memory import keep_freed_arrays, return_freed_arrays
from heliograph.runtime.native.bootstrapping import (
    BootstrappingPrimitives,
    FactorEvaluator,
    FactorTable,
)
from heliograph.runtime.native.ciphertext import (
    Ciphertext,
    in_words,
    read_ciphertext,
    read_key,
    residues_of,
    write_ciphertext,
)
from heliograph.runtime.native.encoding import encoded_bytes, rounded_bytes
from heliograph.runtime.native.mapped import MappedKeys
from heliograph.runtime.native.plaintext_file import PlaintextFile
from heliograph.runtime.native.tables import ChainTables, prime_rows
from heliograph.runtime.native.warm import warm_up
from heliograph.runtime.wire.keyfolder import KeyFolder


class NativeBackend:
    """See `Backend`."""

    name = NATIVE

    def __init__(
        self,
        artifact: Artifact,
        keys: SentKeys,
        key_bytes: int | None = None,
        mapped: bool = False,
        plaintexts: str | Path | None = None,
    ) -> None:
        self._artifact, self._client = artifact, keys.client
        self._keys: KeyTable = {}
        self._factors: FactorTable = {}
        warm_up()
        keep_freed_arrays()
        self._tables = tables_of(artifact.program)
        self.loader: KeyLoader | None = None
        stored = MappedKeys(keys, artifact.evaluation_keys) if mapped and isinstance(keys, KeyFolder) else None

        def read(key: EvaluationKey) -> Any:
            return read_key(keys.blob(key.name), key, keys.client) if stored is None else stored.value(key)

        if key_bytes is None:
            self._keys.update((place_of(key), read(key)) for key in artifact.evaluation_keys)
        else:
            self.loader = KeyLoader(key_use(artifact.program), read, self._keys, key_bytes)
        self._kept = None if plaintexts is None else PlaintextFile.of(plaintexts, artifact.fingerprint)
        self._use = _Use(self._keys, self._factors)
        self.release = functools.partial(_release, self.loader, self._use)

    def evaluator(self, program: Program, cache_bytes: int) -> NativeEvaluator:
        return NativeEvaluator(program, self._tables, self._keys, self._factors, cache_bytes, self._kept)

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        try:
            with self._use.using():
                yield
        finally:
            if self._kept is not None:
                self._kept.exchange()

    def read(self, message: SentValues, node: Node, name: str) -> Any:
        ring, level, what = self._artifact.ring, node.attrs["level"], f"input ciphertext {name}"
        return read_ciphertext(message.blobs[name], ring, level, self._client, what)

    def written(self, values: Mapping[str, tuple[Any, int]]) -> dict[str, Bytes]:
        return {name: write_ciphertext(x, self._artifact.ring, self._client) for name, (x, _) in values.items()}


class NativeEvaluator(FactorEvaluator, ServerEvaluator):
    """An evaluator on arrays of residues. All parts of a server's program share its keys and bootstrap factors."""

    def __init__(
        self,
        program: Program,
        tables: Mapping[Ring, ChainTables],
        keys: KeyTable,
        table: FactorTable,
        cache_bytes: int,
        kept: PlaintextFile | None = None,
    ) -> None:
        def key_of(ring: Ring, kind: str, amount: int) -> Any:
            found = keys.get((ring, kind, amount))
            if found is None:
                what = f"{kind} by {amount}" if kind == "rotation" else kind
                raise ProgramError(f"there is no key for a {what} at level {ring.levels} and below")
            return found

        self._in_file = kept is not None

        def primitives(chain: Chain) -> BootstrappingPrimitives:
            return BootstrappingPrimitives(
                tables[chain.ring],
                functools.partial(key_of, chain.ring),
                kept,
            )

        super().__init__(program, primitives, cache_bytes, table)
        for number in range(len(self.chains)):
            do = self.part(number)
            assert isinstance(do, BootstrappingPrimitives)
            do.compact = self._compact

    def prepare(self) -> None:
        for node in factors(self.program).values():
            self.factor(node)

    def plaintext_bytes(self, level: int) -> int:
        return self.ring.ciphertext_bytes(level, parts=1)

    def diagonal_bytes(self, level: int, log_scale: float, diagonals: DiagonalMap) -> int:
        if self._compact:
            size = self.plaintext_bytes(level)
            return rounded_bytes(diagonals.run * diagonals.samples, log_scale, size, self.ring.ring_dim)
        return self._encoded_bytes(level, log_scale, diagonals)

    def _encoded_bytes(self, level: int, log_scale: float, diagonals: DiagonalMap) -> int:
        size = self.plaintext_bytes(level)
        return encoded_bytes(diagonals.run * diagonals.samples, log_scale, size, self.ring.ring_dim)

    @functools.cached_property
    def _compact(self) -> bool:
        """Whether diagonals are stored as coefficients: if their residues exceed the cache and are not in a file."""
        return not self._in_file and self.diagonals_bytes(self._encoded_bytes) > self.kept_bytes

    def example(self, level: int) -> Ciphertext:
        random = np.random.default_rng(0)
        rows = [
            random.integers(prime, size=self.ring.ring_dim, dtype=np.uint64) for prime in self.ring.primes[: level + 1]
        ]
        return Ciphertext(in_words(np.stack([rows, rows]), self.ring.primes), level)

    def residues(self, x: Ciphertext) -> Array:
        return residues_of(x, self.ring.primes)


def tables_of(program: Program) -> dict[Ring, ChainTables]:
    """The constants of each chain of a program; a chain without keys needs no special primes."""
    rings = [chain.ring for chain in program.planned.chains]
    keyed = {key.ring for key in program_keys(program)}
    special = {ring: ring.special_primes if ring in keyed else () for ring in rings}
    every = dict.fromkeys([*rings[0].primes, *(prime for primes in special.values() for prime in primes)])
    known = prime_rows(rings[0].ring_dim, tuple(every))
    return {ring: ChainTables.of(ring, special[ring], known) for ring in rings}


class _Use:
    """The readers of a server's tables, which are cleared once it is closed and has no readers left. Never waits."""

    def __init__(self, *tables: dict[Any, Any]) -> None:
        self._tables, self._lock = tables, threading.Lock()
        self._readers, self._closed = 0, False

    @contextlib.contextmanager
    def using(self) -> Iterator[None]:
        with self._lock:
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1
                last = self._closed and not self._readers
            if last:
                self._clear()

    def close(self) -> None:
        # No lock here: a finalizer may run in the thread that holds it. A reader that ends meanwhile clears the tables too.
        self._closed = True
        if not self._readers:
            self._clear()

    def _clear(self) -> None:
        for table in self._tables:
            table.clear()
        return_freed_arrays()


def _release(loader: KeyLoader | None, use: _Use) -> None:
    if loader is not None:
        loader.close()
    use.close()
