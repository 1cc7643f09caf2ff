"""What one client does in masses does not keep the others waiting: requests, connections, bodies, answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio.to_thread
import httpx
import pytest
import uvicorn
from helpers.certificates import write_certificate
from helpers.serving import Running
from helpers.sites import register
from runtime.support import toy_artifact

import heliograph as hg
from heliograph.serving.connections import (
    Bodies,
    BodyFlow,
    Connection,
    Connections,
    Listener,
    connections_for,
    place_of,
)
from heliograph.serving.fairness import RateLimit
from heliograph.serving.http.app import make_app
from heliograph.serving.queue.database import Database
from heliograph.serving.refusals import Refused, nothing_there
from heliograph.serving.site import Site, SiteSettings

MODEL = toy_artifact().fingerprint
NO_JOB = f"/v1/jobs/{'a' * 32}"


@pytest.fixture
def site(artifact_file: Path, tmp_path: Path) -> Site:
    """Of a server whose workers are not started."""
    return Site(SiteSettings([artifact_file], tmp_path / "data", memory_bytes=1 << 31, allow_insecure=True))


def talking(site: Site, token: str = "") -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.AsyncClient(transport=httpx.ASGITransport(make_app(site)), base_url="http://here", headers=headers)


def add_jobs(database: Database, number: int, *, tenant: int = 1, state: str = "running", first: int = 1) -> list[str]:
    """Jobs as they stand in the queue; no worker takes them."""
    names = [f"{first + place:032x}" for place in range(number)]
    columns = "tenant, id, artifact, client, folder, digest, input, bytes, state, created, worker"
    with database.writing() as connection:
        connection.executemany(
            f"INSERT INTO jobs ({columns}) VALUES (?, ?, ?, ?, 'none', ?, 'none', 0, ?, ?, 'nobody')",
            [(tenant, name, MODEL, "0" * 32, "0" * 64, state, 1e9 + place / 8) for place, name in enumerate(names)],
        )
    return names


# ------------------------------------------------------------------------------------------------ who has no token


def test_without_a_known_token_neither_threads_nor_bodies_nor_the_queue_are_touched(site: Site) -> None:
    async def ask() -> None:
        app = make_app(site)
        sent: list[Any] = []

        async def receive() -> Any:
            raise AssertionError("the body is read")

        async def send(message: Any) -> None:
            sent.append(message)

        site.database.writing = site.jobs.record = site.uploads.begin = pytest.fail  # type: ignore[method-assign, assignment]
        for method, path, headers in (
            ("PUT", NO_JOB, [(b"authorization", b"Bearer hg_no"), (b"content-length", b"9")]),
            ("GET", NO_JOB, []),
            ("GET", "/nothing", [(b"authorization", b"Basic !")]),
        ):
            scope = {
                "type": "http",
                "method": method,
                "path": path,
                "raw_path": path.encode(),
                "query_string": f"artifact={MODEL}&client={'0' * 32}&digest={'0' * 64}".encode(),
                "headers": headers,
                "client": ("192.0.2.1", 5),
                "http_version": "1.1",
                "scheme": "http",
            }
            await app(scope, receive, send)
        starts = [message for message in sent if message["type"] == "http.response.start"]
        assert [start["status"] for start in starts] == [401, 401, 401]
        # What follows the head of the first one is not read: the connection ends.
        assert [(b"connection", b"close") in start["headers"] for start in starts] == [True, False, False]
        assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        assert not [thread for thread in threading.enumerate() if "AnyIO" in thread.name]

    asyncio.run(ask())


def test_whoever_asks_too_fast_waits_and_then_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def ask() -> None:
        pace = RateLimit(every=1.0, burst=3, longest=4.0)
        for _ in range(8):
            await pace.wait("one")
        assert [round(seconds) for seconds in waited] == [1, 2, 3, 4]
        with pytest.raises(Refused, match="too many requests") as refused:
            await pace.wait("one")
        assert refused.value.status == 429
        await pace.wait("another")
        assert len(waited) == 4

    asyncio.run(ask())


def test_strangers_wait_for_their_answers_and_tenants_do_not(site: Site) -> None:
    site.rate_limit = RateLimit(every=0.1, burst=2, longest=60.0)

    async def ask() -> None:
        async with talking(site) as stranger, talking(site, site.tenants.add("first")) as tenant:
            begun = time.monotonic()
            flood = [asyncio.create_task(stranger.get("/v1/jobs")) for _ in range(12)]
            await asyncio.sleep(0)
            assert (await tenant.get(NO_JOB)).status_code == 404
            # A probe of the server's health is not behind those who try tokens.
            assert (await stranger.get("/health")).status_code == 503
            # Two at once, and one for each tenth of a second that has passed.
            assert sum(task.done() for task in flood) <= 3 + (time.monotonic() - begun) / 0.1
            assert {(await task).status_code for task in flood} == {401}
            assert time.monotonic() - begun > 0.9

    asyncio.run(ask())


def test_a_connection_without_a_token_has_a_bounded_number_of_answers(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as connection:
        connection.sendall(50 * b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        data = b""
        with contextlib.suppress(ConnectionError):
            while block := connection.recv(1 << 16):
                data += block
    assert data.count(b"HTTP/1.1 200 OK") == data.count(b"\r\n\r\n") == 20
    assert data.lower().count(b"connection: close") == 1


def test_health_and_jobs_tell_nothing_of_other_tenants(running: Running, site: Site) -> None:
    assert httpx.get(f"{running.url}/health").json()["jobs"] == {}
    assert running.get("/health").json()["jobs"] == {}
    assert set(running.get("/health", running.operator).json()["jobs"]) == {"queued", "running", "done", "failed"}
    add_jobs(site.database, 5, tenant=2, state="queued", first=1000)
    first, second = add_jobs(site.database, 2, state="queued")
    assert [site.jobs.record(1, name).ahead for name in (first, second)] == [0, 1]
    assert [record.ahead for record in site.jobs.records(1)[0]] == [1, 0]


# ------------------------------------------------------------------------------------------------ tenants


def test_a_tenant_has_few_requests_worked_on_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one is answered while all of these are stuck."""
    free, lock, now, most = threading.Event(), threading.Lock(), 0, 0

    def slow(tenant: int, id: str) -> Any:
        nonlocal now, most
        if tenant == 1:
            with lock:
                now += 1
                most = max(most, now)
            assert free.wait(30)
            with lock:
                now -= 1
        raise nothing_there("job")

    monkeypatch.setattr(site.jobs, "record", slow)

    async def ask() -> None:
        async with talking(site, site.tenants.add("a")) as first, talking(site, site.tenants.add("b")) as second:
            flood = [asyncio.create_task(first.get(NO_JOB)) for _ in range(60)]
            await asyncio.sleep(0.2)
            try:
                with anyio.fail_after(20):
                    assert (await second.get(NO_JOB)).status_code == 404
            finally:
                free.set()
            assert {(await task).status_code for task in flood} == {404}

    asyncio.run(ask())
    assert most == site.limits.turns == 2


def test_requests_that_wait_for_jobs_or_bodies_take_no_turn(
    site: Site, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    token = site.tenants.add("first")
    register(site, client, keys)
    names = add_jobs(site.database, 8)

    async def endless() -> Any:
        yield b"x"
        await asyncio.sleep(3)

    async def ask() -> None:
        async with talking(site, token) as tenant:
            waiting = [asyncio.create_task(tenant.get(f"/v1/jobs/{name}?wait=3")) for name in names]
            path = f"/v1/jobs/{{:032x}}?artifact={MODEL}&client={client.id}&digest={'0' * 64}"
            waiting += [
                asyncio.create_task(
                    tenant.put(path.format(1000 + number), content=endless(), headers={"Content-Length": "5"})
                )
                for number in range(8)
            ]
            await asyncio.sleep(0.5)
            begun = time.monotonic()
            assert (await tenant.get(NO_JOB)).status_code == 404
            assert time.monotonic() - begun < 1.5
            assert not any(task.done() for task in waiting)
            # The bodies end before they are whole.
            assert [(await task).status_code for task in waiting] == 8 * [200] + 8 * [400]

    asyncio.run(ask())


def test_jobs_are_listed_in_pages(site: Site) -> None:
    token = site.tenants.add("first")
    names = add_jobs(site.database, 250)
    add_jobs(site.database, 30, tenant=2)

    async def ask() -> None:
        async with talking(site, token) as tenant:
            path, pages = "/v1/jobs", []
            while path:
                answer = await tenant.get(path)
                pages.append([job["id"] for job in answer.json()])
                if len(pages) == 1:
                    # A page goes on where it ended, also if what it ended with is gone.
                    site.jobs.delete(1, pages[0][-1])
                path = answer.links.get("next", {}).get("url", "")
            assert [len(page) for page in pages] == [100, 100, 50]
            assert [job for page in pages for job in page] == names[::-1]
            for wrong in ("x", "1", "1e9-" + "a" * 32, "1-" + "a" * 33):
                assert (await tenant.get("/v1/jobs", params={"before": wrong})).status_code == 422

    asyncio.run(ask())
    described = make_app(site).openapi()["paths"]["/v1/jobs"]["get"]
    assert "Link" in described["responses"]["200"]["headers"]
    assert [each["name"] for each in described["parameters"]] == ["before"]


def test_a_revoked_token_ends_streams_and_waits(running: Running) -> None:
    token = running.tenants.add("leaving")
    number = len(running.tenants.entries())
    (name,) = add_jobs(Database(running.places.database), 1, tenant=number, first=7)
    ended: list[float] = []

    def stay(path: str) -> None:
        assert running.get(path, token).status_code == 200
        ended.append(time.monotonic())

    paths = (f"/v1/jobs/{name}/events", f"/v1/jobs/{name}?wait=30")
    threads = [threading.Thread(target=stay, args=(path,)) for path in paths]
    for thread in threads:
        thread.start()
    time.sleep(0.7)
    assert not ended
    running.tenants.revoke("leaving")
    for thread in threads:
        thread.join(10)
    assert len(ended) == 2


def test_answers_are_not_kept_and_logs_name_peers_and_refusals(running: Running) -> None:
    for path, token in (("/v1/jobs", running.token), ("/v1/jobs", "hg_unknown"), ("/health", "x")):
        assert running.get(path, token).headers["cache-control"] == "no-store"
    lines = [line for line in running.events("request") if line["status"] == 401]
    assert lines[-1]["refused"] == "unknown token"
    assert {line["peer"] for line in lines} == {"127.0.0.1"}
    assert "hg_unknown" not in running.log.read_text()


def test_a_client_comes_back_when_it_was_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("heliograph.serving.remote.transport.time.sleep", slept.append)
    asked = iter(["7", "99999", "-1", "soon"])

    def answer(_: httpx.Request) -> httpx.Response:
        after = next(asked, None)
        if after is None:
            return httpx.Response(200, stream=httpx.ByteStream(b"[]"))
        return httpx.Response(503, headers={"Retry-After": after}, stream=httpx.ByteStream(b"{}"))

    with hg.RemoteServer("http://127.0.0.1:1", "token", patience_s=100) as remote:
        remote._transport._client._transport = httpx.MockTransport(answer)
        assert remote.artifacts() == {}
    assert 7 <= slept[0] <= 11
    assert max(slept[1:]) < 1


# ------------------------------------------------------------------------------------------------ bodies


def memory(running: Running) -> int:
    assert running.process is not None
    lines = Path(f"/proc/{running.process.pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def test_bodies_that_stop_take_little_memory(running: Running, remote: hg.RemoteServer, client: hg.Client) -> None:
    size = (1 << 20) - 1
    query = f"artifact={MODEL}&client={client.id}&digest={'0' * 64}"
    head = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {running.token}\r\nContent-Length: {size + 1}\r\n\r\n"
    before = memory(running)
    with contextlib.ExitStack() as stack:
        for number in range(120):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=30))
            connection.sendall(f"PUT /v1/jobs/{number:032x}?{query} {head}".encode() + bytes(size))
        deadline = time.monotonic() + 30
        # All of each has come, but for what is read at once.
        while len(there := running.upload_sizes()) < 120 or (min(there) < size - (1 << 16)):
            assert time.monotonic() < deadline, there
        # 8 MiB of bodies, and 50 to 80 kB for each connection.
        assert memory(running) - before < 25_000_000
    deadline = time.monotonic() + 30
    while list(running.places.uploads.iterdir()):
        assert time.monotonic() < deadline


class Flow(BodyFlow):
    """The flow of a connection whose transport is not there: what its application does, and what is read of it."""

    def __init__(self, bodies: Bodies) -> None:
        self.cycle = SimpleNamespace(body=b"", more_body=True, response_complete=False)
        self.transport = SimpleNamespace(max_size=1, pause_reading=lambda: None, resume_reading=lambda: None)
        super().__init__(self, self.transport, bodies)  # type: ignore[arg-type]

    def arrives(self, size: int) -> None:
        assert not self.read_paused
        self.cycle.body += bytes(min(size, self.transport.max_size))
        self.bodies.hold(self, len(self.cycle.body))

    def written(self) -> None:
        """The application asks, takes what is there, writes it, and asks again."""
        self.resume_reading()
        self.cycle.body = b""
        self.resume_reading()


def test_all_bodies_have_one_budget() -> None:
    bodies = Bodies(3 << 16)
    uploads = [Flow(bodies) for _ in range(50)]
    other = Flow(bodies)
    other.cycle = SimpleNamespace(body=b"", more_body=False, response_complete=False)
    for each in (*uploads, other):
        each.resume_reading()
    held = 0
    for number in range(200):
        for each in uploads[number % 7 :] + uploads[: number % 7]:
            if not each.read_paused:
                each.arrives(1 << 20)
        held = sum(len(each.cycle.body) for each in uploads)
        assert held == 3 << 16
        assert all(each.read_paused for each in uploads)
        # Requests without bodies are read all the while, in small pieces.
        assert not other.read_paused
        assert other.transport.max_size == 1 << 12
        next(each for each in uploads if each.cycle.body).written()
    # What is lost with its connection, or at the end of an answer, makes room, too.
    for each in [each for each in uploads if each.cycle.body]:
        bodies.leave(each)
        uploads.remove(each)
    assert not any(each.read_paused for each in uploads)


def test_the_rest_of_a_body_that_is_refused_does_not_stop_its_connection(
    running: Running, remote: hg.RemoteServer, client: hg.Client
) -> None:
    """The refusal comes before the body has; what follows is thrown away, and the connection answers the next request."""
    size = 1 << 24
    query = f"artifact={MODEL}&client={client.id}&digest={'0' * 64}"
    head = f"HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {running.token}\r\n"
    with socket.create_connection(("127.0.0.1", running.port), timeout=20) as connection:
        asked = f"PUT {NO_JOB}?{query} {head}Content-Length: {size}\r\n\r\n".encode()
        connection.sendall(asked + bytes(1 << 12))
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += connection.recv(1 << 16)
        assert b" 413 " in answer.split(b"\r\n")[0]
        connection.sendall(bytes(size - (1 << 12)) + f"GET /v1/jobs {head}\r\n".encode())
        answer = b""
        while b"HTTP/1.1 200" not in answer:
            found = connection.recv(1 << 16)
            assert found, answer
            answer += found


# ------------------------------------------------------------------------------------------------ connections


@contextlib.contextmanager
def listening(
    app: Callable[..., Any], connections: Connections, folder: Path | None = None
) -> Iterator[tuple[str, int]]:
    """Where an application listens with our connections; with a folder, over TLS with a certificate there."""
    certificate = None if folder is None else write_certificate(folder)
    listener = Listener(socket.AF_INET, connections, tls=certificate is not None)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    files = {} if certificate is None else {"ssl_certfile": str(certificate[0]), "ssl_keyfile": str(certificate[1])}
    given: dict[str, Any] = {"http": Connection, "loop": "asyncio", "ws": "none", "lifespan": "off", "log_config": None}
    config = uvicorn.Config(app, **given, **files, timeout_graceful_shutdown=1)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        server.should_exit = True
        thread.join(20)
    assert len(connections) == 0


def is_over(connection: socket.socket, seconds: float = 10.0) -> bool:
    """Whether the server closes the connection in that time; what it sent is thrown away."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        connection.settimeout(max(end - time.monotonic(), 0.01))
        try:
            if not connection.recv(1 << 16):
                return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False
    return False


async def empty(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def test_the_connection_that_is_idle_for_longest_goes_for_a_new_one() -> None:
    with listening(empty, Connections(3, 3)) as place, contextlib.ExitStack() as stack:
        idle = []
        for _ in range(3):
            idle.append(stack.enter_context(socket.create_connection(place, timeout=10)))
            time.sleep(0.05)
        for number in range(3):
            new = stack.enter_context(socket.create_connection(place, timeout=10))
            new.sendall(ASK)
            assert new.recv(100).startswith(b"HTTP/1.1 204")
            assert is_over(idle[number])
            assert number == 2 or not is_over(idle[number + 1], 0.1)


def test_connections_with_requests_of_tenants_stay_and_one_too_many_is_told_so() -> None:
    async def busy(scope: Any, receive: Any, send: Any) -> None:
        with scope["state"]["connection"].busy():
            while (await receive())["type"] != "http.disconnect":
                pass

    with listening(busy, Connections(9, 2)) as place, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(socket.create_connection(place, timeout=10)).sendall(ASK)
        time.sleep(0.3)
        answer = httpx.get(f"http://127.0.0.1:{place[1]}", trust_env=False)
        assert answer.status_code == 503
        assert answer.json()["error"]["kind"] == "ProgramError"
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["connection"] == "close"


def test_addresses_are_counted_by_themselves() -> None:
    assert place_of("::ffff:192.0.2.7") == place_of("192.0.2.7") == "192.0.2.7"
    assert place_of("2001:db8::1") == place_of("2001:db8::ffff:1") != place_of("2001:db8:0:1::1")
    assert place_of("fe80::1%eth0") == "fe80::/64"


def test_an_answer_that_nobody_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that came with the end of its connection; one that is read slowly goes on."""
    monkeypatch.setattr(Connection, "head_s", 0.5)
    size, done = 30_000_000, []

    async def long(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(size).encode())]
        if scope["path"] == "/last":
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for place in range(0, size, 1 << 16):
            await send({"type": "http.response.body", "body": bytes(min(1 << 16, size - place)), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        done.append(scope["path"])

    connections = Connections(9, 9)
    with listening(long, connections) as place, contextlib.ExitStack() as stack:
        for path in (b"/", b"/last"):
            unread = stack.enter_context(socket.create_connection(place, timeout=10))
            unread.sendall(ASK.replace(b"/ ", path + b" "))
        slow = stack.enter_context(socket.create_connection(place, timeout=10))
        slow.sendall(ASK.replace(b"/ ", b"/slow "))
        received, begun = 0, time.monotonic()
        while received < size:
            received += len(slow.recv(1 << 20))
            time.sleep(0.05)
        assert time.monotonic() - begun > 1.0
        assert "/slow" in done
        assert len(connections) <= 1


def test_answers_that_are_small_and_not_read_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_s", 0.5)

    async def some(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"40000")]})
        await send({"type": "http.response.body", "body": bytes(40_000)})

    connections = Connections(9, 9)
    with listening(some, connections) as place, socket.socket() as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.connect(place)
        unread.sendall(300 * ASK)
        time.sleep(0.3)
        assert len(connections) == 1
        deadline = time.monotonic() + 10
        while len(connections):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_handshake_that_does_not_end_is_given_up_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_s", 1.0)
    connections = Connections(9, 9)
    with listening(empty, connections, tmp_path) as place:
        with socket.create_connection(place, timeout=10) as silent:
            begun = time.monotonic()
            time.sleep(0.2)
            assert len(connections) == 1
            assert is_over(silent, 10)
            assert 0.5 < time.monotonic() - begun < 5
        trusting = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
        assert httpx.get(f"https://localhost:{place[1]}", verify=trusting, trust_env=False).status_code == 204


def test_connections_leave_descriptors_for_files(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [256, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, given: limits.__setitem__(slice(None), given))
    assert connections_for(1000) == 1000
    assert limits == [4096, 4096]
    limits[:] = [1024, 1024]
    assert connections_for(1000) == 384
    limits[:] = [1024, resource.RLIM_INFINITY]
    assert connections_for(1000) == 1000
    assert limits[0] == 1 << 16


def test_many_idle_connections_do_not_stop_the_server(running: Running) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.enter_context(socket.create_connection(("127.0.0.1", running.port), timeout=30))
        with httpx.Client(base_url=running.url, timeout=20) as client:
            for _ in range(3):
                begun = time.monotonic()
                answer = client.get(NO_JOB, headers={"Authorization": f"Bearer {running.other}"})
                assert answer.status_code == 404, answer.text
                assert json.loads(answer.text)["error"]["what"] == "there is no such job"
                assert time.monotonic() - begun < 5
