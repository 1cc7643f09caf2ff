"""Ciphertexts and evaluation keys as arrays of residues, read from bytes and written to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.primes import is_short, words
from heliograph.ckks.ring import Ring
from heliograph.files import Bytes
from heliograph.ir import Array
from heliograph.runtime.native.tables import ChainTables, prime_rows
from heliograph.runtime.wire import forms as seeded
from heliograph.runtime.wire.forms import key_form, sparse_primes


@dataclass(slots=True, eq=False)
class Ciphertext:
    """Canonical residues in evaluation form: (parts, words / N, N), in rows of words (`kernels.rows`)."""

    residues: Array
    level: int

    @property
    def parts(self) -> int:
        return int(self.residues.shape[0])


class Undivided(Ciphertext):
    """A ciphertext after a key switch, to be divided by the special primes when its residues are read.

    A rescale that comes first divides by the prime of the level too: one division instead of two.

    `wide`: its two parts in the extended basis, (2, words / N, N); None once they are divided.
    `tables`: the chain of the key switch.
    """

    __slots__ = ("_divide", "_residues", "tables", "wide")

    def __init__(self, wide: Array, level: int, tables: ChainTables, divide: Callable[[Array], Array]) -> None:
        self.wide: Array | None = wide
        self.level, self.tables, self._divide = level, tables, divide

    @property
    def residues(self) -> Array:  # type: ignore[override]
        # Read once: another thread may divide it meanwhile.
        wide = self.wide
        if wide is not None:
            self._residues, self.wide = self._divide(wide), None
        return self._residues

    @property
    def parts(self) -> int:
        return 2


@dataclass(frozen=True, slots=True, eq=False)
class SwitchingKey:
    """A key (2, digits, words / N, N): b of each digit, then a of each; the chain's primes, then the special primes."""

    residues: Array


@dataclass(frozen=True, slots=True, eq=False)
class SparseKeys:
    """The two keys for the sparse secret of bootstrapping: to it, in a separate chain, and back."""

    tables: ChainTables
    there: SwitchingKey
    back: SwitchingKey


def read_ciphertext(data: Bytes, ring: Ring, level: int, tag: str, what: str) -> Ciphertext:
    """The two-part ciphertext in untrusted bytes; a WireError unless they hold a matching one."""
    return Ciphertext(in_words(seeded.read_ciphertext(data, ring, level, tag, what), ring.primes), level)


def write_ciphertext(value: Ciphertext, ring: Ring, tag: str) -> bytes:
    """The bytes of a ciphertext of two parts, under the key named `tag`."""
    return seeded.write_ciphertext(residues_of(value, ring.primes), ring, tag)


def rows_in(polynomial: Array, primes: Sequence[int]) -> Iterator[Array]:
    """The rows of a polynomial (words / N, N), in its memory: (N) words, or numbers of 64 bits."""
    at = 0
    for prime in primes:
        if is_short(prime):
            yield polynomial[at]
            at += 1
        else:
            yield polynomial[at : at + 2].reshape(-1).view(np.uint64)
            at += 2


def in_words(residues: Array, primes: Sequence[int]) -> Array:
    """Residues of 64 bits, (parts, towers, N), in rows of words."""
    parts, towers, size = residues.shape
    found = np.empty((parts, words(primes[:towers]), size), dtype=np.uint32)
    for part, values in zip(found, residues, strict=True):
        for row, value in zip(rows_in(part, primes[:towers]), values, strict=True):
            row[:] = value
    return found


def residues_of(x: Ciphertext, primes: Sequence[int]) -> Array:
    """The residues of a ciphertext as numbers of 64 bits: (parts, level + 1, N)."""
    return out_of_words(x.residues, primes[: x.level + 1])


def out_of_words(rows: Array, primes: Sequence[int]) -> Array:
    """The residues in rows of words, (parts, words / N, N), as numbers of 64 bits: (parts, primes, N)."""
    found = np.empty((rows.shape[0], len(primes), rows.shape[2]), dtype=np.uint64)
    for part, values in zip(rows, found, strict=True):
        for row, value in zip(rows_in(part, primes), values, strict=True):
            value[:] = row
    return found


def words_of(key: EvaluationKey) -> int:
    """The number of words in a key."""
    form = key_form(key)
    return words(form.moduli) * form.ring_dim


def key_over(key: EvaluationKey, room: Array) -> SwitchingKey | SparseKeys:
    """The key with its residues in `room`, which has `words_of(key)` entries."""
    ring = key.ring
    if key.kind != "encapsulation":
        return SwitchingKey(room.reshape(2, ring.digits, -1, ring.ring_dim))
    first, special = ring.primes[:1], sparse_primes(ring)
    tables = ChainTables.of(ring, special, prime_rows(ring.ring_dim, first + special), first)
    there, back = np.split(room, [2 * tables.words(0, wide=True) * ring.ring_dim])
    return SparseKeys(
        tables,
        SwitchingKey(there.reshape(2, 1, -1, ring.ring_dim)),
        SwitchingKey(back.reshape(2, ring.digits, -1, ring.ring_dim)),
    )


def rows_of(key: SwitchingKey | SparseKeys, primes: Sequence[int]) -> list[Array]:
    """The polynomials of a key in the order in which they are written, the uniform half first: (N) words or numbers of
    64 bits. `primes` are those of the key's chain, the special ones last.
    """
    if isinstance(key, SparseKeys):
        first = key.tables.primes + key.tables.special
        return [*rows_of(key.there, first), *rows_of(key.back, primes)]
    b, a = key.residues
    return [row for digit in (*a, *b) for row in rows_in(digit, primes)]


def read_key(data: Bytes, key: EvaluationKey, tag: str, room: Array | None = None) -> SwitchingKey | SparseKeys:
    """The evaluation key in untrusted bytes; a WireError unless they hold this very key.

    Its residues are written into `room`, with `words_of(key)` entries, if given.
    """
    made = key_over(key, np.empty(words_of(key), dtype=np.uint32) if room is None else room)
    primes = key.ring.primes + key.ring.special_primes
    key_form(key).read(data, tag, f"the key {key.name}", rows_of(made, primes))
    return made
