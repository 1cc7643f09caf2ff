"""OpenFHE's binary form of ciphertexts and keys, read only after its form was checked (see template.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heliograph.errors import WireError
from heliograph.runtime.openfhe import registry
from heliograph.runtime.openfhe.context import library, make_context
from heliograph.runtime.openfhe.template import (
    Bytes,
    ciphertext_template,
    normalized,
    relinearization_key_template,
    rotation_key_template,
)
from heliograph.target import Ring


def serialize(value: Any) -> bytes:
    """The bytes of a ciphertext, a key or a map of keys."""
    openfhe = library()
    return bytes(openfhe.Serialize(value, openfhe.BINARY))


def read_ciphertext(data: Bytes, ring: Ring, level: int, tag: str, what: str) -> Any:
    """The ciphertext in `data`, of this ring, level and key; a WireError where it is another or none.

    What OpenFHE reads has parameters of its own, equal to the context's but not the same objects, and every sum then
    compares them number by number, at fifteen times its cost; `normalized` gives it the context's.
    """
    openfhe = library()
    ciphertext_template(ring, level).check(data, tag, what)
    ciphertext = openfhe.DeserializeCiphertextString(bytes(data), openfhe.BINARY)
    check_ciphertext(ciphertext, ring, level, tag, what)
    return normalized(ciphertext, ring, level, tag)


def check_ciphertext(ciphertext: Any, ring: Ring, level: int, tag: str, what: str) -> None:
    """Raise a WireError unless the object is a ciphertext of two parts of this ring, level and key."""
    if not isinstance(ciphertext, library().Ciphertext):
        raise WireError(f"{what} is no ciphertext but {type(ciphertext).__name__}")
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


def read_rotation_key(data: Bytes, ring: Ring, amount: int, tag: str) -> Any:
    """The map with the one key of this rotation; a WireError where it is another or none."""
    openfhe = library()
    index = make_context(ring).FindAutomorphismIndex(amount)
    rotation_key_template(ring).check(data, tag, f"the key of rotation {amount}", index)
    return openfhe.DeserializeEvalKeyMapString(bytes(data), openfhe.BINARY)


def read_relinearization_key(data: Bytes, ring: Ring, tag: str) -> Any:
    """The relinearization key in `data`; a WireError where it is none of this ring and client."""
    openfhe = library()
    relinearization_key_template(ring).check(data, tag, "the relinearization key")
    return openfhe.DeserializeEvalKeyString(bytes(data), openfhe.BINARY)


def install_keys(ring: Ring, tag: str, rotation: Mapping[int, Any], relinearization: Any) -> None:
    """Give evaluation keys to OpenFHE under a server's own tag; a WireError unless exactly these rotations have keys.

    `rotation` maps an amount to a map of one key. The first of them becomes OpenFHE's map and grows: the caller must not
    use it again.
    """
    context = make_context(ring)
    with registry.changing():
        for one in rotation.values():
            context.InsertEvalAutomorphismKey(one, tag)
        if relinearization is not None:
            context.InsertEvalMultKey([relinearization], tag)
        expected = sorted(context.FindAutomorphismIndex(amount) for amount in rotation)
        found = sorted(context.GetExistingEvalAutomorphismKeyIndices(tag)) if rotation else []
        if found != expected:
            registry.drop({tag})
            raise WireError("the evaluation keys are not those of the rotations that they are named after")


def copy_rotation_key(keys: Any) -> Any:
    """A map of its own with the same key: installing a map changes it."""
    openfhe = library()
    return openfhe.DeserializeEvalKeyMapString(serialize(keys), openfhe.BINARY)
