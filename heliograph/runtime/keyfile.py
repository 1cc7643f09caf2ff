"""The client's key file: the public artifact and the secret key, the latter under a passphrase where one is given.

With a passphrase the secret is encrypted with ChaCha20-Poly1305 (RFC 8439) under a key from scrypt (RFC 7914); the
public artifact, the client's name and the parameters of scrypt are authenticated with it. Without one it stands in the
file as it is, and only the file's mode (0600) protects it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heliograph.compiler.artifact import PublicArtifact
from heliograph.container import Container, pack, read_file, write_file
from heliograph.errors import SecurityError, WireError
from heliograph.runtime.messages import is_fingerprint

KIND = "a client's secret key"
VERSION = 1
MAX_BYTES = 512 * 1024**2
# 2**15 * 8 * 128 bytes = 32 MB and about 0.1 s for each guess.
_SCRYPT = {"n": 1 << 15, "r": 8, "p": 1}
_MAX_SCRYPT = {"n": 1 << 20, "r": 32, "p": 16}
_MAX_SCRYPT_BYTES = 1 << 30
_SALT_BYTES, _NONCE_BYTES, _KEY_BYTES, _TAG_BYTES = 16, 12, 32, 16


def write_key(
    path: str | Path, public: PublicArtifact, client: str, secret: bytes, passphrase: str | None, overwrite: bool
) -> None:
    """Write the key file with mode 0600, whole or not at all; an existing file only with `overwrite`."""
    public_bytes = public.to_bytes()
    fields: dict[str, Any] = {"artifact": public.fingerprint, "client": client, "public": _digest(public_bytes)}
    if passphrase is not None:
        if not passphrase:
            raise SecurityError("an empty passphrase protects nothing", hint="give one, or None for no protection")
        fields["scrypt"] = {**_SCRYPT, "salt": os.urandom(_SALT_BYTES).hex()}
        fields["nonce"] = os.urandom(_NONCE_BYTES).hex()
        secret = _cipher(passphrase, fields["scrypt"]).encrypt(
            bytes.fromhex(fields["nonce"]), secret, _authenticated(fields)
        )
    container = Container(KIND, VERSION, fields, {"public": public_bytes, "secret": secret})
    write_file(path, pack(container), private=True, overwrite=overwrite)


def read_key(path: str | Path, passphrase: str | None) -> tuple[PublicArtifact, str, bytes]:
    """(public artifact, client's name, secret key); a WireError or SecurityError where it cannot be had."""
    container = read_file(path, KIND, VERSION, MAX_BYTES)
    fields = container.fields
    public_bytes, secret = bytes(container.bytes("public")), bytes(container.bytes("secret"))
    good = {"artifact", "client", "public"} <= set(fields) <= {"artifact", "client", "public", "scrypt", "nonce"}
    if not good or not is_fingerprint(fields["artifact"]) or not is_fingerprint(fields["client"]):
        raise WireError(f"{path}: its fields are not those of {KIND}")
    if fields["public"] != _digest(public_bytes):
        raise WireError(f"{path}: the public artifact in it is not the one that the key was made for")
    public = PublicArtifact.from_bytes(public_bytes, f"the public artifact in {path}")
    if public.fingerprint != fields["artifact"]:
        raise WireError(f"{path}: the key is for artifact {fields['artifact'][:12]}, the file holds another one")
    if ("scrypt" in fields) != ("nonce" in fields):
        raise WireError(f"{path}: its fields are not those of {KIND}")
    if "scrypt" not in fields:
        if passphrase is not None:
            raise SecurityError(
                f"{path} is not protected by a passphrase",
                why="a passphrase was given for it, so perhaps it is another file than the one meant",
                hint="give no passphrase for this file",
            )
        return public, fields["client"], secret
    if passphrase is None:
        raise SecurityError(f"{path} is protected by a passphrase", hint="give the passphrase")
    return public, fields["client"], _decrypt(path, fields, secret, passphrase)


def is_protected(path: str | Path) -> bool:
    """Whether a key file needs a passphrase."""
    return "scrypt" in read_file(path, KIND, VERSION, MAX_BYTES).fields


def _decrypt(path: str | Path, fields: Mapping[str, Any], secret: bytes, passphrase: str) -> bytes:
    from cryptography.exceptions import InvalidTag

    try:
        nonce = bytes.fromhex(fields["nonce"])
        if len(nonce) != _NONCE_BYTES or len(secret) < _TAG_BYTES:
            raise ValueError
        cipher = _cipher(passphrase, fields["scrypt"])
    except (TypeError, ValueError, KeyError):
        raise WireError(f"{path}: the parameters of its protection are malformed") from None
    try:
        return bytes(cipher.decrypt(nonce, secret, _authenticated(fields)))
    except InvalidTag:
        raise SecurityError(
            f"the passphrase does not open {path}", why="it is another one, or the file was altered"
        ) from None


def _cipher(passphrase: str, parameters: Mapping[str, Any]) -> Any:
    """The cipher under the passphrase's key; ValueError for parameters that are out of bounds."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    if set(parameters) != {"n", "r", "p", "salt"}:
        raise ValueError
    numbers = {name: parameters[name] for name in ("n", "r", "p")}
    salt = bytes.fromhex(parameters["salt"])
    good = (
        all(type(value) is int and 1 <= value <= _MAX_SCRYPT[name] for name, value in numbers.items())
        and numbers["n"] >= 2
        and numbers["n"] & (numbers["n"] - 1) == 0
        and 128 * numbers["r"] * (numbers["n"] + numbers["p"]) <= _MAX_SCRYPT_BYTES
        and len(salt) == _SALT_BYTES
    )
    if not good:
        raise ValueError
    return ChaCha20Poly1305(Scrypt(salt=salt, length=_KEY_BYTES, **numbers).derive(passphrase.encode()))


def _authenticated(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"kind": KIND, "version": VERSION, **fields}, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
