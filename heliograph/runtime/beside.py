"""Both backends' primitives side by side, with the same keys and ciphertexts: for comparing and for timing them."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.ir import Array
from heliograph.runtime.native.ciphertext import Ciphertext, key_of, read_ciphertext, special_primes
from heliograph.runtime.native.primitives import NativePrimitives
from heliograph.runtime.native.tables import ChainTables, prime_rows
from heliograph.runtime.native.warm import warm_up
from heliograph.runtime.openfhe import registry, serial
from heliograph.runtime.openfhe.cryptor import OpenFHECryptor
from heliograph.runtime.openfhe.primitives import OpenFHEPrimitives
from heliograph.runtime.openfhe.template import normalized, relinearization_key_template, rotation_key_template

# The rotation that there is a key for.
AMOUNT = 1


@dataclass(frozen=True, slots=True)
class Beside:
    """The primitives in one whole chain, with keys for a rotation by `AMOUNT`, conjugation and products."""

    ring: Ring
    cryptor: OpenFHECryptor
    tag: str
    openfhe: OpenFHEPrimitives
    native: NativePrimitives

    def encrypted(self, values: Array, level: int) -> tuple[Any, Ciphertext]:
        """The same ciphertext for both, at the nominal scale."""
        made = self.cryptor.encrypt(values, level, float(self.ring.scale_bits))
        return serial.retagged(made, self.tag), self.native_form(made)

    def native_form(self, value: Any) -> Ciphertext:
        """OpenFHE's ciphertext of two parts as residues."""
        level, tag = self.openfhe.describe(value)[0], self.cryptor.tag
        data = serial.serialize(normalized(value, self.ring, level, tag))
        return read_ciphertext(data, self.ring, level, tag, "a ciphertext")

    def both(self) -> dict[str, tuple[Any, Callable[[Array, int], Any]]]:
        """By backend its primitives, and what encrypts for them."""
        return {
            "openfhe": (self.openfhe, lambda values, level: self.encrypted(values, level)[0]),
            "native": (self.native, lambda values, level: self.encrypted(values, level)[1]),
        }


@contextlib.contextmanager
def beside(ring: Ring) -> Iterator[Beside]:
    """Both backends with fresh keys of a ring without bootstraps; the keys are gone afterwards."""
    warm_up()
    # Keys are installed under a name of their own: making keys empties the cryptor's.
    cryptor, tag, keys = OpenFHECryptor(ring), secrets.token_hex(16), {}
    rotation, product = rotation_key_template(ring), relinearization_key_template(ring)
    try:
        for kind, amount in (("rotation", AMOUNT), ("conjugation", 0), ("relinearization", 0)):
            key = EvaluationKey(kind, ring, kind, amount)
            value = cryptor.evaluation_key(key)
            keys[kind, amount] = key_of(
                serial.serialize(value), product if kind == "relinearization" else rotation, ring
            )
            serial.install_key(key, value, tag)
        special = special_primes(rotation, ring)
        tables = ChainTables.of(ring, special, prime_rows(ring.ring_dim, ring.primes + special))
        native = NativePrimitives(tables, lambda kind, amount: keys[kind, amount])
        yield Beside(ring, cryptor, tag, OpenFHEPrimitives(ring, ring), native)
    finally:
        registry.release(tag)


def sample_values(ring: Ring) -> Array:
    """A vector of all slots, between -1 and 1."""
    return np.linspace(-1.0, 1.0, ring.slots)
