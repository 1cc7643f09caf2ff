"""What a hostile client, a hostile server, a full disk or a kill between two statements could do, and does not."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import json
import os
import shutil
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from helpers.serving import Running
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.errors import HeliographError, InternalError, RangeError, WireError
from heliograph.files import open_file
from heliograph.runtime.wire.keyfolder import KeyFolder, key_parts
from heliograph.serving.connections import Connection
from heliograph.serving.http import routes_jobs
from heliograph.serving.http.app import make_app
from heliograph.serving.http.routes_jobs import _opened
from heliograph.serving.queue import uploads
from heliograph.serving.queue.database import Database
from heliograph.serving.queue.settings import Limits
from heliograph.serving.queue.tenants import stored_bytes
from heliograph.serving.refusals import Refused
from heliograph.serving.remote.records import ErrorRecord
from heliograph.serving.site import Site, SiteSettings
from heliograph.serving.turns import Crowd, Turns

MODEL = toy_artifact().fingerprint
DATA = b"some bytes"
DIGEST = hashlib.sha256(DATA).hexdigest()


def site_of(artifact_file: Path, folder: Path, limits: Limits | None = None) -> Site:
    return Site(
        SiteSettings([artifact_file], folder, memory_bytes=1 << 31, allow_insecure=True, limits=limits or Limits())
    )


@pytest.fixture
def site(artifact_file: Path, tmp_path: Path) -> Site:
    """Of a server whose workers are not started."""
    return site_of(artifact_file, tmp_path / "data")


def put(site: Site, data: bytes, tenant: int = 1) -> str:
    digest = hashlib.sha256(data).hexdigest()
    site.uploads.begin(tenant, digest, len(data))
    part = site.uploads.part(tenant, digest, 0)
    part.write(data)
    part.close()
    assert site.uploads.complete(tenant, digest).complete
    return digest


def register(site: Site, client: hg.Client, keys: hg.EvaluationKeys) -> None:
    expected = site.catalog[MODEL].keys
    site.keysets.begin(1, MODEL, client.id, expected)
    for name in expected:
        digest = put(site, b"".join(key_parts(MODEL, client.id, name, keys.blob(name))))
        site.keysets.take(1, MODEL, client.id, name, digest, expected)


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


def test_an_upload_whose_file_went_is_begun_anew(site: Site, client: hg.Client, keys: hg.EvaluationKeys) -> None:
    """A server was killed between the file's removal and the end of the transaction."""
    register(site, client, keys)
    digest = put(site, DATA)
    site.places.upload(1, digest).unlink()
    with pytest.raises(Refused, match="not complete"):
        site.submit(1, "a" * 32, MODEL, client.id, digest)
    assert not site.uploads.begin(1, digest, len(DATA)).complete
    put(site, DATA)


def test_keys_that_were_taken_and_not_counted_are_counted(
    site: Site, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    """A server was killed when the last key lay in its place; the client comes back as a new process."""
    register(site, client, keys)
    with site.database.writing() as connection:
        connection.execute("UPDATE keysets SET complete = 0, bytes = 0")
    state = site.keysets.begin(1, MODEL, client.id, site.catalog[MODEL].keys)
    assert state.complete
    assert state.stored_bytes > 0
    assert state.missing == []


# ------------------------------------------------------------------------------------------------ races


def test_bytes_that_are_sent_again_do_not_touch_a_jobs_input(
    site: Site, client: hg.Client, keys: hg.EvaluationKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process of the client begins the same upload in the moment in which the job was accepted."""
    register(site, client, keys)
    data = client.encrypt(sample()).to_bytes()
    digest = put(site, data)
    real, begun = site.database.writing, list[str]()

    @contextlib.contextmanager
    def writing() -> Iterator[sqlite3.Connection]:
        with real() as connection:
            yield connection
        if not begun:
            begun.append(site.uploads.begin(1, digest, len(data)).digest)

    monkeypatch.setattr(site.jobs, "_database", _With(site.database, writing))
    path = site.uploads.finished(1, digest)
    folder = site.keysets.for_job(1, MODEL, client.id)
    record = site.jobs.accept(1, "b" * 32, MODEL, client.id, folder, digest, path)
    assert begun
    assert record.state == "queued"
    (name,) = os.listdir(site.places.inputs)
    assert (site.places.inputs / name).read_bytes() == data
    # What was begun is there, and goes on.
    part = site.uploads.part(1, digest, 0)
    part.write(data)
    part.close()
    assert site.uploads.complete(1, digest).complete


class _With:
    """A database with another `writing`."""

    def __init__(self, database: Database, writing: object) -> None:
        self.reading, self.writing, self.clock = database.reading, writing, database.clock


def test_two_submissions_of_one_job_are_both_answered_with_it(
    site: Site, client: hg.Client, keys: hg.EvaluationKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is carried out while the first is about to read the upload."""
    register(site, client, keys)
    encrypted = client.encrypt(sample())
    digest = put(site, encrypted.to_bytes())
    given = (1, encrypted.request, MODEL, client.id, digest)
    real = site.uploads.finished

    def finished(tenant: int, digest: str) -> Path:
        path = real(tenant, digest)
        monkeypatch.setattr(site.uploads, "finished", real)
        site.submit(*given)
        return path

    monkeypatch.setattr(site.uploads, "finished", finished)
    assert site.submit(*given).id == encrypted.request
    assert len(site.jobs.records(1)[0]) == 1


def test_what_was_used_meanwhile_does_not_expire(site: Site, client: hg.Client, keys: hg.EvaluationKeys) -> None:
    register(site, client, keys)
    folder, before = site.keysets.for_job(1, MODEL, client.id), time.time() - 100
    site.keysets._delete(folder, "its evaluation keys expired", before)
    assert site.keysets.for_job(1, MODEL, client.id) == folder
    digest = put(site, DATA)
    with pytest.raises(Refused):
        site.uploads.delete(1, digest, before=before)
    assert site.uploads.record(1, digest).complete


# ------------------------------------------------------------------------------------------------ shares


def test_small_things_are_counted_too(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    """Of one byte each, uploads fit into any quota; their files and rows are the server's."""
    site = site_of(artifact_file, tmp_path, Limits(kept_uploads=3, kept_jobs=2, kept_keysets=2))
    register(site, client, keys)
    for number in range(2):
        site.uploads.begin(1, f"{number:064}", 1)
        encrypted = client.encrypt(sample())
        site.submit(1, encrypted.request, MODEL, client.id, put(site, encrypted.to_bytes()))
    site.uploads.begin(1, "a" * 64, 1)
    with pytest.raises(Refused, match="3 uploads") as refused:
        site.uploads.begin(1, "b" * 64, 1)
    assert refused.value.status == 413
    site.uploads.begin(2, "b" * 64, 1)
    site.uploads.delete(1, "a" * 64)
    encrypted = client.encrypt(sample())
    digest = put(site, encrypted.to_bytes())
    with pytest.raises(Refused, match="2 jobs"):
        site.submit(1, encrypted.request, MODEL, client.id, digest)
    site.keysets.begin(1, MODEL, "c" * 32, {})
    with pytest.raises(Refused, match="2 keysets"):
        site.keysets.begin(1, MODEL, "d" * 32, {})
    assert len(os.listdir(site.places.keys)) == 2


def test_results_count_before_they_are_there(site: Site, client: hg.Client, keys: hg.EvaluationKeys) -> None:
    """Or else many jobs could be accepted whose results go beyond the quota together."""
    register(site, client, keys)
    before = stored_bytes(site.database.reading(), 1)
    encrypted = client.encrypt(sample())
    data = encrypted.to_bytes()
    record = site.submit(1, encrypted.request, MODEL, client.id, put(site, data))
    expected = site.catalog[MODEL].record.output_bytes
    assert expected > 0
    assert stored_bytes(site.database.reading(), 1) == before + len(data) + expected
    assert record.result_bytes is None
    with site.database.writing() as connection:
        row = connection.execute("SELECT folder FROM jobs").fetchone()
        site.jobs.end_all(connection, row["folder"], ErrorRecord("ProgramError", "over"))
    assert stored_bytes(site.database.reading(), 1) == before


def test_uploads_that_were_begun_together_leave_the_disk_its_room(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.uploads.begin(1, DIGEST, len(DATA))
    part = site.uploads.part(1, DIGEST, 0)
    usage = shutil.disk_usage(site.places.root)
    monkeypatch.setattr(uploads.shutil, "disk_usage", lambda path: usage._replace(free=Limits().free_bytes + 5))
    with pytest.raises(Refused, match="no room") as refused:
        part.write(DATA)
    assert refused.value.status == 507
    part.close()


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

    async def work(turns: Turns, tenant: int, name: str) -> None:
        async with turns.of(tenant):
            await asyncio.sleep(0)
            done.append(name)

    async def all_of_them() -> None:
        turns = Turns()
        many = [asyncio.create_task(work(turns, 1, f"first {number}")) for number in range(10)]
        await asyncio.sleep(0)
        await asyncio.gather(*many, work(turns, 2, "second"))

    asyncio.run(all_of_them())
    assert done.index("second") <= 2
    assert len(done) == 11


def test_open_requests_of_a_tenant_are_bounded_and_counted_out(artifact_file: Path, tmp_path: Path) -> None:
    crowd = Crowd(2)
    crowd.enter(1)
    crowd.enter(1)
    with pytest.raises(Refused, match="2 requests") as refused:
        crowd.enter(1)
    assert refused.value.status == 429
    crowd.enter(2)
    crowd.leave(1)
    crowd.enter(1)

    site = site_of(artifact_file, tmp_path)
    site.crowd = Crowd(1)
    headers = {"Authorization": f"Bearer {site.tenants.add('first')}"}

    async def ask() -> None:
        # Without the application's lifespan: no worker is needed.
        transport = httpx.ASGITransport(make_app(site))
        async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=headers) as http:
            for path, status in (
                ("/v1/artifacts", 200), ("/v1/jobs", 200), ("/", 403), ("/v1/jobs/x", 422), (f"/v1/jobs/{'a' * 32}", 404),
                (f"/v1/artifacts/{MODEL}/public", 200), (f"/v1/jobs/{'a' * 32}/events", 404),
            ):  # fmt: skip
                assert (await http.get(path)).status_code == status, path
            sent = await http.put(f"/v1/uploads/{DIGEST}?total={len(DATA)}", content=DATA)
            assert sent.json()["complete"]
            assert not site.crowd._open
            site.crowd.enter(1)
            assert (await http.get("/v1/artifacts")).status_code == 429
            # It needs no token; no worker lives.
            assert (await http.get("/health")).status_code == 503

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
    sent = running.request("PUT", f"/v1/uploads/{DIGEST}?total={len(DATA)}", content=DATA)
    assert sent.json()["complete"]
    query = f"artifact={MODEL}&client={client.id}&upload={DIGEST}"
    refused = running.request("PUT", f"/v1/jobs/{'c' * 32}?{query}")
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
    answers[f"GET /v1/jobs/{job}"] = 200, {"state": "failed", **refused("RangeError", "x is out of its range")}
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
