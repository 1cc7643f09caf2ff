"""Conversion of ciphertexts and keys between our form and OpenFHE's objects, through OpenFHE's bytes (template.py)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.errors import WireError
from heliograph.ir import Array
from heliograph.runtime.openfhe import registry
from heliograph.runtime.openfhe.context import library, make_context
from heliograph.runtime.openfhe.template import (
    UNNAMED,
    Bytes,
    Template,
    ciphertext_template,
    normalized,
    relinearization_key_template,
    rotation_key_template,
)
from heliograph.runtime.wire import forms
from heliograph.runtime.wire.forms import key_form


def serialize(value: Any) -> bytes:
    """The bytes of a ciphertext, a key or a map of keys."""
    openfhe = library()
    return bytes(openfhe.Serialize(value, openfhe.BINARY))


def blocks_of(data: Bytes, form: Template) -> Array:
    """The polynomials in OpenFHE's bytes, one per row, in OpenFHE's order, which our form shares."""
    rows = (np.frombuffer(data, dtype="<u8", count=form.ring_dim, offset=offset) for offset, _ in form.blocks)
    return np.stack(list(rows)).astype(np.uint64, copy=False)


def openfhe_ciphertext(residues: Array, ring: Ring, tag: str) -> Any:
    """OpenFHE's ciphertext with these residues (2, level + 1, N), in the chain of `ring`, under the keys of `tag`.

    An object that OpenFHE read has its own copy of the context's parameters. Every sum then compares them number by
    number, at fifteen times its cost; `normalized` replaces them by the context's own objects.
    """
    openfhe, level = library(), residues.shape[1] - 1
    rows = residues.reshape(-1, ring.ring_dim).astype("<u8", copy=False)
    data = ciphertext_template(ring, level).fill((row.data for row in rows), UNNAMED)
    return normalized(openfhe.DeserializeCiphertextString(data, openfhe.BINARY), ring, level, tag)


def read_ciphertext(data: Bytes, ring: Ring, level: int, tag: str, what: str) -> Any:
    """The ciphertext in `data` as OpenFHE's object; a WireError unless it has this ring, level and key."""
    return openfhe_ciphertext(forms.read_ciphertext(data, ring, level, tag, what), ring, tag)


def residues_of(ciphertext: Any, ring: Ring, level: int) -> Array:
    """The residues (parts, level + 1, N) of OpenFHE's ciphertext in the chain of `ring`, of two or three parts."""
    elements, found = ciphertext.GetElements(), []
    # OpenFHE never writes ciphertexts of three parts, so we cannot learn their form.
    for first in range(len(elements) - 1):
        pair = ciphertext.Clone()
        pair.SetElementsMove(elements[first : first + 2])
        data = serialize(normalized(pair, ring, level, UNNAMED))
        found.append(blocks_of(data, ciphertext_template(ring, level)).reshape(2, level + 1, ring.ring_dim))
    return np.concatenate([found[0], *(pair[1:] for pair in found[1:])])


def write_ciphertext(ciphertext: Any, ring: Ring, level: int, tag: str) -> bytes:
    """OpenFHE's ciphertext of two parts in our form, under the key named `tag`."""
    return forms.write_ciphertext(residues_of(ciphertext, ring, level), ring, tag)


def retagged(ciphertext: Any, tag: str) -> Any:
    """A copy of the ciphertext for which OpenFHE looks up the keys of `tag`."""
    copy = ciphertext.Clone()
    copy.SetKeyTag(tag)
    return copy


def key_template(key: EvaluationKey) -> Template:
    """OpenFHE's form of an evaluation key, learned from sample keys."""
    learned = relinearization_key_template if key.kind == "relinearization" else rotation_key_template
    return learned(key.ring)


def openfhe_key(rows: Array, key: EvaluationKey, tag: str) -> Any:
    """OpenFHE's key with these polynomials, named `tag`: a single key, or for an automorphism a map with one key."""
    openfhe, form = library(), key_template(key)
    index = None if form.index_offset is None else key_form(key).index
    data = form.fill((row.data for row in rows.astype("<u8", copy=False)), tag, index)
    if key.kind == "relinearization":
        return openfhe.DeserializeEvalKeyString(data, openfhe.BINARY)
    return openfhe.DeserializeEvalKeyMapString(data, openfhe.BINARY)


def key_rows(data: Bytes, key: EvaluationKey, tag: str) -> Array:
    """The polynomials of a key in our form; a WireError unless `data` holds this very key."""
    form = key_form(key)
    rows = np.empty((len(form.moduli), form.ring_dim), dtype=np.uint64)
    form.read(data, tag, f"the key {key.name}", list(rows))
    return rows


def read_key(data: Bytes, key: EvaluationKey, tag: str) -> Any:
    """The evaluation key in `data` as OpenFHE's object; a WireError unless `data` holds this very key."""
    return openfhe_key(key_rows(data, key, tag), key, tag)


def install_key(key: EvaluationKey, value: Any, tag: str) -> None:
    """Install one key in OpenFHE under a server's tag.

    The first map installed for a tag becomes OpenFHE's own map and grows: the caller must not use it again.
    """
    context = make_context(key.ring)
    with registry.alone():
        if key.kind == "relinearization":
            context.InsertEvalMultKey([value], tag)
        else:
            context.InsertEvalAutomorphismKey(value, tag)


def check_installed(keys: Iterable[EvaluationKey], tag: str) -> None:
    """Raise a WireError unless exactly the automorphisms of these keys have keys under the tag."""
    expected = sorted(key.index for key in keys if key.kind in ("rotation", "conjugation"))
    found = sorted(library().CryptoContext.GetExistingEvalAutomorphismKeyIndices(tag)) if expected else []
    if found != expected:
        raise WireError("the evaluation keys are not those of the rotations that they are named after")
