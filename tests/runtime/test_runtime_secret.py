"""What a secret key looks like inside: the security table is for coefficients -1, 0 and 1 with equal probability."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runtime.bootstrapped import RING, artifact, sample

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.runtime.client.client import Client
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.runtime.openfhe.context import library, make_context
from heliograph.runtime.openfhe.serial import key_rows
from heliograph.runtime.wire.forms import key_form, read_ciphertext


def _root(ring: Ring) -> tuple[int, int]:
    """The first prime of the ring and the root of order 2N by which OpenFHE transforms."""
    text = library().Serialize(make_context(ring), library().JSON)
    parameters = json.loads(text)["value0"]["ptr_wrapper"]["data"]["cc"]["ptr_wrapper"]["data"]["value0"]
    first = parameters["value0"]["value0"]["elp"]["ptr_wrapper"]["data"]["p"][0]["ptr_wrapper"]["data"]["value0"]
    return int(first["cm"]["v"]), int(first["ru"]["v"])


def _transform(values: list[int], root: int, prime: int) -> list[int]:
    if len(values) == 1:
        return values
    even, odd = (_transform(values[i::2], root * root % prime, prime) for i in (0, 1))
    power, made = 1, []
    for value in odd:
        made.append(value * power % prime)
        power = power * root % prime
    sums = [(a + b) % prime for a, b in zip(even, made, strict=True)]
    return sums + [(a - b) % prime for a, b in zip(even, made, strict=True)]


def _polynomial(evaluations: np.ndarray, prime: int, root: int) -> list[int]:
    """The coefficients, between -prime/2 and prime/2, of values at the odd powers of the root in bit-reversed order."""
    n = len(evaluations)
    bits = n.bit_length() - 1
    ordered = [int(evaluations[int(f"{i:0{bits}b}"[::-1], 2)]) for i in range(n)]
    inverse, scale = pow(root, -1, prime), pow(n, -1, prime)
    made = _transform(ordered, inverse * inverse % prime, prime)
    found = [value * scale * pow(inverse, i, prime) % prime for i, value in enumerate(made)]
    return [value if value < prime // 2 else value - prime for value in found]


@pytest.mark.parametrize("ring", [RING, replace(RING, bootstrap=None)])
def test_the_secret_is_uniform_ternary(ring: Ring) -> None:
    values = np.frombuffer(Cryptor(ring).secret_bytes(), dtype="<u8", count=ring.ring_dim)
    counts = Counter(_polynomial(values, *_root(ring)))
    assert set(counts) == {-1, 0, 1}
    # The standard deviation is sqrt(2 N) / 3; six of them are allowed.
    assert all(abs(count - ring.ring_dim / 3) < 2 * (2 * ring.ring_dim) ** 0.5 for count in counts.values())


def test_the_ephemeral_secrets_have_thirty_two_coefficients() -> None:
    """The report states the weight: it decides over the first step of a bootstrap. Each chain has its own."""
    cryptor, lower = Cryptor(RING), RING.lower(16, 4, bootstraps=True)
    found = [_ephemeral(cryptor, ring) for ring in (RING, lower, lower)]
    assert [len(places) for places in found] == [32, 32, 32]
    assert len(set(found)) == 3


def _ephemeral(cryptor: Cryptor, ring: Ring) -> frozenset[tuple[int, bool]]:
    """Where a fresh sparse secret in a chain is not zero, and where it is positive."""
    n, (prime, root) = ring.ring_dim, _root(ring)
    key = EvaluationKey("e", ring, "encapsulation")
    rows = key_rows(cryptor.evaluation_key_bytes(key), key, cryptor.tag)
    first = [row for row, modulus in zip(rows, key_form(key).moduli, strict=True) if modulus == prime]
    # Two polynomials of the key to the sparse secret, then those of the key back: one of each kind for every digit.
    a, b = first[2], first[2 + ring.digits]
    secret = np.frombuffer(cryptor.secret_bytes(), dtype="<u8", count=n)
    candidates = []
    for x, y in ((a, b), (b, a)):
        sums = [(int(p) * int(s) + int(q)) % prime for p, s, q in zip(x, secret, y, strict=True)]
        values = _polynomial(np.array(sums, dtype=object), prime, root)
        candidates.append(frozenset((i, value > 0) for i, value in enumerate(values) if abs(value) > 100))
    # What the key encrypts is the sparse secret times the special primes; all else is noise.
    return min(candidates, key=len)


def test_a_loaded_client_saves_the_same_key(tmp_path: Path) -> None:
    first = Client(artifact(), allow_insecure=True)
    first.save(tmp_path / "one")
    second = Client.load(tmp_path / "one", allow_insecure=True)
    second.save(tmp_path / "two")
    third = Client.load(tmp_path / "two", allow_insecure=True)
    assert first._cryptor.secret_bytes() == second._cryptor.secret_bytes() == third._cryptor.secret_bytes()
    ring = first.public.ring
    message = read_ciphertext(first._cryptor.encrypted_bytes(sample(), 1, 55.0), ring, 1, first.id, "it")
    found, expected = (client._cryptor.decrypted(message, 55.0)[0] for client in (third, first))
    np.testing.assert_allclose(found, expected, atol=1e-9)
