"""What the server says over HTTP, as records: their fields are the JSON, and the OpenAPI description.

Times are seconds since 1970, sizes bytes. `artifact` is a fingerprint of 64 hexadecimal digits, `client` the name of a key
of 32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from heliograph import errors
from heliograph.errors import HeliographError
from heliograph.runtime.memory import TooLittleMemoryError
from heliograph.runtime.wire.keyfolder import KeysError
from heliograph.texts import shown

QUEUED, RUNNING, DONE, FAILED = "queued", "running", "done", "failed"
ENDED = (DONE, FAILED)
# The error classes that a record may name; any other kind becomes a HeliographError.
ERRORS: dict[str, type[HeliographError]] = {
    "WireError": errors.WireError,
    "SecurityError": errors.SecurityError,
    "RangeError": errors.RangeError,
    "ProgramError": errors.ProgramError,
    "InternalError": errors.InternalError,
    "KeysError": KeysError,
    "TooLittleMemoryError": TooLittleMemoryError,
}
_MAX_WORDS = 2000


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
    """One artifact that is served, with figures of its bill; `server_bytes` is what a worker needs for one client."""

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
    """The evaluation keys of one client for one artifact; a job is accepted once `complete`.

    `missing` are names of keys that are not here yet.
    """

    artifact: str
    client: str
    keys: int
    missing: list[str]
    stored_bytes: int
    complete: bool
    expires: float


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job; `state` is "queued", "running", "done" or "failed".

    `error` is there for the last, and says what a queued job waits for where that is not a worker.

    `ahead` counts the token's queued jobs that were accepted before it. `done` of `total` operations are evaluated.
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
    """`status` is "ok" while workers live. `jobs` counts those of all tenants, for operators only."""

    status: str
    workers: int
    jobs: dict[str, int] = field(default_factory=dict)


def as_record(error: HeliographError) -> ErrorRecord:
    """An error in its parts; a refusal is named as the error that a client knows."""
    kind = next(each for each in type(error).__mro__ if not each.__module__.startswith("heliograph.serving."))
    return ErrorRecord(kind.__name__, error.what, error.where, error.why, error.hint)


def reworded(record: ErrorRecord, word: Callable[[str], str]) -> ErrorRecord:
    """The same error with each of its texts as `word` gives it."""
    return ErrorRecord(record.kind, *map(word, (record.what, record.where, record.why, record.hint)))


def as_error(record: Mapping[str, Any], where: str) -> HeliographError:
    """The error that the fields of an ErrorRecord describe; they may be a stranger's."""
    given = {name: record.get(name) for name in ("kind", "what", "why", "hint")}
    kind, what, why, hint = (shown(text, _MAX_WORDS) if isinstance(text, str) else "" for text in given.values())
    return ERRORS.get(kind, HeliographError)(what or "an error without words", where=where, why=why, hint=hint)
