"""OpenFHE's tables of keys: one thread at a time, and keys that a finalizer drops while they are in use go afterwards."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from runtime.support import sample, toy_artifact

import heliograph as hg

pytest.importorskip("openfhe")

from heliograph.runtime.openfhe import registry


def test_one_thread_at_a_time_and_the_same_thread_again() -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(200):
            with registry.alone(), registry.alone():
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_keys_that_are_dropped_while_the_tables_are_in_use_go_afterwards() -> None:
    artifact = toy_artifact()
    client = hg.Client(artifact, allow_insecure=True)
    before = registry.installed()
    server = hg.Server(artifact, client.evaluation_keys(), backend="openfhe", allow_insecure=True)
    with registry.alone():
        server.close()  # as a finalizer may, in the middle of a change
        assert len(registry.installed() - before) == 1
    assert registry.installed() == before


def test_servers_in_several_threads_get_their_own_keys() -> None:
    artifact = toy_artifact()
    client = hg.Client(artifact, allow_insecure=True)
    keys, right = client.evaluation_keys(), []
    expected = client.decrypt(hg.Server(artifact, keys, allow_insecure=True).run(client.encrypt(sample())))

    def serve() -> None:
        with hg.Server(artifact, keys, backend="openfhe", allow_insecure=True) as server:
            for _ in range(3):
                found = client.decrypt(server.run(client.encrypt(sample())))
                right.append(np.allclose(found, expected, atol=1e-3))

    before = registry.installed()
    threads = [threading.Thread(target=serve) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 9
    assert registry.installed() == before
