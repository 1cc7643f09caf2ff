"""The backends' primitives side by side, with the same keys and ciphertexts: for comparing and for timing them."""

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
from heliograph.errors import InternalError
from heliograph.ir import Array
from heliograph.runtime.backend import NATIVE, OPENFHE
from heliograph.runtime.openfhe import registry, serial
from heliograph.runtime.openfhe.cryptor import OpenFHECryptor
from heliograph.runtime.openfhe.primitives import OpenFHEPrimitives
from heliograph.runtime.seeded import special_primes

if TYPE_CHECKING:
    from heliograph.runtime.native.ciphertext import Ciphertext
    from heliograph.runtime.native.primitives import NativePrimitives

# The rotation amount that has a key.
AMOUNT = 1


@dataclass(frozen=True, slots=True)
class Beside:
    """The primitives in one whole chain, with keys for a rotation by `AMOUNT`, conjugation and products.

    The native ones need numba.
    """

    ring: Ring
    cryptor: OpenFHECryptor
    tag: str
    openfhe: OpenFHEPrimitives
    native_or_none: NativePrimitives | None

    @property
    def native(self) -> NativePrimitives:
        if self.native_or_none is None:
            raise InternalError("the native backend needs numba")
        return self.native_or_none

    def encrypted(self, values: Array, level: int) -> tuple[Any, Ciphertext]:
        """The same ciphertext for both, at the nominal scale."""
        made = self._made(values, level)
        return serial.retagged(made, self.tag), self.native_form(made)

    def native_form(self, value: Any) -> Ciphertext:
        """OpenFHE's ciphertext of two parts as residues."""
        from heliograph.runtime.native.ciphertext import Ciphertext

        return Ciphertext(serial.residues_of(value, self.ring, self.openfhe.describe(value)[0]))

    def backends(self) -> dict[str, tuple[Any, Callable[[Array, int], Any]]]:
        """By backend that is there its primitives, and what encrypts for them."""
        found: dict[str, tuple[Any, Callable[[Array, int], Any]]] = {
            OPENFHE: (self.openfhe, lambda values, level: serial.retagged(self._made(values, level), self.tag))
        }
        if self.native_or_none is not None:
            found[NATIVE] = self.native_or_none, lambda values, level: self.native_form(self._made(values, level))
        return found

    def _made(self, values: Array, level: int) -> Any:
        return self.cryptor.encrypt(values, level, float(self.ring.scale_bits))


@contextlib.contextmanager
def beside(ring: Ring) -> Iterator[Beside]:
    """The backends that are there, with fresh keys of a ring without bootstraps; the keys are gone afterwards."""
    # Keys are installed under a separate tag, because making keys drops those under the cryptor's own tag.
    cryptor, tag, keys = OpenFHECryptor(ring), secrets.token_hex(16), {}
    try:
        for kind, amount in (("rotation", AMOUNT), ("conjugation", 0), ("relinearization", 0)):
            key = EvaluationKey(kind, ring, kind, amount)
            value = cryptor.evaluation_key(key)
            # Serialize before installing: OpenFHE keeps the first map that was given for a tag and adds later keys to it.
            keys[kind, amount] = serial.serialize(value)
            serial.install_key(key, value, tag)
        native = _native(ring, keys) if importlib.util.find_spec("numba") else None
        yield Beside(ring, cryptor, tag, OpenFHEPrimitives(ring, ring), native)
    finally:
        registry.release(tag)


def _native(ring: Ring, keys: dict[tuple[str, int], bytes]) -> NativePrimitives:
    """The native primitives with keys that OpenFHE made."""
    from heliograph.runtime.native.ciphertext import key_over
    from heliograph.runtime.native.primitives import NativePrimitives
    from heliograph.runtime.native.tables import ChainTables, prime_rows
    from heliograph.runtime.native.warm import warm_up

    warm_up()
    read: dict[tuple[str, int], Any] = {}
    for (kind, amount), value in keys.items():
        key = EvaluationKey(kind, ring, kind, amount)
        a, b = np.split(serial.blocks_of(value, serial.key_template(key)), 2)
        read[kind, amount] = key_over(key, np.concatenate([b, a]).ravel())
    special = special_primes(ring)
    tables = ChainTables.of(ring, special, prime_rows(ring.ring_dim, ring.primes + special))
    return NativePrimitives(tables, lambda kind, amount: read[kind, amount])


def sample_values(ring: Ring) -> Array:
    """A vector of all slots, between -1 and 1."""
    return np.linspace(-1.0, 1.0, ring.slots)
