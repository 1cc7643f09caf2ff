"""Requests that no client of ours would send: each is answered in our words, none with a 500, none to the wrong tenant."""

from __future__ import annotations

import random
import socket
import ssl
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from helpers.hostile_requests import ODD, hostile_request
from helpers.serving import Running
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runtime.support import sample, toy_artifact
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

import heliograph as hg
from heliograph.artifact.container import digest_of


def test_the_openapi_description_is_kept(running: Running) -> None:
    """What schemathesis makes of the description, well-formed or not: no server error, answers of the described form."""
    description = schemathesis.openapi.from_url(f"{running.url}/openapi.json")
    headers = {"Authorization": f"Bearer {running.tenants.add('schemathesis', operator=True)}"}
    seen: Counter[int] = Counter()
    operations = [found.ok() for found in description.get_all_operations()]
    assert len(operations) == len({(route.method, route.path) for route in operations}) >= 13
    for operation in operations:
        cases = st.one_of(operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode)

        @settings(
            max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
        )
        @given(case=cases)
        def check(case: Any) -> None:
            answer = case.call_and_validate(
                headers=headers, checks=[not_a_server_error, response_schema_conformance], timeout=60
            )
            seen[answer.status_code] += 1

        check()
    assert set(seen) >= {200, 404, 422}, seen


def send(running: Running, chance: random.Random, method: str, target: str, body: bytes, token: str) -> bytes:
    """The raw answer to one request, whose head and frame may be broken as well."""
    length = str(len(body))
    if chance.random() < 0.1:
        length = chance.choice(["-1", "0", "99999999999", "x", "1, 2", ""])
    head = [
        f"{method} {target.replace(' ', '%20')} HTTP/1.1",
        "Host: x",
        f"Content-Length: {length}",
        "Connection: close",
    ]
    head.append(f"Authorization: Bearer {token}" if chance.random() < 0.9 else f"Authorization: {chance.choice(ODD)}")
    if chance.random() < 0.1:
        head.append(
            chance.choice(
                ["Transfer-Encoding: chunked", "Range: bytes=0-", "Expect: 100-continue", "X: " + "y" * 70_000]
            )
        )
    if chance.random() < 0.05:
        head[0] = chance.choice(["", "GET", "GET / HTTP/9.9", "\x00\x01\x02", "GET /\x7f HTTP/1.1", "A" * 100_000])
    data = "\r\n".join(head).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body
    answer = b""
    # A frame that promises more than it has: a few of these clients are silent, and nobody waits for the answer; the
    # others say that nothing more comes.
    cut = length != str(len(body)) and chance.random() < 0.98
    patience = 20.0 if cut or length == str(len(body)) else 0.2
    with socket.create_connection(("127.0.0.1", running.port), timeout=patience) as connection:
        try:
            connection.sendall(data)
            if cut:
                connection.shutdown(socket.SHUT_WR)
            while block := connection.recv(1 << 16):
                answer += block
        except OSError:
            # Timeouts, and connections that the server closed before all of it was sent.
            assert patience < 1 or cut or answer or b"Expect" in data or b"chunked" in data or len(data) > 60_000, data[
                :300
            ]
    return answer


def attack(running: Running, client: hg.Client, keys: hg.EvaluationKeys, count: int, seed: int) -> None:
    chance = random.Random(seed)
    artifact = toy_artifact().fingerprint
    with hg.RemoteServer(running.url, running.token) as remote:
        remote.register(keys)
        encrypted = client.encrypt(sample())
        job = remote.submit(encrypted)
        digest = digest_of(encrypted.to_bytes())
        stranger = running.tenants.add(f"stranger-{seed}")
        tally: dict[int, int] = {}
        for _ in range(count):
            method, target, body = hostile_request(chance, artifact, client.id, job, digest)
            answer = send(running, chance, method, target, body, stranger)
            status = int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0
            tally[status] = tally.get(status, 0) + 1
            assert status < 500, (method, target, answer[:500])
            # Nothing of the first tenant's: neither its job nor its result, which every answer would hold as bytes.
            if status == 200 and f"/v1/jobs/{job}" in target:
                raise AssertionError((method, target, answer[:500]))
        # The job is untouched, and the server as it was.
        result = client.decrypt(remote.result(job))
        assert result is not None
        assert set(tally) >= {200, 401, 404, 405, 422}
        print(dict(sorted(tally.items())))
    assert running.events("fault") == []
    assert running.get("/health").json()["workers"] == 1


def memory(running: Running) -> int:
    """The server's own peak, in bytes."""
    assert running.process is not None
    for line in Path(f"/proc/{running.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no peak")


def test_mutated_requests(running: Running, client: hg.Client, keys: hg.EvaluationKeys) -> None:
    before = memory(running)
    attack(running, client, keys, 2000, 0)
    assert memory(running) - before < 50_000_000


@pytest.mark.slow
def test_many_mutated_requests(running: Running, client: hg.Client, keys: hg.EvaluationKeys) -> None:
    before = memory(running)
    attack(running, client, keys, 100_000, 1)
    assert memory(running) - before < 100_000_000


def test_a_body_without_end_takes_no_memory(running: Running, remote: hg.RemoteServer, client: hg.Client) -> None:
    """It is refused before it comes, or as it comes where its size is announced and not kept to."""
    before = memory(running)
    query = f"artifact={toy_artifact().fingerprint}&client={client.id}&digest={'0' * 64}"

    def endless() -> Any:
        for _ in range(2000):
            yield b"x" * 100_000

    for headers, status in (({}, 411), ({"Content-Length": "1000", "Transfer-Encoding": "chunked"}, 413)):
        try:
            path = f"/v1/jobs/{'e' * 32}?{query}"
            answer = running.request("PUT", path, content=endless(), headers=headers)
            assert answer.status_code == status
        except httpx.HTTPError:
            pass  # The server closed the connection while we sent; the refusal may be lost on the way.
        assert memory(running) - before < 20_000_000
    assert list(running.places.uploads.iterdir()) == []


def test_over_tls(artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys) -> None:
    from helpers.certificates import write_certificate

    certificate, private_key = write_certificate(tmp_path)
    running = Running(tmp_path / "data", [artifact_file], "--tls-cert", str(certificate), "--tls-key", str(private_key))
    running.url = running.url.replace("http://127.0.0.1", "https://localhost")
    running.start(verify=ssl.create_default_context(cafile=str(certificate)))
    with hg.RemoteServer(running.url, running.token, verify=str(certificate)) as remote:
        remote.register(keys)
        client.decrypt(remote.run(client.encrypt(sample())))
    with (
        hg.RemoteServer(running.url, running.token, patience_s=0.0) as remote,
        pytest.raises(hg.HeliographError, match="does not answer") as caught,
    ):
        remote.artifacts()
    assert "CERTIFICATE_VERIFY_FAILED" in caught.value.why
    assert running.stop() == 0
