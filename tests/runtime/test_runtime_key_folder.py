"""Evaluation keys in a folder: written one by one, completed after a kill, read one by one; forged ones are refused."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.records import chains_json, read_chains
from runtime.bootstrapped import artifact as bootstrapped_artifact
from runtime.bootstrapped import meaning, sample

from heliograph.artifact.artifact import Artifact
from heliograph.artifact.container import Container, pack, unpack
from heliograph.artifact.public import PublicArtifact
from heliograph.errors import WireError
from heliograph.runtime.client.client import Client
from heliograph.runtime.native.ciphertext import read_key
from heliograph.runtime.openfhe import registry
from heliograph.runtime.openfhe.serial import read_key as openfhe_key
from heliograph.runtime.server.server import Server
from heliograph.runtime.wire.forms import key_form
from heliograph.runtime.wire.keyfolder import VERSION, KeyFolder
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput, EvaluationKeys
from heliograph.runtime.wire.packed import packed_bytes

_HEADER, _SEED = 80, slice(45, 77)


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return bootstrapped_artifact()


@pytest.fixture(scope="module")
def client(artifact: Artifact) -> Client:
    return Client(PublicArtifact.from_bytes(artifact.public().to_bytes()), allow_insecure=True)


@pytest.fixture(scope="module")
def folder(client: Client, tmp_path_factory: pytest.TempPathFactory) -> KeyFolder:
    return client.write_evaluation_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def server(artifact: Artifact, folder: KeyFolder) -> Iterator[Server]:
    with Server(artifact, folder, allow_insecure=True) as server:
        yield server


def check(client: Client, server: Server, seed: int) -> None:
    x = sample(seed)
    message = EncryptedInput.from_bytes(client.encrypt(x).to_bytes())
    outputs = client.decrypt(EncryptedOutput.from_bytes(server.run(message).to_bytes()))
    for found, expected, bits in zip(outputs, meaning(x), (22, 35), strict=True):
        np.testing.assert_allclose(found, expected, atol=2.0**-bits)


@pytest.mark.front
def test_a_server_reads_the_folder_and_serves(client: Client, server: Server, folder: KeyFolder) -> None:
    check(client, server, 1)
    check(client, server, 2)
    sizes = sum(len(folder.blob(name)) for name in folder.names())
    assert client.evaluation_key_bytes <= sizes <= 1.01 * client.evaluation_key_bytes
    assert {"conjugation", "bootstrap/encapsulation", "chain4/rotation/3", "chain4/relinearization"} <= set(
        folder.names()
    )


def test_the_keys_in_one_message_serve_too_beside_another_client(
    artifact: Artifact, client: Client, server: Server
) -> None:
    other = Client(artifact, allow_insecure=True)
    with Server(artifact, EvaluationKeys.from_bytes(other.evaluation_keys().to_bytes()), allow_insecure=True) as beside:
        check(other, beside, 3)
        check(client, server, 4)
    check(client, server, 5)
    with Server(artifact, other.evaluation_keys(), allow_insecure=True) as live:
        check(other, live, 6)


def test_closing_takes_all_keys_along(artifact: Artifact, folder: KeyFolder) -> None:
    before = registry.installed()
    server = Server(artifact, folder, backend="openfhe", allow_insecure=True)
    assert len(registry.installed() - before) == 3  # the chain and its two lower parts
    server.close()
    assert registry.installed() == before


def _forged(blob: bytes, position: int) -> bytes:
    changed = bytearray(blob)
    changed[position] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("name", ["bootstrap/encapsulation", "conjugation", "chain4/rotation/3"])
def test_malformed_keys_are_refused(artifact: Artifact, folder: KeyFolder, name: str) -> None:
    key = next(key for key in artifact.evaluation_keys if key.name == name)
    blob, form = bytes(folder.blob(name)), key_form(key)
    for read in (read_key, openfhe_key) if key.kind != "encapsulation" else (read_key,):
        read(blob, key, folder.client)
        for position in range(_SEED.start):
            with pytest.raises(WireError):
                read(_forged(blob, position), key, folder.client)
        # All bits of the first coefficient that is written of each polynomial.
        offset = _HEADER
        for place in form.written[:3]:
            full = bytearray(blob)
            for row in range(form.moduli[place].bit_length()):
                first = offset + row * form.ring_dim // 8
                full[first : first + 8] = b"\xff" * 8
            with pytest.raises(WireError, match="not below its prime"):
                read(bytes(full), key, folder.client)
            offset += packed_bytes(form.ring_dim, form.moduli[place])
        for wrong in (blob[:-1], blob + b"\0", blob[:100], b""):
            with pytest.raises(WireError):
                read(wrong, key, folder.client)


def test_keys_are_not_taken_for_each_other(artifact: Artifact, folder: KeyFolder, tmp_path: Path) -> None:
    def with_file(name: str, data: bytes) -> KeyFolder:
        target = tmp_path / hashlib.sha256(name.encode() + data).hexdigest()[:8]
        target.mkdir()
        for file in folder.path.iterdir():
            os.link(file, target / file.name)
        file = target / (name.replace("/", "-") + ".key")
        file.unlink()
        file.write_bytes(data)
        return KeyFolder(target)

    def bytes_of(name: str) -> bytes:
        return (folder.path / (name.replace("/", "-") + ".key")).read_bytes()

    with pytest.raises(WireError, match="not the key that its name says"):
        Server(artifact, with_file("rotation/4", bytes_of("chain4/rotation/4")), allow_insecure=True)
    # One that lies about its name.
    container = unpack(bytes_of("chain4/rotation/4"), "an evaluation key", VERSION, 1 << 30)
    lie = pack(
        Container("an evaluation key", VERSION, {**container.fields, "name": "chain4/rotation/3"}, container.blobs)
    )
    with pytest.raises(WireError, match="another rotation"):
        Server(artifact, with_file("chain4/rotation/3", lie), allow_insecure=True)
    with pytest.raises(WireError, match="damaged"):
        Server(artifact, with_file("rotation/5", _forged(bytes_of("rotation/5"), 5000)), allow_insecure=True)
    with pytest.raises(WireError, match="truncated"):
        Server(artifact, with_file("rotation/5", bytes_of("rotation/5")[:-100]), allow_insecure=True)
    missing = with_file("rotation/5", b"")
    (missing.path / "rotation-5.key").unlink()
    with pytest.raises(WireError, match="lack rotation/5"):
        Server(artifact, missing, allow_insecure=True)
    more = with_file("rotation/5", bytes_of("rotation/5"))
    (more.path / "rotation-1001.key").write_bytes(b"x")
    with pytest.raises(WireError, match="too many"):
        Server(artifact, more, allow_insecure=True)


def test_a_folder_of_another_client_is_left_alone(artifact: Artifact, folder: KeyFolder) -> None:
    before = {file.name: file.stat().st_mtime_ns for file in folder.path.iterdir()}
    with pytest.raises(WireError, match="another client"):
        Client(artifact, allow_insecure=True).write_evaluation_keys(folder.path)
    assert {file.name: file.stat().st_mtime_ns for file in folder.path.iterdir()} == before


_WRITE = """
    import sys
    from pathlib import Path
    from heliograph.runtime.client.client import Client
    client = Client.load(sys.argv[1], allow_insecure=True)
    print("ready", flush=True)
    client.write_evaluation_keys(sys.argv[2], lambda stage, done, total: print(done, flush=True))
"""


@pytest.mark.parametrize("after", [1, 4, 9])
def test_a_kill_while_keys_are_written_loses_nothing(
    artifact: Artifact, client: Client, tmp_path: Path, after: int
) -> None:
    """Killed at a random moment after some keys; the next run keeps what is there, and the server reads the result."""
    client.save(tmp_path / "client")
    command = [sys.executable, "-c", textwrap.dedent(_WRITE), str(tmp_path / "client"), str(tmp_path / "keys")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == str(after):
            break
    time.sleep(float(np.random.default_rng(after).uniform(0, 0.02)))
    process.send_signal(signal.SIGKILL)
    process.wait()
    # What is there is whole; a part of a file can only stand under another name.
    begun = KeyFolder(tmp_path / "keys")
    kept = {name: bytes(begun.blob(name)) for name in begun.names()}
    assert after <= len(kept) < len(artifact.evaluation_keys)
    with pytest.raises(WireError, match="lack"):
        Server(artifact, begun, allow_insecure=True)
    (tmp_path / "keys" / ".rotation-9.key.abcd0123.part").write_bytes(b"half")
    done: list[int] = []
    finished = Client.load(tmp_path / "client", allow_insecure=True).write_evaluation_keys(
        tmp_path / "keys", lambda stage, number, total: done.append(number)
    )
    assert done == list(range(len(kept) + 1, len(artifact.evaluation_keys) + 1))
    assert not list((tmp_path / "keys").glob("*.part")) + list((tmp_path / "keys").glob(".*"))
    assert all(bytes(finished.blob(name)) == data for name, data in kept.items())
    with Server(artifact, finished, allow_insecure=True) as server:
        check(client, server, after)


def test_a_damaged_key_is_made_again(client: Client, folder: KeyFolder, tmp_path: Path) -> None:
    for file in folder.path.iterdir():
        os.link(file, tmp_path / file.name)
    damaged = tmp_path / "chain1-rotation-3.key"
    damaged.unlink()
    damaged.write_bytes(b"half")
    assert client.write_evaluation_keys(tmp_path).blob("chain1/rotation/3")


# ---------------------------------------------------------------------------------------------- nonsense in artifacts

GOOD = {"level": 4, "digits": 2, "rotation_keys": [3], "relinearization_key": True}


@pytest.mark.parametrize(
    "fields",
    [
        {"chains": "x"},
        {"chains": [GOOD] * 9},
        {"chains": [GOOD, GOOD]},
        {"chains": [{**GOOD, "level": 17}]},
        {"chains": [{**GOOD, "level": 0}]},
        {"chains": [{**GOOD, "level": 10**9}]},
        {"chains": [{**GOOD, "digits": 0}]},
        {"chains": [{**GOOD, "digits": 6}]},
        {"chains": [{**GOOD, "digits": 4}]},  # four digits of five primes: the last would be empty
        {"chains": [{**GOOD, "rotation_keys": [0]}]},
        {"chains": [{**GOOD, "rotation_keys": [3, 3]}]},
        {"chains": [{**GOOD, "relinearization_key": 1}]},
        {"chains": [{**GOOD, "more": 1}]},
        {"chains": [5]},
    ],
)
def test_nonsense_about_keys_is_refused(artifact: Artifact, fields: dict[str, object]) -> None:
    given = {**chains_json(artifact.public().chains), "chains": [GOOD]}
    read_chains(given)
    with pytest.raises(WireError, match="not usable"):
        read_chains({**given, **fields})


def test_a_bootstrap_of_another_ring_is_refused() -> None:
    from runtime.bootstrapped import RING, program

    from heliograph.artifact.validate import check_program

    made = program()
    check_program(made)
    for budget in ((2, 3), (3, 2)):  # the factors of its transforms are others
        ring = replace(RING, bootstrap=budget)
        chains = (replace(made.planned.chains[0], ring=ring), *made.planned.chains[1:])
        other = replace(made, parameters=replace(made.planned, chains=chains))
        with pytest.raises(WireError, match="not one of its ring"):
            check_program(other)
