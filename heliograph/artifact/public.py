"""The public part of an artifact: everything that a client needs, without weights."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from heliograph.artifact.container import Container, pack, read_file, unpack
from heliograph.artifact.earlier import as_present, readable
from heliograph.artifact.validate import refuse
from heliograph.artifact.wire import Description, PublicSpec, chains_values, read_description
from heliograph.ckks.chains import Chain
from heliograph.ckks.keys import EvaluationKey, evaluation_keys
from heliograph.ckks.ring import Ring
from heliograph.errors import ProgramError, WireError
from heliograph.files import Bytes, write_file
from heliograph.records import to_json
from heliograph.report.figures import Certified
from heliograph.report.markup import badge, fragment, table
from heliograph.report.text import bytes_text
from heliograph.texts import is_hex, number_of

VERSION = 11


MAX_PUBLIC_BYTES = 64 * 1024**2
_DIGEST_DIGITS = 64
# Figures of the report that a client cannot get elsewhere; sizes in bytes follow from the ring and the keys.
PREDICTED = ("predicted_ms", "client_peak_bytes", "scheme_error", "output_magnitude")


@dataclass(frozen=True)
class PublicArtifact:
    """What a client needs: ring, layouts, ranges, and which evaluation keys to make. No weights, no program.

    `server_part`: the SHA-256 of the server's part. `fingerprint` covers both parts; keys and ciphertexts carry it.
    `chains`: the chains in the program's parameters.
    `raising_chains`: the indices of the chains to whose top level bootstraps raise the modulus.
    `conjugation_key`: whether the program conjugates in the whole chain.
    `predicted`: some figures of the report.
    `certificate`: the certificate of the answers, if there is one.
    `named`: the fingerprint if the part was read from a client's key file, which outlives the formats that fingerprints
    are computed from; such a part is not written again.
    """

    name: str
    server_part: str
    chains: tuple[Chain, ...]
    inputs: tuple[PublicSpec, ...]
    outputs: tuple[PublicSpec, ...]
    predicted: Mapping[str, Any]
    conjugation_key: bool = False
    named: str | None = None
    certificate: Certified | None = None
    raising_chains: tuple[int, ...] = ()

    def __repr__(self) -> str:
        security = "INSECURE" if self.ring.security_bits is None else f"{self.ring.security_bits} bits"
        size = f"N = {self.ring.ring_dim}, {self.ring.levels} levels, {len(self.evaluation_keys)} evaluation keys"
        return f"<PublicArtifact {self.name!r}, {self.fingerprint[:12]}: {security}, {size}>"

    def _repr_html_(self) -> str:
        """The view in a notebook: security, inputs and outputs, and what a client sends."""
        size, ring = self.predicted_bytes, self.ring
        weak = ring.security_bits is None
        rows = [
            *((f"input {spec.name}", spec.described()) for spec in self.given),
            *((f"output {spec.name}", spec.described()) for spec in self.outputs),
            ("ring", f"N = {ring.ring_dim}, {number_of(ring.levels, 'level')}"),
            ("keys to send", f"{bytes_text(size['sent_key_bytes'])} in {len(self.evaluation_keys)}"),
            ("an input", bytes_text(size["sent_input_bytes"])),
            ("fingerprint", self.fingerprint),
        ]
        parts = (
            badge("INSECURE: for tests only" if weak else f"{ring.security_bits} bits", weak),
            table(("", ""), rows),
        )
        return fragment(f"{self.name}: what a client needs", parts)

    @property
    def ring(self) -> Ring:
        return self.chains[0].ring

    @property
    def rotation_keys(self) -> tuple[int, ...]:
        """The amounts of rotation with a key in the whole chain."""
        return self.chains[0].rotation_keys

    def public(self) -> PublicArtifact:
        return self

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identifies the artifact: SHA-256 over all fields and the digest of the server's part.

        Anyone who was told the fingerprint by a trusted person knows that the security, the ranges and the predicted
        error here are as compiled.
        """
        if self.named is not None:
            return self.named
        text = json.dumps(self._fields(), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def given(self) -> tuple[PublicSpec, ...]:
        """The inputs that a client supplies for a run: all but the carried ones."""
        return tuple(spec for spec in self.inputs if not spec.carried)

    @property
    def carried(self) -> tuple[PublicSpec, ...]:
        """The inputs that come from the previous run."""
        return tuple(spec for spec in self.inputs if spec.carried)

    @property
    def predicted_bytes(self) -> dict[str, int]:
        """The bytes of all evaluation keys, inputs and outputs, by the names of the report's figures."""
        levels = [level for spec in self.given for level in spec.levels]
        outputs = sum(len(spec.log_scales) for spec in self.outputs)
        return {
            "evaluation_key_bytes": sum(key.bytes for key in self.evaluation_keys),
            "sent_key_bytes": sum(key.sent_bytes for key in self.evaluation_keys),
            "ciphertext_bytes": sum(map(self.ring.ciphertext_bytes, levels)),
            "sent_input_bytes": sum(map(self.ring.sent_ciphertext_bytes, levels)),
            "output_bytes": outputs * self.ring.ciphertext_bytes(0),
        }

    @property
    def evaluation_keys(self) -> tuple[EvaluationKey, ...]:
        """The keys that the client makes for the server."""
        return evaluation_keys(self.chains, self.conjugation_key, self.raising_chains)

    @property
    def bootstraps(self) -> bool:
        """Whether the program bootstraps, in any chain."""
        return bool(self.raising_chains)

    @property
    def description(self) -> dict[str, Any]:
        """All but the server's part, as JSON values; `described` reads them."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name in _DESCRIBED}
        found: dict[str, Any] = to_json(Description(**{**values, **chains_values(self.chains)}))
        return found

    @staticmethod
    def described(
        given: Mapping[str, Any], server_part: str, *, secure: bool = True, named: str | None = None
    ) -> PublicArtifact:
        """The public artifact of a description in JSON values; a WireError if it is out of bounds.

        `secure=False` leaves the check of the chains' security to the caller.
        """
        found, chains = read_description(given, secure=secure)
        values = {entry.name: getattr(found, entry.name) for entry in fields(found) if entry.name in _DESCRIBED}
        return PublicArtifact(**{**values, "chains": chains}, server_part=server_part, named=named)

    def _fields(self) -> dict[str, Any]:
        return {**self.description, "server_part": self.server_part}

    def to_bytes(self) -> bytes:
        if self.named is not None:
            raise ProgramError(
                "a public artifact that comes from a key file cannot be written to a separate file",
                hint="take the one that the key was made for",
            )
        return pack(Container("public artifact", VERSION, self._fields()))

    @staticmethod
    def from_bytes(data: Bytes, what: str = "data") -> PublicArtifact:
        versions = readable("public artifact", VERSION)
        return PublicArtifact._read(unpack(data, "public artifact", versions, MAX_PUBLIC_BYTES, what), what)

    def save(self, path: str | Path) -> None:
        write_file(path, self.to_bytes())

    @staticmethod
    def load(path: str | Path) -> PublicArtifact:
        versions = readable("public artifact", VERSION)
        return PublicArtifact._read(read_file(path, "public artifact", versions, MAX_PUBLIC_BYTES), str(path))

    @staticmethod
    def _read(container: Container, what: str) -> PublicArtifact:
        try:
            given = dict(as_present(container, VERSION).fields)
            server_part = given.pop("server_part", None)
            if not is_hex(server_part, _DIGEST_DIGITS):
                raise refuse("the digest of the server's part is malformed")
            made = PublicArtifact.described(given, server_part)
            if set(made.predicted) != set(PREDICTED):
                raise refuse("its predicted figures are not those of a public artifact")
            return made
        except WireError as error:
            raise WireError(error.what, where=what, why=error.why, hint=error.hint) from None
        except Exception as error:
            # Untrusted bytes may fail in ways that the checks above do not foresee.
            raise WireError(f"{what} is not a usable public artifact", why=f"bad field: {brief(error)}") from None


# The fields that a public artifact and its description have in common.
_DESCRIBED = {entry.name for entry in fields(PublicArtifact)} & {entry.name for entry in fields(Description)}


def brief(error: Exception) -> str:
    """An exception in a few words."""
    return f"{type(error).__name__}: {error}"[:300]
