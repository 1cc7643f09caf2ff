"""Through the front door: keys, jobs, results, tokens, figures."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.answers import TOLERANCE, expected
from helpers.serving import Running
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.artifact.container import digest_of
from heliograph.errors import StatusError, WireError
from heliograph.runtime.wire.keyfolder import key_parts
from heliograph.serving.remote import transport
from heliograph.serving.remote.transport import Transport


# Of the polynomial program itself, so that errors of encryption are all there is.
def right(answer: np.ndarray, seed: int) -> bool:
    """Whether it is the network's answer, and not that to another sample."""
    return bool(np.abs(answer - expected(seed)).max() < TOLERANCE)


def job_path(client: hg.Client, data: bytes, job: str = "0" * 32) -> str:
    """Where a job on this input is submitted."""
    return f"/v1/jobs/{job}?artifact={toy_artifact().fingerprint}&client={client.id}&digest={digest_of(data)}"


@pytest.mark.front
def test_the_three_lines(running: Running) -> None:
    with hg.RemoteServer(running.url, running.token) as remote:
        client = hg.Client(remote.public(), allow_insecure=True)
        remote.register(client.evaluation_keys())
        answer = client.decrypt(remote.run(client.encrypt(sample())))
        np.testing.assert_allclose(answer, expected(1), atol=TOLERANCE)
        assert not right(answer, 2)


def test_the_answer_is_that_of_a_server_without_http(
    remote: hg.RemoteServer, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    encrypted = client.encrypt(sample(2))
    with hg.Server(toy_artifact(), keys, allow_insecure=True) as server:
        np.testing.assert_allclose(
            client.decrypt(remote.run(encrypted), of=encrypted), client.decrypt(server.run(encrypted)), atol=1e-12
        )


def test_an_answer_is_not_lost_where_its_job_cannot_be_deleted(
    remote: hg.RemoteServer, client: hg.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server went away after it sent the answer."""
    ask = Transport.json

    def away(self: Transport, method: str, *more: Any) -> Any:
        if method == "DELETE":
            raise hg.HeliographError("the server does not answer")
        return ask(self, method, *more)

    monkeypatch.setattr(Transport, "json", away)
    assert right(client.decrypt(remote.run(client.encrypt(sample()))), 1)


def test_many_answers_come_back_in_any_order(remote: hg.RemoteServer, client: hg.Client) -> None:
    """As from a queue with several workers: the results are in the order of the samples."""
    samples = np.stack([sample(seed) for seed in range(1, 5)])
    sent = list(client.encrypt_many(samples))
    jobs = [remote.submit(each) for each in sent]
    answers = {place: remote.result(jobs[place]) for place in (3, 1, 0, 2)}
    found = client.decrypt_many(answers.values(), of=jobs)
    assert all(right(row, seed) for row, seed in zip(found, range(1, 5), strict=True))
    with pytest.raises(WireError, match=f"1 of 4 inputs have no answer(?s:.)*{jobs[1][:12]}, number 2"):
        client.decrypt_many([answers[place] for place in (3, 0, 2)], of=sent)


def test_progress_of_keys_inputs_and_operations(
    running: Running, client: hg.Client, keys: hg.EvaluationKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_PIECE", 1 << 14)
    seen: list[tuple[str, int, int]] = []
    with hg.RemoteServer(running.url, running.tenants.add("watcher")) as remote:
        remote.register(keys, lambda *place: seen.append(place))
        count = len(keys.names())
        assert seen == [("sending keys", done, count) for done in range(count + 1)]
        seen.clear()
        remote.run(client.encrypt(sample()), lambda *place: seen.append(place))
    sent = [place for place in seen if place[0] == "sending"]
    size = sent[-1][1]
    assert [done for _, done, _ in sent] == [*range(0, size, 1 << 14), size]
    operations = [place for place in seen if place[0] == "evaluate"]
    assert operations[-1] == ("evaluate", *[len(toy_artifact().program.nodes)] * 2)


def test_a_job_is_accepted_once_and_forgotten_when_its_result_was_taken(
    remote: hg.RemoteServer, running: Running, client: hg.Client
) -> None:
    encrypted = client.encrypt(sample(3))
    job = remote.submit(encrypted)
    assert remote.submit(encrypted) == job == encrypted.request
    listed = [entry for entry in running.get("/v1/jobs").json() if entry["id"] == job]
    assert len(listed) == 1
    assert right(client.decrypt(remote.result(job)), 3)
    assert running.get(f"/v1/jobs/{job}").status_code == 404


def test_events_end_with_the_job(remote: hg.RemoteServer, running: Running, client: hg.Client) -> None:
    job = remote.submit(client.encrypt(sample(4)))
    text = running.get(f"/v1/jobs/{job}/events").text
    events = re.findall(r"^event: (\w+)\ndata: (.*)$", text, re.MULTILINE)
    assert [name for name, _ in events][-1] == "done"
    last = json.loads(events[-1][1])
    assert last["id"] == job
    assert last["done"] == last["total"] == len(toy_artifact().program.nodes)
    remote.result(job)


def test_an_input_that_the_worker_refuses_ends_with_its_error(remote: hg.RemoteServer, client: hg.Client) -> None:
    whole = client.encrypt(sample())
    broken = hg.EncryptedInput(whole.artifact, whole.client, blobs={"x/0": b"no ciphertext"}, request=whole.request)
    with pytest.raises(hg.WireError, match="x/0"):
        remote.run(broken)


def test_inputs_of_a_client_without_keys_are_refused(remote: hg.RemoteServer) -> None:
    stranger = hg.Client(toy_artifact(), allow_insecure=True)
    with pytest.raises(StatusError, match="evaluation keys of this client are not registered") as caught:
        remote.run(stranger.encrypt(sample()))
    assert caught.value.status == 409


def test_inputs_are_not_evaluated_with_the_keys_of_another_client(
    remote: hg.RemoteServer, running: Running, client: hg.Client
) -> None:
    stranger = hg.Client(toy_artifact(), allow_insecure=True)
    data = stranger.encrypt(sample()).to_bytes()
    answer = running.request("PUT", job_path(client, data), content=data)
    assert answer.status_code == 422
    assert answer.json()["error"]["kind"] == "WireError"
    assert "another client" in answer.json()["error"]["what"]


def test_a_body_that_is_not_what_was_announced_is_no_job(
    remote: hg.RemoteServer, running: Running, client: hg.Client
) -> None:
    encrypted = client.encrypt(sample(5))
    data = encrypted.to_bytes()
    path = job_path(client, data, encrypted.request)
    other = client.encrypt(sample(6)).to_bytes()
    damaged = data[:500] + bytes([data[500] ^ 1]) + data[501:]
    for body, said in ((other, "another digest"), (damaged, "damaged"), (data[:-1], "truncated"), (b"", "not a Helio")):
        answer = running.request("PUT", path, content=body)
        assert answer.status_code == 422
        assert said in answer.json()["error"]["what"]
        assert str(running.folder) not in answer.text
    assert running.get(f"/v1/jobs/{encrypted.request}").status_code == 404
    assert list(running.places.uploads.iterdir()) == []
    assert running.request("PUT", path, content=data).json()["id"] == encrypted.request
    # Once it is accepted, its input need not come again, and another one is refused.
    assert running.request("PUT", path).json()["id"] == encrypted.request
    answer = running.request("PUT", job_path(client, other, encrypted.request), content=other)
    assert (answer.status_code, "for another input already" in answer.text) == (409, True)
    assert right(client.decrypt(remote.result(encrypted.request)), 5)


def test_a_key_that_is_none_is_refused(running: Running, keys: hg.EvaluationKeys) -> None:
    stranger = hg.Client(toy_artifact(), allow_insecure=True)
    path = f"/v1/keys/{toy_artifact().fingerprint}/{stranger.id}"
    state = running.request("PUT", path).json()
    assert state["missing"] == sorted(keys.names())
    name, another = state["missing"][:2]
    for data in (b"", b"no key", b"".join(key_parts(toy_artifact().fingerprint, stranger.id, another, b"key"))):
        answer = running.request("PUT", f"{path}/{name}", content=data)
        assert answer.status_code == 422
        assert answer.json()["error"]["kind"] == "WireError"
    assert running.request("PUT", f"{path}/rotation/none", content=data).status_code == 404
    assert running.get(path).json()["missing"] == state["missing"]
    assert running.request("DELETE", path).status_code == 204
    assert running.get(path).status_code == 404


# ------------------------------------------------------------------------------------- tenants


def test_without_a_token_nothing_but_health(running: Running) -> None:
    for token in ("x", "hg_no", "x" * 10_000):
        for path in ("/v1/artifacts", "/v1/jobs", "/metrics", "/"):
            answer = running.get(path, token)
            assert answer.status_code == 401
            assert answer.json()["error"]["what"] == "no token, or one that this server does not know"
    for path in ("/health", "/health/ready", "/health/live"):
        assert running.get(path, "x").json()["status"] == "ok"
    with pytest.raises(hg.ProgramError, match="that is not a token"):
        hg.RemoteServer(running.url, "a token\n")
    with pytest.raises(StatusError, match="no token"), hg.RemoteServer(running.url, "hg_no") as remote:
        remote.artifacts()


def test_a_tenant_sees_nothing_of_another(
    remote: hg.RemoteServer, running: Running, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    encrypted = client.encrypt(sample(6))
    job = remote.submit(encrypted)
    paths = [f"/v1/jobs/{job}", f"/v1/jobs/{job}/events", f"/v1/jobs/{job}/result"]
    paths += [f"/v1/keys/{encrypted.artifact}/{encrypted.client}"]
    for path in paths:
        assert running.get(path, running.other).status_code == 404, path
    for path in (paths[0], *paths[3:]):
        assert running.request("DELETE", path, running.other).status_code == 404, path
    assert running.get("/v1/jobs", running.other).json() == []
    with hg.RemoteServer(running.url, running.other) as other, pytest.raises(StatusError, match="not registered"):
        other.run(client.encrypt(sample()))
    assert right(client.decrypt(remote.result(job)), 6)


def test_a_revoked_token_opens_nothing(running: Running) -> None:
    token = running.tenants.add("passing")
    assert running.get("/v1/jobs", token).status_code == 200
    running.tenants.revoke("passing")
    assert running.get("/v1/jobs", token).status_code == 401
    with pytest.raises(hg.ProgramError, match="no tenant 'passing'"):
        running.tenants.revoke("passing")


def test_tokens_are_kept_as_hashes_only(running: Running) -> None:
    for file in running.folder.glob("queue.sqlite*"):
        data = file.read_bytes()
        for token in (running.token, running.other, running.operator):
            assert token.encode() not in data
    assert hashlib.sha256(running.token.encode()).hexdigest().encode() in b"".join(
        file.read_bytes() for file in running.folder.glob("queue.sqlite*")
    )


# ------------------------------------------------------------------------------------- figures


def test_the_page_and_the_metrics_are_the_operators(
    remote: hg.RemoteServer, running: Running, client: hg.Client
) -> None:
    remote.run(client.encrypt(sample()))
    for path in ("/", "/metrics"):
        assert running.get(path).status_code == 403
    text = running.get("/metrics", running.operator).text
    figures = dict(re.findall(r"^(\w+(?:\{[^}]*\})?) ([0-9.e+]+)$", text, re.MULTILINE))
    assert float(figures["heliograph_jobs_done_total"]) >= 1
    assert float(figures["heliograph_workers"]) == 1
    pattern = r"^heliograph_(\w+?)\{(.*)\} ([0-9.e+-]+)$"
    labelled = [(name, labels, float(value)) for name, labels, value in re.findall(pattern, text, re.MULTILINE)]
    mine = f'artifact="{toy_artifact().fingerprint}",name="mlp",tenant="first"'
    (count,) = (value for name, labels, value in labelled if (name, labels) == ("job_duration_seconds_count", mine))
    buckets = [
        value for name, labels, value in labelled if name == "job_duration_seconds_bucket" and labels.startswith(mine)
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == count >= 1
    (ratio,) = (value for name, _, value in labelled if name == "measured_over_predicted")
    assert ratio > 0
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(figures) >= 40
    page = running.get("/", running.operator).text
    assert toy_artifact().fingerprint in page
    assert "1 of 1 workers live" in page
    assert "jobs by seconds from claim to result" in page
    assert "times the predicted time" in page
    for name in ("first", "second", "operator"):
        assert f"<td data-name='tenant'>{name}</td>" in page
    for token in (running.token, running.operator):
        assert token not in page + text


def test_logs_are_json_without_tokens(running: Running) -> None:
    lines = running.log.read_text().splitlines()
    # What is said once: of artifacts without security at the start, and on a machine without compiled kernels.
    parsed = [json.loads(line) for line in lines if not line.startswith(("INSECURE: ", "getting kernels "))]
    assert {line["event"] for line in parsed} >= {"listening", "started", "worker started", "request", "job"}
    for token in (running.token, running.other, running.operator):
        assert token not in running.log.read_text()


# ------------------------------------------------------------------------------------- limits


@pytest.fixture
def small(artifact_file: Path, tmp_path: Path) -> Running:
    """A server whose workers have too little memory, and whose tenants have little room."""
    running = Running(tmp_path / "data", [artifact_file], "--memory-bytes", "1000000").start()
    yield running
    assert running.stop() == 0


def test_a_job_that_cannot_fit_is_refused_with_the_figures(small: Running, keys: hg.EvaluationKeys) -> None:
    with hg.RemoteServer(small.url, small.token) as remote:
        with pytest.raises(hg.TooLittleMemoryError, match=r"needs \d+ MB, and a worker has 1 MB") as caught:
            remote.register(keys)
        assert "--memory-bytes" in caught.value.hint
        assert small.get("/v1/artifacts").json()[0]["fits"] is False
    # The operator heard of it when the server started.
    assert [(line["name"], "needs" in line["text"]) for line in small.events("does not fit")] == [("mlp", True)]


def test_a_tenant_has_a_quota(artifact_file: Path, tmp_path: Path, keys: hg.EvaluationKeys) -> None:
    running = Running(tmp_path / "data", [artifact_file], "--tenant-bytes", "300000").start()
    with hg.RemoteServer(running.url, running.token) as remote:
        with pytest.raises(hg.ProgramError, match="quota of this token") as caught:
            remote.register(keys)
        assert "of 300000 bytes" in caught.value.why
    assert running.stop() == 0


def begun(running: Running, client: hg.Client, job: int, size: int = 1000, body: bytes = b"begun") -> socket.socket:
    """A connection on which an input of so many bytes has begun to come."""
    connection = socket.create_connection(("127.0.0.1", running.port), timeout=30)
    head = f"PUT {job_path(client, b'', f'{job:032x}')}{'0' * 64} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n"
    connection.sendall(f"{head}Authorization: Bearer {running.token}\r\n\r\n".encode() + body)
    return connection


def test_a_body_beyond_the_bill_is_refused(running: Running, remote: hg.RemoteServer, client: hg.Client) -> None:
    with begun(running, client, 1, 1 << 30) as connection:
        answer = b""
        while b"bytes" not in answer.partition(b"\r\n\r\n")[2] and (more := connection.recv(1 << 16)):
            answer += more
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert re.search(rb"by the bill of the artifact it has at most \d+ bytes", answer)


def test_half_bodies_do_not_hold_others_up(running: Running, remote: hg.RemoteServer, client: hg.Client) -> None:
    """What came before the client went away goes with it."""

    held = [begun(running, client, number) for number in range(20)]
    assert right(client.decrypt(remote.run(client.encrypt(sample(7)))), 7)
    until(lambda: running.upload_sizes() == 20 * [5])
    figures = running.get("/metrics", running.operator).text
    assert "\nheliograph_uploads_bytes 20000\n" in figures
    for connection in held:
        connection.close()
    until(lambda: running.upload_sizes() == [])
    assert "\nheliograph_uploads_bytes 0\n" in running.get("/metrics", running.operator).text


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_an_address_that_others_reach_needs_tls(artifact_file: Path, tmp_path: Path) -> None:
    from heliograph.serving.run import Listening, serve
    from heliograph.serving.site import SiteSettings

    settings = SiteSettings([artifact_file], tmp_path / "data", allow_insecure=True)
    with pytest.raises(hg.SecurityError, match="without TLS they can read tokens"):
        serve(settings, Listening("0.0.0.0:0"))
    with pytest.raises(hg.SecurityError, match="has no TLS"):
        hg.RemoteServer("http://models.example.org", "hg_x")
