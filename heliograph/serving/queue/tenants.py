"""Tenants: the users of a server, identified by tokens of which only the SHA-256 is stored."""

from __future__ import annotations

import hashlib
import re
import secrets
import sqlite3
import time
from dataclasses import dataclass, field

from heliograph.errors import ProgramError
from heliograph.serving.queue.database import Database
from heliograph.serving.queue.settings import Limits
from heliograph.serving.refusals import Refused
from heliograph.serving.remote.records import QUEUED, RUNNING

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_TOKEN = 200


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant; an operator may also see the figures of the whole server (/metrics and the page)."""

    number: int
    name: str
    operator: bool
    # The SHA-256 of its token.
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """A tenant in a list: its name, whether it is an operator, and when it was made and expires, in seconds since 1970.

    expires: None if its token never does; in the past if it has expired or was revoked.
    """

    name: str
    operator: bool
    created: float
    expires: float | None


class Tenants:
    """The tenants of a server. Tokens are 32 random bytes, so that one round of SHA-256 hides them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, *, operator: bool = False, lasts_s: float | None = None) -> str:
        """A fresh token for a new tenant; it is returned only here. It expires after `lasts_s` seconds, or never.

        Raises ProgramError if the name is taken.
        """
        if not _NAME.fullmatch(name):
            raise ProgramError(
                f"{name[:70]!r} is not the name of a tenant",
                hint="letters, digits, points, dashes, underscores; at most 64",
            )
        token, now = _fresh(), time.time()
        try:
            with self._database.writing() as connection:
                connection.execute(
                    "INSERT INTO tenants (name, token, operator, created, expires) VALUES (?, ?, ?, ?, ?)",
                    (name, _hashed(token), operator, now, None if lasts_s is None else now + lasts_s),
                )
        except sqlite3.IntegrityError:
            raise ProgramError(
                f"there is a tenant {name!r} already",
                hint="choose another name, revoke the old token first, or replace it (--rotate)",
            ) from None
        return token

    def rotate(self, name: str, *, lasts_s: float | None = None) -> str:
        """A fresh token for a tenant in place of its old one, which is refused from now on; keys and jobs stay.

        It expires after `lasts_s` seconds, or never. Raises ProgramError if there is no such tenant.
        """
        token = _fresh()
        with self._database.writing() as connection:
            done = connection.execute(
                "UPDATE tenants SET token = ?, expires = ? WHERE name = ?",
                (_hashed(token), None if lasts_s is None else time.time() + lasts_s, name),
            )
            if done.rowcount == 0:
                raise ProgramError(f"there is no tenant {name[:70]!r}")
        return token

    def revoke(self, name: str) -> None:
        """Revoke the tenant's token; the tenant's keys, jobs and results stay until they expire."""
        with self._database.writing() as connection:
            # The name becomes free; the data under this number no longer has an owner.
            done = connection.execute(
                "UPDATE tenants SET token = ?, expires = ?, name = name || ' (revoked ' || number || ')' WHERE name = ?",
                (f"revoked {secrets.token_hex(16)}", time.time(), name),
            )
            if done.rowcount == 0:
                raise ProgramError(f"there is no tenant {name[:70]!r}")

    def entries(self) -> list[Entry]:
        """All tenants, including revoked ones, in the order of their creation."""
        rows = self._database.reading().execute("SELECT name, operator, created, expires FROM tenants ORDER BY number")
        return [Entry(row["name"], bool(row["operator"]), row["created"], row["expires"]) for row in rows]

    def of_token(self, token: str) -> Tenant | None:
        """The tenant of a token; None for an unknown one. Takes some microseconds, so an event loop may call it."""
        return None if len(token) > _MAX_TOKEN else self._of(_hashed(token))

    def stands(self, tenant: Tenant) -> bool:
        """Whether the tenant's token is still valid; it may have been revoked or replaced, or have expired."""
        return self._of(tenant.key) is not None

    def _of(self, key: str) -> Tenant | None:
        row = (
            self._database.reading()
            .execute(
                "SELECT number, name, operator FROM tenants WHERE token = ? AND (expires IS NULL OR expires > ?)",
                (key, time.time()),
            )
            .fetchone()
        )
        return None if row is None else Tenant(row["number"], row["name"], bool(row["operator"]), key)


def _fresh() -> str:
    """A token of 32 random bytes."""
    return f"hg_{secrets.token_urlsafe(32)}"


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def stored_bytes(connection: sqlite3.Connection, tenant: int) -> int:
    """The bytes of a tenant on the disk, without uploads."""
    (found,) = connection.execute(
        "SELECT (SELECT COALESCE(SUM(bytes), 0) FROM keysets WHERE tenant = :t)"
        " + (SELECT COALESCE(SUM(bytes + COALESCE(result_bytes, 0)), 0) FROM jobs WHERE tenant = :t)",
        {"t": tenant},
    ).fetchone()
    return int(found)


def reserved_bytes(connection: sqlite3.Connection) -> int:
    """The bytes that the results of all unfinished jobs will take on the disk."""
    (found,) = connection.execute(
        "SELECT COALESCE(SUM(result_bytes), 0) FROM jobs WHERE state IN (?, ?)", (QUEUED, RUNNING)
    ).fetchone()
    return int(found)


def require_few(connection: sqlite3.Connection, tenant: int, table: str, most: int) -> None:
    """Raise a refusal if a tenant already has `most` rows of a table."""
    (has,) = connection.execute(f"SELECT COUNT(*) FROM {table} WHERE tenant = ?", (tenant,)).fetchone()
    if has >= most:
        raise Refused(
            413,
            f"this token has {has} {table} on the server, and at most {most} are kept",
            hint="fetch or delete what is no longer needed",
        )


def require_room(connection: sqlite3.Connection, tenant: int, more: int, limits: Limits) -> None:
    """Raise a refusal if a tenant would exceed its share of the disk."""
    has = stored_bytes(connection, tenant)
    if has + more > limits.tenant_bytes:
        raise Refused(
            413,
            f"{more} bytes do not fit into the quota of this token",
            why=f"it has {has} of {limits.tenant_bytes} bytes",
            hint="delete keys or results that are no longer needed",
        )
