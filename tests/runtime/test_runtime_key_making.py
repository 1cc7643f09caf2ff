"""Making keys: clients and servers in threads are served meanwhile; folders have one writer, and their disk has room."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import textwrap
import threading
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from runtime.bootstrapped import artifact as bootstrapped_artifact
from runtime.bootstrapped import meaning, sample
from runtime.support import toy_artifact

from heliograph.errors import HeliographError, WireError
from heliograph.runtime.client.client import Client
from heliograph.runtime.server.server import Server
from heliograph.runtime.wire.keyfolder import KeyFolder, check_disk
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput, EvaluationKeys


def test_clients_and_servers_in_threads_are_served_while_keys_are_made() -> None:
    """Each thread with a client and a server of its own, all over bytes."""
    artifact, failed = bootstrapped_artifact(), []

    def serve(seed: int) -> None:
        try:
            client, x = Client(artifact, allow_insecure=True), sample(seed)
            keys = EvaluationKeys.from_bytes(client.evaluation_keys().to_bytes())
            with Server(artifact, keys, allow_insecure=True) as server:
                output = server.run(EncryptedInput.from_bytes(client.encrypt(x).to_bytes()))
                found = client.decrypt(EncryptedOutput.from_bytes(output.to_bytes()))
            for values, expected in zip(found, meaning(x), strict=True):
                np.testing.assert_allclose(values, expected, atol=2.0**-22)
        except Exception as error:
            failed.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=serve, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_the_disk_that_keys_are_written_to_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage, asked = namedtuple("usage", "free"), []

    def disk_usage(path: object) -> object:
        asked.append(Path(str(path)))
        return usage(10_000_000)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    check_disk(tmp_path, 10_000_000)
    with pytest.raises(HeliographError, match="need 11 MB in"):
        check_disk(tmp_path, 11_000_000)
    asked.clear()
    client = Client(bootstrapped_artifact(), allow_insecure=True)
    with pytest.raises(HeliographError, match="need"):
        client.write_evaluation_keys(tmp_path / "keys")
    assert asked == [tmp_path / "keys"]


def test_a_folder_that_another_process_writes_into_is_refused(tmp_path: Path) -> None:
    client = Client(toy_artifact(), allow_insecure=True)
    names = [key.name for key in toy_artifact().evaluation_keys]
    refused: list[str] = []

    def second(stage: str, done: int, total: int) -> None:
        if done == 1:
            with pytest.raises(WireError, match="another process is writing keys") as error:
                client.write_evaluation_keys(tmp_path)
            refused.append(str(error.value))

    client.write_evaluation_keys(tmp_path, second)
    assert len(refused) == 1
    assert len(KeyFolder(tmp_path).names()) == len(names)
    # Whoever has ended holds nothing; a file system without locks does not keep anyone from writing.
    client.write_evaluation_keys(tmp_path)


def test_without_locks_keys_are_written_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", none)
    client = Client(toy_artifact(), allow_insecure=True)
    assert client.write_evaluation_keys(tmp_path).names()


_KEYGEN = """
    import sys
    from heliograph.errors import HeliographError
    from heliograph.runtime.client.client import Client
    client = Client.load(sys.argv[1], allow_insecure=True)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        client.write_evaluation_keys(sys.argv[2])
    except HeliographError as error:
        print("refused:", str(error).splitlines()[0])
    else:
        print("written")
"""


@pytest.mark.parametrize("same", [True, False])
def test_two_processes_at_once_never_mix_their_keys(tmp_path: Path, same: bool) -> None:
    artifact = bootstrapped_artifact()
    clients = (
        [Client(artifact, allow_insecure=True)]
        if same
        else [Client(artifact, allow_insecure=True), Client(artifact, allow_insecure=True)]
    )
    files = [tmp_path / str(number) for number in range(len(clients))]
    for client, file in zip(clients, files, strict=True):
        client.save(file)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_KEYGEN), str(file), str(tmp_path / "keys")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for file in (files * 2)[:2]
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [child.communicate(timeout=120)[0].strip() for child in children]
    assert "written" in said, said
    for text in said:
        assert text == "written" or "another process is writing keys" in text or "another client" in text, said
    if not same:
        assert said.count("written") == 1
    keys = KeyFolder(tmp_path / "keys")
    keys.check_names([key.name for key in artifact.evaluation_keys])
    for name in keys.names():
        keys.blob(name)
    assert not [path.name for path in keys.path.iterdir() if path.name.startswith(".")]
