"""What a hostile client, a hostile server, a full disk or a kill between two statements could do, and does not."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from helpers.serving import Running
from helpers.sites import put, register, site, submit
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.artifact.container import digest_of
from heliograph.errors import HeliographError, InternalError, RangeError, WireError
from heliograph.files import open_file
from heliograph.runtime.wire.keyfolder import KeyFolder, key_parts
from heliograph.serving.connections import Connection
from heliograph.serving.fairness import FairLock, RequestLimit
from heliograph.serving.http import routes_jobs
from heliograph.serving.http.app import make_app
from heliograph.serving.http.routes_jobs import _opened
from heliograph.serving.queue import uploads
from heliograph.serving.queue.database import Database
from heliograph.serving.queue.settings import Limits
from heliograph.serving.queue.tenants import stored_bytes
from heliograph.serving.refusals import Refused
from heliograph.serving.remote.records import ErrorRecord, JobRecord
from heliograph.serving.site import Site

MODEL = toy_artifact().fingerprint
DATA = b"some bytes"


@pytest.fixture
def made(artifact_file: Path, tmp_path: Path) -> Site:
    """Of a server whose workers are not started."""
    return site(artifact_file, tmp_path / "data", Limits())


# ------------------------------------------------------------------------------------------------ the queue


def test_a_commit_that_fails_leaves_no_transaction_open(tmp_path: Path) -> None:
    """As on a full disk; the next writer of this thread, and of others, is not locked out."""
    database = Database(tmp_path / "queue.sqlite")
    connection = database.reading()
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
    connection.execute("CREATE TABLE children (id INTEGER REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(sqlite3.IntegrityError), database.writing() as writing:
        writing.execute("INSERT INTO children VALUES (1)")
    with database.writing() as writing:
        writing.execute("INSERT INTO parents VALUES (2)")
    with contextlib.closing(sqlite3.connect(tmp_path / "queue.sqlite", timeout=0.1)) as other:
        other.execute("INSERT INTO parents VALUES (3)")
        other.rollback()
        assert other.execute("SELECT COUNT(*) FROM children").fetchone() == (0,)


def test_a_full_disk_is_told_as_what_it_is(tmp_path: Path) -> None:
    database = Database(tmp_path / "queue.sqlite")
    (pages,) = database.reading().execute("PRAGMA page_count").fetchone()
    database.reading().execute(f"PRAGMA max_page_count = {pages}")
    rows = [(f"{number:0200}",) for number in range(10_000)]
    with pytest.raises(sqlite3.OperationalError, match="full"), database.writing() as writing:
        writing.executemany("INSERT INTO counters VALUES (?, 1)", rows)
    with database.writing() as writing:
        assert writing.execute("SELECT COUNT(*) FROM counters").fetchone()[0] == 0


# ------------------------------------------------------------------------------------------------ kills


def test_keys_that_were_taken_and_not_counted_are_counted(
    made: Site, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    """A server was killed when the last key lay in its place; the client comes back as a new process."""
    register(made, client, keys)
    with made.database.writing() as connection:
        connection.execute("UPDATE keysets SET complete = 0, bytes = 0")
    state = made.keysets.begin(1, MODEL, client.id, made.catalog[MODEL].keys)
    assert state.complete
    assert state.stored_bytes > 0
    assert state.missing == ()


# ------------------------------------------------------------------------------------------------ races


def test_two_submissions_of_one_job_are_both_answered_with_it(
    made: Site, client: hg.Client, keys: hg.EvaluationKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is carried out while the first one's input is checked, and each has sent it."""
    register(made, client, keys)
    encrypted = client.encrypt(sample())
    real, ids = made.jobs.accept, list[str]()

    def accept(*given: Any) -> Any:
        monkeypatch.setattr(made.jobs, "accept", real)
        ids.append(submit(made, encrypted))
        return real(*given)

    monkeypatch.setattr(made.jobs, "accept", accept)
    ids.append(submit(made, encrypted))
    assert ids == 2 * [encrypted.request]
    assert len(made.jobs.records(1)[0]) == 1
    (name,) = os.listdir(made.places.inputs)
    assert (made.places.inputs / name).read_bytes() == encrypted.to_bytes()
    assert os.listdir(made.places.uploads) == []


def test_a_key_that_is_sent_twice_at_once_is_taken_once(made: Site, client: hg.Client, keys: hg.EvaluationKeys) -> None:
    expected = made.catalog[MODEL].keys
    made.keysets.begin(1, MODEL, client.id, expected)
    name = min(expected)
    data = b"".join(key_parts(MODEL, client.id, name, keys.blob(name)))
    with put(made, data) as first, put(made, data) as second:
        assert made.uploads.announced_bytes(1) == 2 * len(data)
        for upload in (first, second):
            record = made.keysets.take(1, MODEL, client.id, name, upload, expected)
            assert (name in record.missing, record.stored_bytes) == (False, len(data))
    assert made.uploads.announced_bytes() == 0
    again = made.keysets.taken(1, MODEL, client.id, name, expected)
    assert again is not None
    assert again.missing == record.missing
    assert os.listdir(made.places.uploads) == []


def test_what_was_used_meanwhile_does_not_expire(made: Site, client: hg.Client, keys: hg.EvaluationKeys) -> None:
    register(made, client, keys)
    folder, before = made.keysets.for_job(1, MODEL, client.id), time.time() - 100
    made.keysets._delete(folder, "its evaluation keys expired", before)
    assert made.keysets.for_job(1, MODEL, client.id) == folder


# ------------------------------------------------------------------------------------------------ shares


def test_small_things_are_counted_too(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    """Small ones fit into any quota; their files and rows are the server's."""
    made = site(artifact_file, tmp_path, Limits(kept_jobs=2, kept_keysets=2))
    register(made, client, keys)
    for _ in range(2):
        submit(made, client.encrypt(sample()))
    with pytest.raises(Refused, match="2 jobs"):
        submit(made, client.encrypt(sample()))
    made.keysets.begin(1, MODEL, "c" * 32, {})
    with pytest.raises(Refused, match="2 keysets"):
        made.keysets.begin(1, MODEL, "d" * 32, {})
    assert len(os.listdir(made.places.keys)) == 2
    assert os.listdir(made.places.uploads) == []


def test_results_count_before_they_are_there(made: Site, client: hg.Client, keys: hg.EvaluationKeys) -> None:
    """Or else many jobs could be accepted whose results go beyond the quota together."""
    register(made, client, keys)
    before = stored_bytes(made.database.reading(), 1)
    encrypted = client.encrypt(sample())
    job = submit(made, encrypted)
    expected = made.catalog[MODEL].record.output_bytes
    assert expected > 0
    assert stored_bytes(made.database.reading(), 1) == before + len(encrypted.to_bytes()) + expected
    assert made.jobs.record(1, job).result_bytes is None
    with made.database.writing() as connection:
        row = connection.execute("SELECT folder FROM jobs").fetchone()
        made.jobs.end_all(connection, row["folder"], ErrorRecord("ProgramError", "over"))
    assert stored_bytes(made.database.reading(), 1) == before


def test_uploads_count_from_their_beginning_to_their_end(artifact_file: Path, tmp_path: Path) -> None:
    """Each by what it announced, beside what the tenant has on the disk; nothing of it is left, however it ends."""
    made = site(artifact_file, tmp_path, Limits(tenant_bytes=100))
    with pytest.raises(Refused, match="an upload of 31 bytes is refused") as refused:
        made.uploads.begin(1, 31, 30)
    assert refused.value.status == 413
    first, second = (made.uploads.begin(1, 45, 45) for _ in range(2))
    with pytest.raises(Refused, match="quota of this token"):
        made.uploads.begin(1, 11, 45)
    made.uploads.begin(2, 100, 100).close()
    first.write(bytes(40))
    with pytest.raises(Refused, match="beyond the 45 bytes"):
        first.write(bytes(6))
    with pytest.raises(Refused, match="40 bytes of the 45"):
        first.finish()
    first.close()
    first.close()
    assert (made.uploads.announced_bytes(1), len(os.listdir(made.places.uploads))) == (45, 1)
    third = made.uploads.begin(1, 55, 55)
    for each in (second, third):
        each.close()
    assert (made.uploads.announced_bytes(), os.listdir(made.places.uploads)) == (0, [])


def test_uploads_that_were_begun_together_leave_the_disk_its_room(made: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = made.uploads.begin(1, len(DATA), len(DATA))
    usage = shutil.disk_usage(made.places.root)
    monkeypatch.setattr(uploads.shutil, "disk_usage", lambda path: usage._replace(free=Limits().free_bytes + 5))
    with pytest.raises(Refused, match="no room") as refused:
        upload.write(DATA)
    assert refused.value.status == 507
    upload.close()


def test_a_result_that_is_deleted_while_it_is_opened_is_sent_or_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "result.ct"
    path.write_bytes(DATA)

    def opened_and_deleted(name: Path, **more: Any) -> Any:
        file = open_file(name, **more)
        name.unlink()
        return file

    monkeypatch.setattr(routes_jobs, "open_file", opened_and_deleted)
    file, size = _opened(path)
    with file:
        assert (file.read(), size) == (DATA, len(DATA))
    with pytest.raises(Refused, match="no such result") as caught:
        _opened(path)
    assert caught.value.status == 404


def test_tenants_take_turns() -> None:
    """One with many requests that take long does not keep another one waiting for all of them."""
    done: list[str] = []

    async def work(turns: FairLock, tenant: int, name: str) -> None:
        async with turns.of(tenant):
            await asyncio.sleep(0)
            done.append(name)

    async def all_of_them() -> None:
        turns = FairLock()
        many = [asyncio.create_task(work(turns, 1, f"first {number}")) for number in range(10)]
        await asyncio.sleep(0)
        await asyncio.gather(*many, work(turns, 2, "second"))

    asyncio.run(all_of_them())
    assert done.index("second") <= 2
    assert len(done) == 11


def test_open_requests_of_a_tenant_are_bounded_and_counted_out(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    limit = RequestLimit(2)
    limit.enter(1)
    limit.enter(1)
    with pytest.raises(Refused, match="2 requests") as refused:
        limit.enter(1)
    assert refused.value.status == 429
    limit.enter(2)
    limit.leave(1)
    limit.enter(1)

    made = site(artifact_file, tmp_path, Limits())
    made.open_requests = RequestLimit(1)
    headers = {"Authorization": f"Bearer {made.tenants.add('first')}"}
    register(made, client, keys)
    data = client.encrypt(sample()).to_bytes()
    query = f"artifact={MODEL}&client={client.id}&digest={digest_of(data)}"

    async def ask() -> None:
        # Without the application's lifespan: no worker is needed.
        transport = httpx.ASGITransport(make_app(made))
        async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=headers) as http:
            for path, status in (
                ("/v1/artifacts", 200), ("/v1/jobs", 200), ("/", 403), ("/v1/jobs/x", 422), (f"/v1/jobs/{'a' * 32}", 404),
                (f"/v1/artifacts/{MODEL}/public", 200), (f"/v1/jobs/{'a' * 32}/events", 404),
            ):  # fmt: skip
                assert (await http.get(path)).status_code == status, path
            for length in ("9" * 5000, "-1", "x", ""):
                said = {"Content-Length": length}
                answer = await http.put(f"/v1/jobs/{'a' * 32}?{query}", content=data, headers=said)
                assert answer.status_code == 411
            sent = await http.put(f"/v1/jobs/{'a' * 32}?{query}", content=data)
            assert sent.json()["state"] == "queued"
            assert not made.open_requests._open
            made.open_requests.enter(1)
            assert (await http.get("/v1/artifacts")).status_code == 429
            # It needs no token; no worker lives.
            assert (await http.get("/health/ready")).status_code == 503
            assert (await http.get("/health/live")).status_code == 200

    asyncio.run(ask())


def test_connections_on_which_no_request_comes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent ones, and those that send a head byte by byte; one with a request that takes longer goes on."""
    monkeypatch.setattr(Connection, "head_s", 0.5)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        await asyncio.sleep(1.2)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    listener = socket.create_server(("127.0.0.1", 0))
    place = listener.getsockname()
    server = uvicorn.Server(uvicorn.Config(app, http=Connection, ws="none", lifespan="off", log_config=None))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        with socket.create_connection(place) as silent, socket.create_connection(place) as slow:
            begun = time.monotonic()
            with httpx.Client(base_url=f"http://127.0.0.1:{place[1]}") as client:
                for _ in range(2):
                    assert client.get("/").status_code == 204
            for each in (silent, slow):
                each.settimeout(0.1)
            with contextlib.suppress(OSError):
                for letter in b"GET / HTTP/1.1\r\nx: " + bytes(100):
                    slow.send(bytes([letter]))
                    time.sleep(0.05)
            for each in (silent, slow):
                with contextlib.suppress(ConnectionError):
                    assert each.recv(1) == b""
            assert time.monotonic() - begun < 20
    finally:
        server.should_exit = True
        thread.join(20)


def test_errors_name_no_files_of_the_server(
    running: Running, client: hg.Client, keys: hg.EvaluationKeys, remote: hg.RemoteServer
) -> None:
    """Neither what is refused at once nor what a job ended with."""
    query = f"artifact={MODEL}&client={client.id}&digest={'0' * 64}"
    refused = running.request("PUT", f"/v1/jobs/{'c' * 32}?{query}", content=DATA)
    assert refused.status_code == 422
    assert "what was sent" in refused.text
    other = hg.Client(toy_artifact(), allow_insecure=True)
    remote.register(other.evaluation_keys())
    for folder in running.places.keys.iterdir():
        if KeyFolder(folder).client == other.id:
            for key in folder.glob("*.key"):
                key.write_bytes(b"junk" * 100)
    with pytest.raises(HeliographError, match="damaged on the disk of the server") as failed:
        remote.run(other.encrypt(sample()))
    for text in (refused.text, str(failed.value)):
        assert str(running.folder) not in text
        assert "uploads/" not in text


# ------------------------------------------------------------------------------------------------ the page


def test_the_page_runs_nothing_and_is_nobodys_frame(running: Running) -> None:
    headers = running.get("/", running.operator).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"


# ------------------------------------------------------------------------------------------------ hostile servers


@pytest.fixture
def answering() -> Iterator[dict[str, object]]:
    """A server that answers what a test puts into `body`, with `headers`; its address is `url`."""
    said: dict[str, object] = {"body": b"", "headers": {}, "sent": 0}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in said["headers"].items():  # type: ignore[attr-defined]
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                for block in said["body"] if not isinstance(said["body"], bytes) else [said["body"]]:  # type: ignore[attr-defined]
                    self.wfile.write(block)
                    said["sent"] += len(block)  # type: ignore[operator]

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    said["url"] = f"http://127.0.0.1:{server.server_port}"
    yield said
    server.shutdown()
    server.server_close()


def test_a_packed_answer_is_not_unpacked(answering: dict[str, object]) -> None:
    """Packed five times over, some kilobytes would become as much as the memory has."""
    data = bytes(1 << 22)
    for _ in range(5):
        data = gzip.compress(data)
    answering |= {"body": data, "headers": {"Content-Encoding": ", ".join(5 * ["gzip"])}}
    with hg.RemoteServer(str(answering["url"]), "token", patience_s=1) as remote:
        with pytest.raises(WireError, match="packed"):
            remote.artifacts()
        assert list(remote._transport.events("/v1/jobs/x/events")) == []


def test_json_that_is_too_deep_is_no_answer(answering: dict[str, object]) -> None:
    answering["body"] = b"[" * 200_000
    with hg.RemoteServer(str(answering["url"]), "token", patience_s=1) as remote:
        with pytest.raises(HeliographError, match="does not answer like a Heliograph server"):
            remote.artifacts()
        answering["body"] = b"data: " + b"[" * 200_000 + b"\n\n"
        assert list(remote._transport.events("/v1/jobs/x/events")) == []


def test_an_event_without_end_is_given_up(answering: dict[str, object]) -> None:
    answering["body"] = (bytes(1 << 16) for _ in range(4096))
    with hg.RemoteServer(str(answering["url"]), "token", patience_s=1) as remote:
        assert list(remote._transport.events("/v1/jobs/x/events")) == []
    # What the system holds in its buffers comes on top.
    assert int(str(answering["sent"])) < 1 << 26


# ------------------------------------------------------------------------------------------------ servers that fail


Answers = dict[str, Any]


@pytest.fixture
def scripted() -> Iterator[tuple[str, Answers, list[str]]]:
    """The address of a server, what it answers, and the requests that it got.

    The answers are, for each "METHOD /path", a status and JSON, or a list of these: one after the other.
    """
    answers: Answers = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append(f"{self.command} {self.path.partition('?')[0]}")
            found = answers[asked[-1]]
            status, value = found.pop(0) if isinstance(found, list) else found
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_DELETE = answer

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", answers, asked
    server.shutdown()
    server.server_close()


def refused(kind: str, what: str) -> dict[str, Any]:
    return {"error": {"kind": kind, "what": what, "where": "", "why": "its cause", "hint": "its hint"}}


@pytest.mark.parametrize("status", [404, 409, 403, 500, 503])
def test_the_error_of_a_job_is_raised_also_where_it_cannot_be_deleted(
    scripted: tuple[str, Answers, list[str]], status: int
) -> None:
    """The first answer to the deletion was lost, the job expired, or the server went away."""
    url, answers, asked = scripted
    job = "a" * 32
    error = ErrorRecord("RangeError", "x is out of its range", "", "its cause", "its hint")
    answers[f"GET /v1/jobs/{job}"] = (
        200,
        asdict(JobRecord(job, MODEL, "c" * 32, "failed", 0, 5, 1.0, 2.0, 3.0, None, error)),
    )
    answers[f"DELETE /v1/jobs/{job}"] = status, refused("ProgramError", "there is no such job")
    with hg.RemoteServer(url, "token", patience_s=0.5) as remote, pytest.raises(RangeError) as caught:
        remote.result(job)
    assert (caught.value.what, caught.value.why, caught.value.hint) == (
        "x is out of its range",
        "its cause",
        "its hint",
    )
    assert f"DELETE /v1/jobs/{job}" in asked


def test_a_server_that_fails_is_asked_twice_and_no_more(scripted: tuple[str, Answers, list[str]]) -> None:
    """A fault is usually met again: five minutes of silence would help nobody."""
    url, answers, asked = scripted
    answers["GET /v1/artifacts"] = 500, refused("InternalError", "the server failed")
    begun = time.monotonic()
    with hg.RemoteServer(url, "token", patience_s=20) as remote:
        with pytest.raises(InternalError, match="the server failed") as caught:
            remote.artifacts()
        assert caught.value.hint == "its hint"
        assert time.monotonic() - begun < 10
        assert asked == 2 * ["GET /v1/artifacts"]
        # Of whatever else stands at the address, at least the status.
        answers["GET /v1/artifacts"] = 500, "fault"
        with pytest.raises(HeliographError, match="status 500"):
            remote.artifacts()
        assert len(asked) == 4
        # Also where it is busy in between.
        later = refused("InternalError", "later")
        answers["GET /v1/artifacts"] = [(500, later), (503, later), (500, later), (200, [])]
        with pytest.raises(InternalError, match="later"):
            remote.artifacts()
        assert len(asked) == 7


def test_a_server_that_fails_once_or_is_busy_is_asked_again(scripted: tuple[str, Answers, list[str]]) -> None:
    url, answers, asked = scripted
    later = refused("InternalError", "later")
    answers["GET /v1/artifacts"] = [(503, later), (500, later), (503, later), (429, later), (200, [])]
    with hg.RemoteServer(url, "token", patience_s=20) as remote:
        assert remote.artifacts() == {}
    assert len(asked) == 5
