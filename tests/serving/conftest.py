"""One server with a toy artifact, and clients of it, shared by the tests that do it no harm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="serving needs the extra `serve`")

from helpers.serving import Running
from runtime.support import toy_artifact

import heliograph as hg

# Tests that run side by side would otherwise join one cluster, which ends with the first of them.
os.environ.setdefault("RAY_ADDRESS", "local")


@pytest.fixture(scope="session")
def artifact_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifacts") / "mlp.helio"
    toy_artifact().save(path)
    return path


@pytest.fixture(scope="session")
def running(artifact_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    server = Running(tmp_path_factory.mktemp("serve") / "data", [artifact_file]).start()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="session")
def client() -> hg.Client:
    return hg.Client(toy_artifact(), allow_insecure=True)


@pytest.fixture(scope="session")
def keys(client: hg.Client) -> hg.EvaluationKeys:
    return client.evaluation_keys()


@pytest.fixture
def remote(running: Running, keys: hg.EvaluationKeys) -> Iterator[hg.RemoteServer]:
    with hg.RemoteServer(running.url, running.token, patience_s=60) as remote:
        remote.register(keys)
        yield remote
