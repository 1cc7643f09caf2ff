"""What the server says over HTTP, as records: their fields are the JSON, and the OpenAPI description.

Times are seconds since 1970, sizes bytes. `artifact` is a fingerprint of 64 hexadecimal digits, `client` the name of a key
of 32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from heliograph import errors
from heliograph.errors import HeliographError, ProgramError, TooLittleMemoryError, WireError
from heliograph.records import record
from heliograph.runtime.wire.keyfolder import KeysError
from heliograph.runtime.wire.messages import is_fingerprint, is_name
from heliograph.texts import shown

QUEUED, RUNNING, DONE, FAILED = "queued", "running", "done", "failed"
ENDED = (DONE, FAILED)
# The error classes that a record may name; any other class becomes a HeliographError.
ERRORS: dict[str, type[HeliographError]] = {
    "WireError": errors.WireError,
    "SecurityError": errors.SecurityError,
    "RangeError": errors.RangeError,
    "ProgramError": errors.ProgramError,
    "InternalError": errors.InternalError,
    "KeysError": KeysError,
    "TooLittleMemoryError": TooLittleMemoryError,
}
_MAX_WORDS, _MAX_NAME = 2000, 200
_MOST = 1 << 53
R = TypeVar("R")
# Checks of the text fields of these names, which may be put into the path of a request, or be shown.
_TEXTS: dict[str, Callable[[str], bool]] = {
    "artifact": is_fingerprint,
    "client": is_name,
    "name": lambda text: len(text) <= _MAX_NAME and text.isprintable(),
}


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """An error of ours in its parts; `kind` is the name of its class."""

    kind: str
    what: str
    where: str = ""
    why: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class RefusalRecord:
    """What every answer with a status of 400 and above holds."""

    error: ErrorRecord


@dataclass(frozen=True, slots=True)
class ArtifactRecord:
    """One artifact that is served, with figures of its bill.

    server_bytes: the memory that a worker needs for one client.
    worker_bytes: the memory that a worker has.
    """

    artifact: str
    name: str
    security_bits: int | None
    ring_dim: int
    evaluation_keys: int
    evaluation_key_bytes: int
    sent_key_bytes: int
    input_bytes: int
    sent_input_bytes: int
    output_bytes: int
    server_bytes: int
    worker_bytes: int
    fits: bool
    predicted_ms: float | None


@dataclass(frozen=True, slots=True)
class KeysRecord:
    """The evaluation keys of one client for one artifact.

    keys: how many there are in all.
    missing: the names of those that are not here yet.
    complete: whether jobs are accepted.
    """

    artifact: str
    client: str
    keys: int
    missing: tuple[str, ...]
    stored_bytes: int
    complete: bool
    expires: float


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job.

    state: "queued", "running", "done" or "failed".
    done, total: operations that are evaluated, and all of them.
    error: why it failed, or what a queued job waits for besides a worker.
    ahead: the token's queued jobs that were accepted before it.
    """

    id: str
    artifact: str
    client: str
    state: str
    done: int
    total: int
    created: float
    started: float | None
    ended: float | None
    result_bytes: int | None
    error: ErrorRecord | None
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class HealthRecord:
    """The health of a server.

    status: "ok" while workers live.
    jobs: the jobs of all tenants by state, for operators only.
    """

    status: str
    workers: int
    jobs: dict[str, int] = field(default_factory=dict)


def as_record(error: HeliographError) -> ErrorRecord:
    """An error in its parts; a refusal gets the name of the error class that a client knows."""
    kind = next(each for each in type(error).__mro__ if not each.__module__.startswith("heliograph.serving."))
    return ErrorRecord(kind.__name__, error.what, error.where, error.why, error.hint)


def reworded(record: ErrorRecord, word: Callable[[str], str]) -> ErrorRecord:
    """The error with `word` applied to each of its texts."""
    return ErrorRecord(record.kind, *map(word, (record.what, record.where, record.why, record.hint)))


def as_error(record: ErrorRecord, where: str) -> HeliographError:
    """The error that a record describes; the record may be untrusted."""
    what, why, hint = (shown(text, _MAX_WORDS) for text in (record.what, record.why, record.hint))
    return ERRORS.get(record.kind, HeliographError)(what or "an error without words", where=where, why=why, hint=hint)


def read_record(kind: type[R], answer: object) -> R:
    """The record in the JSON of an answer; unknown fields, from a later server, are ignored.

    Raises WireError for an answer that our servers never give: fields of other types, invalid names, numbers out of
    bounds.
    """
    try:
        if not isinstance(answer, Mapping):
            raise ProgramError("it is no record")
        found = record(kind, _known(kind, answer), "the answer")
        values = {entry.name: getattr(found, entry.name) for entry in fields(found)}  # type: ignore[arg-type]
        numbers = all(0 <= value <= _MOST for value in values.values() if type(value) is int)
        if not numbers or not all(_TEXTS[name](value) for name, value in values.items() if name in _TEXTS):
            raise ProgramError("it is out of bounds")
    except ProgramError:
        raise strange() from None
    return found


def _known(kind: type, answer: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the known fields in an answer."""
    found = {entry.name: answer[entry.name] for entry in fields(kind) if entry.name in answer}
    if isinstance(found.get("error"), Mapping):
        found["error"] = _known(ErrorRecord, found["error"])
    return found


def strange() -> WireError:
    return WireError("the server does not answer like a Heliograph server", hint="look at the address")
