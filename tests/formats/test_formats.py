"""Files of every format as they were written once: they stay readable, and other versions are refused in words
(docs/compatibility.md).

`golden/` has a folder for the versions of formats, made from one tiny program on a toy ring. `pytest --update-golden` writes
it where it is missing or no longer what the present code writes. test_earlier.py is about the versions before.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fuzzing import fuzz
from helpers.hostile_artifacts import altered

import heliograph as hg
from heliograph.artifact import artifact as artifacts
from heliograph.artifact import public
from heliograph.artifact.artifact import Artifact
from heliograph.artifact.container import Container, pack, unpack
from heliograph.artifact.earlier import readable
from heliograph.artifact.public import PublicArtifact
from heliograph.ckks.security import MAX_LOG_PQ_128
from heliograph.errors import HeliographError, SecurityError, WireError
from heliograph.runtime.client import keyfile, shares
from heliograph.runtime.client.client import Client
from heliograph.runtime.wire import keyfolder, messages
from heliograph.runtime.wire.forms import read_ciphertext
from heliograph.runtime.wire.keyfolder import KeyFolder
from heliograph.runtime.wire.messages import EncryptedInput, EncryptedOutput, EvaluationKeys

GOLDEN = Path(__file__).parent / "golden"
PROGRAM = "program tiny\ninput x: secret tensor[2] in [-1, 1]\noutput y = x[0] + x[1]\n"
SAMPLE, RESULT, PASSPHRASE = (0.25, -0.75), -0.5, "correct horse"
NOW = {
    "artifact": artifacts.VERSION,
    "messages": messages.VERSION,
    "folder": keyfolder.VERSION,
    "key": keyfile.VERSION,
}
CURRENT = "-".join(f"{kind}{version}" for kind, version in NOW.items())


def write(folder: Path) -> None:
    """Every file as the present code writes it."""
    artifact = hg.compile(hg.parse(PROGRAM), hg.Options(security_bits=None, precision_bits=10))
    client = Client(artifact.public(), allow_insecure=True)
    folder.mkdir(parents=True, exist_ok=True)
    artifact.save(folder / "artifact.bin")
    artifact.public().save(folder / "public.bin")
    client.save(folder / "key.bin", overwrite=True)
    client.save(folder / "key-locked.bin", PASSPHRASE, overwrite=True)
    keys = client.evaluation_keys()
    keys.save(folder / "evaluation-keys.bin")
    with hg.Server(artifact, keys, allow_insecure=True) as server:
        encrypted = client.encrypt(np.array(SAMPLE))
        encrypted.save(folder / "input.bin")
        server.run(encrypted).save(folder / "output.bin")
    shutil.rmtree(folder / "made", ignore_errors=True)
    written = client.write_evaluation_keys(folder / "made")
    (only,) = written.path.glob("*.key")
    only.rename(folder / "folder-key.bin")
    (written.path / "index.keys").rename(folder / "index.bin")
    written.path.rmdir()
    counted = Client.load(folder / "key.bin", allow_insecure=True)
    counted._shares.take()
    (folder / "key.bin.shared").rename(folder / "shared.bin")
    for path in folder.iterdir():
        path.chmod(0o644)


def is_present(folder: Path) -> bool:
    """Whether the folder holds what the present code would write, but for random numbers."""
    if not folder.exists():
        return False
    artifact = hg.compile(hg.parse(PROGRAM), hg.Options(security_bits=None, precision_bits=10))
    try:
        same = (folder / "artifact.bin").read_bytes() == artifact.to_bytes()
        same &= (folder / "public.bin").read_bytes() == artifact.public().to_bytes()
        EvaluationKeys.load(folder / "evaluation-keys.bin").check(artifact.fingerprint)
        EncryptedOutput.load(folder / "output.bin").check(artifact.fingerprint)
    except (HeliographError, OSError):
        return False
    return same


@pytest.fixture(scope="module", autouse=True)
def updated(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden") and not is_present(GOLDEN / CURRENT):
        write(GOLDEN / CURRENT)
    assert (GOLDEN / CURRENT).exists(), f"{GOLDEN / CURRENT} is missing; run pytest --update-golden"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A copy of the set, with the modes that git does not keep."""
    copy = tmp_path / "files"
    shutil.copytree(GOLDEN / CURRENT, copy)
    for path in copy.glob("key*.bin"):
        path.chmod(0o600)
    return copy


def client_of(files: Path) -> Client:
    return Client.load(files / "key.bin", allow_insecure=True)


# ------------------------------------------------------------------------- what stays readable: keys and results


@pytest.mark.parametrize(("name", "passphrase"), [("key.bin", None), ("key-locked.bin", PASSPHRASE)])
def test_secret_keys_open_their_results(files: Path, name: str, passphrase: str | None) -> None:
    client = Client.load(files / name, passphrase, allow_insecure=True)
    assert keyfile.is_protected(files / name) == (passphrase is not None)
    output = EncryptedOutput.load(files / "output.bin")
    assert client.decrypt(output) == pytest.approx(RESULT, abs=1e-9)
    # Whole as it is, and written anew in the present form.
    (spec,) = client.public.inputs
    sent = client.encrypt(np.array(SAMPLE)).blob("x/0")
    residues = read_ciphertext(sent, client.public.ring, spec.levels[0], client.id, "x/0")
    found, _ = client._cryptor.decrypted(residues, spec.log_scales[0])
    assert found[:2] == pytest.approx(SAMPLE, abs=1e-9)
    client.save(files / "again", passphrase)
    again = Client.load(files / "again", passphrase, allow_insecure=True)
    assert (again.id, again.public) == (client.id, client.public)
    assert again.decrypt(output) == pytest.approx(RESULT, abs=1e-9)


@pytest.mark.parametrize("name", ["key.bin", "key-locked.bin"])
def test_keys_do_not_depend_on_the_versions_of_other_formats(
    files: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next change of the artifact's format, as a key file sees it."""

    def gone(*arguments: object) -> PublicArtifact:
        raise AssertionError("a key file is read without the reader of public artifacts")

    monkeypatch.setattr(public, "VERSION", 99)
    monkeypatch.setattr(PublicArtifact, "from_bytes", staticmethod(gone))
    monkeypatch.setattr(PublicArtifact, "_read", staticmethod(gone))
    client = Client.load(files / name, PASSPHRASE if "locked" in name else None, allow_insecure=True)
    assert client.decrypt(EncryptedOutput.load(files / "output.bin")) == pytest.approx(RESULT, abs=1e-9)


def test_evaluation_keys_can_be_made_from_an_old_key(files: Path) -> None:
    """What keygen does where it was stopped."""
    client = client_of(files)
    keys = client.evaluation_keys()
    assert keys.names() == [key.name for key in client.public.evaluation_keys]


def test_a_key_of_an_older_security_table_is_still_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = hg.compile(hg.parse(PROGRAM), hg.Options(precision_bits=10))
    client = Client(artifact.public())
    client.save(tmp_path / "key")
    with hg.Server(artifact, client.evaluation_keys()) as server:
        output = server.run(client.encrypt(np.array(SAMPLE)))
    monkeypatch.setitem(MAX_LOG_PQ_128, artifact.ring.log_ring, int(artifact.ring.log_pq) - 1)
    with pytest.raises(SecurityError, match="it claims 128 bits, but its modulus PQ has"):
        Client.load(tmp_path / "key")
    again = Client.load(tmp_path / "key", allow_insecure=True)
    assert again.decrypt(EncryptedOutput.from_bytes(output.to_bytes())) == pytest.approx(RESULT, abs=1e-2)
    # A stranger's file is refused as ever.
    with pytest.raises(WireError, match="does not have the security that it claims"):
        PublicArtifact.from_bytes(artifact.public().to_bytes())


def test_counts_of_shared_results_are_read(files: Path) -> None:
    shutil.copy(files / "shared.bin", files / "key.bin.shared")
    client = client_of(files)
    client._shares.take()
    assert client._shares.count == 2
    assert shares.VERSION == 1


# ------------------------------------------------------------------------- what is made again: the rest


def test_artifacts_are_read(files: Path) -> None:
    artifact = Artifact.load(files / "artifact.bin")
    assert hg.simulate(artifact, np.array(SAMPLE), noisy=False) == pytest.approx(RESULT)
    assert artifact.public() == PublicArtifact.load(files / "public.bin")
    client_of(files).check_artifact(artifact)


def test_messages_and_key_folders_are_read(files: Path) -> None:
    (files / "keys").mkdir()
    shutil.copy(files / "index.bin", files / "keys" / "index.keys")
    shutil.copy(files / "folder-key.bin", files / "keys" / "rotation-1.key")
    artifact, encrypted = Artifact.load(files / "artifact.bin"), EncryptedInput.load(files / "input.bin")
    for keys in (EvaluationKeys.load(files / "evaluation-keys.bin"), KeyFolder(files / "keys")):
        with hg.Server(artifact, keys, allow_insecure=True) as server:
            found = client_of(files).decrypt(server.run(encrypted))
        # The folder's keys are of the same client, made anew.
        assert found == pytest.approx(RESULT, abs=1e-9)


# ------------------------------------------------------------------------- other versions

KINDS = {
    "artifact.bin": ("artifact", artifacts.VERSION),
    "public.bin": ("public artifact", public.VERSION),
    "evaluation-keys.bin": (EvaluationKeys.kind, messages.VERSION),
    "input.bin": (EncryptedInput.kind, messages.VERSION),
    "output.bin": (EncryptedOutput.kind, messages.VERSION),
    "key.bin": (keyfile.KIND, keyfile.VERSION),
    "keys/rotation-1.key": ("an evaluation key", keyfolder.VERSION),
}
READERS: dict[str, Callable[[Path], Any]] = {
    "artifact.bin": Artifact.load,
    "public.bin": PublicArtifact.load,
    "evaluation-keys.bin": EvaluationKeys.load,
    "input.bin": EncryptedInput.load,
    "output.bin": EncryptedOutput.load,
    "key.bin": lambda path: Client.load(path, allow_insecure=True),
    "keys/rotation-1.key": lambda path: KeyFolder(path.parent).blob("rotation/1"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(("step", "words"), [(-1, "make it again"), (1, "install a later version")])
def test_files_of_other_versions_are_refused_in_words(files: Path, name: str, step: int, words: str) -> None:
    (files / "keys").mkdir()
    shutil.copy(files / "index.bin", files / "keys" / "index.keys")
    shutil.copy(files / "folder-key.bin", files / "keys" / "rotation-1.key")
    path = files / name
    READERS[name](path)
    kind, version = KINDS[name]
    container = unpack(path.read_bytes(), kind, version, 1 << 30)
    read = readable(kind, version)
    other = read[-1] + step if step > 0 else read[0] + step
    path.write_bytes(pack(Container(kind, other, container.fields, container.blobs)))
    known = ", ".join(map(str, read))
    with pytest.raises(WireError, match=rf"is of version {other}; this program reads versions? {known}\n") as refused:
        READERS[name](path)
    assert words in refused.value.hint


# ------------------------------------------------------------------------- forged key files


def forged_key(good: Path) -> Callable[[random.Random], bytes]:
    """A maker of key files with fields altered."""

    def make(rng: random.Random) -> bytes:
        container = unpack(good.read_bytes(), keyfile.KIND, keyfile.VERSION, keyfile.MAX_BYTES)
        blobs = {name: bytes(container.bytes(name)) for name in container.blobs}
        fields = altered(dict(container.fields), rng)
        if rng.random() < 0.2:
            secret = bytearray(blobs["secret"])
            secret[rng.randrange(len(secret))] ^= 1 << rng.randrange(8)
            blobs["secret"] = bytes(secret[: rng.choice((len(secret), rng.randrange(len(secret))))])
        return pack(Container(container.kind, container.version, fields, blobs))

    return make


@pytest.mark.parametrize("name", ["key.bin", "key-locked.bin"])
def test_forged_key_files_are_read_or_refused(files: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in a key file, it is a client or a HeliographError; with a passphrase nothing altered is read."""
    if "locked" in name:
        # The time of a guess is not what is tested.
        monkeypatch.setattr(keyfile, "_MAX_SCRYPT", {"n": 1 << 15, "r": 8, "p": 3})
    path = files / "forged"
    path.touch(mode=0o600)

    def attempt(data: bytes) -> int:
        path.write_bytes(data)
        try:
            client = Client.load(path, PASSPHRASE if "locked" in name else None, allow_insecure=True)
            client.encrypt(*(np.zeros(spec.shape) for spec in client.public.inputs))
            repr((client, client.public.evaluation_keys))
        except HeliographError as error:
            return len(str(error))
        return 0

    tally = fuzz(forged_key(files / name), attempt, 60 if "locked" in name else 200, seed=0)
    assert not tally.failures, tally.failures
    assert tally.refused > 30
    if "locked" in name:
        assert tally.accepted <= 5, "only what was not altered at all"
