"""The messages between client and server: evaluation keys, encrypted inputs, encrypted outputs.

Each carries the fingerprints of the artifact and of the client, and can be written to bytes and read back. Encrypted
inputs have a random name, `request`, which the server puts on the outputs: a client can detect a mixed-up answer. This
prevents accidents, not a dishonest server. Bytes are checked (length, digest, kind, fields) before they are parsed, and
again, against the form that the artifact prescribes, before any computation.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from heliograph.artifact.container import Container, parts, read_file, unpack
from heliograph.errors import WireError
from heliograph.files import Bytes, write_file
from heliograph.texts import is_hex, number_of

VERSION = 5
# Hexadecimal digits of an artifact's fingerprint, and of the random names of clients, requests and jobs.
_FINGERPRINT, _NAME = 64, 32
_MOST_SAMPLES = 1 << 17


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Message:
    """Fields and blobs of one message. A blob is one object in the form of runtime/wire/forms.py."""

    artifact: str
    client: str
    blobs: dict[str, Bytes] = field(default_factory=dict, repr=False)

    kind: ClassVar[str] = ""
    named: ClassVar[tuple[str, ...]] = ("artifact", "client")
    # Optional fields that hold counts.
    counted: ClassVar[tuple[str, ...]] = ()
    max_bytes: ClassVar[int] = 0

    def __repr__(self) -> str:
        size = sum(map(len, self.blobs.values()))
        what = number_of(len(self.blobs), "object")
        return (
            f"<{type(self).__name__}: {what} of {size / 1e6:.2f} MB, for artifact {self.artifact[:12]} by client "
            f"{self.client[:12]}>"
        )

    def names(self) -> Sequence[str]:
        return sorted(self.blobs)

    def blob(self, name: str) -> Bytes:
        """The bytes of one object."""
        return self.blobs[name]

    def _parts(self) -> Iterator[Bytes]:
        blobs = {name: self.blobs[name] for name in self.names()}
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.named}
        fields |= {name: value for name in self.counted if (value := getattr(self, name)) is not None}
        return parts(Container(self.kind, VERSION, fields, blobs))

    def to_bytes(self) -> bytes:
        return b"".join(self._parts())

    def save(self, path: str | Path) -> None:
        """Write the file whole or not at all."""
        write_file(path, self._parts())

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(f"{self.kind} are not pickled; use to_bytes and from_bytes")

    @classmethod
    def from_bytes(cls, data: Bytes, what: str = "data", max_bytes: int | None = None) -> Any:
        """The message in `data`; a WireError unless it is intact. Its objects are not checked yet.

        `max_bytes` lowers the bound on its size.
        """
        return cls._read(unpack(data, cls.kind, (VERSION,), cls._bound(max_bytes), what), what)

    @classmethod
    def load(cls, path: str | Path, max_bytes: int | None = None) -> Any:
        """The message in a file; see `from_bytes`."""
        return cls._read(read_file(path, cls.kind, (VERSION,), cls._bound(max_bytes)), str(path))

    @classmethod
    def _bound(cls, max_bytes: int | None) -> int:
        return cls.max_bytes if max_bytes is None else min(max_bytes, cls.max_bytes)

    @classmethod
    def _read(cls, container: Container, what: str) -> Any:
        fields = dict(container.fields)
        counts = {name: fields.pop(name) for name in cls.counted if name in fields}
        if set(fields) != set(cls.named) or not are_names(fields):
            raise WireError(f"{what}: its fields are not those of {cls.kind}")
        if not all(type(count) is int and 0 < count <= _MOST_SAMPLES for count in counts.values()):
            raise WireError(f"{what}: it does not hold a number of samples")
        return cls(**fields, **counts, blobs={name: container.bytes(name) for name in container.blobs})

    def check(self, artifact: str, client: str | None = None) -> None:
        """Raise a WireError unless the message belongs to this artifact (and this client)."""
        check_belongs(self, artifact, client)

    def check_names(self, expected: Collection[str]) -> None:
        """Raise a WireError unless the message holds exactly these objects."""
        check_objects(self, expected)


class Named(Protocol):
    """Objects by name that belong to an artifact and a client."""

    kind: ClassVar[str]

    @property
    def artifact(self) -> str: ...

    @property
    def client(self) -> str: ...

    def names(self) -> Sequence[str]: ...


def check_belongs(message: Named, artifact: str, client: str | None = None) -> None:
    """Raise a WireError unless the message belongs to this artifact (and this client)."""
    if message.artifact != artifact:
        raise WireError(
            f"these {message.kind} belong to another artifact",
            why=f"they carry the fingerprint {message.artifact[:12]}, this artifact has {artifact[:12]}",
            hint="use keys, inputs and outputs made for the very artifact that the server runs",
        )
    if client is not None and message.client != client:
        raise WireError(
            f"these {message.kind} belong to another client of the same artifact",
            why=f"they carry the client {message.client[:12]}, the keys here are of {client[:12]}",
            hint="encrypt with the client whose evaluation keys the server holds",
        )


def check_objects(message: Named, expected: Collection[str]) -> None:
    """Raise a WireError unless the message holds exactly these objects."""
    found = set(message.names())
    missing, more = sorted(set(expected) - found), sorted(found - set(expected))
    if missing:
        raise WireError(
            f"these {message.kind} lack {missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else ""),
            hint="make them again with this artifact"
            + (", or give the server those that it keeps" if message.kind == EncryptedInput.kind else ""),
        )
    if more:
        raise WireError(f"these {message.kind} hold {len(more)} objects too many, {more[0][:60]!r} first")


def is_fingerprint(value: object) -> bool:
    """Whether the value can be an artifact's fingerprint: 64 hexadecimal digits."""
    return is_hex(value, _FINGERPRINT)


def is_name(value: object) -> bool:
    """Whether the value can be the random name of a client, of a request or of a job: 32 hexadecimal digits."""
    return is_hex(value, _NAME)


def are_names(fields: Mapping[str, object]) -> bool:
    """Whether the fields can be the artifact's fingerprint and random names."""
    return all(is_fingerprint(value) if name == "artifact" else is_name(value) for name, value in fields.items())


def object_name(name: str, chunk: int) -> str:
    """The name of an input's ciphertext `chunk` in encrypted inputs and carried values."""
    return f"{name}/{chunk}"


def fresh_request() -> str:
    """A unique name for encrypted inputs."""
    return secrets.token_hex(_NAME // 2)


class EvaluationKeys(Message):
    """The evaluation keys of one client for one artifact (see heliograph/ckks/keys.py for their names). Not secret."""

    kind = "evaluation keys"
    max_bytes = 64 * 1024**3


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EncryptedInput(Message):
    """The encrypted inputs of one sample: objects `name/chunk`, and a unique `request`.

    `samples` is their number if the artifact takes several at once, else None.
    """

    request: str = field(default_factory=fresh_request, kw_only=True)
    samples: int | None = field(default=None, kw_only=True)

    kind = "encrypted inputs"
    named = ("artifact", "client", "request")
    counted = ("samples",)
    max_bytes = 16 * 1024**3

    def receipt(self) -> EncryptedInput:
        """A copy without the objects, which is all that a client needs to read the answer."""
        return EncryptedInput(self.artifact, self.client, request=self.request, samples=self.samples)


class CarriedValues(Message):
    """The values that a run passes to the next: objects `name/chunk` of the carried inputs."""

    kind = "carried values"
    max_bytes = 16 * 1024**3


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EncryptedOutput(Message):
    """The encrypted outputs of one sample: objects `number`, in order; `request` is copied from the inputs."""

    request: str = field(kw_only=True)

    kind = "encrypted outputs"
    named = ("artifact", "client", "request")
    max_bytes = 16 * 1024**3

    def check_answers(self, asked: EncryptedInput | str) -> None:
        """Raise a WireError unless this is the answer to these inputs, or to the inputs with this `request`."""
        expected = asked if isinstance(asked, str) else asked.request
        if self.request != expected:
            raise WireError(
                "these encrypted outputs are the answer to other inputs",
                why=f"they carry the request {self.request[:12]}, the inputs have {expected[:12]}",
                hint="files were mixed up, or the inputs were encrypted again: evaluate these inputs",
            )
