"""Through the front door: keys, jobs, results, tokens, figures."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.answers import TOLERANCE, expected
from helpers.serving import Running
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.errors import WireError
from heliograph.serving.remote.transport import StatusError, Transport


# Of the polynomial program itself, so that errors of encryption are all there is.
def right(answer: np.ndarray, seed: int) -> bool:
    """Whether it is the network's answer, and not that to another sample."""
    return bool(np.abs(answer - expected(seed)).max() < TOLERANCE)


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


def test_progress_of_keys_inputs_and_operations(running: Running, client: hg.Client, keys: hg.EvaluationKeys) -> None:
    seen: list[tuple[str, int, int]] = []
    with hg.RemoteServer(running.url, running.tenants.add("watcher"), part_bytes=5000) as remote:
        remote.register(keys, lambda *place: seen.append(place))
        count = len(keys.names())
        assert seen == [("sending keys", done, count) for done in range(count + 1)]
        seen.clear()
        remote.run(client.encrypt(sample()), lambda *place: seen.append(place))
    sent = [place for place in seen if place[0] == "sending"]
    size = sent[-1][1]
    assert [done for _, done, _ in sent] == [*range(0, size, 5000), size]
    operations = [place for place in seen if place[0] == "evaluate"]
    assert operations[-1] == ("evaluate", *[len(toy_artifact().program.nodes)] * 2)


def test_a_job_is_accepted_once_and_forgotten_when_its_result_was_taken(
    remote: hg.RemoteServer, running: Running, client: hg.Client
) -> None:
    encrypted = client.encrypt(sample(3))
    job = remote.submit(encrypted)
    assert remote.submit(encrypted) == job == encrypted.request
    digest = hashlib.sha256(encrypted.to_bytes()).hexdigest()
    assert running.get(f"/v1/uploads/{digest}").status_code == 404
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
    digest = hashlib.sha256(data).hexdigest()
    assert running.request("PUT", f"/v1/uploads/{digest}?total={len(data)}", content=data).json()["complete"]
    query = f"artifact={toy_artifact().fingerprint}&client={client.id}&upload={digest}"
    answer = running.request("PUT", f"/v1/jobs/{'0' * 32}?{query}")
    assert answer.status_code == 422
    assert answer.json()["error"]["kind"] == "WireError"
    assert "another client" in answer.json()["error"]["what"]


def test_an_interrupted_upload_goes_on_where_it_stopped(
    remote: hg.RemoteServer, running: Running, client: hg.Client
) -> None:
    encrypted = client.encrypt(sample(5))
    data = encrypted.to_bytes()
    digest, half = hashlib.sha256(data).hexdigest(), len(data) // 2
    path = f"/v1/uploads/{digest}?total={len(data)}"
    assert running.request("PUT", path, content=data[:half]).json()["received"] == half
    # A gap is refused with the place where to go on.
    answer = running.request("PUT", f"{path}&offset={half + 1}", content=data[half + 1 :])
    assert (answer.status_code, answer.json()["error"]["hint"]) == (409, "resume where the upload stopped")
    seen: list[int] = []
    with hg.RemoteServer(running.url, running.token, part_bytes=half + 1) as again:
        again.submit(encrypted, lambda stage, done, total: seen.append(done))
    assert seen == [half, len(data)]
    assert right(client.decrypt(remote.result(encrypted.request)), 5)


def test_an_upload_of_other_bytes_than_announced_is_refused_and_forgotten(running: Running) -> None:
    digest = hashlib.sha256(b"these").hexdigest()
    path = f"/v1/uploads/{digest}"
    answer = running.request("PUT", f"{path}?total=5", content=b"those")
    assert answer.status_code == 422
    assert "damaged" in answer.json()["error"]["what"]
    assert running.get(path).status_code == 404
    answer = running.request("PUT", f"{path}?total=4", content=b"these")
    assert answer.status_code == 413
    answer = running.request("DELETE", path)
    assert answer.status_code == 204


def test_a_key_that_is_none_is_refused(running: Running, keys: hg.EvaluationKeys) -> None:
    stranger = hg.Client(toy_artifact(), allow_insecure=True)
    path = f"/v1/keys/{toy_artifact().fingerprint}/{stranger.id}"
    state = running.request("PUT", path).json()
    assert state["missing"] == sorted(keys.names())
    digest = hashlib.sha256(b"no key").hexdigest()
    running.request("PUT", f"/v1/uploads/{digest}?total=6", content=b"no key")
    answer = running.request("POST", f"{path}?name={state['missing'][0]}&upload={digest}")
    assert answer.status_code == 422
    assert answer.json()["error"]["kind"] == "WireError"
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
    assert running.get("/health", "x").json()["status"] == "ok"
    with pytest.raises(hg.ProgramError, match="that is not a token"):
        hg.RemoteServer(running.url, "a token\n")
    with pytest.raises(StatusError, match="no token"), hg.RemoteServer(running.url, "hg_no") as remote:
        remote.artifacts()


def test_a_tenant_sees_nothing_of_another(
    remote: hg.RemoteServer, running: Running, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    encrypted = client.encrypt(sample(6))
    job = remote.submit(encrypted)
    data = b"some bytes"
    digest = hashlib.sha256(data).hexdigest()
    running.request("PUT", f"/v1/uploads/{digest}?total=100")
    paths = [f"/v1/jobs/{job}", f"/v1/jobs/{job}/events", f"/v1/jobs/{job}/result", f"/v1/uploads/{digest}"]
    paths += [f"/v1/keys/{encrypted.artifact}/{encrypted.client}"]
    for path in paths:
        assert running.get(path, running.other).status_code == 404, path
    for path in (paths[0], *paths[3:]):
        assert running.request("DELETE", path, running.other).status_code == 404, path
    assert running.get("/v1/jobs", running.other).json() == []
    with hg.RemoteServer(running.url, running.other) as other, pytest.raises(StatusError, match="not registered"):
        other.run(client.encrypt(sample()))
    assert right(client.decrypt(remote.result(job)), 6)
    running.request("DELETE", f"/v1/uploads/{digest}")


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
    assert len(figures) == sum(not line.startswith("#") for line in text.splitlines())
    page = running.get("/", running.operator).text
    assert toy_artifact().fingerprint in page
    assert "1 of 1 workers live" in page
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


def test_a_tenant_has_a_quota(artifact_file: Path, tmp_path: Path, keys: hg.EvaluationKeys) -> None:
    running = Running(tmp_path / "data", [artifact_file], "--tenant-bytes", "300000").start()
    with hg.RemoteServer(running.url, running.token) as remote:
        with pytest.raises(hg.ProgramError, match="quota of this token") as caught:
            remote.register(keys)
        assert "of 300000 bytes" in caught.value.why
    assert running.stop() == 0


def test_an_upload_beyond_the_bill_is_refused(running: Running) -> None:
    answer = running.request("PUT", f"/v1/uploads/{'0' * 64}?total={1 << 30}")
    assert answer.status_code == 413
    assert re.search(r"the largest key or input of what is served here has \d+ bytes", answer.json()["error"]["why"])


def test_half_uploads_do_not_hold_others_up(running: Running, remote: hg.RemoteServer, client: hg.Client) -> None:
    held = []
    for number in range(20):
        digest = hashlib.sha256(bytes([number])).hexdigest()
        connection = socket.create_connection(("127.0.0.1", running.port))
        head = f"PUT /v1/uploads/{digest}?total=1000 HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
        connection.sendall(f"{head}Authorization: Bearer {running.token}\r\n\r\nbegun".encode())
        held.append(connection)
    assert right(client.decrypt(remote.run(client.encrypt(sample(7)))), 7)
    # What came before the client went away stays.
    digest = hashlib.sha256(bytes([0])).hexdigest()
    for _ in range(100):
        if running.get(f"/v1/uploads/{digest}").status_code == 200:
            break
        time.sleep(0.05)
    time.sleep(0.5)
    for connection in held:
        connection.close()
    for _ in range(100):
        if running.get(f"/v1/uploads/{digest}").json()["received"] == 5:
            break
        time.sleep(0.05)
    assert running.get(f"/v1/uploads/{digest}").json()["received"] == 5


def test_an_address_that_others_reach_needs_tls(artifact_file: Path, tmp_path: Path) -> None:
    from heliograph.serving.run import Listening, serve
    from heliograph.serving.site import SiteSettings

    settings = SiteSettings([artifact_file], tmp_path / "data", allow_insecure=True)
    with pytest.raises(hg.SecurityError, match="without TLS they can read tokens"):
        serve(settings, Listening("0.0.0.0:0"))
    with pytest.raises(hg.SecurityError, match="has no TLS"):
        hg.RemoteServer("http://models.example.org", "hg_x")
