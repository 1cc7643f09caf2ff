"""A full disk, too many open files, damaged keys: troubles of the server, told as such, and jobs that go on after them."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from helpers.answers import TOLERANCE, expected
from helpers.serving import Running
from helpers.sites import filled, put, register, site
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph import files
from heliograph.artifact.container import digest_of
from heliograph.errors import HeliographError, WireError
from heliograph.files import write_file
from heliograph.runtime.wire.keyfolder import KeyFolder
from heliograph.serving import site as site_module
from heliograph.serving.http import routes_jobs
from heliograph.serving.http.app import make_app
from heliograph.serving.queue import jobs as jobs_module
from heliograph.serving.queue import uploads
from heliograph.serving.queue.settings import Limits
from heliograph.serving.refusals import Refused
from heliograph.serving.remote.records import DONE, ErrorRecord, JobRecord
from heliograph.serving.site import Site
from heliograph.serving.work import pool as pool_module
from heliograph.serving.work.engine import AGAIN, Report, Task, Work, WorkerGone, WorkerHandle
from heliograph.serving.work.evaluation import Evaluation

MODEL = toy_artifact().fingerprint


class Played:
    """An engine whose workers do what a test says: `act` gets each task, and gives its report or raises."""

    name = "played"

    def __init__(self, act: Callable[[Task], Report]) -> None:
        self.act, self.process, self.place, self.held, self.alive = act, 1, "here", dict[str, int](), True
        self._task: Task | None = None

    def start_worker(self) -> WorkerHandle:
        return self

    def begin(self, task: Task) -> None:
        self._task = task

    def poll(self, seconds: float) -> Report | None:
        assert self._task is not None
        return self.act(self._task)

    def stop(self) -> None: ...
    def drop(self, folders: Collection[str]) -> None: ...
    def close(self) -> None: ...
    def kill(self) -> None: ...


@pytest.fixture
def played(
    artifact_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Callable[[Task], Report]], Site]]:
    """A site whose worker is played; it is started by the test."""
    made: list[Site] = []

    def of(act: Callable[[Task], Report]) -> Site:
        monkeypatch.setattr(site_module, "make_engine", lambda *_: Played(act))
        monkeypatch.setattr(pool_module, "_REST_S", 0.05)
        made.append(site(artifact_file, tmp_path / "data", Limits()))
        return made[-1]

    yield of
    for each in made:
        each.close()


def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def ended(made: Site, job: str) -> JobRecord:
    until(lambda: made.jobs.record(1, job).state in ("done", "failed"))
    return made.jobs.record(1, job)


# ------------------------------------------------------------------------------------------------ the disk


def test_a_result_for_which_there_is_no_room_is_computed_again_when_there_is(
    played: Any, client: hg.Client, keys: hg.EvaluationKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, tries = threading.Event(), list[str]()
    full.set()
    real = os.fsync

    def fsync(handle: int) -> None:
        if full.is_set() and "/results/" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(files.os, "fsync", fsync)
    evaluation: list[Evaluation] = []

    def act(task: Task) -> Report:
        tries.append(task.output)
        if not evaluation:
            paths = {MODEL: str(made.catalog[MODEL].path)}
            evaluation.append(Evaluation(Work("", paths, {}, 1 << 31, allow_insecure=True)))
        return evaluation[0].run(task.artifact, Path(task.keys), Path(task.input), lambda out: out.save(task.output))

    made: Site = played(act)
    job = filled(made, client, keys)
    made.start()
    until(lambda: len(tries) > 2)
    until(lambda: made.jobs.record(1, job).state == "queued")
    said = made.jobs.record(1, job).error
    assert said is not None
    assert (said.what, said.why) == ("the result cannot be written", "No space left on device")
    assert "when the server has room" in said.hint
    full.clear()
    record = ended(made, job)
    assert (record.state, record.error) == ("done", None)
    assert len(set(tries)) == len(tries)
    assert [path.name for path in made.places.results.iterdir()] == [made.jobs.result(1, job).name]


def test_no_job_is_begun_whose_result_has_no_room(
    played: Any, client: hg.Client, keys: hg.EvaluationKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(task: Task) -> Report:
        write_file(task.output, b"a result")
        return Report(DONE)

    made: Site = played(act)
    job = filled(made, client, keys)
    usage, room = shutil.disk_usage(made.places.root), [made.catalog[MODEL].record.output_bytes - 1]
    monkeypatch.setattr(jobs_module.shutil, "disk_usage", lambda path: usage._replace(free=room[0]))
    made.start()
    until(lambda: made.jobs.record(1, job).error is not None)
    record = made.jobs.record(1, job)
    assert record.state == "queued"
    assert record.error is not None
    assert f"{room[0] + 1} bytes are needed on the disk of the server" in record.error.why
    room[0] += 1
    record = ended(made, job)
    assert (record.state, record.error) == ("done", None)


def test_room_for_results_is_kept_from_acceptance_on(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = site(artifact_file, tmp_path / "data", Limits())
    filled(made, client, keys)
    encrypted = client.encrypt(sample())
    output = made.catalog[MODEL].record.output_bytes
    usage = shutil.disk_usage(made.places.root)
    free = [0]
    monkeypatch.setattr(uploads.shutil, "disk_usage", lambda path: usage._replace(free=Limits().free_bytes + free[0]))
    # One result is to come. No upload may take its room, neither when it is begun nor when it comes.
    free[0] = output + 9
    with pytest.raises(Refused, match="no room") as refused:
        made.uploads.begin(1, 10, 10)
    assert refused.value.status == 507
    free[0] = output + 10
    upload = made.uploads.begin(1, 10, 10)
    free[0] = output + 9
    with pytest.raises(Refused, match="no room"):
        upload.write(bytes(10))
    upload.close()
    # Nor a second result.
    data = encrypted.to_bytes()
    asked = 1, encrypted.request, MODEL, client.id, digest_of(data)
    for room in (2 * output - 1, 2 * output):
        free[0] = 2 * output + len(data)
        with put(made, data) as upload:
            free[0] = room
            if room < 2 * output:
                with pytest.raises(Refused, match="no room"):
                    made.submit(*asked, upload)
            else:
                assert made.submit(*asked, upload).state == "queued"


def test_a_worker_whose_death_cannot_be_written_down_is_not_counted(
    played: Any, client: hg.Client, keys: hg.EvaluationKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full, so that the queue cannot be written."""
    full, died = threading.Event(), list[str]()

    def act(task: Task) -> Report:
        if not died:
            died.append(task.input)
            full.set()
            raise WorkerGone("SIGBUS", killed=True)
        write_file(task.output, b"a result")
        return Report(DONE)

    made: Site = played(act)
    real = made.jobs.release

    def release(*given: Any, **more: Any) -> int:
        if full.is_set():
            raise sqlite3.OperationalError("database or disk is full")
        return real(*given, **more)

    monkeypatch.setattr(made.jobs, "release", release)
    job = filled(made, client, keys)
    made.start()
    until(lambda: bool(died))
    until(lambda: made.pool.alive == 0)
    assert made.jobs.record(1, job).state == "running"
    full.clear()
    assert ended(made, job).state == "done"
    assert made.pool.alive == 1


# ------------------------------------------------------------------------------------------------ open files


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_too_many_open_files_say_nothing_of_a_file(
    artifact_file: Path,
    tmp_path: Path,
    client: hg.Client,
    keys: hg.EvaluationKeys,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    """Neither that it is damaged nor that it is not there."""
    made = site(artifact_file, tmp_path, Limits())
    headers = {"Authorization": f"Bearer {made.tenants.add('first')}"}
    register(made, client, keys)
    data = client.encrypt(sample()).to_bytes()
    short = threading.Event()
    real = os.open

    only_reading = threading.Event()

    def opened(path: Any, flags: int, *given: Any, **more: Any) -> int:
        own = str(path).startswith(str(made.places.root)) and not (only_reading.is_set() and flags & os.O_WRONLY)
        if short.is_set() and own:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *given, **more)

    async def ask() -> None:
        transport = httpx.ASGITransport(make_app(made))
        async with httpx.AsyncClient(transport=transport, base_url="http://here", headers=headers) as http:
            path = f"/v1/jobs/{'a' * 32}?artifact={MODEL}&client={client.id}&digest={digest_of(data)}"
            monkeypatch.setattr(os, "open", opened)
            # When the input's file is made, and when it is checked.
            for each in (only_reading.clear, only_reading.set):
                each()
                short.set()
                answer = await http.put(path, content=data)
                said = answer.json()["error"]["what"]
                assert (answer.status_code, said) == (503, "the server has too many files open")
                short.clear()
            assert (await http.put(path, content=data)).json()["state"] == "queued"

    asyncio.run(ask())
    assert os.listdir(made.places.uploads) == []
    only_reading.clear()
    short.set()
    with pytest.raises(OSError, match=os.strerror(number)):
        made.uploads.begin(1, 1, 1)
    with pytest.raises(OSError, match=os.strerror(number)):
        routes_jobs._opened(made.places.result("r"))
    short.clear()


def test_a_worker_without_files_gives_its_job_back(
    artifact_file: Path, tmp_path: Path, client: hg.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.write_evaluation_keys(tmp_path / "keys")
    client.encrypt(sample()).save(tmp_path / "input")
    evaluation = Evaluation(Work("", {MODEL: str(artifact_file)}, {}, 1 << 31, allow_insecure=True))
    real = os.open

    def opened(path: Any, *given: Any, **more: Any) -> int:
        if str(path).endswith(name):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *given, **more)

    monkeypatch.setattr(os, "open", opened)
    for name in ("/input", ".key", ".keys", ".mapped.lock"):
        report = evaluation.run(MODEL, tmp_path / "keys", tmp_path / "input", lambda output: None)
        assert report.state == AGAIN, name
        assert report.error is not None
        assert report.error.why == os.strerror(errno.EMFILE)
    name = "/nothing"
    assert evaluation.run(MODEL, tmp_path / "keys", tmp_path / "input", lambda output: None).state == DONE


# ------------------------------------------------------------------------------------------------ damaged keys


def test_keys_that_the_disk_damaged_are_asked_for_again(
    running: Running, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    other = hg.Client(toy_artifact(), allow_insecure=True)
    own = other.evaluation_keys()

    def spoiled(how: Callable[[Path], object]) -> None:
        for folder in running.places.keys.iterdir():
            if KeyFolder(folder).client == other.id:
                how(folder)

    def cut(folder: Path) -> None:
        os.truncate(folder / "rotation-1.key", 1000)

    def altered(folder: Path) -> None:
        path = folder / "rotation-1.key"
        data = bytearray(path.read_bytes())
        data[-100] ^= 1
        path.write_bytes(data)
        # What was made of the keys before is taken as it is.
        for file in folder.glob("mapped-*"):
            file.unlink()

    ways: list[Callable[[Path], object]] = [
        cut,
        altered,
        lambda folder: (folder / "rotation-1.key").unlink(),
        lambda folder: (folder / "index.keys").write_bytes(b"junk"),
        shutil.rmtree,
    ]
    with hg.RemoteServer(running.url, running.token, patience_s=30) as remote:
        for seed, spoil in enumerate(ways, 1):
            remote.register(own)
            for process in running.workers():
                # The one that holds the keys in its memory does not look at their files.
                os.kill(process, 9)
            spoiled(spoil)
            with pytest.raises(HeliographError, match="were damaged on the disk of the server") as caught:
                remote.run(other.encrypt(sample(seed)))
            assert not isinstance(caught.value, WireError)
            assert "register the keys again" in caught.value.hint
            assert str(running.folder) not in str(caught.value)
            with pytest.raises(HeliographError, match="not registered, or not all of them"):
                remote.submit(other.encrypt(sample(seed)))
            remote.register(own)
            answer = other.decrypt(remote.run(other.encrypt(sample(seed))))
            assert np.abs(answer - expected(seed)).max() < TOLERANCE
        # `register` alone finds what is cut off or gone.
        for seed, spoil in ((1, cut), (2, shutil.rmtree)):
            spoiled(spoil)
            remote.register(own)
            answer = other.decrypt(remote.run(other.encrypt(sample(seed))))
            assert np.abs(answer - expected(seed)).max() < TOLERANCE
        remote.forget(own)


def test_an_error_about_keys_that_are_whole_stays_as_it_is(
    played: Any, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    def act(task: Task) -> Report:
        return Report("failed", error=ErrorRecord("KeysError", f"{task.keys}/rotation-1.key is something else"))

    made: Site = played(act)
    job = filled(made, client, keys)
    made.start()
    record = ended(made, job)
    assert record.error == ErrorRecord("KeysError", "an evaluation key is something else")
    assert made.keysets.for_job(1, MODEL, client.id)
