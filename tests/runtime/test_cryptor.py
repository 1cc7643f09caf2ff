"""The client's cryptography: what is drawn, the same bytes by kernels and by numpy, OpenFHE's primes, files of keys."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from runtime.bootstrapped import RING

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.errors import RangeError, WireError
from heliograph.runtime.cryptor import cryptor as cryptors
from heliograph.runtime.cryptor.arithmetic import NumpyArithmetic, arithmetic
from heliograph.runtime.cryptor.cryptor import Cryptor
from heliograph.runtime.cryptor.randomness import SecretStream, gaussian, sparse_ternary, ternary, thresholds
from heliograph.runtime.openfhe.serial import key_template
from heliograph.runtime.seeded import key_form

SHORT = Ring(11, 39, 34, 20, 7, None, (3, 3), short_specials=True)
COUNT = 1 << 21


def fits(counts: list[int], probabilities: list[float]) -> bool:
    """Whether counts agree with probabilities: chi-square, one false alarm in a million."""
    total = sum(counts)
    return bool(scipy.stats.chisquare(counts, [total * p for p in probabilities]).pvalue > 1e-6)


def normal(size: int) -> float:
    return math.exp(-(size**2) / (2 * 3.19**2))


# ------------------------------------------------------------------------- what is drawn


def test_thresholds_are_the_exact_probabilities() -> None:
    """To 2^-120, against the same sums in fractions of numbers of double precision, and the last is the last below 1."""
    found = [int(high) << 64 | int(low) for high, low in thresholds()]
    assert found == sorted(set(found))
    assert 40 < len(found) < 46
    assert (1 << 128) - found[-1] < 1 << 6
    whole = sum(normal(size) * (2 if size else 1) for size in range(60))
    so_far = 0.0
    for size, threshold in enumerate(found):
        so_far += normal(size) * (2 if size else 1) / whole
        assert float(Fraction(threshold, 1 << 128)) == pytest.approx(so_far, rel=1e-14)


def test_errors_are_discrete_gaussians() -> None:
    drawn = gaussian(SecretStream(), COUNT)
    sizes = range(-13, 14)
    whole = sum(map(normal, range(-60, 61)))
    inside = [int((drawn == size).sum()) for size in sizes]
    chances = [normal(size) / whole for size in sizes]
    assert fits([*inside, COUNT - sum(inside)], [*chances, 1 - sum(chances)])
    # Neighbours have nothing to do with each other, nor has a sign with a size.
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 6 / math.sqrt(COUNT)
    assert abs(np.corrcoef(np.sign(drawn), np.abs(drawn))[0, 1]) < 6 / math.sqrt(COUNT)


def test_secrets_are_uniform_ternary() -> None:
    drawn = ternary(SecretStream(), COUNT)
    assert fits([int((drawn == value).sum()) for value in (-1, 0, 1)], [1 / 3] * 3)
    pairs = 3 * (drawn[::2] + 1) + drawn[1::2] + 1
    assert fits(np.bincount(pairs, minlength=9).tolist(), [1 / 9] * 9)


def test_sparse_secrets_have_their_weight() -> None:
    size, stream = 1 << 10, SecretStream()
    drawn = np.stack([sparse_ternary(stream, size, 32) for _ in range(2000)])
    assert (np.count_nonzero(drawn, axis=1) == 32).all()
    assert fits(np.count_nonzero(drawn, axis=0).tolist(), [1 / size] * size)
    assert fits([int((drawn == value).sum()) for value in (-1, 1)], [0.5, 0.5])
    # All places, where nearly every draw hits one that is taken.
    assert np.count_nonzero(sparse_ternary(stream, 64, 64)) == 64


def test_no_two_streams_are_the_same() -> None:
    seen = {SecretStream().octets(32).tobytes() for _ in range(1000)}
    assert len(seen) == 1000
    assert SecretStream(bytes(32)).octets(32).tobytes() == SecretStream(bytes(32)).octets(32).tobytes()


def test_each_object_has_its_own_stream_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each digit of a key has an error of its own, each object a seed."""
    made: list[SecretStream] = []
    monkeypatch.setattr(cryptors, "SecretStream", lambda: made.append(SecretStream()) or made[-1])
    cryptor = Cryptor(RING)
    key = EvaluationKey("r", RING, "rotation", 1)
    seeds = {cryptor.evaluation_key_bytes(key)[45:77] for _ in range(3)}
    seeds |= {cryptor.encrypted_bytes(np.zeros(4), 1, 40.0)[45:77] for _ in range(3)}
    assert len(seeds) == 6
    assert len(made) == 1 + 3 * RING.digits + 3


# ------------------------------------------------------------------------- kernels and numpy


def drawn_by(kind: object, ring: Ring, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    count = itertools.count()

    def fresh() -> bytes:
        return next(count).to_bytes(32, "little")

    with monkeypatch.context() as patched:
        patched.setattr(cryptors, "SecretStream", lambda: SecretStream(fresh()))
        patched.setattr(cryptors, "fresh_seed", fresh)
        patched.setattr(cryptors, "arithmetic", kind)
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


# ------------------------------------------------------------------------- what is refused


def test_what_does_not_fit_its_level_is_refused() -> None:
    cryptor = Cryptor(RING)
    for values, log_scale, words in (
        (np.full(4, np.nan), 40.0, "NaN or infinity"),
        (np.full(4, np.inf), 40.0, "NaN or infinity"),
        (np.full(RING.slots, 1e6), 55.0, "too large for its level"),
    ):
        with pytest.raises(RangeError, match=words):
            cryptor.encrypted_bytes(values, 0, log_scale)
    # One bit less fits, at the same level.
    assert cryptor.encrypted_bytes(np.full(RING.slots, 2.0 ** (RING.first_mod_bits - 42)), 0, 40.0)


def test_bytes_that_are_no_secret_key_are_refused() -> None:
    cryptor = Cryptor(RING)
    good, tag = cryptor.secret_bytes(), cryptor.tag
    again = Cryptor.from_secret_bytes(RING, good, tag)
    assert (again.secret_bytes(), again.tag) == (good, tag)
    last = bytes([good[-8] ^ 1])
    for data, name, words in (
        (good[:-1], tag, "bytes, expected"),
        (good, tag[:-1], "no valid name"),
        (good, tag.upper() + "G", "no valid name"),
        (bytes(len(good))[:-8] + bytes([1]) + bytes(7), tag, "the secret key is none"),
        (good[:-8] + last + good[-7:], tag, "the secret key is none"),
        (b"\xff" * len(good), tag, "the secret key is none"),
    ):
        with pytest.raises(WireError, match=words):
            Cryptor.from_secret_bytes(RING, data, name)
