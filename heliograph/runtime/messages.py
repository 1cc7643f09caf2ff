"""What crosses between client and server: evaluation keys, encrypted inputs, encrypted outputs.

Each carries the fingerprints of the artifact and of the client, and each can be written to bytes and read back. Bytes
are checked (length, digest, kind, sizes) before OpenFHE sees them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from heliograph.container import Container, pack, read_file, unpack, write_file
from heliograph.errors import WireError

VERSION = 1
MAX_MESSAGE_BYTES = 64 * 1024**3


@dataclass(frozen=True, slots=True, eq=False)
class _Message:
    """Fields and blobs of one message; `live` holds OpenFHE's objects while they have not left the process."""

    artifact: str
    client: str
    blobs: dict[str, bytes] = field(default_factory=dict, repr=False)
    live: dict[str, Any] = field(default_factory=dict, repr=False)

    kind: ClassVar[str] = ""

    def names(self) -> Sequence[str]:
        return sorted(self.blobs.keys() | self.live.keys())

    def blob(self, name: str) -> bytes:
        """The serialized form of one object."""
        if name not in self.blobs:
            from heliograph.runtime.openfhe.serial import serialize

            self.blobs[name] = serialize(self.live[name])
        return self.blobs[name]

    def to_bytes(self) -> bytes:
        blobs = {name: self.blob(name) for name in self.names()}
        return pack(Container(self.kind, VERSION, {"artifact": self.artifact, "client": self.client}, blobs))

    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all."""
        write_file(path, self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes, what: str = "data") -> Any:
        """The message in `data`; a WireError where it is not an intact one. Nothing is given to OpenFHE yet."""
        return cls._read(unpack(data, cls.kind, VERSION, MAX_MESSAGE_BYTES, what), what)

    @classmethod
    def load(cls, path: str | Path) -> Any:
        """The message in a file; see `from_bytes`."""
        return cls._read(read_file(path, cls.kind, VERSION, MAX_MESSAGE_BYTES), str(path))

    @classmethod
    def _read(cls, container: Container, what: str) -> Any:
        fields = container.fields
        if set(fields) != {"artifact", "client"} or not all(isinstance(v, str) for v in fields.values()):
            raise WireError(f"{what}: its fields are not those of a {cls.kind}")
        return cls(fields["artifact"], fields["client"], {name: container.bytes(name) for name in container.blobs})

    def check(self, artifact: str, client: str | None = None) -> None:
        """Raise a WireError unless the message belongs to this artifact (and this client)."""
        if self.artifact != artifact:
            raise WireError(
                f"these {self.kind} belong to another artifact",
                why=f"they carry the fingerprint {self.artifact[:12]}, this artifact has {artifact[:12]}",
                hint="use keys, inputs and outputs made for the very artifact that the server runs",
            )
        if client is not None and self.client != client:
            raise WireError(
                f"these {self.kind} belong to another client of the same artifact",
                why=f"they carry the client {self.client[:12]}, the keys here are of {client[:12]}",
                hint="encrypt with the client whose evaluation keys the server holds",
            )


class EvaluationKeys(_Message):
    """Rotation keys and the relinearization key of one client for one artifact. Not secret."""

    kind = "evaluation keys"


class EncryptedInput(_Message):
    """The encrypted inputs of one sample: blobs `name/chunk`."""

    kind = "encrypted inputs"


class EncryptedOutput(_Message):
    """The encrypted outputs of one sample: blobs `number`, in order."""

    kind = "encrypted outputs"
