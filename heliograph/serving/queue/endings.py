"""How the jobs of each artifact and tenant ended, and how long they took; kept as long as the queue."""

from __future__ import annotations

import bisect
import sqlite3
from dataclasses import dataclass

from heliograph.serving.remote.records import DONE, FAILED

# Upper ends of the histogram's buckets in seconds; a last bucket has no upper end.
LIMITS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000)


@dataclass(frozen=True, slots=True)
class Endings:
    """The ended jobs of one artifact and one tenant.

    artifact: its fingerprint.
    tenant: the tenant's name.
    done: the number of jobs with a result whose seconds lie in each bucket of `LIMITS_S`, and in the last one.
    seconds: the sum of their seconds from claim to result.
    failed: the number of jobs that ended with an error.
    """

    artifact: str
    tenant: str
    done: tuple[int, ...]
    seconds: float
    failed: int


def add_ending(connection: sqlite3.Connection, artifact: str, tenant: int, state: str, seconds: float = 0.0) -> None:
    """Count one job that ended; `seconds` from claim to result, for jobs with one."""
    bucket = bisect.bisect_left(LIMITS_S, seconds) if state == DONE else 0
    connection.execute(
        "INSERT INTO endings VALUES (?, ?, ?, ?, 1, ?)"
        " ON CONFLICT DO UPDATE SET jobs = jobs + 1, seconds = seconds + excluded.seconds",
        (artifact, tenant, state, bucket, seconds),
    )


def endings(connection: sqlite3.Connection) -> list[Endings]:
    """All of them, by artifact and tenant."""
    rows = connection.execute(
        "SELECT endings.*, tenants.name AS name FROM endings JOIN tenants ON tenants.number = endings.tenant"
        " ORDER BY artifact, tenant"
    ).fetchall()
    by_key: dict[tuple[str, str], list[sqlite3.Row]] = {}
    for row in rows:
        by_key.setdefault((row["artifact"], row["name"]), []).append(row)
    found = []
    for (artifact, tenant), members in by_key.items():
        done = {row["bucket"]: row["jobs"] for row in members if row["state"] == DONE}
        found.append(
            Endings(
                artifact,
                tenant,
                tuple(done.get(bucket, 0) for bucket in range(len(LIMITS_S) + 1)),
                sum(row["seconds"] for row in members if row["state"] == DONE),
                sum(row["jobs"] for row in members if row["state"] == FAILED),
            )
        )
    return found
