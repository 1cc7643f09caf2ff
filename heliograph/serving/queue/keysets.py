"""The evaluation keys of clients: a folder for each key set (runtime/wire/keyfolder.py), filled by uploads of keys."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from heliograph.ckks.keys import EvaluationKey
from heliograph.errors import HeliographError
from heliograph.files import of_the_machine, write_file
from heliograph.runtime.wire.keyfolder import KeyFolder, KeysError, key_parts, write_index
from heliograph.serving.logs import log
from heliograph.serving.queue.database import Database, count
from heliograph.serving.queue.jobs import Jobs
from heliograph.serving.queue.settings import Limits, Places
from heliograph.serving.queue.tenants import require_few, require_room, reserved_bytes
from heliograph.serving.queue.uploads import Upload, require_free
from heliograph.serving.refusals import Refused, nothing_there
from heliograph.serving.remote.records import ErrorRecord, KeysRecord

Expected = Mapping[str, EvaluationKey]


@dataclass(frozen=True, slots=True)
class _Row:
    folder: str
    bytes: int
    complete: bool
    used: float


class KeySets:
    """The key sets of all tenants."""

    def __init__(self, database: Database, places: Places, limits: Limits, jobs: Jobs) -> None:
        self._database, self._places, self._limits, self._jobs = database, places, limits, jobs
        # Only one key at a time is read for its check, because keys are large.
        self._reading = threading.Lock()

    def begin(
        self,
        tenant: int,
        artifact: str,
        client: str,
        expected: Expected,
        others: Mapping[str, Expected] = MappingProxyType({}),
    ) -> KeysRecord:
        """The key set, created if it is new; a refusal if the tenant has too many.

        others: the keys of the other artifacts that are served. A new set takes those keys that the same client sent for
            one of them and that both artifacts need alike.
        """
        found = self._row(tenant, artifact, client)
        if found is None:
            self._begin(tenant, artifact, client)
            self._keep(tenant, artifact, client, expected, others)
        elif _size(self._folder(found.folder, artifact, client)) != found.bytes:
            self.mend(found.folder)
        row = self._required(tenant, artifact, client)
        if row.complete:
            self._touch(tenant, artifact, client)
        else:
            # A set that needs no keys is complete at once, and a killed server may have stored keys without counting
            # them.
            self._count(row.folder, expected)
        return self.record(tenant, artifact, client, expected)

    def _begin(self, tenant: int, artifact: str, client: str) -> None:
        folder, taken = secrets.token_hex(16), False
        try:
            with self._database.writing() as connection:
                require_few(connection, tenant, "keysets", self._limits.kept_keysets)
                done = connection.execute(
                    "INSERT OR IGNORE INTO keysets (folder, tenant, artifact, client, used) VALUES (?, ?, ?, ?, ?)",
                    (folder, tenant, artifact, client, self._database.clock.now()),
                )
                if done.rowcount:
                    taken = True
                    self._folder(folder, artifact, client)
        except BaseException:
            if taken:
                shutil.rmtree(self._places.keyset(folder), ignore_errors=True)
            raise

    def _keep(
        self, tenant: int, artifact: str, client: str, expected: Expected, others: Mapping[str, Expected]
    ) -> None:
        """Copy keys of the client's other sets into a new one, as far as the quota and the disk allow."""
        rows = (
            self._database.reading()
            .execute(
                "SELECT folder, artifact FROM keysets WHERE tenant = ? AND client = ? AND artifact != ? AND complete = 1"
                " ORDER BY used DESC",
                (tenant, client, artifact),
            )
            .fetchall()
        )
        row = self._required(tenant, artifact, client)
        target, copied = self._places.keyset(row.folder), 0
        for other in rows:
            known = others.get(other["artifact"], {})
            for name in sorted(set(expected) - set(KeyFolder(target).names())):
                if known.get(name) != expected[name]:
                    continue
                try:
                    source = KeyFolder(self._places.keyset(other["folder"]))
                    size = source.file(name).stat().st_size
                    with self._database.writing() as connection:
                        require_room(connection, tenant, copied + size, self._limits)
                        left = self._limits.free_bytes + reserved_bytes(connection)
                    require_free(target, size, left)
                    with self._reading:
                        blob = source.blob(name)
                        write_file(KeyFolder(target).file(name), key_parts(artifact, client, name, blob))
                except (HeliographError, OSError):
                    # No room, or a set that is damaged: the client sends the others.
                    return
                copied += size
        if copied:
            log("keys kept", artifact=artifact, bytes=copied)

    def record(self, tenant: int, artifact: str, client: str, expected: Expected) -> KeysRecord:
        """The state of the set: how many keys there are, and which are missing."""
        row = self._required(tenant, artifact, client)
        there = set(KeyFolder(self._places.keyset(row.folder)).names())
        missing = tuple(sorted(set(expected) - there))
        return KeysRecord(
            artifact,
            client,
            len(expected),
            missing,
            row.bytes,
            row.complete,
            self._database.clock.shown(row.used + self._limits.keys_s),
        )

    def taken(self, tenant: int, artifact: str, client: str, name: str, expected: Expected) -> KeysRecord | None:
        """The set's record if the key of that name is already stored; None if it must be sent.

        Unknown key names, and sets that were not begun, are refused.
        """
        if name not in expected:
            raise Refused(404, f"the artifact has no evaluation key {name[:60]!r}")
        row = self._required(tenant, artifact, client)
        if name not in KeyFolder(self._places.keyset(row.folder)).names():
            return None
        # A killed server may have stored the key without counting it.
        self._count(row.folder, expected)
        return self.record(tenant, artifact, client, expected)

    def take(
        self, tenant: int, artifact: str, client: str, name: str, upload: Upload, expected: Expected
    ) -> KeysRecord:
        """Store an upload as the key of that name, unless that key arrived meanwhile.

        Raises a WireError for an upload that is not this key of this client and artifact.
        """
        row = self._required(tenant, artifact, client)
        keys = KeyFolder(self._places.keyset(row.folder))
        with self._reading:
            if name not in keys.names():
                keys.adopt(name, upload.path)
        self._count(row.folder, expected, upload)
        return self.record(tenant, artifact, client, expected)

    def _count(self, folder: str, expected: Expected, upload: Upload | None = None) -> None:
        """Record which keys of a set are stored; `upload` has become one of them and no longer counts as an upload."""
        keys = KeyFolder(self._places.keyset(folder))
        with self._database.writing() as connection:
            there = set(keys.names())
            connection.execute(
                "UPDATE keysets SET bytes = ?, complete = ?, used = ? WHERE folder = ?",
                (_size(keys), int(there == set(expected)), self._database.clock.now(), folder),
            )
            if upload is not None:
                count(connection, "keys_taken")
                upload.uncount()

    def for_job(self, tenant: int, artifact: str, client: str) -> str:
        """The folder of a complete set; a refusal if there is none."""
        row = self._row(tenant, artifact, client)
        if row is None or not row.complete:
            raise Refused(
                409,
                "the evaluation keys of this client are not registered, or not all of them are here",
                hint="send them first: RemoteServer.register(keys)",
            )
        self._touch(tenant, artifact, client)
        return row.folder

    def delete(self, tenant: int, artifact: str, client: str) -> None:
        """Forget the keys of a client; its unfinished jobs end with an error."""
        self._delete(self._required(tenant, artifact, client).folder, "its evaluation keys were deleted")

    def expire(self) -> None:
        """Delete the sets that no job has used for long and no queued job needs."""
        before = self._database.clock.now() - self._limits.keys_s
        rows = (
            self._database.reading()
            .execute(
                "SELECT folder FROM keysets WHERE used < ? AND folder NOT IN"
                " (SELECT folder FROM jobs WHERE state IN ('queued', 'running'))",
                (before,),
            )
            .fetchall()
        )
        for row in rows:
            self._delete(row["folder"], "its evaluation keys expired", before)

    def settle(self) -> None:
        """At a start: make sure that each set has a folder, and check which of its keys are there."""
        for row in self._database.reading().execute("SELECT * FROM keysets").fetchall():
            if _size(self._folder(row["folder"], row["artifact"], row["client"])) != row["bytes"]:
                self.mend(row["folder"])

    def mend(self, folder: str) -> bool:
        """Drop the damaged keys of a set; returns whether its client has to send keys again."""
        with self._reading:
            row = self._database.reading().execute("SELECT * FROM keysets WHERE folder = ?", (folder,)).fetchone()
            if row is None:
                return False
            sound = self._indexed(folder, row["artifact"], row["client"]) is not None
            keys = self._folder(folder, row["artifact"], row["client"])
            if not row["complete"] and _size(keys) == row["bytes"]:
                return True
            for name in keys.names():
                try:
                    keys.blob(name)
                except KeysError as error:
                    if of_the_machine(error) is None:
                        keys.file(name).unlink(missing_ok=True)
            size = _size(keys)
            if sound and size == row["bytes"]:
                return False
            with self._database.writing() as connection:
                # No job uses the set until its client has asked for the missing keys.
                connection.execute("UPDATE keysets SET complete = 0, bytes = ? WHERE folder = ?", (size, folder))
            return True

    def _folder(self, folder: str, artifact: str, client: str) -> KeyFolder:
        """The folder of a set, with an index that names its owner; created if needed."""
        path = self._places.keyset(folder)
        path.mkdir(mode=0o700, exist_ok=True)
        os.chmod(path, 0o700)
        keys = self._indexed(folder, artifact, client)
        if keys is None:
            write_index(path, artifact, client)
            keys = KeyFolder(path)
        return keys

    def _indexed(self, folder: str, artifact: str, client: str) -> KeyFolder | None:
        """The folder of a set if its index is intact and names this owner, else None."""
        try:
            keys = KeyFolder(self._places.keyset(folder))
        except KeysError as error:
            if of_the_machine(error) is not None:
                raise
            return None
        return keys if (keys.artifact, keys.client) == (artifact, client) else None

    def _delete(self, folder: str, why: str, before: float | None = None) -> None:
        """Forget a set; with `before`, only if nobody has used it since then."""
        with self._database.writing() as connection:
            gone = connection.execute(
                "DELETE FROM keysets WHERE folder = ? AND (? IS NULL OR used < ?)", (folder, before, before)
            )
            if gone.rowcount == 0:
                return
            error = ErrorRecord("ProgramError", "the job cannot be run", why=why)
            inputs = self._jobs.end_all(connection, folder, error)
        for path in inputs:
            path.unlink(missing_ok=True)
        shutil.rmtree(self._places.keyset(folder), ignore_errors=True)

    def _touch(self, tenant: int, artifact: str, client: str) -> None:
        with self._database.writing() as connection:
            connection.execute(
                "UPDATE keysets SET used = ? WHERE tenant = ? AND artifact = ? AND client = ?",
                (self._database.clock.now(), tenant, artifact, client),
            )

    def _row(self, tenant: int, artifact: str, client: str) -> _Row | None:
        row = (
            self._database.reading()
            .execute(
                "SELECT folder, bytes, complete, used FROM keysets WHERE tenant = ? AND artifact = ? AND client = ?",
                (tenant, artifact, client),
            )
            .fetchone()
        )
        return None if row is None else _Row(row["folder"], row["bytes"], bool(row["complete"]), row["used"])

    def _required(self, tenant: int, artifact: str, client: str) -> _Row:
        row = self._row(tenant, artifact, client)
        if row is None:
            raise nothing_there("set of evaluation keys")
        return row


def _size(keys: KeyFolder) -> int:
    """The bytes of the stored keys."""
    return sum(keys.file(each).stat().st_size for each in keys.names())
