"""The form of ciphertexts and evaluation keys: coefficients packed, a seed instead of a uniform half.

    8 bytes   magic "HGSEED2\\n"
    1 byte    kind: a fresh ciphertext, a computed one, a relinearization key, the key of an automorphism, the pair of
              bootstrapping
    4 bytes   index of the automorphism, or 0
    32 bytes  name of the secret key, in hexadecimal digits
    32 bytes  seed; zero in a computed ciphertext, which has both halves
    3 bytes   zero
    blocks    the polynomials that are not uniform, in their order (see packed.py)

A ciphertext is (b, a), each modulo the primes of its level. A key has the uniform half of every digit, then the other
half of every digit, each modulo the primes of its chain and the special ones. A uniform polynomial is expanded from all
of the above, its place in the object and its prime (see expansion.py). For one ring and level the length is fixed. The
pair of bootstrapping begins with a key under a secret that the client does not keep; it is written in full.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.primes import largest_primes
from heliograph.ckks.ring import SPARSE_SPECIAL_BITS, Ring
from heliograph.errors import InternalError, WireError
from heliograph.files import Bytes
from heliograph.ir import Array
from heliograph.runtime.wire.expansion import uniform_into
from heliograph.runtime.wire.packed import pack, packed_bytes, unpack_into

_MAGIC = b"HGSEED2\n"
_HEADER = struct.Struct("<8scI32s32s3x")
_PLACE = struct.Struct("<IIQ")
FRESH, COMPUTED, PRODUCT, AUTOMORPHISM, PAIR = b"c", b"o", b"r", b"a", b"p"
_NO_SEED = bytes(32)
# Number of polynomials of the key to the sparse secret, which comes first in the pair: two over three primes.
SPARSE_BLOCKS = 6


@dataclass(frozen=True, slots=True)
class SeededForm:
    """The written and the expanded polynomials of an object.

    `moduli`: the modulus of each polynomial, in order.
    `uniform`: for the place of each uniform polynomial, the place of the other half over the same prime.
    """

    kind: bytes
    index: int
    ring_dim: int
    moduli: tuple[int, ...]
    uniform: Mapping[int, int]

    @property
    def written(self) -> list[int]:
        """The places of the polynomials that are written."""
        return [place for place in range(len(self.moduli)) if place not in self.uniform]

    @property
    def size(self) -> int:
        """The size of an object in bytes."""
        return _HEADER.size + sum(packed_bytes(self.ring_dim, self.moduli[place]) for place in self.written)

    def header(self, seed: bytes, tag: str) -> bytes:
        """The bytes before the polynomials; uniform polynomials are expanded from them and their places."""
        return _HEADER.pack(_MAGIC, self.kind, self.index, tag.encode(), seed)

    def expand(self, row: Array, header: bytes, place: int) -> None:
        """Expand the uniform polynomial of this place into `row`."""
        context = header + _PLACE.pack(self.ring_dim, place, self.moduli[place])
        uniform_into(row, context, self.moduli[place])

    def pack(self, block: Array, place: int) -> bytes:
        """The bytes of the polynomial of this place."""
        return pack(block, self.moduli[place])

    def write(self, header: bytes, blocks: Iterable[Array]) -> bytes:
        """The bytes of an object with this header and these polynomials, which are those at `written`."""
        return self.joined(header, (self.pack(*both) for both in zip(blocks, self.written, strict=True)))

    def joined(self, header: bytes, packed: Iterable[bytes]) -> bytes:
        """The bytes of an object with this header and these packed polynomials, which are those at `written`."""
        data = b"".join([header, *packed])
        if len(data) != self.size:
            raise InternalError(f"an object has {len(data)} bytes, not {self.size}")
        return data

    def read(self, data: Bytes, tag: str, what: str, rows: Sequence[Array]) -> None:
        """Read all polynomials into `rows`, canonical, of 64 bits or, for short primes, of 32; a WireError unless `data` is
        a valid object with key `tag`.
        """
        if len(data) != self.size:
            raise WireError(f"{what} has {len(data)} bytes, expected {self.size}")
        header = bytes(data[: _HEADER.size])
        magic, kind, index, found, seed = _HEADER.unpack(header)
        if found != tag.encode():
            raise WireError(
                f"{what} is under another key than the one expected",
                why=f"it carries the key {found[:12].decode('ascii', 'replace')}, expected {tag[:12]}",
                hint="use keys and ciphertexts of one client",
            )
        if (magic, kind) == (_MAGIC, self.kind) and index != self.index:
            raise WireError(f"{what} is a key for another rotation")
        if header != self.header(seed, tag) or (not self.uniform and seed != _NO_SEED):
            raise WireError(
                f"{what} does not have the expected form",
                why="its kind, or what is fixed in its head, is another",
                hint="make it again with the same artifact and the same version",
            )
        offset = _HEADER.size
        for place in self.written:
            if not unpack_into(rows[place], data, offset, self.moduli[place]):
                raise WireError(f"{what} holds a coefficient that is not below its prime")
            offset += packed_bytes(self.ring_dim, self.moduli[place])
        for place in self.uniform:
            self.expand(rows[place], header, place)


def fresh_form(ring: Ring, level: int) -> SeededForm:
    """The form of fresh ciphertexts at a level; their second part is uniform."""
    count = level + 1
    return SeededForm(FRESH, 0, ring.ring_dim, 2 * ring.primes[:count], {count + i: i for i in range(count)})


def computed_form(ring: Ring, level: int) -> SeededForm:
    """The form of two-part ciphertexts that an evaluation computed."""
    return SeededForm(COMPUTED, 0, ring.ring_dim, 2 * ring.primes[: level + 1], {})


def read_ciphertext(data: Bytes, ring: Ring, level: int, tag: str, what: str) -> Array:
    """The residues (2, level + 1, N) of a ciphertext of either kind in untrusted bytes; a WireError if invalid."""
    computed = bytes(data[len(_MAGIC) : len(_MAGIC) + 1]) == COMPUTED
    form = computed_form(ring, level) if computed else fresh_form(ring, level)
    rows = np.empty((2 * (level + 1), ring.ring_dim), dtype=np.uint64)
    form.read(data, tag, what, list(rows))
    return rows.reshape(2, level + 1, ring.ring_dim)


def write_ciphertext(residues: Array, ring: Ring, tag: str) -> bytes:
    """The bytes of a computed ciphertext, residues (2, level + 1, N), under the key named `tag`."""
    form = computed_form(ring, residues.shape[1] - 1)
    return form.write(form.header(_NO_SEED, tag), residues.reshape(-1, ring.ring_dim))


def sparse_primes(ring: Ring) -> tuple[int, ...]:
    """The special primes of the key to the sparse secret; its chain is the first prime alone."""
    return largest_primes(ring.log_ring, SPARSE_SPECIAL_BITS, 2, ring.primes[:1])


def key_form(key: EvaluationKey) -> SeededForm:
    """The form of an evaluation key."""
    ring, n = key.ring, key.ring.ring_dim
    moduli = 2 * ring.digits * (ring.primes + ring.special_primes)
    if key.kind == "relinearization":
        return SeededForm(PRODUCT, 0, n, moduli, _halves(0, len(moduli)))
    if key.kind == "encapsulation":
        moduli = 2 * (ring.primes[0], *sparse_primes(ring)) + moduli
        return SeededForm(PAIR, 0, n, moduli, _halves(SPARSE_BLOCKS, len(moduli)))
    return SeededForm(AUTOMORPHISM, key.index, n, moduli, _halves(0, len(moduli)))


def _halves(begin: int, end: int) -> dict[int, int]:
    half = (end - begin) // 2
    return {begin + i: begin + half + i for i in range(half)}
