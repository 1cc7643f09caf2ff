"""The Ray engine on one machine: workers that are killed, and a second machine that keys are sent to once."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("ray", reason="the Ray engine needs the extra `ray`")

from helpers.answers import TOLERANCE, expected
from helpers.serving import Running
from runtime.support import sample, toy_artifact

import heliograph as hg
from heliograph.serving.work.ray_engine import cpus_each


def test_cores_of_a_worker() -> None:
    assert cpus_each([8.0], 2) == 4
    assert cpus_each([8.0, 3.0], 2) == 4
    assert cpus_each([4.0, 4.0], 3) == 2
    assert cpus_each([2.0], 2) == 1
    assert cpus_each([2.0], 5) == 0.25
    assert cpus_each([], 1) > 0


def test_jobs_of_killed_workers_end_elsewhere(
    artifact_file: Path, tmp_path: Path, client: hg.Client, keys: hg.EvaluationKeys
) -> None:
    """Workers on Ray are killed while jobs run: each ends once, with its own answer."""
    running = Running(tmp_path / "data", [artifact_file], "--engine", "ray", "--workers", "2").start()
    wrong: list[str] = []

    def work(first: int) -> None:
        with hg.RemoteServer(running.url, running.token, patience_s=120) as remote:
            for seed in range(first, first + 10):
                answer = client.decrypt(remote.run(encrypted := client.encrypt(sample(seed))), of=encrypted)
                if np.abs(answer - expected(seed)).max() > TOLERANCE:
                    wrong.append(f"{seed} is off")

    try:
        with hg.RemoteServer(running.url, running.token, patience_s=120) as remote:
            remote.register(keys)
            remote.run(client.encrypt(sample()))
        threads = [threading.Thread(target=work, args=(first,)) for first in (0, 100)]
        for thread in threads:
            thread.start()
        killed: set[int] = set()
        while any(thread.is_alive() for thread in threads):
            fresh = [process for process in running.workers() if process not in killed]
            if len(killed) < 3 and fresh:
                os.kill(fresh[0], signal.SIGKILL)
                killed.add(fresh[0])
            time.sleep(0.5)
        assert wrong == []
        assert len(killed) >= 2
        figures = running.get("/metrics", running.operator).text
        assert "heliograph_jobs_done_total 21\n" in figures
        assert "heliograph_jobs_accepted_total 21\n" in figures
        assert "heliograph_jobs_failed_total 0\n" in figures
        assert len(running.events("worker died")) >= 2
        assert running.events("fault") == []
        # On the server's own machine keys are read where they are.
        assert running.events("sent") == []
    finally:
        assert running.stop() == 0


def test_another_machine_is_sent_the_keys_once(tmp_path: Path, artifact_file: Path, client: hg.Client) -> None:
    """A second machine, simulated by Ray's own means: two workers there, one copy of the keys; dropped, it goes.

    Encoded plaintexts are kept there too, once for both.
    """
    pytest.importorskip("numba")
    import ray
    from ray.cluster_utils import Cluster

    from heliograph.serving.work.engine import Work, follow, task_of
    from heliograph.serving.work.ray_engine import RayEngine

    away = tmp_path / "away"
    away.mkdir()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2, env_vars={"TMPDIR": str(away)})
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        client.write_evaluation_keys(tmp_path / "keys")
        fingerprint = toy_artifact().fingerprint
        paths, here = {fingerprint: str(artifact_file)}, tmp_path / "plaintexts"
        work = Work(str(tmp_path), paths, {}, 1 << 31, allow_insecure=True, plaintexts=str(here))
        engine = RayEngine(work, 2)
        workers = [engine.start_worker(), engine.start_worker()]
        copies, stamps = [], []
        for number, worker in enumerate(workers):
            encrypted = client.encrypt(sample(number))
            encrypted.save(tmp_path / "input.ct")
            output = tmp_path / f"output{number}.ct"
            task = task_of(fingerprint, tmp_path / "keys", tmp_path / "input.ct", output)
            report = follow(worker, task, lambda report: True, 60.0)
            assert (report.state, report.error) == ("done", None)
            assert list(worker.held) == ["keys"]
            answer = client.decrypt(hg.EncryptedOutput.load(output), of=encrypted)
            np.testing.assert_allclose(answer, expected(number), atol=TOLERANCE)
            found = sorted(away.glob("heliograph-ray-*/*/keys/keys/*.key"))
            copies.append([file.name for file in found])
            stamps.append([file.stat().st_mtime_ns for file in found])
        assert copies[0] == copies[1] == sorted(file.name for file in (tmp_path / "keys").glob("*.key"))
        assert stamps[0] == stamps[1]
        assert [file.name for file in away.glob("heliograph-ray-*/*/plaintexts/*")] == [f"{fingerprint}.plaintexts"]
        assert not here.exists()
        for worker in workers:
            worker.drop(["keys"])
        assert workers[0].held == {}
        assert not list(away.glob("heliograph-ray-*/*/keys/*"))
        for worker in workers:
            worker.close()
    finally:
        ray.shutdown()
        cluster.shutdown()
