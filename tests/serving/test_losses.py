"""Folders of others, queues and files that were put back, jumps of the clock: nothing that exists is deleted at a start."""

from __future__ import annotations

import shutil
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.answers import TOLERANCE, expected
from helpers.serving import Running
from helpers.sites import filled, old_queue, site, submit
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.cli.main import cli
from heliograph.serving.queue import clock as clock_module
from heliograph.serving.queue.clock import Clock
from heliograph.serving.queue.database import Database
from heliograph.serving.queue.settings import Limits, Places
from heliograph.serving.refusals import Refused
from heliograph.serving.site import Site

DAY = 86_400.0
MODEL = toy_artifact().fingerprint


def listed(folder: Path) -> list[str]:
    """All files below a folder, but for the locks and the files of SQLite."""
    files = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    return sorted(name for name in files if name != ".lock" and not name.startswith("queue.sqlite"))


# ------------------------------------------------------------------------------------------------ folders of others


def test_a_folder_of_others_is_refused_and_stays_as_it_is(artifact_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "home"
    strange = ["inputs/patient1.ct", "keys/alice/private.txt", "results/thesis.csv", "uploads/photo.jpg"]
    for name in strange:
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("mine")
    folder.chmod(0o755)
    for _ in range(2):
        with pytest.raises(hg.ProgramError, match="'inputs', 'keys', 'results', 'uploads'") as caught:
            site(artifact_file, folder, Limits())
        assert "name a new folder" in caught.value.hint
        assert CliRunner().invoke(cli, ["token", "alice", "--data", str(folder)]).exit_code != 0
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == strange
    assert folder.stat().st_mode & 0o777 == 0o755
    # Some other program's database of that name is none of ours.
    with sqlite3.connect(folder / "queue.sqlite") as connection:
        connection.execute("CREATE TABLE jobs (id INTEGER)")
    with pytest.raises(hg.ProgramError, match=r"'queue\.sqlite'"):
        site(artifact_file, folder, Limits())


def test_an_empty_file_system_and_the_folder_of_an_earlier_version_are_taken(
    artifact_file: Path, tmp_path: Path
) -> None:
    empty, earlier = tmp_path / "empty", tmp_path / "earlier"
    (empty / "lost+found").mkdir(parents=True)
    (earlier / "results").mkdir(parents=True)
    old_queue(earlier / "queue.sqlite")
    for folder in (empty, earlier):
        for _ in range(2):
            made = site(artifact_file, folder, Limits())
            made.close()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / ".heliograph-server").is_file()
    assert {path.stat().st_mode & 0o777 for path in empty.iterdir() if path.name.startswith("queue")} == {0o600}


def test_the_files_of_a_queue_are_for_its_owner(tmp_path: Path) -> None:
    database = Database(tmp_path / "queue.sqlite")
    database.note_time()
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("queue.sqlite", "queue.sqlite-wal", "queue.sqlite-shm"), 0o600)


# ------------------------------------------------------------------------------------------------ put back


def done(made: Site) -> None:
    """The job that waits, done."""
    claim = made.jobs.claim("w")
    assert claim is not None
    made.places.result("r").write_bytes(b"a result")
    assert made.jobs.finish("w", claim.number, "r", 1)


def copied_queue(places: Places, to: Path) -> None:
    """A copy as docs/serving.md says, of a server that may run."""
    with sqlite3.connect(places.database) as source, sqlite3.connect(to) as target:
        source.backup(target)


def put_back(places: Places, copy: Path) -> None:
    for name in ("queue.sqlite", "queue.sqlite-wal", "queue.sqlite-shm"):
        (places.root / name).unlink(missing_ok=True)
    shutil.copy(copy, places.database)


def test_files_whose_queue_was_lost_or_is_older_are_kept_and_found_again(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    made = site(artifact_file, tmp_path / "data", Limits())
    places = made.places
    copied_queue(places, tmp_path / "older")
    job = filled(made, client, keys)
    done(made)
    made.close()
    copied_queue(places, tmp_path / "newest")
    before = [name for name in listed(places.root) if name != ".heliograph-server"]
    assert {name.split("/")[0] for name in before} == {"keys", "results"}
    queues: list[Path | None] = [None, tmp_path / "older"]
    for queue in queues:
        if queue is None:
            for name in ("queue.sqlite", "queue.sqlite-wal", "queue.sqlite-shm"):
                (places.root / name).unlink(missing_ok=True)
        else:
            put_back(places, queue)
        for _ in range(2):
            made = site(artifact_file, places.root, Limits())
            made._sweep.settle()
            made._sweep.once()
            (day,) = places.lost.iterdir()
            assert listed(day) == before
            # It serves.
            other = hg.Client(toy_artifact(), allow_insecure=True)
            assert made.keysets.begin(1, MODEL, other.id, made.catalog[MODEL].keys).missing
            made.keysets.delete(1, MODEL, other.id)
            made.close()
        put_back(places, tmp_path / "newest")
        made = site(artifact_file, places.root, Limits())
        made._sweep.settle()
        assert made.jobs.result(1, job).read_bytes() == b"a result"
        assert made.keysets.record(1, MODEL, client.id, made.catalog[MODEL].keys).complete
        assert made.keysets.for_job(1, MODEL, client.id)
        made.close()
        assert [name for name in listed(places.root) if name != ".heliograph-server"] == before


def test_a_queue_without_its_files_asks_for_them(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    made = site(artifact_file, tmp_path / "data", Limits())
    ended = filled(made, client, keys)
    done(made)
    encrypted = client.encrypt(sample())
    submit(made, encrypted)
    made.close()
    copied_queue(made.places, tmp_path / "copy")
    fresh = Places(tmp_path / "fresh")
    fresh.root.mkdir()
    shutil.copy(tmp_path / "copy", fresh.database)
    again = site(artifact_file, fresh.root, Limits())
    again._sweep.settle()
    for id, what in ((ended, "result"), (encrypted.request, "input")):
        record = again.jobs.record(1, id)
        assert record.state == "failed"
        assert record.error is not None
        assert record.error.why == f"its {what} was lost on the server"
    with pytest.raises(Refused, match="no result"):
        again.jobs.result(1, ended)
    with pytest.raises(Refused, match="not registered, or not all of them"):
        again.keysets.for_job(1, MODEL, client.id)
    # The next `register` sends them, as for a set that was begun.
    expected_keys = again.catalog[MODEL].keys
    assert again.keysets.begin(1, MODEL, client.id, expected_keys).missing == tuple(sorted(expected_keys))
    assert filled(again, client, keys)


def test_what_was_put_aside_goes_when_keys_would(
    artifact_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = site(artifact_file, tmp_path / "data", Limits())
    places = made.places
    stray = places.result("stray")
    stray.write_bytes(b"a result")
    made._sweep.settle()
    made._sweep.once()
    (kept,) = places.lost.glob("*/results/stray")
    made.close()
    # A new queue does not know how long it has been there, however old it is by its name.
    kept.parent.parent.rename(places.lost / "2001-01-01")
    for name in ("queue.sqlite", "queue.sqlite-wal", "queue.sqlite-shm"):
        (places.root / name).unlink(missing_ok=True)
    made = site(artifact_file, places.root, Limits())
    made._sweep.settle()
    real = time.monotonic, time.time
    for days, there in ((0, True), (29.9, True), (30.1, False)):
        passed = days * DAY
        monkeypatch.setattr(clock_module.time, "monotonic", lambda passed=passed: real[0]() + passed)
        monkeypatch.setattr(clock_module.time, "time", lambda passed=passed: real[1]() + passed)
        made._sweep.once()
        assert (places.lost / "2001-01-01").exists() == there, days
    assert made.database.reading().execute("SELECT * FROM counters WHERE name GLOB 'lost/*'").fetchall() == []


def test_a_damaged_queue_is_said_and_nothing_deleted(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    made = site(artifact_file, tmp_path / "data", Limits())
    places = made.places
    filled(made, client, keys)
    with made.database.writing() as connection:
        rows = [(f"{number:0200}",) for number in range(1000)]
        connection.executemany("INSERT INTO counters VALUES (?, 1)", rows)
    made.database.reading().execute("PRAGMA wal_checkpoint(TRUNCATE)")
    made.close()
    before = listed(places.root)
    whole = places.database.read_bytes()
    for begin in (len(whole) // 2, 4096):
        places.database.write_bytes(whole[:begin] + b"\xff" * 8192 + whole[begin + 8192 :])
        with pytest.raises(hg.WireError, match=r"damaged|cannot be used as a queue") as caught:
            Database(places.database, upgrade=True)
        assert "put a copy back" in caught.value.hint
    with pytest.raises(hg.WireError, match=r"damaged|cannot be used as a queue"):
        site(artifact_file, places.root, Limits())
    assert listed(places.root) == before
    places.database.write_bytes(whole)
    assert Database(places.database, upgrade=True).reading().execute("SELECT 1 FROM jobs").fetchone()


def test_an_older_queue_under_a_running_server(artifact_file: Path, tmp_path: Path, client: hg.Client) -> None:
    """As an operator does it: a copy while the server runs, put back when more has come."""
    running = Running(tmp_path / "data", [artifact_file]).start()
    keys, later = client.evaluation_keys(), hg.Client(toy_artifact(), allow_insecure=True)
    with hg.RemoteServer(running.url, running.token, patience_s=60) as remote:
        remote.register(keys)
        copied_queue(running.places, tmp_path / "copy")
        shutil.copytree(running.folder, tmp_path / "files", ignore=shutil.ignore_patterns("queue.sqlite*", ".lock"))
        remote.register(later.evaluation_keys())
        job = later.encrypt(sample(3))
        remote.submit(job)
        while running.get(f"/v1/jobs/{job.request}").json()["state"] != "done":
            time.sleep(0.05)
        assert running.stop() == 0
        copied_queue(running.places, tmp_path / "newest")
        names = {path.name for path in (*running.places.keys.iterdir(), *running.places.results.iterdir())}
        assert len(names) == 3
        put_back(running.places, tmp_path / "copy")
        running.start()
        there = {path.name for path in running.folder.rglob("*")}
        assert names <= there
        assert np.abs(client.decrypt(remote.run(client.encrypt(sample(1)))) - expected(1)).max() < TOLERANCE
        assert running.stop() == 0
        put_back(running.places, tmp_path / "newest")
        running.start()
        assert np.abs(later.decrypt(remote.result(job.request)) - expected(3)).max() < TOLERANCE
        assert running.stop() == 0
        # And the copy alone, in a new folder.
        shutil.rmtree(running.folder)
        shutil.copytree(tmp_path / "files", running.folder)
        shutil.copy(tmp_path / "copy", running.places.database)
        running.start()
        assert np.abs(client.decrypt(remote.run(client.encrypt(sample(2)))) - expected(2)).max() < TOLERANCE
        assert running.stop() == 0


# ------------------------------------------------------------------------------------------------ the clock


class Times:
    """The wall clock and the monotonic clock, as a test moves them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall, self.steady = time.time(), 1000.0
        monkeypatch.setattr(clock_module.time, "time", lambda: self.wall)
        monkeypatch.setattr(clock_module.time, "monotonic", lambda: self.steady)

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    return Times(monkeypatch)


@pytest.mark.parametrize("days", [31, -31])
def test_a_jump_of_the_wall_clock_deletes_nothing(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys, times: Times, days: int
) -> None:
    made = site(artifact_file, tmp_path / "data", Limits())
    jobs = [filled(made, client, keys)]
    done(made)
    times.passes(60)
    made._sweep.once()
    times.wall += days * DAY
    # What comes meanwhile is not old either when the clock is right again.
    other = hg.Client(toy_artifact(), allow_insecure=True)
    made.keysets.begin(1, MODEL, other.id, made.catalog[MODEL].keys)
    jobs.append(submit(made, client.encrypt(sample())))
    assert abs(made.jobs.record(1, jobs[-1]).created - times.wall) < 1
    claim = made.jobs.claim("w")
    assert claim is not None
    made.places.result("r2").write_bytes(b"another")
    assert made.jobs.finish("w", claim.number, "r2", 1)
    before = listed(made.places.root)
    for _ in range(2):
        times.passes(15)
        made._sweep.once()
        times.wall -= days * DAY
        times.passes(15)
        made._sweep.once()
        times.wall += days * DAY
        made._sweep.once()
    assert listed(made.places.root) == before
    # Days that pass delete what is over.
    times.passes(6.9 * DAY)
    made._sweep.once()
    assert [made.jobs.record(1, job).state for job in jobs] == ["done", "done"]
    times.passes(0.2 * DAY)
    made._sweep.once()
    assert not list(made.places.results.iterdir())
    assert len(list(made.places.keys.iterdir())) == 2
    times.passes(24 * DAY)
    made._sweep.once()
    assert not list(made.places.keys.iterdir())


def test_what_is_kept_gets_no_older_while_the_server_is_away_for_long(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys, times: Times
) -> None:
    """Nothing tells a stop of weeks from a clock that was set wrong while the server did not run."""
    made = site(artifact_file, tmp_path / "data", Limits())
    job = filled(made, client, keys)
    done(made)
    for away in (31 * DAY, -31 * DAY, 400 * DAY):
        made._sweep.once()
        made.close()
        times.wall += away
        made = site(artifact_file, made.places.root, Limits())
        made._sweep.settle()
        made._sweep.once()
        assert made.jobs.result(1, job).read_bytes() == b"a result"
        assert made.keysets.record(1, MODEL, client.id, made.catalog[MODEL].keys).complete
    # Restarts do count.
    for _ in range(15):
        made._sweep.once()
        made.close()
        times.wall += 0.5 * DAY
        made = site(artifact_file, made.places.root, Limits())
    made._sweep.once()
    with pytest.raises(Refused, match="no such job"):
        made.jobs.record(1, job)


def test_a_queue_that_notes_no_time_goes_on_from_its_latest(tmp_path: Path, times: Times) -> None:
    """As one of an earlier version, or a copy of it that is old."""
    database = Database(tmp_path / "queue.sqlite")
    with database.writing() as connection:
        connection.execute("INSERT INTO keysets VALUES ('f', 1, 'a', 'c', 0, 1, ?)", (times.wall - 40 * DAY,))
    again = Database(tmp_path / "queue.sqlite")
    assert abs(again.clock.now() - (times.wall - 40 * DAY)) < 1
    assert abs(again.clock.shown(again.clock.now()) - times.wall) < 1


def test_the_clock_follows_a_wall_clock_that_is_set_slowly(times: Times) -> None:
    clock = Clock()
    for _ in range(100):
        times.passes(15)
        times.wall += 0.5
        assert clock.now() == times.wall
