"""Ciphertexts and evaluation keys as arrays of residues, read from bytes and written to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.files import Bytes
from heliograph.ir import Array
from heliograph.runtime.native.tables import ChainTables, prime_rows
from heliograph.runtime.wire import forms as seeded
from heliograph.runtime.wire.forms import SPARSE_BLOCKS, key_form, sparse_primes


@dataclass(frozen=True, slots=True, eq=False)
class Ciphertext:
    """Canonical residues in evaluation form, (parts, level + 1, N), contiguous as the kernels require."""

    residues: Array

    @property
    def level(self) -> int:
        return int(self.residues.shape[1]) - 1

    @property
    def parts(self) -> int:
        return int(self.residues.shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class SwitchingKey:
    """A key (2, digits, primes, N): b of each digit, then a of each; the chain's primes, then the special primes."""

    residues: Array


@dataclass(frozen=True, slots=True, eq=False)
class SparseKeys:
    """The two keys for the sparse secret of bootstrapping: to it, in a separate chain, and back."""

    tables: ChainTables
    there: SwitchingKey
    back: SwitchingKey


def read_ciphertext(data: Bytes, ring: Ring, level: int, tag: str, what: str) -> Ciphertext:
    """The two-part ciphertext in untrusted bytes; a WireError unless they hold a matching one."""
    return Ciphertext(seeded.read_ciphertext(data, ring, level, tag, what))


def write_ciphertext(value: Ciphertext, ring: Ring, tag: str) -> bytes:
    """The bytes of a ciphertext of two parts, under the key named `tag`."""
    return seeded.write_ciphertext(value.residues, ring, tag)


def numbers_of(key: EvaluationKey) -> int:
    """The number of residues in a key."""
    form = key_form(key)
    return len(form.moduli) * form.ring_dim


def key_over(key: EvaluationKey, room: Array) -> SwitchingKey | SparseKeys:
    """The key with its residues in `room`, which has `numbers_of(key)` entries."""
    ring = key.ring
    if key.kind != "encapsulation":
        return SwitchingKey(room.reshape(2, ring.digits, -1, ring.ring_dim))
    there, back = np.split(room, [SPARSE_BLOCKS * ring.ring_dim])
    first, special = ring.primes[:1], sparse_primes(ring)
    return SparseKeys(
        ChainTables.of(ring, special, prime_rows(ring.ring_dim, first + special), first),
        SwitchingKey(there.reshape(2, 1, -1, ring.ring_dim)),
        SwitchingKey(back.reshape(2, ring.digits, -1, ring.ring_dim)),
    )


def rows_of(key: SwitchingKey | SparseKeys) -> list[Array]:
    """The polynomials of a key in the order in which they are written: the uniform half first."""
    if isinstance(key, SparseKeys):
        return [*rows_of(key.there), *rows_of(key.back)]
    b, a = key.residues.reshape(2, -1, key.residues.shape[-1])
    return [*a, *b]


def read_key(data: Bytes, key: EvaluationKey, tag: str, room: Array | None = None) -> SwitchingKey | SparseKeys:
    """The evaluation key in untrusted bytes; a WireError unless they hold this very key.

    Its residues are written into `room`, with `numbers_of(key)` entries, if given.
    """
    made = key_over(key, np.empty(numbers_of(key), dtype=np.uint64) if room is None else room)
    key_form(key).read(data, tag, f"the key {key.name}", rows_of(made))
    return made
