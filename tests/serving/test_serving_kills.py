"""kill -9 of workers and of the server: every accepted job ends once, with the right answer."""

from __future__ import annotations

import os
import random
import signal
import socket
import sqlite3
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.answers import TOLERANCE, expected
from helpers.serving import Running
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.artifact.container import digest_of
from heliograph.serving.queue.database import Database
from heliograph.serving.queue.jobs import Jobs
from heliograph.serving.queue.settings import Limits
from heliograph.serving.queue.uploads import Uploads
from heliograph.serving.remote.records import ErrorRecord


def counter(running: Running, name: str) -> float:
    with sqlite3.connect(running.places.database) as connection:
        row = connection.execute("SELECT value FROM counters WHERE name = ?", (name,)).fetchone()
    return 0.0 if row is None else float(row[0])


def load(running: Running, clients: list[hg.Client], jobs: int, stop: threading.Event) -> list[str]:
    """Each client in a thread of its own submits its jobs and takes their answers; what went wrong."""
    wrong: list[str] = []

    def work(number: int, client: hg.Client) -> None:
        try:
            with hg.RemoteServer(running.url, running.token, patience_s=120) as remote:
                remote.register(client.evaluation_keys())
                for job in range(jobs):
                    seed = 100 * number + job
                    answer = client.decrypt(remote.run(client.encrypt(sample(seed))))
                    if np.abs(answer - expected(seed)).max() > TOLERANCE:
                        wrong.append(f"client {number}, job {job}: wrong")
        except Exception as error:
            wrong.append(f"client {number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=item) for item in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    return wrong


def test_every_job_ends_once_with_the_right_answer(artifact_file: Path, tmp_path: Path) -> None:
    running = Running(tmp_path / "data", [artifact_file], "--workers", "2").start()
    clients = [hg.Client(toy_artifact(), allow_insecure=True) for _ in range(4)]
    stop, jobs = threading.Event(), 15
    found: list[list[str]] = []
    thread = threading.Thread(target=lambda: found.append(load(running, clients, jobs, stop)))
    thread.start()
    chance, kills = random.Random(1), 0
    # Two kills of a worker for each of the server, while the load lasts; a few jobs end between them.
    ended = 0.0
    while not stop.wait(chance.uniform(0.05, 0.5)):
        if counter(running, "jobs_done") < ended + 3:
            continue
        ended = counter(running, "jobs_done")
        if kills % 3 == 2:
            running.kill()
            running.start()
        else:
            workers = running.workers()
            if workers:
                os.kill(chance.choice(workers), signal.SIGKILL)
        kills += 1
    thread.join()
    assert found == [[]]
    assert kills >= 4
    assert running.get("/v1/jobs").json() == []
    accepted = counter(running, "jobs_accepted")
    assert accepted == len(clients) * jobs
    assert counter(running, "jobs_done") == accepted
    assert counter(running, "jobs_failed") == 0
    assert running.stop() == 0
    # A worker that was killed may have left a file that nothing names; the next start removes it.
    running.start()
    assert list(running.places.inputs.iterdir()) == list(running.places.results.iterdir()) == []
    assert running.stop() == 0


def waiting(running: Running, limits: Limits) -> Jobs:
    """The queue of a server that does not run, with a job "j"."""
    database = Database(running.places.database)
    with database.writing() as connection:
        connection.execute("INSERT INTO keysets VALUES ('f', 1, 'a', 'c', 0, 1, 0)")
    uploads = Uploads(database, running.places, limits)
    jobs = Jobs(database, running.places, limits, uploads)
    upload = uploads.begin(1, 8, 8)
    upload.write(b"an input")
    jobs.accept(1, "j", "a", "c", "f", "0" * 64, upload)
    upload.close()
    return jobs


def test_a_job_that_kills_its_workers_is_given_up(artifact_file: Path, tmp_path: Path) -> None:
    running = Running(tmp_path / "data", [artifact_file])
    limits = Limits(deaths=3)
    jobs = waiting(running, limits)
    database = Database(running.places.database)

    def lost(seconds: float, died: bool = True) -> None:
        """A worker has the job for so long, and is gone."""
        assert jobs.record(1, "j").state == "queued"
        assert jobs.claim("worker") is not None
        with database.writing() as connection:
            connection.execute("UPDATE jobs SET started = started - ?", (seconds,))
        assert jobs.release("worker", died=died) == 1

    # A server that ends takes its workers with it: that says nothing of their jobs, however often it happens.
    for _ in range(3 * limits.deaths):
        lost(100, died=False)
    # A worker that dies in the first seconds says little, so that it takes more of them.
    for _ in range(8):
        lost(0.1)
    for _ in range(limits.deaths - 1):
        lost(limits.quick_s + 0.1)
    record = jobs.record(1, "j")
    assert record.state == "failed"
    assert record.error is not None
    assert "workers died" in record.error.what
    assert jobs.claim("worker") is None


def test_who_is_late_ends_nothing(artifact_file: Path, tmp_path: Path) -> None:
    """A worker that lost its job can neither end it nor say how far it is; the one that has it can, once."""
    running = Running(tmp_path / "data", [artifact_file])
    jobs = waiting(running, Limits())
    first = jobs.claim("first")
    assert first is not None
    assert jobs.release("first") == 1
    second = jobs.claim("second")
    assert second == first
    result = running.places.result("r")
    result.write_bytes(b"a result")
    assert not jobs.beat("first", first.number, 1, 2)
    assert not jobs.finish("first", first.number, "r", 2)
    assert not jobs.fail("first", first.number, ErrorRecord("WireError", "no"))
    assert jobs.finish("second", first.number, "r", 2)
    assert not jobs.finish("second", first.number, "r", 2)
    assert jobs.record(1, "j").state == "done"


def test_an_input_that_was_on_its_way_is_sent_again_after_a_kill(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    running = Running(tmp_path / "data", [artifact_file]).start()
    with hg.RemoteServer(running.url, running.token, patience_s=60) as remote:
        remote.register(keys)
        encrypted = client.encrypt(sample(8))
        data = encrypted.to_bytes()
        query = f"artifact={encrypted.artifact}&client={encrypted.client}&digest={digest_of(data)}"
        head = f"PUT /v1/jobs/{encrypted.request}?{query} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        with socket.create_connection(("127.0.0.1", running.port)) as connection:
            connection.sendall(f"{head}Authorization: Bearer {running.token}\r\n\r\n".encode() + data[:1000])
            end = time.monotonic() + 20
            while not [file for file in running.places.uploads.iterdir() if file.stat().st_size == 1000]:
                assert time.monotonic() < end
                time.sleep(0.02)
            running.kill()
        running.start()
        assert list(running.places.uploads.iterdir()) == list(running.places.lost.iterdir()) == []
        assert np.abs(client.decrypt(remote.run(encrypted)) - expected(8)).max() < TOLERANCE
    assert running.stop() == 0


@pytest.mark.front
def test_workers_go_with_their_server(artifact_file: Path, tmp_path: Path) -> None:
    running = Running(tmp_path / "data", [artifact_file]).start()
    workers = running.workers()
    assert len(workers) == 1
    running.kill()
    end = time.monotonic() + 20
    while running.workers() and time.monotonic() < end:
        time.sleep(0.05)
    assert running.workers() == []


def test_a_folder_has_one_server(running: Running, artifact_file: Path) -> None:
    from heliograph.serving.site import Site, SiteSettings

    with pytest.raises(hg.ProgramError, match="another process serves from"):
        Site(SiteSettings([artifact_file], running.folder, allow_insecure=True))
