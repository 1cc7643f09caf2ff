"""OpenFHE's binary form of ciphertexts and keys, and the checks that stand before it and after it."""

from __future__ import annotations

from typing import Any

from heliograph.errors import WireError
from heliograph.runtime.openfhe.context import library, make_context
from heliograph.target import Ring

# What OpenFHE writes beside the coefficients: parameters, names, pointers.
_SLACK_BYTES = 1 << 20


def serialize(value: Any) -> bytes:
    """The bytes of a ciphertext, a key or a map of keys."""
    openfhe = library()
    return bytes(openfhe.Serialize(value, openfhe.BINARY))


def read_ciphertext(data: bytes, ring: Ring, level: int, tag: str, what: str) -> Any:
    """The ciphertext in `data`, of this ring, level and key; a WireError where it is another or none."""
    openfhe = library()
    context = make_context(ring)
    expected = ring.ciphertext_bytes(level)
    if not expected <= len(data) <= expected + _SLACK_BYTES:
        raise WireError(f"{what} has {len(data)} bytes; a ciphertext at level {level} has {expected} and a little")
    try:
        ciphertext = openfhe.DeserializeCiphertextString(data, openfhe.BINARY)
        good = (
            ciphertext.GetCryptoContext() == context
            and ciphertext.NumberCiphertextElements() == 2
            and ring.levels - ciphertext.GetLevel() == level
            and ciphertext.GetNoiseScaleDeg() == 1
            and ciphertext.GetSlots() == ring.slots
        )
        found = str(ciphertext.GetKeyTag())
    except (RuntimeError, MemoryError, ValueError) as error:
        raise WireError(f"{what} is not a ciphertext", why=str(error).splitlines()[-1][-200:]) from None
    if not good:
        raise WireError(f"{what} is not a ciphertext of this ring at level {level}")
    if found != tag:
        raise WireError(f"{what} is encrypted under another key than the evaluation keys are for")
    return ciphertext


def install_keys(ring: Ring, tag: str, rotation: Any, relinearization: Any) -> None:
    """Give evaluation keys to OpenFHE under a client's tag."""
    context = make_context(ring)
    if rotation is not None:
        context.InsertEvalAutomorphismKey(rotation, tag)
    if relinearization is not None and not _has_relinearization_key(context, tag):
        context.InsertEvalMultKey([relinearization], tag)


def _has_relinearization_key(context: Any, tag: str) -> bool:
    """Whether the process has the key already: a client and a server may share one."""
    try:
        return len(context.GetEvalMultKeyVector(tag)) > 0
    except RuntimeError:
        return False


def read_rotation_keys(data: bytes) -> Any:
    """The map of rotation keys in `data`."""
    openfhe = library()
    try:
        return openfhe.DeserializeEvalKeyMapString(data, openfhe.BINARY)
    except (RuntimeError, MemoryError, ValueError) as error:
        raise WireError("the rotation keys cannot be read", why=str(error).splitlines()[-1][-200:]) from None


def read_key(data: bytes) -> Any:
    """The single evaluation key in `data`."""
    openfhe = library()
    try:
        return openfhe.DeserializeEvalKeyString(data, openfhe.BINARY)
    except (RuntimeError, MemoryError, ValueError) as error:
        raise WireError("the relinearization key cannot be read", why=str(error).splitlines()[-1][-200:]) from None
