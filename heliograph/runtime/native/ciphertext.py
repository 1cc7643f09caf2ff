"""Ciphertexts and evaluation keys as arrays of residues, from OpenFHE's bytes and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.ckks.ring import Ring
from heliograph.ir import Array
from heliograph.runtime.native.tables import ChainTables, prime_rows
from heliograph.runtime.openfhe.template import Bytes, Template, ciphertext_template

# Polynomials of the key to the sparse secret: two over three primes. It comes first in the pair.
_SPARSE_BLOCKS = 6


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
    """A ciphertext of two parts in a stranger's bytes; a WireError where it is another or none."""
    form = ciphertext_template(ring, level)
    form.check(data, tag, what)
    return Ciphertext(_blocks(data, form, range(2 * (level + 1))).reshape(2, level + 1, ring.ring_dim))


def write_ciphertext(value: Ciphertext, ring: Ring, tag: str) -> bytes:
    """The bytes of a ciphertext of two parts, as OpenFHE writes a fresh one under the key named `tag`."""
    blocks = value.residues.reshape(-1, ring.ring_dim).astype("<u8", copy=False)
    return ciphertext_template(ring, value.level).fill((block.data for block in blocks), tag)


def key_of(data: Bytes, form: Template, ring: Ring) -> SwitchingKey:
    """A rotation or relinearization key from bytes that were checked against their form."""
    half = len(form.blocks) // 2
    # OpenFHE writes the uniform half first.
    blocks = _blocks(data, form, [*range(half, 2 * half), *range(half)])
    return SwitchingKey(blocks.reshape(2, ring.digits, -1, ring.ring_dim))


@dataclass(frozen=True, slots=True, eq=False)
class SparseKeys:
    """The way to the sparse secret of bootstrapping, a key in a chain of its own, and back."""

    tables: ChainTables
    there: SwitchingKey
    back: SwitchingKey


def sparse_keys_of(data: Bytes, form: Template, ring: Ring) -> SparseKeys:
    """The pair from bytes that were checked against its form."""
    count = len(form.blocks) - _SPARSE_BLOCKS
    there = _blocks(data, form, [*range(_SPARSE_BLOCKS // 2, _SPARSE_BLOCKS), *range(_SPARSE_BLOCKS // 2)])
    half = count // 2
    back = _blocks(data, form, [_SPARSE_BLOCKS + i for i in (*range(half, count), *range(half))])
    # The first prime of the chain, and special ones.
    primes = form.blocks_moduli[: _SPARSE_BLOCKS // 2]
    return SparseKeys(
        ChainTables.of(ring, primes[1:], prime_rows(ring.ring_dim, primes), primes[:1]),
        SwitchingKey(there.reshape(2, 1, _SPARSE_BLOCKS // 2, ring.ring_dim)),
        SwitchingKey(back.reshape(2, ring.digits, -1, ring.ring_dim)),
    )


def special_primes(form: Template, ring: Ring) -> tuple[int, ...]:
    """The special primes of a chain, as the form of its keys has them."""
    return form.blocks_moduli[ring.towers : ring.towers + ring.special]


def _blocks(data: Bytes, form: Template, order: Sequence[int]) -> Array:
    made = np.empty((len(order), form.ring_dim), dtype=np.uint64)
    for row, number in zip(made, order, strict=True):
        row[:] = np.frombuffer(data, dtype="<u8", count=form.ring_dim, offset=form.blocks[number][0])
    return made
