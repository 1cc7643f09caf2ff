"""Client and server in one process: results, fingerprints, refusals, release of keys, the key file."""

from __future__ import annotations

import copy
import errno
import gc
import os
import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runtime.support import INPUTS, sample, toy_artifact

import heliograph as hg
from heliograph import machine
from heliograph.artifact.artifact import Artifact
from heliograph.artifact.container import Container, pack, read_file
from heliograph.ckks.keys import EvaluationKey
from heliograph.errors import HeliographError, ProgramError, RangeError, SecurityError, WireError
from heliograph.runtime import memory
from heliograph.runtime.client import keyfile
from heliograph.runtime.client.client import Client
from heliograph.runtime.openfhe import registry
from heliograph.runtime.openfhe.cryptor import OpenFHECryptor
from heliograph.runtime.server.server import Server
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput, EvaluationKeys


def test_result_is_that_of_the_simulation(artifact: Artifact, client: Client, server: Server) -> None:
    x = sample()
    result = client.decrypt(server.run(client.encrypt(x)))
    expected = hg.simulate(artifact, x, noisy=False)
    assert np.abs(result - expected).max() < 1e-6
    assert np.abs(expected).max() > 0.01


def test_result_is_the_same_over_bytes(
    artifact: Artifact, client: Client, key_bytes: bytes, input_bytes: bytes, output_bytes: bytes
) -> None:
    expected = hg.simulate(artifact, sample(), noisy=False)
    with Server(
        Artifact.from_bytes(artifact.to_bytes()), EvaluationKeys.from_bytes(key_bytes), allow_insecure=True
    ) as other:
        output = other.run(EncryptedInput.from_bytes(input_bytes))
    for answer in (output, EncryptedOutput.from_bytes(output.to_bytes()), EncryptedOutput.from_bytes(output_bytes)):
        assert np.abs(client.decrypt(answer) - expected).max() < 1e-6


def test_two_encryptions_differ_and_have_the_size_of_a_ciphertext(artifact: Artifact, client: Client) -> None:
    first, second = (client.encrypt(sample()) for _ in range(2))
    assert first.to_bytes() != second.to_bytes()
    ring = artifact.ring
    least = sum(prime.bit_length() for prime in ring.primes) * ring.ring_dim // 8
    for message in (first, second):
        (name,) = message.names()
        blob = bytes(message.blob(name))
        assert least <= len(blob) < least + 100
    # Not only headers differ: of a random ciphertext nearly every coefficient does.
    a, b = (np.frombuffer(bytes(m.blob("x/0")), np.uint8) for m in (first, second))
    assert np.count_nonzero(a != b) > least // 3


# ---------------------------------------------------------------------------------------------- bad samples


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros(INPUTS + 1), "shape (9,), expected (8,)"),
        (np.zeros((1, 1, INPUTS)), "shape (1, 1, 8), expected (8,)"),
        ("text", "not an array of real numbers"),
        (np.full(INPUTS, np.nan), "nan at index (0,)"),
        (np.r_[np.zeros(INPUTS - 1), np.inf], "inf at index (7,)"),
        (None, "shape ()"),
        ([0.0] * 3 + [1j] + [0.0] * 4, "not an array of real numbers"),
    ],
)
def test_encrypt_refuses_what_is_no_sample(client: Client, value: object, words: str) -> None:
    with pytest.raises(ProgramError, match=r"(?s).*") as raised:
        client.encrypt(value)
    assert words in str(raised.value)


def test_a_wrong_shape_comes_with_what_to_give(client: Client) -> None:
    for shape, words in (
        ((INPUTS, INPUTS, INPUTS), "give one sample of shape (8,), or many as one array of shape (samples, 8)"),
        ((INPUTS + 1,), "give one sample of shape (8,), or many as one array of shape (samples, 8)"),
        ((1, 1, INPUTS), "x.reshape(8)"),
    ):
        with pytest.raises(ProgramError, match="expected") as raised:
            client.encrypt(np.zeros(shape))
        assert raised.value.hint == words


def test_encrypt_names_the_element_outside_the_range(client: Client) -> None:
    x = np.zeros(INPUTS)
    x[5] = -1.5
    with pytest.raises(RangeError, match=r"input 'x' is outside its range \[-1, 1\] at index \(5,\)") as caught:
        client.encrypt(x)
    # Its value is the client's secret, and errors end in logs.
    assert "1.5" not in str(caught.value)


def test_encrypt_wants_one_array_per_input(client: Client) -> None:
    with pytest.raises(ProgramError, match="takes 1 inputs, not 2"):
        client.encrypt(sample(), sample())


# ---------------------------------------------------------------------------------------------- whose is it


@pytest.mark.parametrize("over_bytes", [False, True])
def test_messages_of_another_artifact_or_client_are_refused(
    artifact: Artifact, client: Client, server: Server, over_bytes: bool
) -> None:
    other = toy_artifact(1)
    assert other.fingerprint != artifact.fingerprint
    stranger, second = Client(other, allow_insecure=True), Client(artifact, allow_insecure=True)

    def sent(message: EvaluationKeys | EncryptedInput | EncryptedOutput):  # type: ignore[no-untyped-def]
        return type(message).from_bytes(message.to_bytes()) if over_bytes else message

    with pytest.raises(WireError, match="evaluation keys belong to another artifact"):
        Server(artifact, sent(stranger.evaluation_keys()), allow_insecure=True)
    with pytest.raises(WireError, match="encrypted inputs belong to another artifact"):
        server.run(sent(stranger.encrypt(sample())))
    with pytest.raises(WireError, match="encrypted inputs belong to another client of the same artifact"):
        server.run(sent(second.encrypt(sample())))
    with Server(artifact, sent(second.evaluation_keys()), allow_insecure=True) as theirs:
        answer = sent(theirs.run(sent(second.encrypt(sample()))))
        with pytest.raises(WireError, match="encrypted outputs belong to another client"):
            client.decrypt(answer)
        with pytest.raises(WireError, match="encrypted outputs belong to another artifact"):
            stranger.decrypt(answer)


@pytest.mark.parametrize("over_bytes", [False, True])
def test_a_lie_about_the_client_is_found_at_the_ciphertext(
    artifact: Artifact, client: Client, server: Server, keys: EvaluationKeys, over_bytes: bool
) -> None:
    second = Client(artifact, allow_insecure=True)
    theirs = second.encrypt(sample())
    lie = EncryptedInput(theirs.artifact, client.id, blobs=theirs.blobs)
    lie = EncryptedInput.from_bytes(lie.to_bytes()) if over_bytes else lie
    with pytest.raises(WireError, match="under another key"):
        server.run(lie)
    if over_bytes:
        made = second.evaluation_keys()
        foreign = EvaluationKeys(made.artifact, client.id, blobs=made.blobs)
        with pytest.raises(WireError, match="under another key"):
            Server(artifact, EvaluationKeys.from_bytes(foreign.to_bytes()), allow_insecure=True)


def test_missing_and_superfluous_keys_are_named(artifact: Artifact, keys: EvaluationKeys) -> None:
    less = EvaluationKeys(keys.artifact, keys.client, blobs={n: v for n, v in keys.blobs.items() if n != "rotation/2"})
    with pytest.raises(WireError, match="lack rotation/2"):
        Server(artifact, less, allow_insecure=True)
    less = EvaluationKeys(keys.artifact, keys.client, blobs={n: v for n, v in keys.blobs.items() if "rot" in n})
    with pytest.raises(WireError, match="lack relinearization"):
        Server(artifact, less, allow_insecure=True)
    more = EvaluationKeys(keys.artifact, keys.client, blobs={**keys.blobs, "secret": b"1"})
    with pytest.raises(WireError, match="1 objects too many, 'secret'"):
        Server(artifact, more, allow_insecure=True)


def test_keys_under_the_wrong_name_are_found(artifact: Artifact, keys: EvaluationKeys) -> None:
    swapped = {**keys.blobs, "rotation/1": keys.blobs["rotation/2"], "rotation/2": keys.blobs["rotation/1"]}
    message = EvaluationKeys(keys.artifact, keys.client, blobs=swapped)
    with pytest.raises(WireError, match="key for another rotation"):
        Server(artifact, EvaluationKeys.from_bytes(message.to_bytes()), allow_insecure=True)
    doubled = EvaluationKeys(keys.artifact, keys.client, blobs={**keys.blobs, "rotation/1": keys.blobs["rotation/2"]})
    for backend in ("openfhe", "native"):
        with pytest.raises(WireError, match="key for another rotation"):
            Server(artifact, doubled, backend=backend, allow_insecure=True)


def test_a_server_takes_keys_and_inputs_only(artifact: Artifact, client: Client, server: Server) -> None:
    encrypted = client.encrypt(sample())
    with pytest.raises(WireError, match="takes evaluation keys, not EncryptedInput"):
        Server(artifact, encrypted, allow_insecure=True)  # type: ignore[arg-type]
    with pytest.raises(WireError, match="takes evaluation keys, not Client"):
        Server(artifact, client, allow_insecure=True)  # type: ignore[arg-type]
    with pytest.raises(WireError, match="not on EvaluationKeys"):
        server.run(client.evaluation_keys())  # type: ignore[arg-type]
    with pytest.raises(WireError, match="takes encrypted outputs, not EncryptedInput"):
        client.decrypt(encrypted)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- release


def test_keys_leave_the_process_with_their_server(artifact: Artifact, client: Client) -> None:
    gc.collect()
    before = registry.installed()
    keys = client.evaluation_keys()
    assert registry.installed() == before, "making keys leaves none behind"
    first, second = (
        Server(artifact, keys, backend="openfhe", allow_insecure=True),
        Server(artifact, client.evaluation_keys(), backend="openfhe", allow_insecure=True),
    )
    assert len(registry.installed() - before) == 2
    first.close()
    assert len(registry.installed() - before) == 1
    with pytest.raises(ProgramError, match="closed"):
        first.run(client.encrypt(sample()))
    # Closing one server leaves the other's keys in place.
    assert np.isfinite(client.decrypt(second.run(client.encrypt(sample())))).all()
    del second
    gc.collect()
    assert registry.installed() == before


def test_a_failed_server_leaves_no_keys(artifact: Artifact, keys: EvaluationKeys) -> None:
    gc.collect()
    before = registry.installed()
    doubled = EvaluationKeys(keys.artifact, keys.client, blobs={**keys.blobs, "rotation/1": keys.blobs["rotation/2"]})
    with pytest.raises(WireError):
        Server(artifact, doubled, backend="openfhe", allow_insecure=True)
    gc.collect()
    assert registry.installed() == before


def test_keys_can_be_written_after_a_server_has_used_them(artifact: Artifact, client: Client) -> None:
    keys = client.evaluation_keys()
    before = {name: len(bytes(keys.blob(name))) for name in keys.names()}
    with Server(artifact, keys, allow_insecure=True), Server(artifact, keys, allow_insecure=True):
        assert {name: len(bytes(keys.blob(name))) for name in keys.names()} == before


def test_keys_that_openfhe_makes_inside_an_evaluation_change_nothing(
    artifact: Artifact, client: Client, keys: EvaluationKeys
) -> None:
    other = OpenFHECryptor(artifact.ring)

    def meddle(stage: str, done: int, total: int) -> None:
        other.evaluation_key(EvaluationKey("rotation/1", artifact.ring, "rotation", 1))

    with Server(artifact, keys, backend="openfhe", allow_insecure=True) as server:
        alone = client.decrypt(server.run(client.encrypt(sample())))
        np.testing.assert_allclose(client.decrypt(server.run(client.encrypt(sample()), meddle)), alone, atol=1e-3)


def test_progress_is_told(client: Client, server: Server) -> None:
    seen: list[tuple[str, int, int]] = []
    client.evaluation_keys(lambda *step: seen.append(step))
    assert [done for _, done, _ in seen] == list(range(1, seen[-1][2] + 1))
    seen.clear()
    server.run(client.encrypt(sample()), lambda *step: seen.append(step))
    assert seen[-1][1] == seen[-1][2] > 5


# ---------------------------------------------------------------------------------------------- the secret


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))])
def test_artifacts_are_pickled_and_copied_as_their_files(artifact: Artifact, copied: Callable[[Any], Any]) -> None:
    for given in (artifact, artifact.public()):
        found = copied(given)
        assert type(found) is type(given)
        assert found.to_bytes() == given.to_bytes()
        assert found.fingerprint == given.fingerprint
    x = sample()
    np.testing.assert_array_equal(hg.simulate(copied(artifact), x, seed=1), hg.simulate(artifact, x, seed=1))
    # What is read is checked as a file is.
    data = pickle.dumps(artifact)
    with pytest.raises(WireError):
        pickle.loads(data.replace(b"linear", b"lineal"))


def test_nothing_with_a_secret_is_pickled_or_copied(client: Client, server: Server, keys: EvaluationKeys) -> None:
    for value, error in ((client, SecurityError), (client._cryptor, SecurityError), (server, TypeError)):
        for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(error):
                attempt(value)
    with pytest.raises(TypeError, match="to_bytes"):
        pickle.dumps(keys)


def test_reprs_tell_no_secret(client: Client, keys: EvaluationKeys, server: Server) -> None:
    for value in (client, client._cryptor, keys, server):
        assert "PrivateKey" not in repr(value)
        assert len(repr(value)) < 200
    assert f"{sum(map(len, keys.blobs.values())) / 1e6:.2f} MB" in repr(keys)


def _coefficients(client: Client) -> bytes:
    """A piece of the secret key as it would stand in any file that leaks it."""
    raw = client._cryptor.secret_bytes()
    return raw[len(raw) // 2 : len(raw) // 2 + 64]


def test_the_secret_is_in_no_message(
    client: Client, key_bytes: bytes, input_bytes: bytes, output_bytes: bytes, artifact: Artifact
) -> None:
    secret = _coefficients(client)
    assert secret in client._cryptor.secret_bytes()
    for message in (key_bytes, input_bytes, output_bytes, artifact.to_bytes(), artifact.public().to_bytes()):
        assert secret not in message


# ---------------------------------------------------------------------------------------------- key file


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_key_file_round_trip(client: Client, output_bytes: bytes, tmp_path: Path, passphrase: str | None) -> None:
    path = tmp_path / "client.key"
    client.save(path, passphrase)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keyfile.is_protected(path) == (passphrase is not None)
    again = Client.load(path, passphrase, allow_insecure=True)
    assert again.id == client.id
    answer = EncryptedOutput.from_bytes(output_bytes)
    assert np.abs(again.decrypt(answer) - client.decrypt(answer)).max() < 1e-6
    assert (_coefficients(client) in path.read_bytes()) == (passphrase is None)


def test_a_loaded_client_makes_keys_and_inputs(artifact: Artifact, client: Client, tmp_path: Path) -> None:
    client.save(tmp_path / "k")
    again = Client.load(tmp_path / "k", artifact=artifact.public(), allow_insecure=True)
    with Server(artifact, again.evaluation_keys(), allow_insecure=True) as server:
        result = client.decrypt(server.run(client.encrypt(sample())))
    assert np.abs(result - hg.simulate(artifact, sample(), noisy=False)).max() < 1e-6


def test_a_key_file_is_not_overwritten_silently(client: Client, artifact: Artifact, tmp_path: Path) -> None:
    path = tmp_path / "client.key"
    client.save(path)
    before = path.read_bytes()
    with pytest.raises(WireError, match="already exists"):
        Client(artifact, allow_insecure=True).save(path)
    assert path.read_bytes() == before
    other = Client(artifact, allow_insecure=True)
    other.save(path, overwrite=True)
    assert Client.load(path, allow_insecure=True).id == other.id
    assert [p.name for p in tmp_path.iterdir()] == ["client.key"]


def test_passphrases_in_words(client: Client, tmp_path: Path) -> None:
    client.save(tmp_path / "locked", "right")
    client.save(tmp_path / "open")
    with pytest.raises(SecurityError, match="is protected by a passphrase"):
        Client.load(tmp_path / "locked", allow_insecure=True)
    with pytest.raises(SecurityError, match="the passphrase does not open"):
        Client.load(tmp_path / "locked", "wrong", allow_insecure=True)
    with pytest.raises(SecurityError, match="is not protected"):
        Client.load(tmp_path / "open", "right", allow_insecure=True)
    with pytest.raises(SecurityError, match="protects nothing"):
        client.save(tmp_path / "new", "")
    assert not (tmp_path / "new").exists()


def test_wrong_files_in_words(client: Client, artifact: Artifact, keys: EvaluationKeys, tmp_path: Path) -> None:
    keys.save(tmp_path / "eval.keys")
    client.save(tmp_path / "client.key")
    artifact.save(tmp_path / "model.helio")
    with pytest.raises(WireError, match=r"holds: evaluation keys; expected: a client's secret key"):
        Client.load(tmp_path / "eval.keys", allow_insecure=True)
    with pytest.raises(WireError, match=r"holds: a client's secret key; expected: evaluation keys"):
        EvaluationKeys.load(tmp_path / "client.key")
    with pytest.raises(WireError, match=r"holds: artifact; expected: a client's secret key"):
        Client.load(tmp_path / "model.helio", allow_insecure=True)
    with pytest.raises(WireError, match="made for another artifact"):
        Client.load(tmp_path / "client.key", artifact=toy_artifact(1), allow_insecure=True)
    with pytest.raises(WireError, match="cannot be read"):
        Client.load(tmp_path / "nothing", allow_insecure=True)


def test_altered_key_files_are_refused(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "client.key"
    client.save(path, "right")
    good = read_file(path, keyfile.KIND, keyfile.VERSION, keyfile.MAX_BYTES)
    blobs = {name: bytes(good.bytes(name)) for name in good.blobs}

    def attempt(fields: dict[str, object], **changed: bytes) -> None:
        path.write_bytes(pack(Container(good.kind, good.version, {**good.fields, **fields}, {**blobs, **changed})))
        Client.load(path, "right", allow_insecure=True)

    attempt({})
    huge = {**good.fields["scrypt"], "n": 1 << 40}
    heavy = {**good.fields["scrypt"], "n": 1 << 20, "r": 32}
    for fields in (
        {"scrypt": huge},
        {"scrypt": heavy},
        {"scrypt": {**huge, "n": 1000}},
        {"scrypt": {}},
        {"scrypt": 3},
        {"nonce": "00"},
        {"nonce": None},
        {"client": "0" * 31},
        {"artifact": 3},
        {"shared": -1},
        {"shared": True},
        {"interface": {}},
        {"interface": {**good.fields["interface"], "more": 1}},
        {"interface": {**good.fields["interface"], "ring": {**good.fields["interface"]["ring"], "levels": 200}}},
        {"interface": {**good.fields["interface"], "predicted": {"scheme_error": "small"}}},
        {"more": 1},
    ):
        with pytest.raises(WireError):
            attempt(fields)
    # The name of the client, what is shared, the description of the artifact and the salt are authenticated.
    other = {**good.fields["interface"], "name": "other"}
    for fields in (
        {"client": "0" * 32},
        {"shared": 3},
        {"interface": other},
        {"scrypt": {**good.fields["scrypt"], "salt": "00" * 16}},
    ):
        with pytest.raises(SecurityError, match="does not open"):
            attempt(fields)
    with pytest.raises(SecurityError):
        attempt({}, secret=blobs["secret"][:-1] + bytes([blobs["secret"][-1] ^ 1]))
    with pytest.raises(WireError):
        attempt({}, secret=b"short")
    with pytest.raises(WireError, match="its fields are not those of"):
        attempt({}, public=toy_artifact(1).public().to_bytes())


def test_an_unprotected_secret_is_checked_before_openfhe(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "client.key"
    client.save(path)
    good = read_file(path, keyfile.KIND, keyfile.VERSION, keyfile.MAX_BYTES)
    blobs = {name: bytes(good.bytes(name)) for name in good.blobs}
    secret = blobs["secret"]
    for bad in (b"", secret[:-1], secret + b"x", secret[:-4000] + b"\xff" * 4000):
        path.write_bytes(pack(Container(good.kind, good.version, good.fields, {**blobs, "secret": bad})))
        with pytest.raises(WireError, match="secret key"):
            Client.load(path, allow_insecure=True)


def test_a_key_that_others_can_read_is_refused_unless_it_has_a_passphrase(client: Client, tmp_path: Path) -> None:
    client.save(tmp_path / "open")
    client.save(tmp_path / "locked", "right")
    for mode in (0o640, 0o604, 0o644, 0o660):
        for name in ("open", "locked"):
            (tmp_path / name).chmod(mode)
        with pytest.raises(SecurityError, match=rf"(?s)others can read the secret key.*{mode:04o}.*chmod 600"):
            Client.load(tmp_path / "open", allow_insecure=True)
        assert Client.load(tmp_path / "locked", "right", allow_insecure=True).id == client.id
    (tmp_path / "open").chmod(0o400)
    assert Client.load(tmp_path / "open", allow_insecure=True).id == client.id


def test_the_cost_of_a_guess_and_that_older_files_cost_less(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OWASP's row for N = 2^15 has p = 3; what was written with other parameters is read by those."""
    path = tmp_path / "client.key"
    client.save(path, "right")
    parameters = read_file(path, keyfile.KIND, keyfile.VERSION, keyfile.MAX_BYTES).fields["scrypt"]
    assert {name: parameters[name] for name in "nrp"} == {"n": 1 << 15, "r": 8, "p": 3}
    monkeypatch.setattr(keyfile, "_SCRYPT", {"n": 1 << 14, "r": 8, "p": 1})
    client.save(tmp_path / "older", "right")
    assert Client.load(tmp_path / "older", "right", allow_insecure=True).id == client.id


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_a_key_is_saved_where_there_are_no_hard_links(
    client: Client, artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def link(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    path = tmp_path / "client.key"
    client.save(path)
    before = path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Client.load(path, allow_insecure=True).id == client.id
    other = Client(artifact, allow_insecure=True)
    with pytest.raises(WireError, match="already exists"):
        other.save(path)
    # Also where the name was taken after it was looked at.
    monkeypatch.setattr(Path, "exists", lambda self: False)
    with pytest.raises(WireError, match="already exists"):
        other.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["client.key"]


# ---------------------------------------------------------------------------------------------- memory


def test_too_little_memory_is_said_before_keys_are_made(
    artifact: Artifact, client: Client, keys: EvaluationKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 100_000)
    made: list[object] = []
    monkeypatch.setattr(client._cryptor, "evaluation_key_bytes", made.append)
    with pytest.raises(HeliographError, match=r"making the evaluation keys needs \d MB more, and 0 MB are available"):
        client.evaluation_keys()
    assert not made
    with pytest.raises(HeliographError, match="the server of 'mlp' needs"):
        Server(artifact, keys, allow_insecure=True)
    with Server(artifact, keys, check_memory=False, allow_insecure=True):
        pass


def test_available_memory_is_the_least_of_all_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:     5000 kB\n")
    limit, use = tmp_path / "limit", tmp_path / "use"
    limit.write_text("max\n")
    use.write_text("1000\n")
    monkeypatch.setattr(machine, "_MEMINFO", meminfo)
    monkeypatch.setattr(machine, "_CGROUP_ROOT", tmp_path / "none")
    monkeypatch.setattr(machine, "_CGROUP_V1", (limit, use))
    assert machine.available_bytes() == 5000 * 1024
    limit.write_text("51000\n")
    assert machine.available_bytes() == 50_000
    meminfo.unlink()
    limit.unlink()

    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(machine.os, "sysconf", unknown)
    assert machine.available_bytes() is None
