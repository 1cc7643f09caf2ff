"""The small form of ciphertexts and keys: what it stands for, how large it is, what it is expanded from, who may read it."""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fuzzing import fuzz
from helpers.hostile_messages import attempt, forged
from helpers.keyed import keyed
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime import bootstrapped
from runtime.bootstrapped import RING
from runtime.support import sample, toy_artifact

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.primes import WORD_LIMIT
from heliograph.ckks.ring import Ring
from heliograph.errors import InternalError, WireError
from heliograph.ir import Array
from heliograph.runtime import residues
from heliograph.runtime.client.client import Client
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.runtime.native.client import NativeArithmetic
from heliograph.runtime.openfhe.cryptor import OpenFHECryptor
from heliograph.runtime.openfhe.serial import (
    blocks_of,
    key_rows,
    key_template,
    openfhe_ciphertext,
    read_ciphertext,
    read_key,
    residues_of,
    serialize,
)
from heliograph.runtime.server.server import Server
from heliograph.runtime.wire import expansion
from heliograph.runtime.wire.forms import computed_form, fresh_form, key_form, write_ciphertext
from heliograph.runtime.wire.forms import read_ciphertext as read_residues
from heliograph.runtime.wire.packed import pack, packed_bytes, unpack_into

HEADER = 80
# A chain with a lower part, and all kinds of keys.
KEYS = (
    EvaluationKey("rotation/3", RING, "rotation", 3),
    EvaluationKey("conjugation", RING, "conjugation"),
    EvaluationKey("relinearization", RING, "relinearization"),
    EvaluationKey("chain4/rotation/5", RING.lower(4, 2), "rotation", 5),
    EvaluationKey("bootstrap/encapsulation", RING, "encapsulation"),
)


@pytest.fixture(scope="module")
def cryptor() -> Cryptor:
    return Cryptor(RING)


@pytest.fixture(scope="module")
def written(cryptor: Cryptor) -> dict[str, bytes]:
    return {key.name: cryptor.evaluation_key_bytes(key) for key in KEYS}


def products(left: Array, right: Array, prime: int) -> Array:
    return np.array([int(a) * int(b) % prime for a, b in zip(left, right, strict=True)], dtype=np.uint64)


# ------------------------------------------------------------------------- arithmetic, packing, expansion


@pytest.mark.parametrize(("log_ring", "bits"), [(10, 30), (11, 45), (12, 59), (12, 60)])
def test_polynomials_there_and_back(log_ring: int, bits: int) -> None:
    ring, random = Ring(log_ring, bits, min(bits, 50), 1, 1, None), np.random.default_rng(bits)
    n, prime = ring.ring_dim, ring.primes[0]
    x, y = (random.integers(prime, size=n, dtype=np.uint64) for _ in range(2))
    assert (residues.backward(residues.forward(x, prime), prime) == x).all()
    product = residues.Factors.of(y, prime).times(x)
    assert (product == products(x, y, prime)).all()
    edge = np.array([0, 1, prime - 1, prime // 2], dtype=np.uint64)
    for w in edge:
        found = residues.Factors.of(np.full(4, w), prime).times(edge)
        assert found.tolist() == [int(a) * int(w) % prime for a in edge]
    # X times a polynomial: the coefficients move by one, the last comes back with its sign changed.
    shifted = np.zeros(n, dtype=np.uint64)
    shifted[1] = 1
    values = residues.Factors.of(residues.forward(shifted, prime), prime).times(residues.forward(x, prime))
    expected = np.concatenate([np.array([prime - int(x[-1])], dtype=np.uint64), x[:-1]])
    assert (residues.backward(values, prime) == expected).all()
    # And the automorphism by its places.
    for index in (5, 2 * n - 1):
        turned = np.zeros(n, dtype=object)
        for i, value in enumerate(x[:50]):
            place = i * index % (2 * n)
            turned[place % n] += int(value) if place < n else prime - int(value)
        few = np.concatenate([x[:50], np.zeros(n - 50, dtype=np.uint64)])
        values = residues.forward(few, prime)[residues.automorphism_places(n, index)]
        assert (values == residues.forward((turned % prime).astype(np.uint64), prime)).all()


@given(bits=st.integers(20, 61), words=st.integers(1, 5), seed=st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_packed_coefficients_come_back(bits: int, words: int, seed: int) -> None:
    n, random = 64 * words, np.random.default_rng(seed)
    prime = (1 << (bits - 1)) + 2 * int(random.integers(1 << (bits - 3))) + 1
    values = random.integers(prime, size=n, dtype=np.uint64)
    values[:2] = 0, prime - 1
    data = pack(values, prime)
    assert len(data) == packed_bytes(n, prime) == n * bits // 8
    # Written as the docstring says, bit by bit.
    columns = [sum(int(values[i * words + j]) << (i * bits) for i in range(64)) for j in range(words)]
    expected = [column >> (64 * k) & (1 << 64) - 1 for k in range(bits) for column in columns]
    assert data == struct.pack(f"<{len(expected)}Q", *expected)
    row = np.zeros(n, dtype=np.uint64)
    assert unpack_into(row, b"abc" + data, 3, prime)
    assert (row == values).all()
    # What is not below the prime is seen, wherever it stands.
    values[int(random.integers(n))] = prime
    assert not unpack_into(row, pack(values, prime), 0, prime)


def test_expanded_residues_are_uniform_and_told_apart() -> None:
    """Every residue as likely as another, also for a prime that leaves a sixteenth of all words out."""
    n, some = 1 << 16, Ring(12, 60, 45, 1, 1, None).primes
    for prime in (97, WORD_LIMIT - 1, *some[:2], (1 << 60) + 33):
        rows = [np.empty(n, dtype=np.uint64) for _ in range(2)]
        for row, context in zip(rows, (b"one", b"two"), strict=True):
            expansion.uniform_into(row, context, prime)
            assert int(row.max()) < prime
            # Chi-squared of a hundred parts of the range: mean 99, standard deviation 14; six of them.
            parts = 97 if prime == 97 else 100
            counts = np.bincount((row.astype(object) * parts // prime).astype(np.int64), minlength=parts)
            expected = n / parts
            assert abs(float(((counts - expected) ** 2 / expected).sum()) - parts + 1) < 6 * (2 * parts) ** 0.5
            # Low bits, and neighbours.
            assert abs(int((row & np.uint64(1)).sum()) - n / 2) < 6 * (n / 4) ** 0.5 + n / prime
            signs = np.where(row > prime // 2, 1.0, -1.0)
            assert abs(float(signs[1:] @ signs[:-1])) < 6 * n**0.5 + 4 * n / prime
        assert abs(float(np.sum(rows[0] == rows[1])) - n / prime) < 6 * (n / prime) ** 0.5 + 1
        again = np.empty(n, dtype=np.uint64)
        expansion.uniform_into(again, b"one", prime)
        assert (again == rows[0]).all()


@pytest.mark.parametrize(
    ("prime", "bits", "words"), [((1 << 60) + 33, 64, "<2Q"), (WORD_LIMIT, 64, "<2Q"), (WORD_LIMIT - 1, 32, "<4I")]
)
def test_the_stream_is_the_one_that_is_described(prime: int, bits: int, words: str) -> None:
    """By another way: SHAKE-256, one block of AES after the other, words left out one by one."""
    import hashlib

    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    n, context = 1 << 10, b"a context"
    key = hashlib.shake_256(b"heliograph uniform polynomial 2\0" + context).digest(32)
    cipher = Cipher(algorithms.AES(key), modes.ECB())
    found: list[int] = []
    skipped = 0
    for counter in itertools.count():
        for word in struct.unpack(words, cipher.encryptor().update(counter.to_bytes(16, "big"))):
            if word < 2**bits // prime * prime:
                found.append(word % prime)
            else:
                skipped += 1
        if len(found) >= n:
            break
    # A word of 64 bits is hardly ever left out for a prime that small.
    assert skipped > n // 32 or (skipped == 0 and prime == WORD_LIMIT)
    for kind in (np.uint64, np.uint32)[: 1 + (bits == 32)]:
        row = np.empty(n, dtype=kind)
        expansion.uniform_into(row, context, prime)
        assert row.tolist() == found[:n]


def test_no_two_polynomials_are_expanded_from_the_same(written: dict[str, bytes], cryptor: Cryptor) -> None:
    """All uniform polynomials of all kinds of objects, with one seed for all of them: kind, index, place, prime differ."""
    seen: Counter[bytes] = Counter()
    forms = [key_form(key) for key in KEYS if key.ring == RING]
    forms += [fresh_form(RING, level) for level in (1, 2)]
    for form in forms:
        header, row = form.header(bytes(32), cryptor.tag), np.empty(form.ring_dim, dtype=np.uint64)
        for place in form.uniform:
            form.expand(row, header, place)
            # The places of ciphertexts of other levels overlap, with other primes or the same: seeds keep them apart.
            seen[form.kind + bytes(row[:8].data)] += 1
    assert set(seen.values()) == {1}
    seeds = {bytes(data[45:77]) for data in written.values()}
    seeds |= {cryptor.encrypted_bytes(np.zeros(4), 1, 40.0)[45:77] for _ in range(20)}
    assert len(seeds) == len(written) + 20


# ------------------------------------------------------------------------- equality with OpenFHE's own


@pytest.mark.parametrize("key", KEYS[:-1], ids=lambda key: key.name)
def test_a_key_is_one_that_openfhe_could_have_made(cryptor: Cryptor, key: EvaluationKey) -> None:
    """It has OpenFHE's form; what its polynomials open to is tried in tests/conformance. OpenFHE reads none of the last."""
    small = cryptor.evaluation_key_bytes(key)
    template, form = key_template(key), key_form(key)
    assert template.blocks_moduli == form.moduli
    # OpenFHE reads the expanded key, and writes the same polynomials in its own form.
    whole = serialize(read_key(small, key, cryptor.tag))
    rows = list(key_rows(small, key, cryptor.tag))
    index = form.index if template.index_offset else None
    assert template.fill((row.tobytes() for row in rows), cryptor.tag, index) == whole
    np.testing.assert_array_equal(blocks_of(whole, template), rows)


def test_a_ciphertext_is_one_that_openfhe_could_have_made(cryptor: Cryptor) -> None:
    """OpenFHE decrypts it to what was encrypted, with the error of its own."""
    values, oracle = (
        np.linspace(-1, 1, RING.slots),
        OpenFHECryptor.from_secret_bytes(RING, cryptor.secret_bytes(), cryptor.tag),
    )
    for level in (1, RING.levels):
        small = cryptor.encrypted_bytes(values, level, 40.0)
        read = read_ciphertext(small, RING, level, cryptor.tag, "it")
        np.testing.assert_array_equal(
            residues_of(read, RING, level), read_residues(small, RING, level, cryptor.tag, "it")
        )
        made = oracle.encrypt(values, level, 40.0)
        errors = [np.std(oracle.decrypt(each, 40.0) - values) for each in (made, read)]
        assert 0.8 < errors[1] / errors[0] < 1.25
        assert errors[0] < 1e-4


@pytest.mark.parametrize("level", [0, 1, 2, RING.levels])
def test_what_openfhe_encrypts_decrypts_to_the_same(cryptor: Cryptor, level: int) -> None:
    """Decryption beside OpenFHE's: the same values, noise of the same size, and an error estimated alike."""
    oracle = OpenFHECryptor.from_secret_bytes(RING, cryptor.secret_bytes(), cryptor.tag)
    values = np.random.default_rng(level).uniform(-1, 1, RING.slots)
    made = oracle.encrypt(values, level, 40.0)
    theirs, estimate = oracle.decrypt_with_error(made, 40.0)
    ours, error = cryptor.decrypted(residues_of(made, RING, level), 40.0)
    np.testing.assert_allclose(ours, theirs, atol=8 * estimate)
    assert np.std(ours - values) == pytest.approx(np.std(theirs - values), rel=0.2)
    assert np.std(ours - cryptor.decrypted(residues_of(made, RING, level), 40.0)[0]) > 0
    assert 1 / 4 < error / estimate < 4
    # Computed ciphertexts come back bit for bit, from OpenFHE's objects too.
    residues_ = residues_of(made, RING, level)
    data = write_ciphertext(residues_, RING, cryptor.tag)
    np.testing.assert_array_equal(read_residues(data, RING, level, cryptor.tag, "it"), residues_)
    again = openfhe_ciphertext(residues_, RING, cryptor.tag)
    np.testing.assert_array_equal(residues_of(again, RING, level), residues_)


@pytest.mark.parametrize("backend", ["native", "openfhe"])
def test_bootstraps_take_keys_with_seeds(backend: str) -> None:
    (artifact, client, keys), x = keyed(bootstrapped.artifact()), bootstrapped.sample(3)
    with Server(artifact, keys, backend=backend, allow_insecure=True) as server:
        found = client.decrypt(server.run(client.encrypt(x)))
    for part, expected, bits in zip(found, bootstrapped.meaning(x), (22, 35), strict=True):
        np.testing.assert_allclose(part, expected, atol=2.0**-bits)


# ------------------------------------------------------------------------- sizes


def test_sizes_are_the_predicted_ones_and_half(written: dict[str, bytes], cryptor: Cryptor) -> None:
    for key in KEYS:
        assert len(written[key.name]) == key.sent_bytes + HEADER
        assert key.sent_bytes < key.bytes / 2 + (8 * RING.ring_dim * 3 if key.kind == "encapsulation" else 0)
    for level in (0, 1, RING.levels):
        data = cryptor.encrypted_bytes(np.zeros(4), level, 40.0)
        assert len(data) == RING.sent_ciphertext_bytes(level) + HEADER
        assert len(data) - HEADER <= RING.ciphertext_bytes(level) * 60 / 128
    values = toy_artifact().report.values
    client = Client(toy_artifact(), allow_insecure=True)
    keys, sent = client.evaluation_keys(), client.encrypt(sample())
    assert values["sent_key_bytes"] <= len(keys.to_bytes()) < 1.01 * values["sent_key_bytes"] + 4000
    assert values["sent_input_bytes"] <= len(sent.to_bytes()) < 1.01 * values["sent_input_bytes"] + 1000
    assert values["sent_key_bytes"] < values["evaluation_key_bytes"] / 2


# ------------------------------------------------------------------------- strangers


def test_each_field_of_the_header_is_looked_at(written: dict[str, bytes], cryptor: Cryptor) -> None:
    key = KEYS[0]
    good = written[key.name]

    def read(data: bytes) -> bytes:
        return key_rows(data, key, cryptor.tag).tobytes()

    expected = read(good)
    for position in range(HEADER):
        changed = good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :]
        if 45 <= position < 77:
            # Another seed: another key, which is garbage for the one who sent it.
            assert read(changed) != expected
            continue
        words = "another key|another rotation|does not have the expected form"
        with pytest.raises(WireError, match=words):
            read(changed)
    for wrong in (good[:-1], good + b"\0", good[:HEADER], good[:8], good[:5], b""):
        with pytest.raises(WireError, match="bytes, expected"):
            read(wrong)
    for other in KEYS[1:]:
        with pytest.raises(WireError):
            read(written[other.name])
    with pytest.raises(WireError):
        read(cryptor.encrypted_bytes(np.zeros(4), 1, 40.0))
    with pytest.raises(WireError, match="under another key"):
        key_rows(good, key, "0" * 32)


def test_coefficients_are_below_their_primes(cryptor: Cryptor) -> None:
    level, tag = 2, cryptor.tag
    for form in (fresh_form(RING, level), computed_form(RING, level)):
        header = form.header(bytes(32), tag)
        rows = [np.zeros(RING.ring_dim, dtype=np.uint64) for _ in form.moduli]
        good = [np.zeros(RING.ring_dim, dtype=np.uint64) for _ in form.written]
        form.read(form.write(header, good), tag, "it", rows)
        for i, prime in enumerate(form.moduli[: len(good)]):
            for value, sound in ((prime - 1, True), (prime, False), ((1 << prime.bit_length()) - 1, False)):
                forged = [each.copy() for each in good]
                forged[i][17] = value
                data = form.write(header, forged)
                if sound:
                    form.read(data, tag, "it", rows)
                    assert rows[i][17] == value
                else:
                    with pytest.raises(WireError, match="not below its prime"):
                        form.read(data, tag, "it", rows)


@pytest.mark.parametrize("kind", ["keys", "inputs"])
def test_forged_messages_are_refused_or_read(kind: str) -> None:
    """Bits flipped in files whose digests fit again, half of them where lengths and identifiers stand."""
    tally = fuzz(forged(kind), attempt(kind), 150, seed=5)
    assert not tally.failures
    assert tally.refused > 20


def test_a_key_that_is_none_is_noticed(cryptor: Cryptor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sees by its secret key whether a key opens to a small error, before it sends it."""
    words = "an evaluation key does not decrypt to a small error"
    with monkeypatch.context() as patched:
        patched.setattr(
            "heliograph.runtime.client.cryptor.cryptor.gaussian", lambda stream, size: np.full(size, 1 << 8)
        )
        for key in KEYS:
            with pytest.raises(InternalError, match=words):
                cryptor.evaluation_key_bytes(key)
    # The product with the secret is left out.
    right = NativeArithmetic.add_product

    def without(self: Any, *given: Any, minus: bool = False) -> None:
        if not minus:
            right(self, *given)

    monkeypatch.setattr(NativeArithmetic, "add_product", without)
    with pytest.raises(InternalError, match=words):
        cryptor.evaluation_key_bytes(KEYS[0])


def test_a_server_does_not_load_what_keys_are_made_with(tmp_path: Path) -> None:
    """A process that serves reads seeds, and has no code that puts a secret key to use."""
    artifact = toy_artifact()
    client = Client(artifact, allow_insecure=True)
    artifact.save(tmp_path / "artifact")
    client.evaluation_keys().save(tmp_path / "keys")
    client.encrypt(sample()).save(tmp_path / "input")
    script = """
        import sys, warnings
        warnings.simplefilter("ignore")
        import heliograph as hg
        from importlib.util import find_spec
        for backend in ("openfhe", "native") if find_spec("openfhe") else ("native",):
            keys = hg.EvaluationKeys.load("keys")
            with hg.Server(hg.Artifact.load("artifact"), keys, backend=backend, allow_insecure=True) as server:
                server.run(hg.EncryptedInput.load("input"))
        made = {"client", "client.client", "client.keyfile", "openfhe.cryptor", "client.cryptor", "client.cryptor.cryptor"}
        print(sorted(name for name in made if f"heliograph.runtime.{name}" in sys.modules))
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=tmp_path, check=True, stdout=subprocess.PIPE, text=True
    )
    assert found.stdout.strip() == "[]"
