"""The backends' primitives side by side, with the same keys and ciphertexts, for comparison and timing."""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.ir import Array
from heliograph.runtime.backend import NATIVE, OPENFHE
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.runtime.wire.forms import read_ciphertext

if TYPE_CHECKING:
    from heliograph.runtime.native.ciphertext import Ciphertext
    from heliograph.runtime.native.primitives import NativePrimitives
    from heliograph.runtime.openfhe.primitives import OpenFHEPrimitives

# The rotation amount that has a key.
AMOUNT = 1


@dataclass(frozen=True, slots=True)
class Beside:
    """Each backend's primitives in one whole chain, with keys for a rotation by `AMOUNT`, conjugation and products.

    The native primitives need numba, the others OpenFHE, in which the keys have the tag `tag`.
    """

    ring: Ring
    cryptor: Cryptor
    tag: str
    openfhe: OpenFHEPrimitives | None
    native: NativePrimitives | None

    def backends(self) -> dict[str, tuple[Any, Callable[[Array, int], Any]]]:
        """For each installed backend its primitives, and a function that encrypts for them at the nominal scale."""
        found: dict[str, tuple[Any, Callable[[Array, int], Any]]] = {}
        if self.openfhe is not None:
            found[OPENFHE] = self.openfhe, lambda values, level: self._for_openfhe(self._made(values, level))
        if self.native is not None:
            found[NATIVE] = self.native, lambda values, level: self._for_native(self._made(values, level), level)
        return found

    def _made(self, values: Array, level: int) -> Array:
        """The residues of a fresh ciphertext."""
        data = self.cryptor.encrypted_bytes(values, level, float(self.ring.scale_bits))
        return read_ciphertext(data, self.ring, level, self.cryptor.tag, "a ciphertext")

    def _for_openfhe(self, residues: Array) -> Any:
        from heliograph.runtime.openfhe import serial

        return serial.retagged(serial.openfhe_ciphertext(residues, self.ring, self.cryptor.tag), self.tag)

    def _for_native(self, residues: Array, level: int) -> Ciphertext:
        from heliograph.runtime.native.ciphertext import Ciphertext, in_words

        return Ciphertext(in_words(residues, self.ring.primes), level)


@contextlib.contextmanager
def beside(ring: Ring) -> Iterator[Beside]:
    """The installed backends with fresh keys of a ring without bootstraps; the keys are dropped afterwards."""
    cryptor, tag = Cryptor(ring), secrets.token_hex(16)
    keys = {
        key: cryptor.evaluation_key_bytes(key)
        for key in (
            EvaluationKey(kind, ring, kind, amount)
            for kind, amount in (("rotation", AMOUNT), ("conjugation", 0), ("relinearization", 0))
        )
    }
    there = {name: importlib.util.find_spec(name) is not None for name in ("openfhe", "numba")}
    native = _native(ring, keys, cryptor.tag) if there["numba"] else None
    with _openfhe(ring, keys, cryptor.tag, tag) if there["openfhe"] else contextlib.nullcontext() as openfhe:
        yield Beside(ring, cryptor, tag, openfhe, native)


@contextlib.contextmanager
def _openfhe(ring: Ring, keys: dict[EvaluationKey, bytes], client: str, tag: str) -> Iterator[OpenFHEPrimitives]:
    """OpenFHE's primitives with these keys, installed under a tag."""
    from heliograph.runtime.openfhe import registry, serial
    from heliograph.runtime.openfhe.primitives import OpenFHEPrimitives

    try:
        for key, data in keys.items():
            serial.install_key(key, serial.read_key(data, key, client), tag)
        yield OpenFHEPrimitives(ring, ring)
    finally:
        registry.release(tag)


def _native(ring: Ring, keys: dict[EvaluationKey, bytes], client: str) -> NativePrimitives:
    """The native primitives with these keys."""
    from heliograph.runtime.memory import keep_freed_arrays
    from heliograph.runtime.native.ciphertext import read_key
    from heliograph.runtime.native.primitives import NativePrimitives
    from heliograph.runtime.native.tables import ChainTables, prime_rows
    from heliograph.runtime.native.warm import warm_up

    # As servers do.
    keep_freed_arrays()
    warm_up()
    read: dict[tuple[str, int], Any] = {
        (key.kind, key.amount): read_key(data, key, client) for key, data in keys.items()
    }
    special = ring.special_primes
    tables = ChainTables.of(ring, special, prime_rows(ring.ring_dim, ring.primes + special))
    return NativePrimitives(tables, lambda kind, amount: read[kind, amount])


def sample_values(ring: Ring) -> Array:
    """A vector of all slots, between -1 and 1."""
    return np.linspace(-1.0, 1.0, ring.slots)
