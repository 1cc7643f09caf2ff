"""The suite for a client's cryptography: arithmetic modulo primes, and a secret key with its ciphertexts and keys.

    arithmetic     exact: the residues equal those of reference.py
    secrets        ternary, each value a third of the time; the sparse one of bootstraps has its weight
    errors         discrete Gaussians of standard deviation 3.19, at most 41 in size, the same modulo all primes
    decryption     within eight standard deviations of what encryption, rounding and decryption add (ckks/noise.py)
    keys           each pair opens to P s' plus an error on its digit, and to that error elsewhere (cryptor/cryptor.py)

A statistic may be six standard deviations off: one false alarm in many millions.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import pickle
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.noise import decryption_std, encoding_std, encryption_std
from heliograph.ckks.ring import SIGMA, Ring
from heliograph.ckks.security import SPARSE_WEIGHT
from heliograph.errors import HeliographError, RangeError, WireError
from heliograph.ir import Array
from heliograph.runtime.client.cryptor.arithmetic import Arithmetic
from heliograph.runtime.wire.forms import read_ciphertext, sparse_primes
from heliograph.testing.bench import Check, compare, key_halves
from heliograph.testing.reference import backward, centred, coefficients, column, forward
from heliograph.testing.rings import RINGS, lower_part, name_of

_LARGEST_ERROR = 41


class Secret(Protocol):
    """A client's secret key, with the methods of `Cryptor` (runtime/client/cryptor/cryptor.py)."""

    tag: str

    def encrypted_bytes(self, vector: Array, level: int, log_scale: float) -> bytes: ...

    def decrypted(self, residues: Array, log_scale: float, count: int | None = None) -> tuple[Array, float]: ...

    def evaluation_key_bytes(self, key: EvaluationKey) -> bytes: ...

    def secret_bytes(self) -> bytes: ...


class SecretKind(Protocol):
    """A source of secret keys: fresh ones on a ring, and keys from a client's file."""

    def __call__(self, ring: Ring) -> Secret: ...

    def from_secret_bytes(self, ring: Ring, data: bytes, tag: str) -> Secret: ...


# ------------------------------------------------------------------------------------------------ arithmetic


def arithmetic_checks(
    make: Callable[[int, tuple[int, ...]], Arithmetic], rings: Sequence[Ring] = (*RINGS[:3], RINGS[8])
) -> Iterator[Check]:
    """The checks of a client's arithmetic, which `make` creates from a ring dimension and primes.

    `rings`: by default one of each kind of prime; all of `RINGS` take minutes.
    """
    for ring in rings:
        for kind in ("random", "zero", "prime - 1"):
            yield Check(name_of(ring), f"arithmetic of {kind}", functools.partial(_arithmetic, make, ring, kind))


def _arithmetic(make: Callable[[int, tuple[int, ...]], Arithmetic], ring: Ring, kind: str) -> None:
    primes = ring.primes + ring.special_primes
    do, random, n = make(ring.ring_dim, primes), np.random.default_rng(3), ring.ring_dim
    for place in (len(primes) - 1, 0, 1):
        prime = primes[place]
        other = random.integers(prime, size=n, dtype=np.uint64)
        x = {"random": random.integers(prime, size=n, dtype=np.uint64), "zero": other * np.uint64(0)}.get(
            kind, np.full(n, prime - 1, dtype=np.uint64)
        )
        exactly, what = x.astype(object)[np.newaxis], f"of {kind} on {name_of(ring)}, prime {prime}"
        compare(f"forward {what}", do.forward(x.copy(), place), forward(exactly, [prime])[0])
        compare(f"backward {what}", do.backward(do.row(x, place), place), backward(exactly, [prime])[0])
        for y, minus in itertools.product((x, other), (False, True)):
            product, sums = x.astype(object) * y.astype(object), do.row(other, place)
            do.add_product(sums, do.row(x, place), do.factor(do.row(y, place), place), place, minus)
            exact = (other.astype(object) + (-product if minus else product)) % prime
            compare(f"{'differences' if minus else 'sums'} with products {what}", sums, exact)
        signed = random.integers(-prime + 1, prime, size=n, dtype=np.int64)
        exact = forward(signed.astype(object)[np.newaxis] % prime, [prime])[0]
        compare(f"values of signed numbers modulo {prime} on {name_of(ring)}", do.small(signed, place), exact)


# ------------------------------------------------------------------------------------------------ secrets and errors


def cryptor_checks(kind: SecretKind, rings: Sequence[Ring] = (RINGS[0], RINGS[8], RINGS[-2])) -> Iterator[Check]:
    """The checks of the secret keys from `kind`; most of them share one key. `rings` as for `arithmetic_checks`."""
    shared = functools.lru_cache(maxsize=1)(lambda ring: kind(ring))
    for ring in rings:
        kinds: dict[str, Callable[[SecretKind, Ring], None]] = {
            "secrets": _secrets,
            "what is no secret key": _refused_secrets,
        }
        for name, run in kinds.items():
            yield Check(name_of(ring), name, functools.partial(run, kind, ring))
        checks: dict[str, Callable[[Secret, Ring], None]] = {
            "encryption": _encryption,
            "decryption": _decryption,
            "no two alike": _no_two_alike,
            # Windows has no forks.
            **({"forked processes": _forked} if hasattr(os, "fork") else {}),
            "what cannot be encrypted": _refused_values,
            "secrets are not pickled": _not_pickled,
            **{f"key {key.name}": functools.partial(_key, key) for key in _keys(ring)},
        }
        for name, check in checks.items():
            yield Check(
                name_of(ring), name, functools.partial(lambda check, ring: check(shared(ring), ring), check, ring)
            )


def _secret(cryptor: Secret, ring: Ring) -> Array:
    """The coefficients of a secret key, the same modulo all primes."""
    rows = np.frombuffer(cryptor.secret_bytes(), "<u8").reshape(ring.towers, ring.ring_dim).astype(object)
    found = backward(rows, ring.primes)
    small = centred(found[:1], ring.primes[:1])
    compare(f"a secret key on {name_of(ring)}, modulo each prime", found, small % column(ring.primes))
    return small


def _secrets(kind: SecretKind, ring: Ring) -> None:
    first, second = kind(ring), kind(ring)
    drawn = [_secret(each, ring) for each in (first, second)]
    what, n = f"a secret key on {name_of(ring)}", ring.ring_dim
    for each in drawn:
        counts = [int((each == value).sum()) for value in (-1, 0, 1)]
        assert sum(counts) == n, f"{what} is not ternary: it holds up to {np.abs(each).max()}"
        _near(f"{what}: the counts of -1, 0, 1 are {counts}", max(counts) - n / 3, math.sqrt(2 * n / 9))
    # Two independent keys.
    _near(f"{what} and another agree", float((drawn[0] == drawn[1]).sum()) - n / 3, math.sqrt(2 * n / 9))
    assert first.tag != second.tag, f"two secret keys have one name, {first.tag}"
    again = kind.from_secret_bytes(ring, first.secret_bytes(), first.tag)
    assert (again.secret_bytes(), again.tag) == (first.secret_bytes(), first.tag), (
        f"{what} is not what it was written as"
    )


def _near(what: str, difference: float, std: float) -> None:
    assert abs(difference) <= 6 * std, f"{what}: off by {difference:.4g}, with a standard deviation of {std:.3g}"


def _error(what: str, errors: Array) -> Array:
    """The errors as floating-point numbers; an AssertionError unless they are discrete Gaussians."""
    largest = int(np.abs(errors).max())
    assert largest <= _LARGEST_ERROR, f"{what}: an error of {largest}, more than {_LARGEST_ERROR}"
    found = errors.astype(np.float64)
    _near(
        f"{what}: the error's standard deviation is {found.std():.3f}, not {SIGMA}",
        found.std() - SIGMA,
        SIGMA / math.sqrt(2 * found.size),
    )
    _near(f"{what}: the error's mean", float(found.mean()), SIGMA / math.sqrt(found.size))
    return found


def _opened(cryptor: Secret, ring: Ring, data: bytes, level: int) -> Array:
    """Message plus error in a ciphertext: integer coefficients (N)."""
    primes = ring.primes[: level + 1]
    b, a = read_ciphertext(data, ring, level, cryptor.tag, "a ciphertext").astype(object)
    secret = forward(_secret(cryptor, ring) % column(primes), primes)
    return centred(backward((b + a * secret) % column(primes), primes), primes)


def _encryption(cryptor: Secret, ring: Ring) -> None:
    random = np.random.default_rng(7)
    errors = []
    for level, scale in ((0, 20.0), (1, float(ring.scale_bits)), (ring.levels, 40.5)):
        for values in (np.zeros(4), random.uniform(-1, 1, ring.slots)):
            what = f"encryption on {name_of(ring)}, level {level}, scale {scale}, {values.size} values"
            filled = np.zeros(ring.slots)
            filled[: values.size] = values
            message = coefficients(filled, ring.slots) * 2.0**scale
            opened = _opened(cryptor, ring, cryptor.encrypted_bytes(values, level, scale), level)
            apart = np.array([float(each) for each in opened - np.rint(message).astype(np.int64)])
            # Large coefficients are rounded to 53 bits before they are whole.
            bound = _LARGEST_ERROR + 2 ** max(0.0, scale - 46)
            assert np.abs(apart).max() <= bound, f"{what}: off by {np.abs(apart).max():.3g}, more than {bound:.3g}"
            if not values.any():
                errors.append(_error(what, apart))
    for one, other in ((errors[0], errors[1]), (errors[1], errors[2]), (errors[0][1:], errors[0][:-1])):
        what = f"errors of two ciphertexts, or of two coefficients, on {name_of(ring)}"
        _near(f"{what}: their correlation", float(np.corrcoef(one, other)[0, 1]), 1 / math.sqrt(one.size))


def _decryption(cryptor: Secret, ring: Ring) -> None:
    random = np.random.default_rng(11)
    for level, scale in ((1, float(ring.scale_bits)), (ring.levels, 40.0)):
        values = random.uniform(-1, 1, ring.slots)
        what = f"decryption on {name_of(ring)}, level {level}, scale {scale}"
        data = cryptor.encrypted_bytes(values, level, scale)
        residues = read_ciphertext(data, ring, level, cryptor.tag, "a ciphertext")
        (found, estimate), (again, _) = (cryptor.decrypted(residues, scale) for _ in range(2))
        fresh = math.hypot(encryption_std(ring), encoding_std(ring))
        std = math.hypot(fresh, decryption_std(ring, fresh)) * 2.0**-scale + 2.0**-46
        largest = float(np.abs(found - values).max())
        assert largest <= 8 * std, f"{what}: a value is off by {largest:.3g}, more than {8 * std:.3g}"
        assert 1 / 4 < estimate * 2**scale / (math.sqrt(2) * fresh) < 4, (
            f"{what}: the error is estimated as {estimate:.3g}"
        )
        assert scale > 45 or (found != again).mean() > 0.9, f"{what}: twice the same, so that no noise is added"
        few, same = cryptor.decrypted(residues, scale, 5)
        assert few.shape == (5,), f"{what}: {few.size} slots where 5 are read"
        assert same == estimate, f"{what}: the estimate depends on how many slots are read"
        assert np.abs(few - values[:5]).max() <= 8 * std, f"{what}: of the first slots alone"
        # A ciphertext of three parts: b + a s + c s^2.
        third = np.concatenate([residues, np.zeros_like(residues[:1])])
        assert np.abs(cryptor.decrypted(third, scale)[0] - values).max() <= 8 * std, f"{what}: of three parts"
    garbage = random.integers(
        column(ring.primes).astype(np.uint64), size=(2, ring.towers, ring.ring_dim), dtype=np.uint64
    )
    _refused(f"decryption of garbage on {name_of(ring)}", RangeError, lambda: cryptor.decrypted(garbage, 40.0))


# ------------------------------------------------------------------------------------------------ keys


def _keys(ring: Ring) -> list[EvaluationKey]:
    kinds = [
        ("rotation", 3),
        ("conjugation", 0),
        ("relinearization", 0),
        *[("encapsulation", 0)] * (ring.bootstrap is not None),
    ]
    lower = [EvaluationKey(f"lower/{kind}", lower_part(ring), kind, amount) for kind, amount in kinds[:3]]
    return [*(EvaluationKey(kind, ring, kind, amount) for kind, amount in kinds), *lower]


def _key(key: EvaluationKey, cryptor: Secret, ring: Ring) -> None:
    chain = key.ring
    secret = _secret(cryptor, ring)
    halves = key_halves(key, cryptor.evaluation_key_bytes(key), cryptor.tag)
    primes, special, what = chain.primes, chain.special_primes, f"the key {key.name} on {name_of(chain)}"
    if key.kind == "encapsulation":
        back = halves["back", 0]
        sparse = _sparse(what, back, secret, chain)
        _opens(f"{what}, back", back, primes, special, chain.alpha, sparse, secret)
        _opens(f"{what}, there", halves["there", 0], primes[:1], sparse_primes(chain), 1, secret, sparse)
        return
    target, under = secret, secret
    if key.kind == "relinearization":
        target = _square(secret)
    else:
        # The key of X -> X^k leads to the image of the secret under the inverse.
        under = _moved(secret, pow(key.index, -1, 2 * ring.ring_dim))
    _opens(what, halves[key.kind, key.amount], primes, special, chain.alpha, target, under)


def _opens(
    what: str, pairs: Array, primes: Sequence[int], special: Sequence[int], alpha: int, target: Array, secret: Array
) -> None:
    """An AssertionError unless pairs (2, digits, primes, N) have b + a secret = P target + e on a digit's primes, and e
    elsewhere.
    """
    every, lift = (*primes, *special), math.prod(special)
    opening, errors = forward(secret % column(every), every), []
    for digit, (b, a) in enumerate(zip(*pairs.astype(object), strict=True)):
        opened = backward((b + a * opening) % column(every), every)
        own = range(digit * alpha, min(len(primes), (digit + 1) * alpha))
        for j in own:
            opened[j] = (opened[j] - lift * target) % every[j]
        error = centred(opened[-1:], every[-1:])
        compare(f"{what}, digit {digit}: its error modulo each prime", opened, error % column(every))
        errors.append(_error(f"{what}, digit {digit}", error))
    for one, other in itertools.pairwise(errors):
        _near(
            f"{what}: correlation of two digits' errors", float(np.corrcoef(one, other)[0, 1]), 1 / math.sqrt(one.size)
        )
    distinct = {row.tobytes() for half in pairs for digit in half for row in digit}
    assert len(distinct) == pairs.shape[0] * pairs.shape[1] * pairs.shape[2], (
        f"{what}: two of its polynomials are the same"
    )


def _sparse(what: str, pairs: Array, secret: Array, ring: Ring) -> Array:
    """The sparse secret, from the first digit of the key from it: its P-fold and the error differ in size."""
    first, special = ring.primes[:1], ring.special_primes
    opening = forward(secret % column(first), first)
    opened = centred(backward((pairs[0, 0, :1] + pairs[1, 0, :1].astype(object) * opening) % first[0], first), first)
    lift = int(centred(np.array([[math.prod(special) % first[0]]], dtype=object), first)[0])
    found = np.where(
        np.abs(opened - lift) <= _LARGEST_ERROR, 1, np.where(np.abs(opened + lift) <= _LARGEST_ERROR, -1, 0)
    )
    weight = int(np.count_nonzero(found))
    assert weight == SPARSE_WEIGHT, f"{what}: the sparse secret has weight {weight}, not {SPARSE_WEIGHT}"
    return found.astype(object)


def _moved(polynomial: Array, index: int) -> Array:
    """m(X^index), by coefficients."""
    n, found = polynomial.size, np.zeros_like(polynomial)
    for i, value in enumerate(polynomial):
        place = i * index % (2 * n)
        found[place % n] += value if place < n else -value
    return found


def _square(polynomial: Array) -> Array:
    """m^2 modulo X^N + 1."""
    n = polynomial.size
    whole = np.convolve(polynomial.astype(np.int64), polynomial.astype(np.int64))
    found = whole[:n].copy()
    found[: n - 1] -= whole[n:]
    return found.astype(object)


# ------------------------------------------------------------------------------------------------ fresh, and refused


def _no_two_alike(cryptor: Secret, ring: Ring) -> None:
    """No two ciphertexts or keys, even of the same value, have a half in common."""
    key = EvaluationKey("r", ring, "rotation", 1)
    seen: set[bytes] = set()
    for _ in range(8):
        for part in read_ciphertext(cryptor.encrypted_bytes(np.zeros(4), 1, 30.0), ring, 1, cryptor.tag, "it"):
            seen.add(part.tobytes())
    for _ in range(2):
        for half in key_halves(key, cryptor.evaluation_key_bytes(key), cryptor.tag)["rotation", 1]:
            seen.add(half.tobytes())
    assert len(seen) == 20, f"on {name_of(ring)}, {20 - len(seen)} of 20 halves of ciphertexts and keys repeat"
    # The same bytes always mean the same polynomials.
    data = cryptor.encrypted_bytes(np.ones(4), 1, 30.0)
    one, other = (read_ciphertext(data, ring, 1, cryptor.tag, "it") for _ in range(2))
    compare(f"a ciphertext read again on {name_of(ring)}", one, other)


def _forked(cryptor: Secret, ring: Ring) -> None:
    """A copy of the process does not repeat this process's random numbers: it refuses, or draws others."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        # A child that waits for missing threads is ended.
        signal.alarm(60)
        told = b""
        try:
            told = cryptor.encrypted_bytes(np.zeros(4), 0, 20.0)
        except HeliographError:
            told = b"refused"
        finally:
            os.write(write, told)
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    assert told, f"encryption on {name_of(ring)} fails in a forked process, and does not say why"
    if told != b"refused":
        ours = cryptor.encrypted_bytes(np.zeros(4), 0, 20.0)
        same = (_opened(cryptor, ring, told, 0) == _opened(cryptor, ring, ours, 0)).all()
        assert not same, f"on {name_of(ring)} a forked process draws what this one draws"


def _refused(what: str, error: type[HeliographError], call: Callable[[], Any]) -> None:
    try:
        call()
    except error:
        return
    raise AssertionError(f"{what} is not refused")


def _refused_values(cryptor: Secret, ring: Ring) -> None:
    for name, values, scale in (
        ("NaN", np.full(4, np.nan), 20.0),
        ("infinity", np.full(4, np.inf), 20.0),
        ("what fills the modulus", np.full(ring.slots, 1.0), float(ring.first_mod_bits)),
    ):
        call = functools.partial(cryptor.encrypted_bytes, values, 0, scale)
        _refused(f"encryption of {name} on {name_of(ring)}", RangeError, call)
    # Two bits less fit.
    _opened(cryptor, ring, cryptor.encrypted_bytes(np.ones(ring.slots), 0, ring.first_mod_bits - 2.5), 0)


def _refused_secrets(kind: SecretKind, ring: Ring) -> None:
    cryptor = kind(ring)
    good, tag = cryptor.secret_bytes(), cryptor.tag
    for name, data, named in (
        ("a byte less", good[:-1], tag),
        ("no name", good, tag[:-1]),
        ("another name's letters", good, tag[:-1] + "G"),
        ("a value changed", good[:-8] + bytes([good[-8] ^ 1]) + good[-7:], tag),
        ("values beyond their primes", b"\xff" * len(good), tag),
        ("a large secret", b"\x02" + bytes(7) + good[8:], tag),
    ):
        call = functools.partial(kind.from_secret_bytes, ring, data, named)
        _refused(f"a secret key of {name} on {name_of(ring)}", WireError, call)


def _not_pickled(cryptor: Secret, ring: Ring) -> None:
    _refused("pickling a secret key", HeliographError, lambda: pickle.dumps(cryptor))
