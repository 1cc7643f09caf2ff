"""The client's cryptography: the same bytes by kernels and numpy, OpenFHE's primes, files. The rest: tests/conformance."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers.clients import without_kernels
from runtime.bootstrapped import RING
from runtime.support import toy_artifact

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.runtime.client.client import Client
from heliograph.runtime.client.cryptor import cryptor as cryptors
from heliograph.runtime.client.cryptor.arithmetic import NumpyArithmetic, arithmetic, arrays_of
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.runtime.noise import SecretStream
from heliograph.runtime.openfhe.serial import key_template
from heliograph.runtime.residues import centered
from heliograph.runtime.wire.forms import key_form

SHORT = Ring(11, 39, 34, 20, 7, None, (3, 3), short_specials=True)


# ------------------------------------------------------------------------- kernels and numpy


def drawn_by(kind: object, ring: Ring, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    count = itertools.count()

    def fresh() -> bytes:
        return next(count).to_bytes(32, "little")

    with monkeypatch.context() as patched:
        patched.setattr(cryptors, "SecretStream", lambda: SecretStream(fresh()))
        patched.setattr(cryptors, "fresh_seed", fresh)
        patched.setattr(cryptors, "arithmetic", kind)
        if kind is NumpyArithmetic:
            without_kernels(patched)
        cryptor = Cryptor(ring, tag="0" * 32)
        kinds = ("rotation", 5), ("relinearization", 0), ("conjugation", 0), ("encapsulation", 0)
        keys = [EvaluationKey("k", ring, *each) for each in kinds]
        keys += [EvaluationKey("k", ring.lower(4, 2), *each) for each in kinds[:2]]
        values = np.linspace(-1, 1, ring.slots)
        made = [cryptor.secret_bytes(), *map(cryptor.evaluation_key_bytes, keys)]
        return made + [cryptor.encrypted_bytes(values, level, 45.0 + 8 * level) for level in (1, 2)]


@pytest.mark.parametrize("ring", [RING, SHORT], ids=["long", "short"])
def test_numpy_and_kernels_make_the_same_bytes(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client needs nothing that is compiled."""
    assert drawn_by(NumpyArithmetic, ring, monkeypatch) == drawn_by(arithmetic, ring, monkeypatch)


# ------------------------------------------------------------------------- OpenFHE's chains


@pytest.mark.parametrize("log_ring", [10, 11, 12])
@pytest.mark.parametrize(("first", "scale"), [(60, 59), (60, 50), (45, 40), (36, 30), (28, 28)])
@pytest.mark.parametrize("short", [False, True])
def test_special_primes_are_openfhes(log_ring: int, first: int, scale: int, short: bool) -> None:
    whole = Ring(log_ring, first, scale, 5, 3, None, short_specials=short)
    if not whole.legal:
        pytest.skip("there are too few primes of that size")
    for ring in (whole, whole.lower(3, 2), whole.lower(1, 1)):
        for kind in ("rotation", "relinearization"):
            key = EvaluationKey("r", ring, kind, int(kind == "rotation"))
            assert key_template(key).blocks_moduli == key_form(key).moduli


# ------------------------------------------------------------------------- what is left in memory


@pytest.mark.parametrize("kind", [NumpyArithmetic, arithmetic], ids=["numpy", "kernels"])
def test_what_is_kept_of_a_secret_is_overwritten_when_it_goes(kind: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cryptors, "arithmetic", kind)
    cryptor = Cryptor(RING)
    cryptor.evaluation_key_bytes(EvaluationKey("r", RING, "relinearization"))
    cryptor.encrypted_bytes(np.zeros(4), 1, 40.0)
    basis = cryptor._basis(RING)
    factors = [array for factor in basis.secret for array in arrays_of(factor)]
    kept = [cryptor._coefficients, *basis.values, *basis.squares, *factors]
    assert all(array.any() for array in kept)
    del basis
    with gc_disabled():
        del cryptor
        assert not any(array.any() for array in kept)


@pytest.mark.parametrize("kind", [NumpyArithmetic, arithmetic], ids=["numpy", "kernels"])
def test_errors_and_what_a_file_holds_are_overwritten(kind: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ciphertext and its error give the secret key; a file's coefficients are that key."""
    monkeypatch.setattr(cryptors, "arithmetic", kind)
    cryptor, drawn = Cryptor(RING), list[np.ndarray]()

    def gaussian(*given: Any) -> np.ndarray:
        drawn.append(sampled(*given))
        return drawn[-1]

    sampled = cryptors.gaussian
    monkeypatch.setattr(cryptors, "gaussian", gaussian)
    cryptor.encrypted_bytes(np.zeros(4), 1, 40.0)
    with monkeypatch.context() as patched:
        patched.setattr(cryptors, "in_threads", full)
        with pytest.raises(RuntimeError, match="full"):
            cryptor.encrypted_bytes(np.zeros(4), 1, 40.0)
    assert len(drawn) == 2
    assert not any(error.any() for error in drawn)
    read = list[np.ndarray]()

    def seen(values: np.ndarray, prime: int) -> np.ndarray:
        read.append(values)
        return centered(values, prime)

    monkeypatch.setattr(cryptors, "centered", seen)
    Cryptor.from_secret_bytes(RING, cryptor.secret_bytes(), cryptor.tag)
    assert len(read) == 1
    assert not read[0].any()


def full(*_: object) -> None:
    raise RuntimeError("full")


@contextlib.contextmanager
def gc_disabled() -> Iterator[None]:
    """No cycle keeps a secret until the garbage collector finds it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_client_that_goes_leaves_no_secret() -> None:
    client = Client(toy_artifact().public(), allow_insecure=True)
    coefficients = client._cryptor._coefficients
    assert coefficients.any()
    with gc_disabled():
        del client
        assert not coefficients.any()
