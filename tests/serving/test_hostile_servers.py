"""Servers that answer what none of ours would: each call ends in an error of ours, or right, in bounded time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.certificates import write_certificate
from helpers.fuzzing import fuzz
from helpers.hostile_server import (
    Answering,
    Mutant,
    altered,
    altered_frame,
    answer_of,
    attempt,
    calls,
    good,
    outcome,
    remote_of,
    request_name,
)

import heliograph as hg
from heliograph.errors import HeliographError, InsecureWarning, SecurityError, StatusError, WireError
from heliograph.serving.remote import exchange

# Altered answers of each kind; more of them in benchmarks/hostile.py.
COUNT = int(os.environ.get("HELIOGRAPH_HOSTILE", "300"))
Handle = Callable[[str, str, bytes, dict[str, str]], bytes]


def framed(body: bytes, status: int = 200, *headers: bytes) -> bytes:
    head = [b"HTTP/1.1 %d X" % status, b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def read_request(connection: socket.socket) -> tuple[str, str, bytes]:
    """Method, target and body of the next request; a ConnectionError where there is none."""
    data = b""
    while b"\r\n\r\n" not in data:
        block = connection.recv(1 << 16)
        if not block:
            raise ConnectionError
        data += block
    head, _, body = data.partition(b"\r\n\r\n")
    method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += connection.recv(1 << 16)
    return method, target, body


@contextlib.contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that hands each connection to `serve`, in a thread of its own, and then closes it."""

    def one(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            serve(connection)

    def all_of_them() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=one, args=listener.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=all_of_them, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def answering(handle: Callable[[str, str, bytes], object], asked: list[str] | None = None) -> Iterator[str]:
    """The address of a server that answers each request with the JSON, or the bytes, that `handle` gives."""

    def serve(connection: socket.socket) -> None:
        while True:
            method, target, body = read_request(connection)
            if asked is not None:
                asked.append(f"{method} {target}")
            found = handle(method, target, body)
            connection.sendall(found if isinstance(found, bytes) else framed(json.dumps(found).encode()))

    with listening(serve) as url:
        yield url


# ------------------------------------------------------------------------------------------------ altered answers


@pytest.mark.parametrize(("call", "name"), [(call, name) for call, (_, names) in calls().items() for name in names])
def test_altered_answers(call: str, name: str) -> None:
    """Values, bytes, status and headers of each answer in the course of a job."""

    def make(rng: random.Random) -> Mutant:
        return Mutant(call, name, altered(rng, name, good().answers[name]))

    tally = fuzz(make, attempt, COUNT, 7)
    assert tally.failures == []
    # Where a job cannot be deleted is not told: it expires.
    assert tally.refused > COUNT // 30 or name == "delete"


def test_altered_frames() -> None:
    """The bytes of an answer as they are on the line: its first line, its headers, its frame."""
    current: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(current[0])

    with listening(serve) as url, remote_of(url, timeout_s=0.5) as remote:

        def attempt(frame: bytes) -> int:
            current[:] = [frame]
            return outcome(Mutant("public", "artifacts", answer_of("", None)), remote)

        tally = fuzz(altered_frame, attempt, COUNT, 8)
    assert tally.failures == []
    assert tally.refused > COUNT // 2


# ------------------------------------------------------------------------------------------------ answers without end


def _drip(head: bytes, endless: bytes, pause: float = 0.05) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(head)
        while True:
            connection.sendall(endless)
            time.sleep(pause)

    return serve


@pytest.mark.parametrize(
    ("head", "endless", "pause"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" ", 0.05),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 1000000\r\n\r\n", b" ", 0.05),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", 0.05),
        (b"", b"H", 0.05),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n", 0.05),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.05),
        (b"", 1000 * b"HTTP/1.1 100 Continue\r\n\r\n", 0.0),
    ],
)
def test_answers_that_do_not_end_are_given_up(head: bytes, endless: bytes, pause: float) -> None:
    """A read ends before its time whenever a byte comes; the whole answer has a time of its own."""
    with listening(_drip(head, endless, pause)) as url, remote_of(url, timeout_s=0.5) as remote:
        begun = time.monotonic()
        with pytest.raises(HeliographError, match=r"does not answer|more bytes than"):
            remote._transport.read("GET", "/v1/artifacts", max_bytes=10_000)
        assert list(remote._transport.events("/v1/jobs/x/events")) == [] or pause == 0.0
        assert time.monotonic() - begun < 10


def test_a_server_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    # The buffers of the system take some megabytes: at the usual rate they would give it a minute.
    monkeypatch.setattr(exchange, "_LEAST_RATE", 1 << 25)

    def serve(connection: socket.socket) -> None:
        while connection.recv(1):
            time.sleep(0.02)

    with listening(serve) as url, remote_of(url, timeout_s=0.5) as remote:
        begun = time.monotonic()
        with pytest.raises(HeliographError, match="does not answer"):
            remote._transport.json("PUT", "/v1/keys/a/c/x", data=bytes(50_000_000))
        assert time.monotonic() - begun < 10


def test_a_job_that_does_not_end_is_waited_for_as_long_as_was_asked() -> None:
    own = good()
    running = {**own.answers["job"], "state": "running"}
    with (
        answering(lambda *_: running) as url,
        hg.RemoteServer(url, "token", job_s=0.3) as remote,
        pytest.raises(HeliographError, match=r"not ended within 0\.3 s"),
    ):
        remote.result(own.encrypted.request)


# ------------------------------------------------------------------------------------------------ keys


def test_a_key_that_is_asked_for_many_times_is_sent_once() -> None:
    own, asked = good(), list[str]()
    name = min(own.keys.names())

    def handle(method: str, target: str, body: bytes) -> object:
        return own.answers["key"] if target.endswith(name) else {**own.answers["keys"], "missing": [name] * 50_000}

    with answering(handle, asked) as url, remote_of(url) as remote:
        remote.register(own.keys)
    assert len(asked) == 2


# ------------------------------------------------------------------------------------------------ elsewhere


def test_nothing_goes_to_another_address() -> None:
    """Neither by a redirect nor by a name that would be another path; cookies are not given back."""
    elsewhere: list[str] = []
    heads: list[bytes] = []
    with answering(lambda *_: [], elsewhere) as other:

        def serve(connection: socket.socket) -> None:
            for location in (other, f"{other}/v1/artifacts", "javascript:0", "http://[::1", "//\udc80"):
                heads.append(connection.recv(1 << 16))
                where = b"Location: " + location.encode("utf-8", "surrogateescape")
                connection.sendall(framed(b"", 302, where, b"Set-Cookie: id=1"))

        with listening(serve) as url, remote_of(url) as remote:
            for _ in range(5):
                with pytest.raises(StatusError, match="status 302"):
                    remote.artifacts()
        for name in ("../../x", f"{other}/x", "a?b=c", "0" * 31, "\udcff", "\x1b[2J"):
            with (
                answering(lambda *_, name=name: [{"artifact": name, "name": "mlp"}]) as url,  # type: ignore[misc]
                remote_of(url) as remote,
                pytest.raises(WireError, match="does not answer like"),
            ):
                remote.public()
    assert elsewhere == []
    assert len(heads) == 5
    assert not any(b"cookie" in head.lower() for head in heads)


def test_certificates_that_are_not_checked_are_allowed_by_name(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="verify=False") as refused:
        hg.RemoteServer("https://127.0.0.1:9", "token", verify=False)
    assert "allow_insecure=True" in refused.value.hint
    with pytest.warns(InsecureWarning, match="certificates are not checked") as warned:
        hg.RemoteServer("https://127.0.0.1:9", "token", verify=False, allow_insecure=True).close()
    assert warned[0].filename == __file__
    certificate, _ = write_certificate(tmp_path)
    hg.RemoteServer("https://127.0.0.1:9", "token", verify=str(certificate)).close()
    for path in (tmp_path / "none.pem", tmp_path):
        with pytest.raises(WireError, match="no certificates to trust"):
            hg.RemoteServer("https://127.0.0.1:9", "token", verify=str(path))


@pytest.mark.parametrize(
    "url", ["http://[::1", "https://", "ftp://x", "https://x:99999", "https://x:y", "https://\x00"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(WireError, match="not the address of a server"):
        hg.RemoteServer(url, "token")


def test_the_good_server_is_used(tmp_path: Path) -> None:
    """What the altered ones differ from: all calls succeed."""
    for call, (use, _) in calls().items():
        server = Answering(Mutant(call, "nothing", answer_of("", None)))
        seen: set[str] = set()

        def handle(method: str, target: str, body: bytes, server: Answering = server, seen: set[str] = seen) -> object:
            path, _, query = target.partition("?")
            seen.add(request_name(method, path))
            answer = server(method, path, body, dict(pair.split("=") for pair in query.split("&") if pair))
            return framed(answer.body, answer.status)

        with answering(handle) as url, remote_of(url) as remote:
            use(remote)
        assert seen
