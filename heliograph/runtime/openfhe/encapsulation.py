"""The pair of keys that lead to the ephemeral sparse secret of bootstrapping and back: making them, and their form.

OpenFHE makes the pair only together with rotation keys, and its Python interface cannot take a key out of a map. So the
map is written to a file as it is made, and the two are cut out of it by their places. From them a map of two keys is
put together that OpenFHE reads: the key back to the secret in the form of a rotation key (it is one in all but its
index), then the key to the sparse secret, whose numbers of shared objects are set to fixed ones. What OpenFHE writes of
that map is what is sent and stored.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import re
import struct
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np

from heliograph.ckks.ring import Ring
from heliograph.errors import HeliographError, InternalError
from heliograph.runtime.openfhe import registry
from heliograph.runtime.openfhe.context import key_context, library, lower_key_context
from heliograph.runtime.openfhe.template import (
    INDEX_OFFSET,
    TAG_LENGTH,
    Bytes,
    Template,
    find_blocks,
    learn,
    learn_secret_key,
    rotation_key_template,
)

_COUNT_OFFSET = INDEX_OFFSET - 8
# Offset of the key's tag in an entry of a map: after the index, the types, the object's number and its context.
_TAG_IN_ENTRY = 28
# Sizes in bytes of the gaps between the coefficient blocks of the sparse key: before the first block, and after each.
_SPARSE_GAPS = (89, 73, 73, 229, 33, 33, 32)
# Where the gaps hold the numbers of shared objects: (gap, offset, which object of the entry, whether this is its first
# mention).
_SPARSE_IDS = (
    (0, 8, 0, True), (1, 16, 1, True), (2, 16, 2, True), (3, 16, 3, True), (3, 68, 4, True), (3, 180, 1, False),
    (3, 188, 2, False), (3, 196, 3, False), (4, 16, 1, False), (5, 16, 2, False), (6, 16, 3, False), (6, 28, 4, False),
)  # fmt: skip
_FIRST_MENTION = 1 << 31
_FIRST_ID = 1 << 16
# Bootstraps of one slot need the fewest rotation keys; those are made along with the pair and thrown away.
_SLOTS = 1


def sparse_index(ring: Ring) -> int:
    """OpenFHE's index of the key to the sparse secret: even, so that no automorphism has it."""
    return 2 * ring.ring_dim - 4


def dense_index(ring: Ring) -> int:
    """OpenFHE's index of the key back to the secret."""
    return 2 * ring.ring_dim - 2


def make_encapsulation_keys(
    ring: Ring, secret: Sequence[bytes], tag: str, folder: str | os.PathLike[str] | None = None
) -> Any:
    """A fresh pair of keys, as OpenFHE's map of two keys; it leaves no trace in OpenFHE's own.

    `secret` has the coefficients of the secret key named `tag`, modulo each prime. For a while about as many full keys exist
    as the logarithm of the ring dimension, once in memory and once in a file in `folder` (by default the folder for
    temporary files). That file has no name, and goes with the process however it ends; nothing in it is secret.
    """
    form, context = _joined_form(ring), key_context(ring)
    with _unnamed_file(folder) as (file, path):
        with registry.changing():
            # Learn the form with nothing else running: whatever is set up in this context would become part of it.
            key = library().DeserializePrivateKeyString(_secret_form(ring).fill(secret, tag), library().BINARY)
            _write_bootstrap_keys(context, key, path)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            dense, sparse = _entries(data, ring, tag)
    length = 8 * ring.ring_dim
    blocks, moduli = [], []
    for entry in (dense, sparse):
        for begin, modulus in find_blocks(entry, ring.ring_dim):
            blocks.append(memoryview(entry)[begin : begin + length])
            moduli.append(modulus)
    if tuple(moduli) != form.blocks_moduli:
        raise _unknown("the keys of bootstrapping have other primes than expected")
    return _read(form.fill(blocks, tag, dense_index(ring)))


@functools.lru_cache(maxsize=16)
def _secret_form(ring: Ring) -> Template:
    """The form of a secret key in the context in which keys are made."""
    return learn_secret_key(key_context(ring), ring)


@contextlib.contextmanager
def _unnamed_file(folder: str | os.PathLike[str] | None) -> Iterator[tuple[IO[bytes], str]]:
    """A file without a name, and the path by which this process can open it again."""
    try:
        made = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
    except OSError as error:
        raise HeliographError(
            f"no temporary file can be made in {folder or tempfile.gettempdir()}",
            why=error.strerror or str(error),
            hint="the keys of bootstraps are made through one: give a folder that can be written to",
        ) from None
    with made as file:
        path = f"/proc/self/fd/{file.fileno()}"
        if not os.path.exists(path):
            raise HeliographError(
                "the keys of bootstraps cannot be made without /proc",
                why="OpenFHE writes them to a file, which it opens by its number there, so that nothing of it stays",
                hint="mount /proc in the container or sandbox",
            )
        yield file, path


@functools.lru_cache(maxsize=8)
def encapsulation_template(ring: Ring) -> Template:
    """The form of the pair as OpenFHE writes it."""
    form, random = _joined_form(ring), np.random.default_rng(0)
    references, tags = [], [f"{number:032x}" for number in (1, 2)]
    for tag in tags:
        blocks = (
            random.integers(modulus, size=ring.ring_dim, dtype=np.uint64).tobytes() for modulus in form.blocks_moduli
        )
        pair = _read(form.fill(blocks, tag, dense_index(ring)))
        references.append(bytes(library().Serialize(pair, library().BINARY)))
    return learn(references, tags, len(form.blocks), ring, None)


def _read(data: bytes) -> Any:
    return library().DeserializeEvalKeyMapString(data, library().BINARY)


@functools.lru_cache(maxsize=8)
def _joined_form(ring: Ring) -> Template:
    """The form of a rotation key, told that a second key follows, and of that key.

    The second is learned on the lowest part of the chain, where keys are small: it has the same primes there.
    """
    low = ring.lower(1, 1)
    context = lower_key_context(ring, low)
    with _unnamed_file(None) as (file, path), registry.changing():
        secret = context.KeyGen().secretKey
        _write_bootstrap_keys(context, secret, path)
        _, sparse = _entries(file.read(), low, str(secret.GetKeyTag()))
    rotation = rotation_key_template(ring)
    blocks = list(find_blocks(sparse, ring.ring_dim))
    gaps, end = list(rotation.gaps), rotation.size
    head, first = gaps[0]
    gaps[0] = head, first[:_COUNT_OFFSET] + struct.pack("<Q", 2) + first[_COUNT_OFFSET + 8 :]
    numbered = _renumbered(sparse, ring)
    position = 0
    for (begin, _), length in zip([*blocks, (len(sparse), 0)], _SPARSE_GAPS, strict=True):
        if begin - position != length:
            raise _unknown("the key to the sparse secret has another layout")
        gaps.append((end + position, bytes(numbered[position:begin])))
        position = begin + 8 * ring.ring_dim
    # The first gap of the sparse key directly follows the last gap of the rotation key.
    return Template(
        end + len(sparse),
        ring.ring_dim,
        tuple(gaps),
        rotation.blocks + tuple((end + begin, modulus) for begin, modulus in blocks),
        (*rotation.tag_offsets, end + _TAG_IN_ENTRY),
        INDEX_OFFSET,
    )


def _write_bootstrap_keys(context: Any, secret: Any, path: str) -> None:
    """Write fresh keys for bootstraps to a file, in a context that is for this alone; the caller makes the change."""
    openfhe, tag = library(), str(secret.GetKeyTag())
    try:
        registry.drop({tag})
        context.EvalBootstrapSetup([1, 1], [0, 0], _SLOTS, 0, False, True)
        context.EvalBootstrapKeyGen(secret, _SLOTS)
        written = context.SerializeEvalAutomorphismKey(path, openfhe.BINARY, tag)
    finally:
        registry.drop({tag})
        # Otherwise the bootstrap setup would be written into every key of this context.
        context.ClearBootstrapPrecom()
        context.SetCKKSBootCorrectionFactor(0)
    if not written:
        raise _unknown("the keys of bootstrapping could not be written")


def _entries(data: Bytes | mmap.mmap, ring: Ring, tag: str) -> tuple[bytes, bytes]:
    """(key back to the secret, key to the sparse secret): the last but one and the one before in a map of keys."""
    name, size = tag.encode(), sum(_SPARSE_GAPS) + 6 * 8 * ring.ring_dim
    if isinstance(data, memoryview):
        data = bytes(data)
    last = data.rfind(name)
    before = data.rfind(name, 0, last) - _TAG_IN_ENTRY
    sparse = bytes(data[before - size : before])
    dense = bytes(data[before : last - _TAG_IN_ENTRY])
    good = (
        last > 0
        and before > size
        and struct.unpack_from("<I", dense)[0] == dense_index(ring)
        and struct.unpack_from("<I", sparse)[0] == sparse_index(ring)
        and re.fullmatch(rb"[0-9a-f]{32}", sparse[_TAG_IN_ENTRY : _TAG_IN_ENTRY + TAG_LENGTH]) is not None
    )
    if not good:
        raise _unknown("the keys of bootstrapping are not where they were expected")
    return dense, sparse


def _renumbered(sparse: bytes, ring: Ring) -> bytearray:
    """The entry with blank coefficients and key name, and with its shared objects numbered from a fixed number on."""
    made, starts, position = bytearray(sparse), [], 0
    for length in _SPARSE_GAPS:
        starts.append(position)
        position += length
        made[position : position + 8 * ring.ring_dim] = bytes(min(8 * ring.ring_dim, len(made) - position))
        position += 8 * ring.ring_dim
    made[_TAG_IN_ENTRY : _TAG_IN_ENTRY + TAG_LENGTH] = bytes(TAG_LENGTH)
    (own,) = struct.unpack_from("<I", made, 8)
    for gap, offset, which, first in _SPARSE_IDS:
        (found,) = struct.unpack_from("<I", made, starts[gap] + offset)
        mention = _FIRST_MENTION if first else 0
        if found != (own & ~_FIRST_MENTION) + which + mention:
            raise _unknown("the shared objects of the key to the sparse secret are numbered in another way")
        struct.pack_into("<I", made, starts[gap] + offset, _FIRST_ID + which + mention)
    return made


def _unknown(what: str) -> InternalError:
    return InternalError(what, hint="this version of OpenFHE is not supported; see constraints.txt for the one that is")
