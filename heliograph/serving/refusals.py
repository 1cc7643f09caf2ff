"""Refusals of a server: errors with their HTTP status."""

from __future__ import annotations

from heliograph.errors import HeliographError, ProgramError, SecurityError, TooLittleMemoryError

# The seconds after which a temporarily refused client may try again.
RETRY_S = 1


class Refused(ProgramError):
    """A refused request; `status` is the HTTP status of the answer."""

    def __init__(self, status: int, what: str, *, where: object = "", why: str = "", hint: str = "") -> None:
        self.status = status
        super().__init__(what, where=where, why=why, hint=hint)


def status_of(error: HeliographError) -> int:
    """The HTTP status of the answer for an error."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, SecurityError):
        return 403
    if isinstance(error, TooLittleMemoryError):
        return 413
    return 422


def nothing_there(what: str) -> Refused:
    """The refusal for a thing that never existed, is gone, or belongs to another tenant: the three cannot be told apart."""
    return Refused(
        404, f"there is no such {what}", hint="it may have expired, been deleted, or belong to another token"
    )
