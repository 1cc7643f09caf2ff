"""Templates of OpenFHE's bytes for ciphertexts and keys, learned from OpenFHE.

OpenFHE's Python interface takes residues only as bytes in its own format, which it reads without checks: a changed
length, identifier or modulus makes it allocate without bound or end the process. But for one ring, the bytes of a
ciphertext or key are fixed except for the coefficients and the name of the key. So the fixed bytes are learned from
sample objects, under keys that are thrown away, and the input for OpenFHE is composed of these bytes and of checked
residues (runtime/wire/forms.py).
"""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.ckks.ring import Ring
from heliograph.errors import InternalError
from heliograph.runtime.openfhe import registry
from heliograph.runtime.openfhe.context import library, make_context

Bytes = bytes | memoryview

TAG_LENGTH = 32
# The tag of objects that are only converted.
UNNAMED = "0" * TAG_LENGTH
# Offset of the automorphism index in a map of one key.
INDEX_OFFSET = 13


@dataclass(frozen=True, slots=True)
class Template:
    """The fixed bytes of a serialized object and the places of its variable fields.

    `gaps`: (offset, bytes) of everything outside the coefficient blocks, with the variable fields zeroed.
    `blocks`: (offset, modulus) of runs of `ring_dim` little-endian 64-bit coefficients.
    """

    size: int
    ring_dim: int
    gaps: tuple[tuple[int, bytes], ...]
    blocks: tuple[tuple[int, int], ...]
    tag_offsets: tuple[int, ...]
    index_offset: int | None = None

    @property
    def blocks_moduli(self) -> tuple[int, ...]:
        return tuple(modulus for _, modulus in self.blocks)

    def fill(self, blocks: Iterable[Bytes], tag: str, index: int | None = None) -> bytes:
        """The bytes of an object of this form with these coefficients, under the key named `tag`."""
        if len(tag) != TAG_LENGTH:
            raise InternalError(f"a key's name has {len(tag)} characters, expected {TAG_LENGTH}")
        made = bytearray(self.size)
        for offset, gap in self.gaps:
            made[offset : offset + len(gap)] = gap
        for offset in self.tag_offsets:
            made[offset : offset + TAG_LENGTH] = tag.encode()
        if self.index_offset is not None and index is not None:
            struct.pack_into("<I", made, self.index_offset, index)
        for (begin, _), block in zip(self.blocks, blocks, strict=True):
            made[begin : begin + 8 * self.ring_dim] = block
        return bytes(made)


def _blanked(view: Bytes, begin: int, end: int, varying: list[tuple[int, int]]) -> bytes:
    part = bytearray(view[begin:end])
    for offset, length in varying:
        if begin <= offset and offset + length <= end:
            part[offset - begin : offset - begin + length] = bytes(length)
    return bytes(part)


def find_blocks(data: bytes, ring_dim: int) -> Iterator[tuple[int, int]]:
    """(offset, modulus) of the runs of coefficients in serialized bytes.

    A block is: its length N (8 bytes), N coefficients of 8 bytes, the modulus (8 bytes).
    """
    prefix, position = struct.pack("<Q", ring_dim), 0
    while (position := data.find(prefix, position)) >= 0:
        begin, end = position + 8, position + 8 + 8 * ring_dim
        position += 1
        if end + 8 > len(data):
            continue
        (modulus,) = struct.unpack_from("<Q", data, end)
        if modulus % (2 * ring_dim) == 1 and not modulus >> 61 and _below(data, begin, ring_dim, modulus):
            yield begin, modulus
            position = end


def _below(data: bytes, begin: int, count: int, modulus: int) -> bool:
    return int(np.frombuffer(data, dtype="<u8", count=count, offset=begin).max()) < modulus


def learn(references: list[bytes], tags: list[str], blocks: int, ring: Ring, index_offset: int | None) -> Template:
    """The common template of the references; an InternalError if they do not have the known layout."""
    first, n = references[0], ring.ring_dim
    if len({len(reference) for reference in references}) != 1:
        raise InternalError("OpenFHE writes objects of one kind with different lengths")
    tag_offsets = tuple(match.start() for match in re.finditer(tags[0].encode(), first))
    found = [
        (begin, modulus)
        for begin, modulus in find_blocks(first, n)
        if all(_below(reference, begin, n, modulus) for reference in references)
        and len({reference[begin : begin + 8 * n] for reference in references}) > 1
    ]
    varying = [(offset, TAG_LENGTH) for offset in tag_offsets] + (
        [(index_offset, 4)] if index_offset is not None else []
    )
    edges = [0, *(edge for begin, _ in found for edge in (begin, begin + 8 * n)), len(first)]
    gaps = tuple((a, _blanked(first, a, b, varying)) for a, b in zip(edges[::2], edges[1::2], strict=True))
    template = Template(len(first), n, gaps, tuple(found), tag_offsets, index_offset)
    if len(found) != blocks or not tag_offsets:
        raise InternalError(
            f"OpenFHE writes {len(found)} blocks of coefficients where {blocks} were expected",
            hint="this version of OpenFHE is not supported; see constraints.txt for the one that is",
        )
    for reference, tag in zip(references, tags, strict=True):
        index = None if index_offset is None else struct.unpack_from("<I", reference, index_offset)[0]
        own = (reference[begin : begin + 8 * n] for begin, _ in found)
        if template.fill(own, tag, index) != reference:
            raise InternalError("OpenFHE writes objects of one kind in different forms")
    return template


@dataclass(frozen=True, slots=True)
class _Throwaway:
    """Two keys under which only zeros are ever encrypted."""

    context: Any
    keys: tuple[Any, Any]

    def references(self, make: Callable[[Any], Any]) -> tuple[list[bytes], list[str]]:
        """Serialized objects made under each key, and the names of the keys."""
        openfhe = library()
        made = [bytes(openfhe.Serialize(make(key), openfhe.BINARY)) for key in self.keys]
        return made, [str(key.GetKeyTag()) for key in self.keys]


def _throwaway(context: Any) -> _Throwaway:
    return _Throwaway(context, (context.KeyGen().secretKey, context.KeyGen().secretKey))


@functools.lru_cache(maxsize=64)
def ciphertext_template(ring: Ring, level: int) -> Template:
    """The form of a ciphertext of two parts at a level, fresh or `normalized`."""
    throwaway = _throwaway(make_context(ring))

    def make(key: Any) -> Any:
        zeros = np.zeros(ring.slots)
        plaintext = throwaway.context.MakeCKKSPackedPlaintext(zeros, 1, ring.levels - level, None, ring.slots)
        return throwaway.context.Encrypt(key, plaintext)

    references, tags = throwaway.references(make)
    return learn(references, tags, 2 * (level + 1), ring, None)


@functools.lru_cache(maxsize=8)
def rotation_key_template(ring: Ring) -> Template:
    """The form of a map with one rotation key."""
    throwaway = _throwaway(make_context(ring))

    def make(key: Any) -> Any:
        with registry.alone():
            made = throwaway.context.EvalAutomorphismKeyGen(key, [throwaway.context.FindAutomorphismIndex(1)])
            registry.drop({str(key.GetKeyTag())})
        return made

    references, tags = throwaway.references(make)
    return learn(references, tags, _key_blocks(ring), ring, INDEX_OFFSET)


@functools.lru_cache(maxsize=8)
def relinearization_key_template(ring: Ring) -> Template:
    """The form of a relinearization key."""
    throwaway = _throwaway(make_context(ring))

    def make(key: Any) -> Any:
        with registry.alone():
            throwaway.context.EvalMultKeyGen(key)
            made = throwaway.context.GetEvalMultKeyVector(str(key.GetKeyTag()))[0]
            registry.drop({str(key.GetKeyTag())})
        return made

    references, tags = throwaway.references(make)
    return learn(references, tags, _key_blocks(ring), ring, None)


@functools.lru_cache(maxsize=8)
def secret_key_template(ring: Ring) -> Template:
    """The form of a secret key, for the client's own file."""
    references, tags = _throwaway(make_context(ring)).references(lambda key: key)
    return learn(references, tags, ring.towers, ring, None)


def _key_blocks(ring: Ring) -> int:
    return 2 * ring.digits * (ring.towers + ring.special)


@functools.lru_cache(maxsize=64)
def _zero(ring: Ring, level: int) -> Any:
    """A ciphertext with all coefficients zero, in the form of a fresh one."""
    context = make_context(ring)
    plaintext = context.MakeCKKSPackedPlaintext(np.zeros(ring.slots), 1, ring.levels - level, None, ring.slots)
    fresh = context.Encrypt(context.KeyGen().secretKey, plaintext)
    return context.EvalSub(fresh, fresh)


def normalized(ciphertext: Any, ring: Ring, level: int, tag: str) -> Any:
    """A computed ciphertext with the bookkeeping of a fresh one on the ring under the key named `tag`.

    The coefficients stay the same. Without this, the parameter objects that its polynomials share, and OpenFHE's record
    of its scale (ours is in the plan), would differ from run to run, and the bytes would reveal how it was computed.
    """
    zero, context = _zero(ring, level), make_context(ring)
    foreign, made = zero.CloneEmpty(), zero.Clone()
    elements = ciphertext.GetElements()
    if len(elements) != 2:
        made.SetElementsMove([zero.GetElements()[0]] * len(elements))
    foreign.SetElementsMove(elements)
    # Without the context's own parameter objects every later sum would compare parameters number by number; a sum with zero
    # replaces them.
    context.EvalAddInPlace(made, foreign)
    made.SetKeyTag(tag)
    return made


def moved(ciphertext: Any, ring: Ring, level: int, tag: str) -> Any:
    """The ciphertext in the context of `ring`, the chain or a lower part of it.

    Its coefficients, its parts and OpenFHE's record of its scale stay the same; it then uses the keys of `tag`.
    """
    made = normalized(ciphertext, ring, level, tag)
    made.SetNoiseScaleDeg(ciphertext.GetNoiseScaleDeg())
    made.SetScalingFactor(ciphertext.GetScalingFactor())
    return made
