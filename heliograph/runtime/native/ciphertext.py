"""Ciphertexts and evaluation keys as arrays of residues, from OpenFHE's bytes and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heliograph.ckks.ring import Ring
from heliograph.ir import Array
from heliograph.runtime.native.tables import ChainTables, prime_rows
from heliograph.runtime.openfhe.template import Bytes, Template, ciphertext_template
from heliograph.runtime.seeded import SPARSE_BLOCKS, SeededForm, ciphertext_form, read_rows


@dataclass(frozen=True, slots=True, eq=False)
class Ciphertext:
    """Residues (parts, level + 1, N), canonical, in evaluation, in one piece: kernels are compiled for such arrays."""

    residues: Array

    @property
    def level(self) -> int:
        return int(self.residues.shape[1]) - 1

    @property
    def parts(self) -> int:
        return int(self.residues.shape[0])


@dataclass(frozen=True, slots=True, eq=False)
class SwitchingKey:
    """A key (2, digits, primes, N): for each digit b, then a; the primes are those of the chain, then the special ones."""

    residues: Array


def read_ciphertext(data: Bytes, ring: Ring, level: int, tag: str, what: str) -> Ciphertext:
    """A ciphertext of two parts in untrusted bytes; a WireError where it is another or none."""
    form = ciphertext_template(ring, level)
    residues = np.empty((2, level + 1, ring.ring_dim), dtype=np.uint64)
    seeded = ciphertext_form(ring.ring_dim, form.blocks_moduli)
    read_rows(data, form, seeded, tag, what, list(residues.reshape(-1, ring.ring_dim)))
    return Ciphertext(residues)


def write_ciphertext(value: Ciphertext, ring: Ring, tag: str) -> bytes:
    """The bytes of a ciphertext of two parts, as OpenFHE writes a fresh one under the key named `tag`."""
    blocks = value.residues.reshape(-1, ring.ring_dim).astype("<u8", copy=False)
    return ciphertext_template(ring, value.level).fill((block.data for block in blocks), tag)


def key_over(room: Array, form: Template, ring: Ring) -> SwitchingKey:
    """A rotation or relinearization key with its residues in `room`, which has this many numbers."""
    return SwitchingKey(room.reshape(2, ring.digits, -1, ring.ring_dim))


def read_key(
    data: Bytes, form: Template, seeded: SeededForm, ring: Ring, tag: str, what: str, room: Array | None = None
) -> SwitchingKey:
    """Such a key in untrusted bytes, into `room` where it is given; a WireError where it is another or none."""
    key = key_over(_room(form) if room is None else room, form, ring)
    read_rows(data, form, seeded, tag, what, _rows(key))
    return key


@dataclass(frozen=True, slots=True, eq=False)
class SparseKeys:
    """The way to the sparse secret of bootstrapping, a key in a chain of its own, and back."""

    tables: ChainTables
    there: SwitchingKey
    back: SwitchingKey


def sparse_keys_over(room: Array, form: Template, ring: Ring) -> SparseKeys:
    """The pair with its residues in `room`, which has this many numbers."""
    there, back = np.split(room, [SPARSE_BLOCKS * ring.ring_dim])
    # The first prime of the chain, and the special primes.
    primes = form.blocks_moduli[: SPARSE_BLOCKS // 2]
    return SparseKeys(
        ChainTables.of(ring, primes[1:], prime_rows(ring.ring_dim, primes), primes[:1]),
        SwitchingKey(there.reshape(2, 1, -1, ring.ring_dim)),
        SwitchingKey(back.reshape(2, ring.digits, -1, ring.ring_dim)),
    )


def read_sparse_keys(
    data: Bytes, form: Template, seeded: SeededForm, ring: Ring, tag: str, what: str, room: Array | None = None
) -> SparseKeys:
    """The pair in untrusted bytes, into `room` where it is given; a WireError where it is another or none."""
    pair = sparse_keys_over(_room(form) if room is None else room, form, ring)
    read_rows(data, form, seeded, tag, what, [*_rows(pair.there), *_rows(pair.back)])
    return pair


def special_primes(form: Template, ring: Ring) -> tuple[int, ...]:
    """The special primes of a chain, as the form of its keys has them."""
    return form.blocks_moduli[ring.towers : ring.towers + ring.special]


def numbers_of(form: Template) -> int:
    """How many numbers an object of this form has."""
    return len(form.blocks) * form.ring_dim


def _room(form: Template) -> Array:
    return np.empty(numbers_of(form), dtype=np.uint64)


def _rows(key: SwitchingKey) -> list[Array]:
    """The polynomials of a key in OpenFHE's order: the uniform half first."""
    b, a = key.residues.reshape(2, -1, key.residues.shape[-1])
    return [*a, *b]
