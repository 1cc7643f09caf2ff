"""Ciphertexts and keys as OpenFHE's objects, from our form and back, by way of its own bytes (see template.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.errors import WireError
from heliograph.ir import Array
from heliograph.runtime.openfhe import registry
from heliograph.runtime.openfhe.context import library, make_context
from heliograph.runtime.openfhe.template import (
    TAG_LENGTH,
    Bytes,
    Template,
    ciphertext_template,
    normalized,
    relinearization_key_template,
    rotation_key_template,
)
from heliograph.runtime.wire import forms as seeded
from heliograph.runtime.wire.forms import key_form

# The tag of ciphertexts in bytes that only pass through.
_UNNAMED = "0" * TAG_LENGTH


def serialize(value: Any) -> bytes:
    """The bytes of a ciphertext, a key or a map of keys."""
    openfhe = library()
    return bytes(openfhe.Serialize(value, openfhe.BINARY))


def blocks_of(data: Bytes, form: Template) -> Array:
    """The polynomials in what OpenFHE wrote, a row each, in its order, which is also that of our form."""
    rows = (np.frombuffer(data, dtype="<u8", count=form.ring_dim, offset=offset) for offset, _ in form.blocks)
    return np.stack(list(rows)).astype(np.uint64, copy=False)


def openfhe_ciphertext(residues: Array, ring: Ring, tag: str) -> Any:
    """OpenFHE's ciphertext with these residues (2, level + 1, N), in the whole chain, under the key named `tag`.

    What OpenFHE reads has parameters of its own, equal to the context's but not the same objects, and every sum then
    compares them number by number, at fifteen times its cost; `normalized` gives it the context's.
    """
    openfhe, level = library(), residues.shape[1] - 1
    rows = residues.reshape(-1, ring.ring_dim).astype("<u8", copy=False)
    data = ciphertext_template(ring, level).fill((row.data for row in rows), tag)
    return normalized(openfhe.DeserializeCiphertextString(data, openfhe.BINARY), ring, level, tag)


def read_ciphertext(data: Bytes, ring: Ring, level: int, tag: str, what: str) -> Any:
    """The ciphertext in `data`, of this ring, level and key, as OpenFHE's; a WireError where it is another or none."""
    return openfhe_ciphertext(seeded.read_ciphertext(data, ring, level, tag, what), ring, tag)


def residues_of(ciphertext: Any, ring: Ring, level: int) -> Array:
    """The residues (parts, level + 1, N) of OpenFHE's ciphertext in the whole chain, of two or three parts."""
    elements, found = ciphertext.GetElements(), []
    # OpenFHE never writes ciphertexts of three parts, so we cannot learn their form.
    for first in range(len(elements) - 1):
        pair = ciphertext.Clone()
        pair.SetElementsMove(elements[first : first + 2])
        data = serialize(normalized(pair, ring, level, _UNNAMED))
        found.append(blocks_of(data, ciphertext_template(ring, level)).reshape(2, level + 1, ring.ring_dim))
    return np.concatenate([found[0], *(pair[1:] for pair in found[1:])])


def write_ciphertext(ciphertext: Any, ring: Ring, level: int, tag: str) -> bytes:
    """OpenFHE's ciphertext of two parts in our form, under the key named `tag`."""
    return seeded.write_ciphertext(residues_of(ciphertext, ring, level), ring, tag)


def retagged(ciphertext: Any, tag: str) -> Any:
    """A copy of the ciphertext for which OpenFHE looks up the keys of `tag`."""
    copy = ciphertext.Clone()
    copy.SetKeyTag(tag)
    return copy


def key_template(key: EvaluationKey) -> Template:
    """OpenFHE's form of a key of that description, learned from keys that are made for it."""
    if key.kind == "relinearization":
        return relinearization_key_template(key.ring)
    return rotation_key_template(key.ring)


def openfhe_key(rows: Array, key: EvaluationKey, tag: str, form: Template | None = None) -> Any:
    """OpenFHE's key with these polynomials, under the name `tag`; `form` as for `read_key`."""
    openfhe, form = library(), form or key_template(key)
    index = None if form.index_offset is None else key_form(key).index
    data = form.fill((row.data for row in rows.astype("<u8", copy=False)), tag, index)
    if key.kind == "relinearization":
        return openfhe.DeserializeEvalKeyString(data, openfhe.BINARY)
    return openfhe.DeserializeEvalKeyMapString(data, openfhe.BINARY)


def key_rows(data: Bytes, key: EvaluationKey, tag: str) -> Array:
    """The polynomials of a key in our form; a WireError where it is another or none."""
    form = key_form(key)
    rows = np.empty((len(form.moduli), form.ring_dim), dtype=np.uint64)
    form.read(data, tag, f"the key {key.name}", list(rows))
    return rows


def read_key(data: Bytes, key: EvaluationKey, tag: str, form: Template | None = None) -> Any:
    """The key of that description in `data`, as OpenFHE's; a WireError where it is another or none.

    With `form`, OpenFHE's of a rotation key in the key's ring, none is learned for a rotation key: no key may be made while
    an evaluation runs.
    """
    if key.kind == "relinearization":
        form = None
    return openfhe_key(key_rows(data, key, tag), key, tag, form)


def install_key(key: EvaluationKey, value: Any, tag: str) -> None:
    """Give one key to OpenFHE under a server's own tag.

    The first map given for a tag becomes OpenFHE's map and grows: the caller must not use it again.
    """
    with registry.changing():
        insert_key(key, value, tag)


def insert_key(key: EvaluationKey, value: Any, tag: str) -> None:
    """The same for a caller that holds OpenFHE's maps already."""
    context = make_context(key.ring)
    if key.kind == "relinearization":
        context.InsertEvalMultKey([value], tag)
    else:
        context.InsertEvalAutomorphismKey(value, tag)


def check_installed(keys: Iterable[EvaluationKey], tag: str, more: Sequence[int] = ()) -> None:
    """Raise a WireError unless exactly the automorphisms of these keys (and the indices `more`) have keys under the tag."""
    automorphisms = (key.index for key in keys if key.kind in ("rotation", "conjugation"))
    expected = sorted([*automorphisms, *more])
    found = sorted(library().CryptoContext.GetExistingEvalAutomorphismKeyIndices(tag)) if expected else []
    if found != expected:
        raise WireError("the evaluation keys are not those of the rotations that they are named after")
