"""One toy artifact with a client, its keys and a server, shared by the tests that only read them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from runtime.support import sample, toy_artifact

from heliograph.artifact.artifact import Artifact
from heliograph.runtime.client.client import Client
from heliograph.runtime.server.server import Server
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput, EvaluationKeys


@pytest.fixture(scope="session")
def artifact() -> Artifact:
    return toy_artifact()


@pytest.fixture(scope="session")
def client(artifact: Artifact) -> Client:
    return Client(artifact, allow_insecure=True)


@pytest.fixture(scope="session")
def keys(client: Client) -> EvaluationKeys:
    return client.evaluation_keys()


@pytest.fixture(scope="session")
def key_bytes(keys: EvaluationKeys) -> bytes:
    return keys.to_bytes()


@pytest.fixture(scope="session")
def server(artifact: Artifact, keys: EvaluationKeys) -> Iterator[Server]:
    with Server(artifact, keys, allow_insecure=True) as server:
        yield server


@pytest.fixture(scope="session")
def input_bytes(client: Client) -> bytes:
    return client.encrypt(sample()).to_bytes()


@pytest.fixture(scope="session")
def output_bytes(server: Server, input_bytes: bytes) -> bytes:
    output = server.run(EncryptedInput.from_bytes(input_bytes))
    assert isinstance(output, EncryptedOutput)
    return output.to_bytes()
