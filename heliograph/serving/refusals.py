"""What a server refuses: an error with the HTTP status that says so."""

from __future__ import annotations

from heliograph.errors import HeliographError, ProgramError, SecurityError
from heliograph.runtime.memory import TooLittleMemoryError

# When a client whom the server has no room for now may come again, in seconds.
RETRY_S = 1


class Refused(ProgramError):
    """A request that is not carried out; `status` is its HTTP status."""

    def __init__(self, status: int, what: str, *, where: object = "", why: str = "", hint: str = "") -> None:
        self.status = status
        super().__init__(what, where=where, why=why, hint=hint)


def status_of(error: HeliographError) -> int:
    """The HTTP status of an error that a request led to."""
    if isinstance(error, Refused):
        return error.status
    if isinstance(error, SecurityError):
        return 403
    if isinstance(error, TooLittleMemoryError):
        return 413
    return 422


def nothing_there(what: str) -> Refused:
    """The same for what never was, what is over, and what another tenant has."""
    return Refused(
        404, f"there is no such {what}", hint="it may have expired, been deleted, or belong to another token"
    )
