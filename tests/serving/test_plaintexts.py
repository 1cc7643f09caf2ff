"""`--plaintexts`: one folder of encoded plaintexts for the workers of a server, and for evaluations of files."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from helpers.answers import TOLERANCE, expected
from helpers.serving import Running
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.cli.main import main
from heliograph.errors import ProgramError, WireError
from heliograph.ir import Array
from heliograph.runtime.native import primitives
from heliograph.runtime.native.warm import warm_up
from heliograph.serving.queue.catalog import Catalog
from heliograph.serving.work.engine import Work
from heliograph.serving.work.evaluation import Evaluation


def right(client: hg.Client, output: Path | hg.EncryptedOutput, seed: int) -> bool:
    answer = client.decrypt(hg.EncryptedOutput.load(output) if isinstance(output, Path) else output)
    return bool(np.abs(answer - expected(seed)).max() < TOLERANCE)


@pytest.fixture
def roomy(tmp_path: Path) -> None:
    """Skip the test where the disk is so full that no plaintexts are kept."""
    free = shutil.disk_usage(tmp_path).free
    if free < 2 << 30:
        pytest.skip(f"{tmp_path} has {free >> 20} MiB left, and plaintexts are only kept where a GiB stays free")


@pytest.fixture
def files(client: hg.Client, artifact_file: Path, tmp_path: Path) -> Path:
    (tmp_path / "mlp.helio").write_bytes(artifact_file.read_bytes())
    client.write_evaluation_keys(tmp_path / "keys")
    for seed in range(3):
        client.encrypt(sample(seed)).save(tmp_path / f"{seed}.ct")
    return tmp_path


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize("engine", [[], ["--workers", "2"]])
def test_evaluate_keeps_plaintexts_for_the_next_evaluation(
    engine: list[str], files: Path, client: hg.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, encoded = files / "plaintexts", list[int]()
    real = primitives.encode

    def counted(values: Array, *rest: object) -> Array:
        encoded.append(values.size)
        return real(values, *rest)  # type: ignore[arg-type]

    def evaluate(*options: str) -> None:
        given = [str(files / f"{seed}.ct") for seed in range(3)]
        main(["evaluate", str(files / "mlp.helio"), *given, "--keys", str(files / "keys"), "-o", str(files / "out"),
              "--plaintexts", str(folder), "--backend", "native", "--insecure", *options])  # fmt: skip
        assert all(right(client, files / "out" / f"{seed}.ct", seed) for seed in range(3))
        for seed in range(3):
            (files / "out" / f"{seed}.ct").unlink()

    evaluate(*engine)
    (path,) = folder.iterdir()
    assert path.stat().st_size > 10_000
    # It encodes, too, when it is the first of a process.
    warm_up()
    monkeypatch.setattr(primitives, "encode", counted)
    evaluate()
    assert encoded == []


@pytest.mark.usefixtures("roomy")
def test_workers_of_a_server_share_one_folder(artifact_file: Path, tmp_path: Path) -> None:
    """Two workers, two clients, a worker that is killed, and a second server: one file, and the answers are right."""
    folder = tmp_path / "plaintexts"
    server = Running(tmp_path / "data", [artifact_file], "--workers", "2", "--plaintexts", str(folder))
    sizes = []
    for _ in range(2):
        server.start()
        for number in range(2):
            with hg.RemoteServer(server.url, server.token, patience_s=60) as remote:
                client = hg.Client(remote.public(), allow_insecure=True)
                remote.register(client.evaluation_keys())
                jobs = [remote.submit(client.encrypt(sample(seed))) for seed in range(4)]
                if number == 1:
                    os.kill(server.workers()[0], signal.SIGKILL)
                assert all(right(client, remote.result(job), seed) for seed, job in enumerate(jobs))
        (path,) = folder.iterdir()
        sizes.append(path.stat().st_size)
        assert server.stop() == 0
    assert sizes[0] == sizes[1] > 10_000
    assert path.name == f"{toy_artifact().fingerprint}.plaintexts"
    assert server.events("fault") == server.events("no plaintexts") == []


def test_a_folder_that_cannot_have_them_is_refused_before_anything_is_served(
    artifact_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WireError, match="cannot be made"):
        Catalog([artifact_file], 1 << 31, plaintexts=tmp_path / "file", allow_insecure=True)
    with pytest.raises(ProgramError, match="cannot be kept in a file"):
        Catalog([artifact_file], 1 << 31, backend="openfhe", plaintexts=tmp_path / "new", allow_insecure=True)
    assert not (tmp_path / "new").exists()


def test_a_job_does_not_fail_because_the_folder_went(files: Path, client: hg.Client) -> None:
    artifact = toy_artifact()
    (files / "file").write_bytes(b"")
    work = Work(str(files), {artifact.fingerprint: str(files / "mlp.helio")}, {}, 1 << 32, allow_insecure=True,
                plaintexts=str(files / "file"))  # fmt: skip
    report = Evaluation(work).run(
        artifact.fingerprint, files / "keys", files / "1.ct", lambda out: out.save(files / "o")
    )
    assert report.state == "done", report
    assert right(client, files / "o", 1)


def test_a_worker_logs_that_it_keeps_no_plaintexts(artifact_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plaintexts"
    server = Running(tmp_path / "data", [artifact_file], "--workers", "1", "--plaintexts", str(folder))
    server.start()
    shutil.rmtree(folder)
    folder.write_bytes(b"")
    with hg.RemoteServer(server.url, server.token, patience_s=60) as remote:
        client = hg.Client(remote.public(), allow_insecure=True)
        remote.register(client.evaluation_keys())
        assert right(client, remote.run(client.encrypt(sample(1))), 1)
    assert server.stop() == 0
    (event,) = server.events("no plaintexts")
    assert str(folder) in str(event["text"])
