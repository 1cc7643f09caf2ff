"""OpenFHE as the backend of a server: keys in OpenFHE's maps, under names of the server's own."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from heliograph.artifact.artifact import Artifact
from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.execution.key_use import key_use
from heliograph.ir import Node, Program
from heliograph.ir.bootstraps.asked import raising_chains
from heliograph.runtime.backend import OPENFHE, SentKeys, SentValues
from heliograph.runtime.keyloader import KeyLoader, Keys
from heliograph.runtime.openfhe import registry, serial
from heliograph.runtime.openfhe.context import library
from heliograph.runtime.openfhe.evaluator import OpenFHEEvaluator
from heliograph.runtime.openfhe.primitives import Raise
from heliograph.runtime.openfhe.tags import chain_tag
from heliograph.runtime.openfhe.template import Bytes, Template, rotation_key_template

# A key of a tiny ring for an automorphism that does not exist, put into every map first. OpenFHE keeps the first map that
# was given for a tag and adds later keys to it, so a real first key could not be put back without the others.
_SEED_RING = Ring(10, 60, 40, 1, 1, None)
_SEED_INDEX = 2


class OpenFHEBackend:
    """See `Backend`. OpenFHE finds keys by name: those of one server must not meet another's in its maps."""

    name = OPENFHE

    def __init__(self, artifact: Artifact, keys: SentKeys, key_bytes: int | None) -> None:
        self._artifact, self._client = artifact, keys.client
        self._tag = secrets.token_hex(16)
        chains = artifact.program.planned.chains
        tags = {chain.ring: chain_tag(self._tag, artifact.ring, chain.ring) for chain in chains}
        loaders: list[KeyLoader] = []
        self.release = functools.partial(_release, tuple(tags.values()), loaders)
        sparse: dict[Ring, Any] = {}
        self._raising = _raising(artifact.program, sparse)
        try:
            if key_bytes is None:
                _install(artifact, keys, tags, sparse)
            else:
                # Learned now, because learning a form makes keys, and none are made while an evaluation runs.
                forms = {ring: rotation_key_template(ring) for ring in tags}

                def read(key: EvaluationKey) -> Any:
                    return _read(key, keys, forms[key.ring])

                loaders.append(KeyLoader(key_use(artifact.program), read, _Maps(tags, sparse), key_bytes))
        except BaseException:
            self.release()
            raise
        self.loader = loaders[0] if loaders else None

    def evaluator(self, program: Program, cache_bytes: int) -> OpenFHEEvaluator:
        return OpenFHEEvaluator(program, self._tag, cache_bytes, self._raising)

    def using(self) -> AbstractContextManager[None]:
        return registry.using()

    def read(self, message: SentValues, node: Node, name: str, evaluator: Any) -> Any:
        ring, what, level = self._artifact.ring, f"input ciphertext {name}", node.attrs["level"]
        if node in evaluator.summed:
            return evaluator.coefficients(message.blobs[name], level, self._client, what)
        return evaluator.adopt(serial.read_ciphertext(message.blobs[name], ring, level, self._client, what), level)

    def written(self, values: Mapping[str, tuple[Any, int]]) -> dict[str, Bytes]:
        ring, client = self._artifact.ring, self._client
        return {name: serial.write_ciphertext(x, ring, level, client) for name, (x, level) in values.items()}


class _Maps:
    """OpenFHE's maps as the place of keys that are loaded by need; they change while no evaluation of the process runs.

    The keys of the sparse secret, which always stay, go to `sparse`.
    """

    def __init__(self, tags: Mapping[Ring, str], sparse: dict[Ring, Any]) -> None:
        self._tags, self._sparse = tags, sparse

    def begin(self, keys: Keys) -> None:
        self._sparse.update((key.ring, value) for key, value in keys if key.kind == "encapsulation")
        keys = [(key, value) for key, value in keys if key.kind != "encapsulation"]
        seeds = {tag: _seed() for tag in self._tags.values()}
        with registry.changing():
            for tag, seed in seeds.items():
                registry.put_maps(tag, [seed])
            for key, value in keys:
                serial.insert_key(key, value, self._tags[key.ring])
        for ring, tag in self._tags.items():
            serial.check_installed([key for key, _ in keys if key.ring == ring], tag, (_SEED_INDEX,))

    def add(self, keys: Keys) -> None:
        with registry.pausing():
            for key, value in keys:
                serial.insert_key(key, value, self._tags[key.ring])

    def drop(self, gone: Sequence[EvaluationKey], left: Keys) -> None:
        maps: dict[str, list[Any]] = {self._tags[key.ring]: [] for key in gone}
        for key, value in left:
            if key.kind in ("rotation", "conjugation") and self._tags[key.ring] in maps:
                maps[self._tags[key.ring]].append(value)
        with registry.pausing():
            for tag, values in maps.items():
                registry.put_maps(tag, [_seed(), *values])


def _raising(program: Program, sparse: Mapping[Ring, Any]) -> dict[Ring, Raise]:
    """How modulus is raised in each chain that bootstraps: by our own kernels, with these keys of the sparse secret."""
    if not raising_chains(program):
        return {}
    from heliograph.runtime.native.backend import tables_of
    from heliograph.runtime.native.bootstrapping import BootstrappingPrimitives
    from heliograph.runtime.native.ciphertext import Ciphertext

    tables = tables_of(program)

    def way(ring: Ring) -> Raise:
        do = BootstrappingPrimitives(tables[ring], lambda kind, amount: sparse[ring])
        return lambda residues: do.raise_modulus(Ciphertext(residues), ring.slots).residues

    chains = program.planned.chains
    return {chains[number].ring: way(chains[number].ring) for number in raising_chains(program)}


def _read(key: EvaluationKey, keys: SentKeys, form: Template | None = None) -> Any:
    """A key as OpenFHE's, or as our own kernels have it where they read it."""
    if key.kind == "encapsulation":
        from heliograph.runtime.native.ciphertext import read_key

        return read_key(keys.blob(key.name), key, keys.client)
    return serial.read_key(keys.blob(key.name), key, keys.client, form)


def _install(artifact: Artifact, keys: SentKeys, tags: Mapping[Ring, str], sparse: dict[Ring, Any]) -> None:
    expected = artifact.evaluation_keys
    sparse.update((key.ring, _read(key, keys)) for key in expected if key.kind == "encapsulation")
    expected = tuple(key for key in expected if key.kind != "encapsulation")
    # One key at a time: its bytes are dropped before the next one is read.
    values = [_read(key, keys) for key in expected]
    # All keys in one change: a process that serves others waits for their evaluations once, not once per key.
    with registry.changing():
        for key, value in zip(expected, values, strict=True):
            serial.insert_key(key, value, tags[key.ring])
    for ring, tag in tags.items():
        serial.check_installed([key for key in expected if key.ring == ring], tag)


def _release(tags: tuple[str, ...], loaders: list[KeyLoader]) -> None:
    """Take a server's keys out of the process."""
    for loader in loaders:
        loader.close()
    for tag in tags:
        registry.release(tag)


@functools.cache
def _seed_bytes() -> bytes:
    template = rotation_key_template(_SEED_RING)
    blank = bytes(8 * _SEED_RING.ring_dim)
    return template.fill([blank] * len(template.blocks), "0" * 32, _SEED_INDEX)


def _seed() -> Any:
    return library().DeserializeEvalKeyMapString(_seed_bytes(), library().BINARY)
