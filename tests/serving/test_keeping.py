"""What a server keeps and lets go: servers in a worker's memory, keys and results on the disk."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from helpers.sites import filled, site, submit
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.cli.main import cli
from heliograph.execution.memory import BASE_BYTES
from heliograph.serving.queue.catalog import Catalog, room
from heliograph.serving.queue.database import Database
from heliograph.serving.queue.settings import Limits, Places
from heliograph.serving.queue.sweep import Sweep
from heliograph.serving.queue.tenants import Tenants
from heliograph.serving.refusals import Refused
from heliograph.serving.site import Site
from heliograph.serving.work.engine import Work
from heliograph.serving.work.holding import Holding


def test_a_worker_lets_go_of_the_server_that_was_used_longest_ago(
    artifact_file: Path, tmp_path: Path, client: hg.Client
) -> None:
    fingerprint = toy_artifact().fingerprint
    # Room for two servers, not for three; what the process takes is counted once.
    huge = room(toy_artifact(), 1 << 40)
    one = huge.bytes - BASE_BYTES
    paths, worker_bytes = {fingerprint: str(artifact_file)}, BASE_BYTES + 2 * one + one // 2
    holding = Holding(Work(str(tmp_path), paths, {}, worker_bytes, backend="openfhe", allow_insecure=True))
    for name in ("a", "b", "c"):
        client.write_evaluation_keys(tmp_path / name)
    first = holding.server(fingerprint, "a", tmp_path / "a")
    holding.server(fingerprint, "b", tmp_path / "b")
    assert holding.server(fingerprint, "a", tmp_path / "a") is first
    holding.server(fingerprint, "c", tmp_path / "c")
    assert holding.held == {"a": one, "c": one}
    assert first.run(client.encrypt(sample()))
    for name in ("a", "b", "c"):
        holding.drop(name)
    assert holding.held == {}
    with pytest.raises(hg.ProgramError, match="closed"):
        first.run(client.encrypt(sample()))


def files(site: Site) -> list[str]:
    return [
        file.name
        for folder in ("inputs", "results", "keys", "uploads")
        for file in (site.places.root / folder).iterdir()
    ]


def test_keys_and_results_expire(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    at_once = Limits(keys_s=0.0, result_s=0.0)
    made = site(artifact_file, tmp_path / "data", at_once)
    sweep = Sweep(made.database, made.places, at_once, made.keysets, made.jobs)
    job = filled(made, client, keys)
    time.sleep(0.01)
    sweep.once()
    # Keys for which a job waits stay; so does the job.
    assert made.jobs.record(1, job).state == "queued"
    assert len(files(made)) == 2
    claim = made.jobs.claim("w")
    assert claim is not None
    made.places.result("r").write_bytes(b"a result")
    assert made.jobs.finish("w", claim.number, "r", 1)
    time.sleep(0.01)
    sweep.once()
    sweep.once()
    assert files(made) == []
    with pytest.raises(Refused, match="no such job"):
        made.jobs.record(1, job)


def test_jobs_whose_keys_are_deleted_end_with_an_error(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    made = site(artifact_file, tmp_path / "data", Limits())
    job = filled(made, client, keys)
    made.keysets.delete(1, toy_artifact().fingerprint, client.id)
    record = made.jobs.record(1, job)
    assert record.state == "failed"
    assert record.error is not None
    assert record.error.why == "its evaluation keys were deleted"
    assert made.jobs.claim("w") is None


def test_a_job_that_is_deleted_while_it_runs_is_not_ended(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    made = site(artifact_file, tmp_path / "data", Limits())
    job = filled(made, client, keys)
    claim = made.jobs.claim("w")
    assert claim is not None
    assert made.jobs.beat("w", claim.number, 1, 2)
    made.jobs.delete(1, job)
    assert not made.jobs.beat("w", claim.number, 2, 2)
    assert [name for name in files(made) if name == claim.input] == []


def test_too_many_waiting_jobs_are_refused(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    made = site(artifact_file, tmp_path / "data", Limits(queued_jobs=1))
    filled(made, client, keys)
    with pytest.raises(Refused, match="1 jobs of this token have not ended; at most 1 may wait") as caught:
        submit(made, client.encrypt(sample()))
    assert caught.value.status == 429


def test_what_is_not_served(artifact_file: Path) -> None:
    with pytest.raises(hg.SecurityError):
        Catalog([artifact_file], 1 << 31)
    with pytest.raises(hg.ProgramError, match="the same artifact as"):
        Catalog([artifact_file, artifact_file], 1 << 31, allow_insecure=True)
    with pytest.raises(hg.ProgramError, match="'other', which is not served"):
        Catalog([artifact_file], 1 << 31, plain={"other": "x.npz"}, allow_insecure=True)


def test_the_token_command(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(cli, ["token", "--data", str(tmp_path), *arguments], catch_exceptions=False)
        assert done.exit_code == 0
        return done.stdout.strip()

    token = run("alice", "--operator")
    tenants = Tenants(Database(Places(tmp_path).database))
    known = tenants.of_token(token)
    assert known is not None
    assert (known.name, known.operator) == ("alice", True)
    with pytest.raises(hg.ProgramError, match="there is a tenant 'alice' already"):
        run("alice")
    assert run("alice", "--revoke") == "alice: revoked"
    assert tenants.of_token(token) is None
    assert run("alice") != token


def test_tokens_expire_are_replaced_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(cli, ["token", "--data", str(tmp_path), *arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout.strip()

    with pytest.raises(hg.ProgramError, match="is not the folder of a server"):
        run("--list")
    short, lasting = run("alice", "--expires", "2"), run("ops", "--operator")
    tenants = Tenants(Database(Places(tmp_path).database))
    alice = tenants.of_token(short)
    assert alice is not None
    listed = run("--list").splitlines()
    assert [line.split()[:2] for line in listed] == [["alice", "client"], ["ops", "operator"]]
    assert "until" in listed[0]
    assert "no end" in listed[1]
    second = run("alice", "--rotate")
    assert tenants.of_token(short) is None
    assert not tenants.stands(alice)
    rotated = tenants.of_token(second)
    assert rotated is not None
    assert rotated.number == alice.number
    third, now = run("alice", "--rotate", "--expires", "1"), time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86_500)
    assert tenants.of_token(third) is None
    assert tenants.of_token(lasting) is not None
    assert "ended" in run("--list")
    run("ops", "--revoke")
    assert json.loads(run("--list", "--json"))["tenants"][1]["expires"] == now + 86_500
    with pytest.raises(hg.ProgramError, match="there is no tenant 'bob'"):
        run("bob", "--rotate")
    for wrong in ([], ["alice", "--list"], ["alice", "--rotate", "--revoke"]):
        assert CliRunner().invoke(cli, ["token", "--data", str(tmp_path), *wrong]).exit_code == 2
