"""The small form of fresh ciphertexts and of evaluation keys: a seed instead of their uniform half, coefficients packed.

    8 bytes   magic "HGSEED1\\n"
    1 byte    kind: a ciphertext, a relinearization key, the key of an automorphism, the pair of bootstrapping
    4 bytes   index of the automorphism, else 0
    32 bytes  name of the secret key, in hexadecimal digits
    32 bytes  seed
    3 bytes   zero
    blocks    the polynomials that are not uniform, in OpenFHE's order (see packed.py)

It stands for an object as OpenFHE writes it (openfhe/template.py). Each uniform polynomial is expanded from all of the
above, its place in the object and its prime (see expansion.py). For one ring and level the length is
fixed. The pair of bootstrapping begins with a key under a secret that the client never has; it is written whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.ckks.keys import EvaluationKey
from heliograph.files import Bytes
from heliograph.ir import Array
from heliograph.runtime.expansion import uniform_into
from heliograph.runtime.openfhe.template import Template, other_form, other_key, other_rotation, too_large, wrong_size
from heliograph.runtime.packed import pack, packed_bytes, unpack_into

_MAGIC = b"HGSEED1\n"
_HEADER = struct.Struct("<8scI32s32s3x")
_PLACE = struct.Struct("<IIQ")
CIPHERTEXT, PRODUCT, AUTOMORPHISM, PAIR = b"c", b"r", b"a", b"p"
# Number of polynomials of the key to the sparse secret, which comes first in the pair: two over three primes.
SPARSE_BLOCKS = 6


def is_seeded(data: Bytes) -> bool:
    """Whether data says that it is of this form; OpenFHE's own begins otherwise."""
    return bytes(data[: len(_MAGIC)]) == _MAGIC


@dataclass(frozen=True, slots=True)
class SeededForm:
    """What of an object is written and what is expanded.

    `moduli` are those of all its polynomials in OpenFHE's order; `uniform` has the place of each uniform polynomial and
    that of the other half over the same prime.
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
        """The bytes of an object."""
        return _HEADER.size + sum(packed_bytes(self.ring_dim, self.moduli[place]) for place in self.written)

    def header(self, seed: bytes, tag: str) -> bytes:
        """What stands before the polynomials; with their places it is what uniform ones are expanded from."""
        return _HEADER.pack(_MAGIC, self.kind, self.index, tag.encode(), seed)

    def expand(self, row: Array, header: bytes, place: int) -> None:
        """The uniform polynomial of that place into `row`."""
        context = header + _PLACE.pack(self.ring_dim, place, self.moduli[place])
        uniform_into(row, context, self.moduli[place])

    def write(self, header: bytes, blocks: Iterable[Array]) -> bytes:
        """The bytes of an object with this header and these polynomials, those of `written`."""
        packed = (pack(block, self.moduli[place]) for place, block in zip(self.written, blocks, strict=True))
        return b"".join([header, *packed])

    def read(self, data: Bytes, tag: str, what: str, rows: Sequence[Array]) -> None:
        """All polynomials of an object under the key named `tag` into `rows`, canonical; a WireError where it is none."""
        if len(data) != self.size:
            raise wrong_size(what, len(data), self.size)
        header = bytes(data[: _HEADER.size])
        magic, kind, index, found, seed = _HEADER.unpack(header)
        if found != tag.encode():
            raise other_key(what, found, tag)
        if (magic, kind) == (_MAGIC, self.kind) and index != self.index:
            raise other_rotation(what)
        if header != self.header(seed, tag):
            raise other_form(what, 0)
        offset = _HEADER.size
        for place in self.written:
            if not unpack_into(rows[place], data, offset, self.moduli[place]):
                raise too_large(what)
            offset += packed_bytes(self.ring_dim, self.moduli[place])
        for place in self.uniform:
            self.expand(rows[place], header, place)


def ciphertext_form(ring_dim: int, moduli: tuple[int, ...]) -> SeededForm:
    """The form of ciphertexts with two parts; the second is uniform, and `moduli` are those of all polynomials."""
    half = len(moduli) // 2
    return SeededForm(CIPHERTEXT, 0, ring_dim, moduli, {half + i: i for i in range(half)})


def key_form(key: EvaluationKey, moduli: tuple[int, ...]) -> SeededForm:
    """The form of an evaluation key, whose polynomials have these moduli. OpenFHE writes the uniform half of a key first."""
    n, count = key.ring.ring_dim, len(moduli)
    if key.kind == "relinearization":
        return SeededForm(PRODUCT, 0, n, moduli, _halves(0, count))
    if key.kind == "encapsulation":
        return SeededForm(PAIR, 0, n, moduli, _halves(SPARSE_BLOCKS, count))
    return SeededForm(AUTOMORPHISM, key.index, n, moduli, _halves(0, count))


def _halves(begin: int, end: int) -> dict[int, int]:
    half = (end - begin) // 2
    return {begin + i: begin + half + i for i in range(half)}


def read_rows(data: Bytes, form: Template, seeded: SeededForm, tag: str, what: str, rows: Sequence[Array]) -> None:
    """All polynomials of an object into `rows`, in OpenFHE's order, from either form; a WireError where it is none."""
    if is_seeded(data):
        seeded.read(data, tag, what, rows)
        return
    form.check(data, tag, what, _openfhe_index(form, seeded))
    for row, (offset, _) in zip(rows, form.blocks, strict=True):
        row[:] = np.frombuffer(data, dtype="<u8", count=form.ring_dim, offset=offset)


def openfhe_bytes(data: Bytes, form: Template, seeded: SeededForm, tag: str, what: str) -> Bytes:
    """The object as OpenFHE writes it, from either form; a WireError where it is none."""
    if not is_seeded(data):
        form.check(data, tag, what, _openfhe_index(form, seeded))
        return data
    made = form.shell(tag, seeded.index)
    rows = [np.frombuffer(made, dtype="<u8", count=form.ring_dim, offset=offset) for offset, _ in form.blocks]
    seeded.read(data, tag, what, rows)
    return memoryview(made)


def _openfhe_index(form: Template, seeded: SeededForm) -> int | None:
    return None if form.index_offset is None else seeded.index
