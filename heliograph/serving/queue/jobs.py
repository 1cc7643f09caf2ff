"""The queue: jobs that are accepted once and end once, with a result or an error, across kill -9 of server and workers.

A job is accepted when its row is committed; by then its input has its final name. A worker claims the job by writing
the worker's name into the row. It can end only a row that is still running under its name, in the transaction that
names the result's file. So a job that was given to another worker meanwhile ends once, and a late worker ends nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from heliograph.files import sync_folder
from heliograph.serving.logs import log
from heliograph.serving.queue.database import Database, count
from heliograph.serving.queue.endings import add_ending
from heliograph.serving.queue.settings import Limits, Places
from heliograph.serving.queue.tenants import require_few, require_room, reserved_bytes
from heliograph.serving.queue.uploads import Upload, Uploads, require_free
from heliograph.serving.refusals import Refused, nothing_there
from heliograph.serving.remote.records import DONE, ENDED, FAILED, QUEUED, RUNNING, ErrorRecord, JobRecord, reworded

_AGAIN = "the job is evaluated when the server has room"
# Deaths in the first seconds of a job say less about the job: this many count as one.
_QUICK_DEATHS = 8
_PAGE = 100
# The end of a page of jobs: the last job's time of acceptance and its name. It reveals nothing about other tenants.
CURSOR = "^[0-9]{1,12}([.][0-9]{1,20})?-[0-9a-f]{32}$"


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that was given to a worker."""

    number: int
    id: str
    artifact: str
    client: str
    folder: str
    input: str


class Jobs:
    """The jobs of all tenants, as server and workers see them."""

    def __init__(self, database: Database, places: Places, limits: Limits, uploads: Uploads) -> None:
        self._database, self._places, self._limits, self._uploads = database, places, limits, uploads

    # ------------------------------------------------------------------------------------- for the server

    def known(self, tenant: int, id: str, artifact: str, client: str, digest: str) -> JobRecord | None:
        """The job of that name if it was accepted before, else None; a refusal if it was a different job."""
        row = self._row(tenant, id)
        if row is None:
            return None
        if (row["artifact"], row["client"], row["digest"]) != (artifact, client, digest):
            raise Refused(409, f"there is a job {id} for another input already", hint="give each job a name of its own")
        return self._record(row)

    def accept(
        self,
        tenant: int,
        id: str,
        artifact: str,
        client: str,
        folder: str,
        digest: str,
        upload: Upload,
        result_bytes: int = 0,
    ) -> JobRecord:
        """Accept a job on a checked upload: it is then certain to end. A refusal if too many jobs wait already.

        `digest` identifies the input: if the same job was accepted meanwhile, its record is returned. `result_bytes`,
        the size of the result, counts towards the tenant's quota from now on and is reserved on the disk.
        """
        name = secrets.token_hex(16)
        path = self._places.input(name)
        os.rename(upload.path, path)
        try:
            sync_folder(self._places.inputs)
            with self._database.writing() as connection:
                if (known := self.known(tenant, id, artifact, client, digest)) is not None:
                    path.unlink()
                    return known
                self._require_place(connection, tenant)
                require_few(connection, tenant, "jobs", self._limits.kept_jobs)
                require_room(connection, tenant, self._uploads.announced_bytes(tenant) + result_bytes, self._limits)
                left = self._limits.free_bytes + reserved_bytes(connection)
                require_free(self._places.results, result_bytes, left)
                complete = connection.execute("SELECT complete FROM keysets WHERE folder = ?", (folder,)).fetchone()
                if complete is None or not complete["complete"]:
                    raise nothing_there("set of evaluation keys")
                now = self._database.clock.now()
                connection.execute(
                    "INSERT INTO jobs (tenant, id, artifact, client, folder, digest, input, bytes, state, created,"
                    " result_bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (tenant, id, artifact, client, folder, digest, name, upload.size, QUEUED, now, result_bytes),
                )
                count(connection, "jobs_accepted")
                upload.uncount()
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return self.record(tenant, id)

    def record(self, tenant: int, id: str) -> JobRecord:
        row = self._row(tenant, id)
        if row is None:
            raise nothing_there("job")
        return self._record(row)

    def records(self, tenant: int, before: str | None = None) -> tuple[list[JobRecord], str | None]:
        """A page of the tenant's jobs, the latest first, and the cursor of the next page, None after the last."""
        created, _, id = (before or "-").partition("-")
        rows = (
            self._database.reading()
            .execute(
                # Found first and read afterwards, so that whole rows are not sorted.
                "SELECT * FROM jobs WHERE number IN (SELECT number FROM jobs"
                " WHERE tenant = ? AND (? IS NULL OR (created, id) < (CAST(? AS REAL), ?))"
                " ORDER BY created DESC, id DESC LIMIT ?) ORDER BY created DESC, id DESC",
                (tenant, before, created, id, _PAGE + 1),
            )
            .fetchall()
        )
        page, queued = rows[:_PAGE], [row["number"] for row in rows[:_PAGE] if row["state"] == QUEUED]
        ahead: dict[int, int] = {}
        if queued:
            # Counted once, for the earliest queued job; the others of the page follow it.
            first = self._ahead(tenant, min(queued))
            ahead = {number: first + place for place, number in enumerate(sorted(queued))}
        rest = f"{page[-1]['created']!r}-{page[-1]['id']}" if len(rows) > _PAGE else None
        return [self._shown(row, ahead.get(row["number"], 0)) for row in page], rest

    def result(self, tenant: int, id: str) -> Path:
        """The file of a job's result; a refusal if it has none (yet)."""
        row = self._row(tenant, id)
        if row is None:
            raise nothing_there("job")
        if row["state"] == FAILED:
            raise Refused(409, f"the job {id} ended with an error and has no result", why=str(row["error"])[:2000])
        if row["state"] != DONE:
            raise Refused(409, f"the job {id} has not ended", hint="wait for it: GET /v1/jobs/ID?wait=20")
        return self._places.result(row["result"])

    def fetched(self, tenant: int, id: str) -> None:
        """Note that a result was sent completely; it stays for a while in case the client lost it."""
        with self._database.writing() as connection:
            connection.execute(
                "UPDATE jobs SET fetched = COALESCE(fetched, ?) WHERE tenant = ? AND id = ?",
                (self._database.clock.now(), tenant, id),
            )

    def delete(self, tenant: int, id: str) -> None:
        """Forget a job with its input and result; a running job is stopped."""
        with self._database.writing() as connection:
            row = connection.execute("SELECT * FROM jobs WHERE tenant = ? AND id = ?", (tenant, id)).fetchone()
            if row is None:
                raise nothing_there("job")
            self._forget(connection, row)
        self._unlink([row])

    def expire(self) -> None:
        """Forget results whose time is over, fetched or not."""
        now = self._database.clock.now()
        with self._database.writing() as connection:
            rows = connection.execute(
                "SELECT * FROM jobs WHERE fetched < ? OR ended < ?",
                (now - self._limits.fetched_s, now - self._limits.result_s),
            ).fetchall()
            for row in rows:
                self._forget(connection, row)
        self._unlink(rows)

    def _forget(self, connection: sqlite3.Connection, row: sqlite3.Row) -> None:
        connection.execute("DELETE FROM jobs WHERE number = ?", (row["number"],))

    def _unlink(self, rows: Iterable[sqlite3.Row]) -> None:
        """Remove the inputs and results of jobs, after the transaction that dropped them."""
        for row in rows:
            self._places.input(row["input"]).unlink(missing_ok=True)
            if row["result"] is not None:
                self._places.result(row["result"]).unlink(missing_ok=True)

    def end_all(self, connection: sqlite3.Connection, folder: str, error: ErrorRecord) -> list[Path]:
        """End a key set's unfinished jobs within a transaction; returns the inputs to remove after it."""
        rows = connection.execute(
            "SELECT * FROM jobs WHERE folder = ? AND state IN (?, ?)", (folder, QUEUED, RUNNING)
        ).fetchall()
        for row in rows:
            self._end_badly(connection, row, error)
        return [self._places.input(row["input"]) for row in rows]

    def end_unserved(self, served: Collection[str]) -> None:
        """End the jobs of artifacts that are no longer served."""
        with self._database.writing() as connection:
            rows = connection.execute("SELECT * FROM jobs WHERE state IN (?, ?)", (QUEUED, RUNNING)).fetchall()
            rows = [row for row in rows if row["artifact"] not in served]
            for row in rows:
                error = ErrorRecord("ProgramError", "the job cannot be run", why="its artifact is no longer served")
                self._end_badly(connection, row, error)
        self._unlink(rows)

    def settle(self) -> None:
        """End the jobs whose inputs or results are gone, for instance after a queue was restored without its files."""
        with self._database.writing() as connection:
            rows = connection.execute("SELECT * FROM jobs WHERE state != ?", (FAILED,)).fetchall()
            for row in rows:
                done = row["state"] == DONE
                if not (self._places.result(row["result"]) if done else self._places.input(row["input"])).exists():
                    why = f"its {'result' if done else 'input'} was lost on the server"
                    error = ErrorRecord("HeliographError", "the job has no result", why=why, hint="submit it again")
                    self._end_badly(connection, row, error)

    # ------------------------------------------------------------------------------------- for a worker

    def claim(self, worker: str, held: Collection[str] = ()) -> Claim | None:
        """Claim the next job for this worker; None if none waits or the disk has no room for its result.

        Tenants take turns: the tenant with the fewest running jobs goes first. Among its jobs, those with key sets in
        the worker's memory go first, unless another job has waited long; then the oldest.
        """
        now, free = self._database.clock.now(), shutil.disk_usage(self._places.results).free
        with self._database.writing() as connection:
            marks = ",".join("?" * len(held)) or "''"
            row = connection.execute(
                "SELECT * FROM jobs AS j WHERE state = ? ORDER BY COALESCE(result_bytes, 0) <= ? DESC,"
                " (SELECT COUNT(*) FROM jobs AS r WHERE r.tenant = j.tenant AND r.state = ?),"
                f" created < ? DESC, folder IN ({marks}) DESC, number LIMIT 1",
                (QUEUED, free, RUNNING, now - self._limits.patience_s, *held),
            ).fetchone()
            if row is None or self._lacks_room(connection, row, free):
                return None
            connection.execute(
                "UPDATE jobs SET state = ?, worker = ?, started = ?, done = 0, total = 0, error = NULL WHERE number = ?",
                (RUNNING, worker, now, row["number"]),
            )
            connection.execute("UPDATE keysets SET used = ? WHERE folder = ?", (now, row["folder"]))
        return Claim(row["number"], row["id"], row["artifact"], row["client"], row["folder"], row["input"])

    def _lacks_room(self, connection: sqlite3.Connection, row: sqlite3.Row, free: int) -> bool:
        """Whether the disk has no room for a waiting job's result; if so, the job's row records it."""
        if (row["result_bytes"] or 0) <= free:
            return False
        if row["error"] is None:
            why = f"{row['result_bytes']} bytes are needed on the disk of the server, and {free} are free"
            error = ErrorRecord("HeliographError", "the result cannot be written", why=why, hint=_AGAIN)
            record = json.dumps(asdict(error))
            connection.execute("UPDATE jobs SET error = ? WHERE number = ?", (record, row["number"]))
            log("no room", job=row["id"], bytes=row["result_bytes"], free=free)
        return True

    def beat(self, worker: str, number: int, done: int, total: int) -> bool:
        """Write progress; False if the job is no longer this worker's."""
        with self._database.writing() as connection:
            changed = connection.execute(
                "UPDATE jobs SET done = ?, total = ? WHERE number = ? AND worker = ? AND state = ?",
                (done, total, number, worker, RUNNING),
            )
            return changed.rowcount == 1

    def finish(self, worker: str, number: int, result: str, operations: int) -> bool:
        """End a job with the result of that name, after this many operations; False if it is not this worker's now."""
        size = self._places.result(result).stat().st_size
        now = self._database.clock.now()
        with self._database.writing() as connection:
            rows = connection.execute(
                "UPDATE jobs SET state = ?, ended = ?, result = ?, result_bytes = ?, done = ?, total = ?, bytes = 0,"
                " worker = NULL"
                " WHERE number = ? AND worker = ? AND state = ? RETURNING input, started, artifact, tenant",
                (DONE, now, result, size, operations, operations, number, worker, RUNNING),
            ).fetchall()
            if not rows:
                return False
            count(connection, "jobs_done")
            seconds = now - rows[0]["started"]
            count(connection, "job_seconds", seconds)
            add_ending(connection, rows[0]["artifact"], rows[0]["tenant"], DONE, seconds)
        self._places.input(rows[0]["input"]).unlink(missing_ok=True)
        return True

    def fail(self, worker: str, number: int, error: ErrorRecord) -> bool:
        """End a job with an error; False if the job is no longer this worker's."""
        error = reworded(error, self._places.hidden)
        with self._database.writing() as connection:
            row = connection.execute(
                "SELECT * FROM jobs WHERE number = ? AND worker = ? AND state = ?", (number, worker, RUNNING)
            ).fetchone()
            if row is None:
                return False
            self._end_badly(connection, row, error)
        self._unlink([row])
        return True

    def _end_badly(self, connection: sqlite3.Connection, row: sqlite3.Row, error: ErrorRecord) -> None:
        connection.execute(
            "UPDATE jobs SET state = ?, ended = ?, error = ?, bytes = 0, result = NULL, result_bytes = NULL, worker = NULL"
            " WHERE number = ?",
            (FAILED, self._database.clock.now(), json.dumps(asdict(error)), row["number"]),
        )
        count(connection, "jobs_failed")
        add_ending(connection, row["artifact"], row["tenant"], FAILED)

    def postpone(self, worker: str, number: int, error: ErrorRecord) -> bool:
        """Return a job to the queue until the machine has room, with the reason; False if not this worker's now."""
        said = reworded(replace(error, hint=_AGAIN), self._places.hidden)
        with self._database.writing() as connection:
            changed = connection.execute(
                "UPDATE jobs SET state = ?, worker = NULL, error = ? WHERE number = ? AND worker = ? AND state = ?",
                (QUEUED, json.dumps(asdict(said)), number, worker, RUNNING),
            )
            return changed.rowcount == 1

    # ------------------------------------------------------------------------------------- when workers die

    def release(self, worker: str | None = None, *, died: bool = True) -> int:
        """Return the jobs of a lost worker (without a name: of all workers) to the queue; returns their number.

        A job over which too many workers died ends with an error instead. `died=False` means that the server ended, and
        its workers with it, which says nothing about their jobs.
        """
        with self._database.writing() as connection:
            rows = connection.execute(
                "SELECT * FROM jobs WHERE state = ? AND (? IS NULL OR worker = ?)", (RUNNING, worker, worker)
            ).fetchall()
            ended = self._release(connection, rows, died)
        self._unlink(ended)
        return len(rows)

    def _release(self, connection: sqlite3.Connection, rows: list[sqlite3.Row], died: bool) -> list[sqlite3.Row]:
        """Return jobs to the queue; returns those that were given up."""
        ended, now = [], self._database.clock.now()
        for row in rows:
            deaths = 0.0
            if died:
                deaths = 1.0 if now - row["started"] >= self._limits.quick_s else 1 / _QUICK_DEATHS
            if row["deaths"] + deaths >= self._limits.deaths:
                error = ErrorRecord(
                    "InternalError",
                    "the job was given up: workers died or went silent over it again and again",
                    hint="the operator's log says when; the machine may have too little memory",
                )
                self._end_badly(connection, row, error)
                ended.append(row)
            else:
                connection.execute(
                    "UPDATE jobs SET state = ?, worker = NULL, deaths = deaths + ? WHERE number = ?",
                    (QUEUED, deaths, row["number"]),
                )
        return ended

    # ------------------------------------------------------------------------------------- rows

    def _row(self, tenant: int, id: str) -> sqlite3.Row | None:
        row: sqlite3.Row | None = (
            self._database.reading().execute("SELECT * FROM jobs WHERE tenant = ? AND id = ?", (tenant, id)).fetchone()
        )
        return row

    def _record(self, row: sqlite3.Row) -> JobRecord:
        return self._shown(row, self._ahead(row["tenant"], row["number"]) if row["state"] == QUEUED else 0)

    def _shown(self, row: sqlite3.Row, ahead: int) -> JobRecord:
        """A job's record for its tenant, with wall-clock times."""
        created, started, ended = (
            None if row[name] is None else self._database.clock.shown(row[name])
            for name in ("created", "started", "ended")
        )
        assert created is not None
        return JobRecord(
            id=row["id"],
            artifact=row["artifact"],
            client=row["client"],
            state=row["state"],
            done=row["done"],
            total=row["total"],
            created=created,
            started=started,
            ended=ended,
            result_bytes=row["result_bytes"] if row["state"] == DONE else None,
            error=None if row["error"] is None else ErrorRecord(**json.loads(row["error"])),
            ahead=ahead,
        )

    def _ahead(self, tenant: int, number: int) -> int:
        """The number of the tenant's waiting jobs that were accepted before this one."""
        (ahead,) = (
            self._database.reading()
            .execute(
                "SELECT COUNT(*) FROM jobs WHERE tenant = ? AND state = ? AND number < ?", (tenant, QUEUED, number)
            )
            .fetchone()
        )
        return int(ahead)

    def _require_place(self, connection: sqlite3.Connection, tenant: int) -> None:
        (waiting,) = connection.execute(
            "SELECT COUNT(*) FROM jobs WHERE tenant = ? AND state IN (?, ?)", (tenant, QUEUED, RUNNING)
        ).fetchone()
        if waiting >= self._limits.queued_jobs:
            raise Refused(
                429,
                f"{waiting} jobs of this token have not ended; at most {self._limits.queued_jobs} may wait",
                hint="try again when some have ended",
            )


def has_ended(record: JobRecord) -> bool:
    return record.state in ENDED
