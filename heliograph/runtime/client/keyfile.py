"""The client's key file: the public part of its artifact, and the secret key, encrypted if a passphrase is given.

The file has its own version and contains nothing in a format defined elsewhere, because a lost secret key cannot be
regenerated (docs/compatibility.md).

With a passphrase the secret is encrypted with ChaCha20-Poly1305 (RFC 8439) under a key from scrypt (RFC 7914); all other
fields are authenticated with it. Without a passphrase the secret is in the clear, and only the file's mode (0600)
protects it: a file that others may read is refused, as ssh refuses it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heliograph.artifact.container import Container, pack, read_file
from heliograph.artifact.public import PublicArtifact
from heliograph.artifact.validate import refuse
from heliograph.errors import SecurityError, WireError
from heliograph.files import write_file
from heliograph.runtime.wire.messages import are_names

KIND = "a client's secret key"
VERSION = 3
MAX_BYTES = 512 * 1024**2
MAX_SHARED = 1 << 30
# OWASP's recommendation for n = 2**15: 2**15 * 8 * 128 bytes = 32 MB, three times over (p = 3), some tenths of a second per
# guess.
_SCRYPT = {"n": 1 << 15, "r": 8, "p": 3}
_MAX_SCRYPT = {"n": 1 << 20, "r": 32, "p": 16}
_MAX_SCRYPT_BYTES = 1 << 30
_SALT_BYTES, _NONCE_BYTES, _KEY_BYTES, _TAG_BYTES = 16, 12, 32, 16
_PROTECTION = {"scrypt", "nonce"}
_FIELDS = {"artifact", "client", "shared", "interface"}
# Predictions that the client uses; a file may hold others.
_NEEDED = ("scheme_error", "output_magnitude")


@dataclass(frozen=True, slots=True)
class StoredKey:
    """The contents of a key file."""

    public: PublicArtifact
    client: str
    secret: bytes
    shared: int


def write_key(
    path: str | Path,
    public: PublicArtifact,
    client: str,
    secret: bytes,
    shared: int,
    passphrase: str | None,
    overwrite: bool,
) -> None:
    """Write the key file with mode 0600, whole or not at all; an existing file only with `overwrite`."""
    fields: dict[str, Any] = {
        "artifact": public.fingerprint,
        "client": client,
        "shared": shared,
        "interface": public.description,
    }
    if passphrase is not None:
        if not passphrase:
            raise SecurityError("an empty passphrase protects nothing", hint="give one, or None for no protection")
        fields["scrypt"] = {**_SCRYPT, "salt": os.urandom(_SALT_BYTES).hex()}
        fields["nonce"] = os.urandom(_NONCE_BYTES).hex()
        secret = _cipher(passphrase, fields["scrypt"]).encrypt(
            bytes.fromhex(fields["nonce"]), secret, _authenticated(fields)
        )
    write_file(path, pack(Container(KIND, VERSION, fields, {"secret": secret})), private=True, overwrite=overwrite)


def read_key(path: str | Path, passphrase: str | None) -> StoredKey:
    """The contents of a key file; a WireError or SecurityError if they cannot be read."""
    container = read_file(path, KIND, (VERSION,), MAX_BYTES)
    fields = container.fields
    good = set(fields) in (_FIELDS, _FIELDS | _PROTECTION) and set(container.blobs) == {"secret"}
    if not good or not are_names({name: fields[name] for name in ("artifact", "client")}):
        raise WireError(f"{path}: its fields are not those of {KIND}")
    secret = bytes(container.bytes("secret"))
    public = _public(fields["interface"], fields["artifact"], f"the description of the artifact in {path}")
    shared = fields["shared"]
    if type(shared) is not int or not 0 <= shared <= MAX_SHARED:
        raise WireError(f"{path}: its number of shared results is malformed")
    if "scrypt" in fields:
        if passphrase is None:
            raise SecurityError(f"{path} is protected by a passphrase", hint="give the passphrase")
        secret = _decrypt(path, fields, secret, passphrase)
    else:
        if passphrase is not None:
            raise SecurityError(
                f"{path} is not protected by a passphrase",
                why="a passphrase was given for it, so perhaps it is another file than the one meant",
                hint="give no passphrase for this file",
            )
        _check_mode(path)
    return StoredKey(public, fields["client"], secret, shared)


def is_protected(path: str | Path) -> bool:
    """Whether a key file needs a passphrase."""
    return "scrypt" in read_file(path, KIND, (VERSION,), MAX_BYTES).fields


def _check_mode(path: str | Path) -> None:
    """Raise a SecurityError if others may read the user's own unprotected key file, as ssh does."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise WireError(f"{path} cannot be read", why=error.strerror or str(error)) from None
    mode = stat.S_IMODE(found.st_mode)
    # Windows has no file modes: there a key is protected by its folder, or by a passphrase.
    if hasattr(os, "geteuid") and found.st_uid == os.geteuid() and mode & 0o077:
        raise SecurityError(
            f"others can read the secret key in {path}: its mode is {mode:04o}",
            why="it has no passphrase, so that the mode of the file is its only protection",
            hint=f"chmod 600 {path}, or save it with a passphrase where the file system has no modes",
        )


def _public(interface: Any, fingerprint: str, what: str) -> PublicArtifact:
    """The public artifact in a key file's JSON; a WireError if it is malformed.

    Its security is not checked here: the table may have become stricter since the key was made.
    """
    try:
        found = PublicArtifact.described(interface, "", secure=False, named=fingerprint)
        if not set(_NEEDED) <= set(found.predicted):
            raise refuse("it lacks a prediction")
        return found
    except WireError as error:
        raise WireError(error.what, where=what, why=error.why, hint=error.hint) from None
    except Exception as error:
        # Untrusted bytes may fail in ways that the checks above do not foresee.
        raise WireError(f"{what} is not usable", why=f"bad field: {type(error).__name__}: {error}"[:300]) from None


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
    """The cipher under the key derived from the passphrase; a ValueError for parameters out of bounds."""
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
