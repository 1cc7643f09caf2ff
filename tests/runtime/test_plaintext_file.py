"""Encoded plaintexts in a file: the next server finds them all, a killed one loses little, strangers' files are not read."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("openfhe")

import heliograph as hg
from heliograph.errors import ProgramError, WireError
from heliograph.ir import Array
from heliograph.runtime.native import plaintext_file, primitives
from heliograph.runtime.native.plaintext_file import PlaintextFile

TOY = hg.Options(security_bits=None, log_ring=11, scale_bits=36, bootstrap=True, degree=7)
SOURCE = """program deep
input x: secret tensor[64] in [-1, 1]
input y: plain tensor[64] in [-1, 1]
a = tanh(x)
b = tanh(a)
c = tanh(b)
output z = c * y
"""
PRIMES = (97, 113)


@pytest.fixture(scope="module")
def artifact() -> hg.Artifact:
    return hg.compile(hg.parse(SOURCE), TOY)


def vector(seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=8)


def residues(seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(90, size=(2, 16)).astype(np.uint32)


def never() -> Array:
    raise AssertionError("it is there")


def test_a_second_server_encodes_nothing_of_the_program(
    artifact: hg.Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = hg.Client(artifact.public(), allow_insecure=True)
    keys, encoded, answers = client.evaluation_keys(), list[int](), []
    real = primitives.encode

    def counted(values: Array, *rest: object) -> Array:
        encoded.append(values.size)
        return real(values, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(primitives, "encode", counted)
    x, y = np.random.default_rng(1).uniform(-1, 1, (2, 64))
    counts = []
    for folder in (None, tmp_path, tmp_path, None):
        encoded.clear()
        with hg.Server(artifact, keys, plaintexts=folder, allow_insecure=True) as server:
            answers.append(client.decrypt(server.run(client.encrypt(x), plain={"y": y})))
        del server
        gc.collect()
        counts.append(len(encoded))
    # What is given to a run is encoded in each, and never kept.
    assert min(counts[0], counts[1], counts[3]) > 40
    assert 0 < counts[2] <= 2
    for answer in answers[1:]:
        np.testing.assert_allclose(answer, answers[0], atol=2.0**-10)
    (path,) = tmp_path.iterdir()
    assert path.name == f"{artifact.fingerprint}.plaintexts"
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_was_written_is_found_by_values_scale_and_primes(tmp_path: Path) -> None:
    file = PlaintextFile(tmp_path / "a")
    file.get(vector(), 40.0, PRIMES, residues)
    file.get(vector(1) + 1j, 40.0, PRIMES, lambda: residues(1))
    file.exchange()
    del file
    again = PlaintextFile(tmp_path / "a")
    np.testing.assert_array_equal(again.get(vector(), 40.0, PRIMES, never), residues())
    np.testing.assert_array_equal(again.get(vector(1) + 1j, 40.0, PRIMES, never), residues(1))
    for values, log_scale, primes in (
        (vector(2), 40.0, PRIMES),
        (vector(), 41.0, PRIMES),
        (vector(), 40.0, PRIMES[:1]),
        (vector(1), 40.0, PRIMES),
    ):
        np.testing.assert_array_equal(again.get(values, log_scale, primes, lambda: residues(9)), residues(9))


@pytest.mark.parametrize("cut", [1, 40, 64, 100, 200, 10_000])
def test_a_file_that_was_cut_off_is_read_as_far_as_it_is_whole(tmp_path: Path, cut: int) -> None:
    path, file = tmp_path / "a", PlaintextFile(tmp_path / "a")
    for seed in range(4):
        file.get(vector(seed), 40.0, PRIMES, lambda seed=seed: residues(seed))  # type: ignore[misc]
    file.exchange()
    del file
    os.truncate(path, max(0, path.stat().st_size - cut))
    again, made = PlaintextFile(path), list[int]()
    for seed in range(4):

        def make(seed: int = seed) -> Array:
            made.append(seed)
            return residues(seed)

        np.testing.assert_array_equal(again.get(vector(seed), 40.0, PRIMES, make), residues(seed))
    assert made
    again.exchange()
    del again
    whole = PlaintextFile(path)
    for seed in range(4):
        np.testing.assert_array_equal(whole.get(vector(seed), 40.0, PRIMES, never), residues(seed))


def test_what_was_not_synced_is_written_again(tmp_path: Path) -> None:
    """As a kill leaves it: records are there, and the head does not count them."""
    file = PlaintextFile(tmp_path / "a")
    file.get(vector(), 40.0, PRIMES, residues)
    file.exchange()
    file.get(vector(1), 40.0, PRIMES, lambda: residues(1))
    del file
    again = PlaintextFile(tmp_path / "a")
    again.get(vector(), 40.0, PRIMES, never)
    again.get(vector(2), 40.0, PRIMES, lambda: residues(2))
    again.exchange()
    del again
    whole = PlaintextFile(tmp_path / "a")
    np.testing.assert_array_equal(whole.get(vector(2), 40.0, PRIMES, never), residues(2))


@pytest.mark.parametrize(
    "junk", [b"", b"junk", bytes(64), bytes(1000), b"heliograph plaintexts 1 little  " + b"\xff" * 500]
)
def test_junk_is_no_file_of_plaintexts(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "a").write_bytes(junk)
    (tmp_path / "a").chmod(0o600)
    file = PlaintextFile(tmp_path / "a")
    np.testing.assert_array_equal(file.get(vector(), 40.0, PRIMES, residues), residues())
    file.exchange()
    del file
    np.testing.assert_array_equal(PlaintextFile(tmp_path / "a").get(vector(), 40.0, PRIMES, never), residues())


def test_a_file_that_others_can_write_is_made_anew(tmp_path: Path) -> None:
    file = PlaintextFile(tmp_path / "a")
    file.get(vector(), 40.0, PRIMES, residues)
    file.exchange()
    del file
    (tmp_path / "a").chmod(0o666)
    made = PlaintextFile(tmp_path / "a")
    assert not made._known
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(WireError, match="cannot be written"):
        PlaintextFile(tmp_path / "link")


def test_a_full_disk_ends_the_appending_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plaintext_file, "_FREE_BYTES", 1 << 60)
    file = PlaintextFile(tmp_path / "a")
    with pytest.warns(UserWarning, match="no more plaintexts are kept .* its disk is almost full"):
        np.testing.assert_array_equal(file.get(vector(), 40.0, PRIMES, residues), residues())
    # Once is enough.
    np.testing.assert_array_equal(file.get(vector(1), 40.0, PRIMES, lambda: residues(1)), residues(1))
    file.exchange()
    assert not PlaintextFile(tmp_path / "a")._known


def test_two_servers_of_a_process_share_a_file(tmp_path: Path) -> None:
    one, other = PlaintextFile.of(tmp_path / "new", "a"), PlaintextFile.of(tmp_path / "new", "a")
    assert one is other
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WireError, match="cannot be made"):
        PlaintextFile.of(tmp_path / "file" / "folder", "a")


def test_what_another_process_appends_is_mapped_and_its_place_is_taken(tmp_path: Path) -> None:
    """Locks are between open files, so that two of this process stand for two processes."""
    writer, other = PlaintextFile(tmp_path / "a"), PlaintextFile(tmp_path / "a")
    writer.get(vector(), 40.0, PRIMES, residues)
    other.get(vector(1), 40.0, PRIMES, lambda: residues(1))
    assert not other._known
    writer.exchange()
    other.exchange()
    for file in (writer, other):
        np.testing.assert_array_equal(file.get(vector(), 40.0, PRIMES, never), residues())
    writer.get(vector(2), 40.0, PRIMES, lambda: residues(2))
    del file, writer
    gc.collect()
    other.exchange()
    other.get(vector(3), 40.0, PRIMES, lambda: residues(3))
    other.exchange()
    # What the first had not synced is gone, and nothing else.
    assert len(other._known) == 2
    del other
    whole = PlaintextFile(tmp_path / "a")
    for seed in (0, 3):
        np.testing.assert_array_equal(whole.get(vector(seed), 40.0, PRIMES, never), residues(seed))


WRITER = """
import os, sys, numpy as np
from heliograph.runtime.native.plaintext_file import PlaintextFile
from pathlib import Path
random = np.random.default_rng(int(sys.argv[2]))
file = PlaintextFile(Path(sys.argv[1]))
for number in range(400):
    seed = int(random.integers(60))
    values = np.random.default_rng(seed).normal(size=8)
    want = np.random.default_rng(seed).integers(90, size=(2, 16)).astype(np.uint32)
    assert (file.get(values, 40.0, (97, 113), lambda: want.copy()) == want).all()
    if number % 7 == 0:
        file.exchange()
    if sys.argv[3] == "dies" and number == 40:
        os.kill(os.getpid(), 9)
sys.stdin.read()
file.exchange()
for seed in range(60):
    values = np.random.default_rng(seed).normal(size=8)
    file.get(values, 40.0, (97, 113), lambda: np.random.default_rng(seed).integers(90, size=(2, 16)).astype(np.uint32))
file.exchange()
"""


def test_processes_write_at_once_and_some_are_killed(tmp_path: Path) -> None:
    """Each reads only what is right at any time; afterwards everything is there, once."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "a"), str(seed), "dies" if seed < 4 else "ends"],
            stdin=subprocess.PIPE,
        )
        for seed in range(6)
    ]
    # Whoever wrote may have been killed with most of it to come: the others then ask for everything once more.
    assert [process.wait(120) for process in running[:4]] == 4 * [-signal.SIGKILL]
    for process in running[4:]:
        process.communicate(timeout=120)
    assert [process.returncode for process in running[4:]] == [0, 0]
    whole = PlaintextFile(tmp_path / "a")
    for seed in range(60):
        np.testing.assert_array_equal(whole.get(vector(seed), 40.0, PRIMES, never), residues(seed))
    assert (tmp_path / "a").stat().st_size <= 64 + 60 * (64 + 2 * 16 * 8)


def test_a_second_server_of_a_process_maps_what_the_first_encoded(
    artifact: hg.Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients of one artifact, as a worker holds them; the first server lives."""
    first, second = (hg.Client(artifact.public(), allow_insecure=True) for _ in range(2))
    x, y = np.random.default_rng(1).uniform(-1, 1, (2, 64))
    encoded = list[int]()
    real = primitives.encode

    def counted(values: Array, *rest: object) -> Array:
        encoded.append(values.size)
        return real(values, *rest)  # type: ignore[arg-type]

    with hg.Server(artifact, first.evaluation_keys(), plaintexts=tmp_path, allow_insecure=True) as server:
        server.run(first.encrypt(x), plain={"y": y})
        monkeypatch.setattr(primitives, "encode", counted)
        with hg.Server(artifact, second.evaluation_keys(), plaintexts=tmp_path, allow_insecure=True) as other:
            other.run(second.encrypt(x), plain={"y": y})
    assert 0 < len(encoded) <= 2


def test_openfhe_keeps_none(artifact: hg.Artifact, tmp_path: Path) -> None:
    made = hg.compile(hg.parse(SOURCE), hg.Options(security_bits=None, log_ring=11, bootstrap=False))
    client = hg.Client(made.public(), allow_insecure=True)
    with pytest.raises(ProgramError, match="cannot be kept in a file"):
        hg.Server(made, client.evaluation_keys(), backend="openfhe", plaintexts=tmp_path, allow_insecure=True)
