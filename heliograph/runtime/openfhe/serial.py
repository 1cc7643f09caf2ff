"""OpenFHE's binary form of ciphertexts and keys, read only after its form was checked (see template.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.errors import WireError
from heliograph.runtime.openfhe import registry
from heliograph.runtime.openfhe.context import library, make_context
from heliograph.runtime.openfhe.encapsulation import (
    dense_index,
    encapsulation_template,
    sparse_index,
)
from heliograph.runtime.openfhe.template import (
    Bytes,
    Template,
    ciphertext_template,
    normalized,
    relinearization_key_template,
    rotation_key_template,
)
from heliograph.runtime.seeded import (
    SeededForm,
    ciphertext_form,
    key_form,
    openfhe_bytes,
)


def serialize(value: Any) -> bytes:
    """The bytes of a ciphertext, a key or a map of keys."""
    openfhe = library()
    return bytes(openfhe.Serialize(value, openfhe.BINARY))


def read_ciphertext(data: Bytes, ring: Ring, level: int, tag: str, what: str) -> Any:
    """The ciphertext in `data`, of this ring, level and key; a WireError where it is another or none.

    `data` is of OpenFHE's form or of the small one (runtime/seeded.py). What OpenFHE reads has parameters of its own, equal
    to the context's but not the same objects, and every sum then compares them number by number, at fifteen times its cost;
    `normalized` gives it the context's.
    """
    openfhe = library()
    form = ciphertext_template(ring, level)
    data = openfhe_bytes(data, form, ciphertext_form(form.ring_dim, form.blocks_moduli), tag, what)
    ciphertext = openfhe.DeserializeCiphertextString(bytes(data), openfhe.BINARY)
    check_ciphertext(ciphertext, ring, level, tag, what)
    return normalized(ciphertext, ring, level, tag)


def check_ciphertext(ciphertext: Any, ring: Ring, level: int, tag: str, what: str) -> None:
    """Raise a WireError unless the object is a ciphertext of two parts of this ring, level and key."""
    if not isinstance(ciphertext, library().Ciphertext):
        raise WireError(f"{what} is not a ciphertext but {type(ciphertext).__name__}")
    if str(ciphertext.GetKeyTag()) != tag:
        raise WireError(f"{what} is under another key than the one expected", hint="use one client's ciphertexts")
    good = (
        ciphertext.GetCryptoContext() == make_context(ring)
        and ciphertext.NumberCiphertextElements() == 2
        and ring.levels - ciphertext.GetLevel() == level
        and ciphertext.GetNoiseScaleDeg() == 1
        and ciphertext.GetSlots() == ring.slots
    )
    if not good:
        raise WireError(f"{what} is not a ciphertext of this ring at level {level}")


def retagged(ciphertext: Any, tag: str) -> Any:
    """A copy of the ciphertext for which OpenFHE looks up the keys of `tag`."""
    copy = ciphertext.Clone()
    copy.SetKeyTag(tag)
    return copy


def automorphism_indices(key: EvaluationKey) -> tuple[int, ...]:
    """All indices that a key's map holds."""
    if key.kind == "encapsulation":
        return sparse_index(key.ring), dense_index(key.ring)
    return (key.index,)


def key_forms(key: EvaluationKey, form: Template | None = None) -> tuple[Template, SeededForm]:
    """The forms of a key of that description: OpenFHE's, and the small one.

    OpenFHE's are learned from keys that are made for it; with `form`, that of a rotation key in the key's ring, none is made
    for a rotation key.
    """
    if key.kind == "relinearization":
        form = relinearization_key_template(key.ring)
    elif key.kind == "encapsulation":
        form = encapsulation_template(key.ring)
    else:
        form = form or rotation_key_template(key.ring)
    return form, key_form(key, form.blocks_moduli)


def read_key(data: Bytes, key: EvaluationKey, tag: str, form: Template | None = None) -> Any:
    """The key of that description in `data`, of either form; a WireError where it is another or none.

    `form` as for `key_forms`: no key may be made while an evaluation runs.
    """
    openfhe = library()
    data = bytes(openfhe_bytes(data, *key_forms(key, form), tag, f"the key {key.name}"))
    if key.kind == "relinearization":
        return openfhe.DeserializeEvalKeyString(data, openfhe.BINARY)
    return openfhe.DeserializeEvalKeyMapString(data, openfhe.BINARY)


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
    indices = (index for key in keys if key.kind != "relinearization" for index in automorphism_indices(key))
    expected = sorted([*indices, *more])
    found = sorted(library().CryptoContext.GetExistingEvalAutomorphismKeyIndices(tag)) if expected else []
    if found != expected:
        raise WireError("the evaluation keys are not those of the rotations that they are named after")
