"""The suite of heliograph.testing notices what is broken on purpose, and takes what is only done otherwise."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from heliograph.errors import HeliographError
from heliograph.ir import Array, Program
from heliograph.runtime.client.cryptor import cryptor as cryptors
from heliograph.runtime.client.cryptor.arithmetic import NumpyArithmetic
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.runtime.native.backend import NativeBackend, NativeEvaluator
from heliograph.runtime.native.ciphertext import Ciphertext, in_words, residues_of
from heliograph.runtime.noise import SecretStream
from heliograph.testing import RINGS, Check, arithmetic_checks, cryptor_checks, hostile_checks, primitive_checks
from heliograph.testing.bench import AMOUNTS, Bench
from heliograph.testing.primitives import phase
from heliograph.testing.reference import backward, centred, coefficients, divided, forward, root, turned

RING, BOOTSTRAPPING = RINGS[0], RINGS[-2]
# Residues modulo all primes of these rings take two words: any such primes serve to take them apart.
PRIMES = BOOTSTRAPPING.primes
# (primitives, what it should be, its arguments)
Method = Callable[..., Any]


def broken(**methods: Method) -> Any:
    """The native backend with some primitives replaced."""

    class Broken(NativeBackend):
        def evaluator(self, program: Program, cache_bytes: int) -> NativeEvaluator:
            made = super().evaluator(program, cache_bytes)
            for do in map(made.part, range(len(made.chains))):
                for name, method in methods.items():
                    setattr(do, name, functools.partial(method, do, getattr(do, name)))
            return made

    return Broken


def failed(checks: Iterable[Check]) -> dict[str, str]:
    """The checks that fail, with what they say."""
    found = {}
    for check in checks:
        try:
            check.run()
        except Exception as error:
            found[check.name] = str(error)
    return found


def changed(x: Ciphertext, change: Callable[[Array], Any]) -> Ciphertext:
    residues = residues_of(x, PRIMES[: x.level + 1])
    change(residues)
    return Ciphertext(in_words(residues, PRIMES), x.level)


def one_more(x: Ciphertext) -> Ciphertext:
    return changed(x, lambda residues: residues.__setitem__((1, 0, 3), residues[1, 0, 3] ^ np.uint64(1)))


def floored(do: Any, right: Any, x: Ciphertext) -> Ciphertext:
    *kept, last = do.tables.primes[: x.level + 1]
    parts = residues_of(x, do.tables.primes).astype(object)
    found = np.stack([divided(part, kept, [last], False) for part in parts]).astype(np.uint64)
    return Ciphertext(in_words(found, do.tables.primes), x.level - 1)


def unreduced(do: Any, right: Any, x: Ciphertext, y: Ciphertext) -> Ciphertext:
    prime = np.uint64(do.tables.primes[0])
    return changed(right(x, y), lambda residues: residues.__setitem__((0, 0, 9), residues[0, 0, 9] + prime))


def noisy(size: int, do: Any, right: Any, *arguments: Any) -> Ciphertext:
    """With one coefficient off by `size`, which is off everywhere in evaluation."""

    def change(residues: Array) -> None:
        q = np.array(do.tables.primes[: residues.shape[1]], dtype=np.uint64)[:, np.newaxis]
        residues[0] = (residues[0] + np.uint64(size)) % q

    return changed(right(*arguments), change)


def kept_in(do: Any, right: Any, x: Ciphertext) -> Ciphertext:
    x.residues[:] = right(x).residues
    return x


def shared_between_threads(do: Any, right: Any, x: Ciphertext, amount: int) -> Ciphertext:
    do.amount = amount
    time.sleep(1e-3)
    return right(x, do.amount)  # type: ignore[no-any-return]


def cut(weights: Any) -> Any:
    made = weights.copy()
    made.data = np.trunc(made.data * 2.0**20) / 2.0**20
    return made


BROKEN: dict[str, tuple[dict[str, Method], set[str]]] = {
    "a wrong sign": ({"sub": lambda do, right, x, y: right(y, x)}, {"sub", "sums of two and three parts"}),
    "off by one rotation": (
        {"rotate_hoisted": lambda do, right, x, amount, digits: right(x, sum(AMOUNTS) - amount, digits)},
        {"rotate", "rotate_hoisted", "rotate_wide", "lower part"},
    ),
    "the automorphism of another direction": (
        {"conjugate": lambda do, right, x: do.rotate(x, AMOUNTS[0])},
        {"conjugate"},
    ),
    "a missing rounding": ({"rescale": floored}, {"rescale", "lower part"}),
    "a residue that is not reduced": ({"add": unreduced}, {"add", "accumulate", "sums of two and three parts"}),
    "noise in a key switch": ({"relinearize": functools.partial(noisy, 1)}, {"relinearize", "lower part"}),
    "an operand that is written over": ({"negate": kept_in}, {"negate"}),
    "a part that is forgotten": (
        {"mul": lambda do, right, x, y: Ciphertext(right(x, y).residues[:2], x.level)},
        {"mul"},
    ),
    "a coarse number": ({"mul_scalar": lambda do, right, x, v, s: right(x, round(v, 3), s)}, {"mul_scalar"}),
    "coarse weights": ({"weighted_sums": lambda do, right, x, w, s: right(x, cut(w), s)}, {"weighted_sums"}),
    "a coarse scale": ({"encode": lambda do, right, v, s, *more: right(v, s + 1e-9, *more)}, {"encode"}),
    "a sum that stops early": (
        {"sums_of_products": lambda do, right, x, p, groups: right(x, p, [group[:32] for group in groups])},
        {"sums_of_products", "wide_sums"},
    ),
    "a wide value that is off": ({"narrow": lambda do, right, wide: one_more(right(wide))}, {"rotate_wide by nothing"}),
    "a step without its sum": (
        {"step_wide": lambda do, right, total, amount, part: right(total, amount, part * np.uint64(0))},
        {"step_wide"},
    ),
    "a level too many dropped": ({"level_drop": lambda do, right, x, levels: right(x, x.level)}, {"level_drop"}),
    "a level that is told wrong": ({"describe": lambda do, right, x: (right(x)[0] + 1, right(x)[1])}, {"add", "mul"}),
    "a place that threads share": ({"rotate": shared_between_threads}, {"threads"}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_noticed(name: str) -> None:
    methods, expected = BROKEN[name]
    found = failed(check for check in primitive_checks(broken(**methods), [RING]) if check.name in expected)
    assert set(found) == expected


def test_what_it_says() -> None:
    methods, _ = BROKEN["a wrong sign"]
    said = failed(check for check in primitive_checks(broken(**methods), [RING]) if check.name == "sub")["sub"]
    assert said.startswith("sub on 10-60-59-3-2, level 3, 2 digits, x and y: 8192 of 8192 residues differ; ")
    assert re.search(r"in part, prime and place \(0, 0, 0\) expected \d+, found \d+$", said)


class Nearest(NativeBackend):
    """Key switches are rounded to the nearest where OpenFHE rounds down."""

    def evaluator(self, program: Program, cache_bytes: int) -> NativeEvaluator:
        made = super().evaluator(program, cache_bytes)
        for number in range(len(made.chains)):
            made.part(number).tables.nearest = True  # type: ignore[attr-defined]
        return made


SWITCHES = {"relinearize", "rotate", "rotate_hoisted", "conjugate", "lower part"}


def test_other_roundings_are_within_the_bound_and_other_noise_is_not() -> None:
    def checks(make: Any, switches: str) -> dict[str, str]:
        return failed(check for check in primitive_checks(make, [RING], switches=switches) if check.name in SWITCHES)

    assert set(checks(Nearest, "exact")) == SWITCHES
    assert not checks(Nearest, "bounded")
    loud = broken(relinearize=functools.partial(noisy, 1 << 13), conjugate=functools.partial(noisy, 1))
    found = checks(loud, "bounded")
    assert set(found) == {"relinearize", "lower part"}
    assert "a coefficient of the message is off by 8" in found["relinearize"]


REFRESHING = {"bootstrap", "bootstrap of a pair", "raise_modulus"}
BOOTSTRAPS: dict[str, tuple[dict[str, Method], set[str]]] = {
    "noise": ({"raise_modulus": functools.partial(noisy, 1 << 27)}, REFRESHING),
    "a conjugation that is none": ({"conjugate": lambda do, right, x: x}, REFRESHING - {"raise_modulus"}),
    "an error of one": ({"raise_modulus": lambda do, right, x, *more: one_more(right(x, *more))}, REFRESHING),
}


@pytest.mark.parametrize("name", BOOTSTRAPS)
def test_broken_bootstraps_are_noticed(name: str) -> None:
    methods, expected = BOOTSTRAPS[name]
    assert set(failed(primitive_checks(broken(**methods), [BOOTSTRAPPING]))) == expected


# ------------------------------------------------------------------------------------------------ hostile input


class Careless(NativeBackend):
    """Residues are taken as they come, and every rotation has a key."""

    def __init__(self, artifact: Any, keys: Any) -> None:
        super().__init__(artifact, keys)
        self._keys.update(
            {(ring, "rotation", 3): key for (ring, kind, _), key in self._keys.items() if kind == "rotation"}
        )

    def read(self, message: Any, node: Any, name: str) -> Any:
        try:
            return super().read(message, node, name)
        except HeliographError:
            level = node.attrs["level"]
            return Ciphertext(np.zeros((2, RING.words(level), RING.ring_dim), dtype=np.uint32), level)


def test_a_careless_backend_is_noticed() -> None:
    found = set(failed(hostile_checks(Careless, [RING])))
    assert found == {
        "a rotation without a key",
        "a hoisted rotation without a key",
        *(check.name for check in hostile_checks(Careless, [RING]) if check.name.startswith("ciphertext of")),
    }


def nothing(do: Any, right: Any, values: Any, *more: Any) -> Any:
    return right(np.nan_to_num(values, posinf=0.0, neginf=0.0), *more)


def test_values_that_are_none_are_noticed() -> None:
    make = broken(encode=nothing, mul_scalar=lambda do, right, x, value, scale: right(x, 1.0, scale))
    assert set(failed(hostile_checks(make, [RING]))) == {
        "encode NaN", "encode infinity", "encode complex NaN", "encode a number that is NaN", "mul_scalar by NaN",
        "mul_scalar by infinity",
    }  # fmt: skip


def test_another_sum_across_levels_is_noticed() -> None:
    def wrong(do: Any, right: Any, x: Ciphertext, y: Ciphertext) -> Ciphertext:
        return right(x, y) if x.level == y.level else y

    assert set(failed(hostile_checks(broken(add=wrong), [RING]))) == {"a sum across levels"}


def test_an_error_of_another_kind_is_no_refusal() -> None:
    def wrong(do: Any, right: Any, x: Ciphertext, levels: int) -> Ciphertext:
        if levels > x.level:
            raise IndexError("too many")
        return right(x, levels)  # type: ignore[no-any-return]

    found = failed(hostile_checks(broken(level_drop=wrong), [RING]))
    assert found == {
        "a level_drop below 0": "a level_drop below 0 on 10-60-59-3-2: IndexError('too many') is no refusal"
    }


# ------------------------------------------------------------------------------------------------ the client


def swapped(name: str, by: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """A function of runtime/client/cryptor/cryptor.py in another form."""
    right = getattr(cryptors, name)
    return lambda patch: patch.setattr(cryptors, name, functools.partial(by, right))


# As a generator that a process copies when it forks.
_COPIED = np.random.default_rng(1)


def copied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cryptors, "require_own_process", lambda what: None)
    patch.setattr(cryptors, "SecretStream", lambda: SecretStream(_COPIED.bytes(32)))


KEYS = {"key rotation", "key conjugation", "key relinearization", "key encapsulation", "key lower/rotation"}
CLIENTS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], set[str]]] = {
    "errors of twice the size": (swapped("gaussian", lambda right, *more: 2 * right(*more)), {"encryption", *KEYS}),
    "no errors": (swapped("gaussian", lambda right, *more: 0 * right(*more)), {"encryption", *KEYS}),
    "errors with a mean": (swapped("gaussian", lambda right, *more: 1 + right(*more)), {"encryption", *KEYS}),
    "a binary secret": (swapped("ternary", lambda right, *more: abs(right(*more))), {"secrets"}),
    "a sparse secret of another weight": (
        swapped("sparse_ternary", lambda right, stream, size, weight: right(stream, size, weight - 1)),
        {"key encapsulation"},
    ),
    "one stream for all": (
        lambda patch: patch.setattr(cryptors, "SecretStream", lambda: SecretStream(bytes(32))),
        {"secrets", "encryption", *KEYS},
    ),
    "one seed for all": (lambda patch: patch.setattr(cryptors, "fresh_seed", lambda: bytes(32)), {"no two alike"}),
    "a stream that a fork copies": (copied, {"forked processes"}),
    "a decryption without noise": (swapped("secure_normal", lambda right, size: np.zeros(size)), {"decryption"}),
    "values in another order": (
        swapped("coefficients_of", lambda right, values, slots: right(values[::-1], slots)),
        {"encryption", "decryption"},
    ),
    "a key of another automorphism": (
        swapped("automorphism_places", lambda right, n, index: right(n, pow(index, -1, 2 * n))),
        {"key rotation", "key lower/rotation"},
    ),
    "zero for what is no number": (
        swapped("rounded_at", lambda right, values, *more: right(np.nan_to_num(values, posinf=0, neginf=0), *more)),
        {"what cannot be encrypted"},
    ),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_broken_clients_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, expected = CLIENTS[name]
    patch(monkeypatch)
    found: set[str] = set()
    for check in cryptor_checks(Cryptor, RINGS[-1:]):
        if check.name in expected:
            found |= set(failed([check]))
    assert found == expected


class Wrong(NumpyArithmetic):
    def add_product(self, sums: Array, values: Array, factor: Any, place: int, minus: bool = False) -> None:
        super().add_product(sums, values, factor, place, minus)
        sums[5] ^= np.uint64(1)


def test_broken_arithmetic_is_noticed() -> None:
    assert len(failed(arithmetic_checks(Wrong, [RING]))) == 3


# ------------------------------------------------------------------------------------------------ the exact numbers


@pytest.mark.parametrize("ring", [RINGS[0], RINGS[1]], ids=["10", "12"])
def test_transforms_are_values_at_odd_powers_of_the_smallest_root(ring: Any) -> None:
    primes, n = ring.primes[:2], ring.ring_dim
    x = np.random.default_rng(0).integers(1 << 28, size=(2, n)).astype(object)
    values = forward(x, primes)
    for j, prime in enumerate(primes):
        psi = root(n, prime)
        assert pow(psi, n, prime) == prime - 1
        assert psi == min(pow(psi, power, prime) for power in range(1, 2 * n, 2))
        for place in (0, 1, 2, n // 2 + 3, n - 1):
            point = pow(psi, 2 * int(f"{place:0{ring.log_ring}b}"[::-1], 2) + 1, prime)
            expected = 0
            for coefficient in reversed(x[j].tolist()):
                expected = (expected * point + coefficient) % prime
            assert values[j, place] == expected
    assert (backward(values, primes) == x).all()
    # X^3 in the place of X.
    moved = np.zeros_like(x)
    for i in range(n):
        moved[:, 3 * i % n] += x[:, i] * (-1) ** (3 * i // n)
    assert (turned(values, 3) == forward(moved, primes)).all()


def test_exact_key_switches_mean_what_they_say() -> None:
    """They decrypt to what was switched: the exact numbers are those of the scheme, whoever else has the same."""
    bench = Bench(NativeBackend, RING)
    exact, x = bench.material.exact[0], bench.material.residues(RING.levels, "x").astype(object)
    n, q, before = RING.ring_dim, RING.primes, phase(bench, x)
    for found, expected in (
        (exact.rotate(x, AMOUNTS[1]), turned(before, pow(5, AMOUNTS[1], 2 * n))),
        (exact.conjugate(x), turned(before, 2 * n - 1)),
        (exact.relinearize(exact.mul(x, x)), before * before),
    ):
        assert np.abs(centred(backward(phase(bench, found) - expected, q), q)).max() < 1 << 9
    whole, kept = math.prod(q), q[:-1]
    apart = centred(backward(phase(bench, exact.rescale(x)), kept), kept) * q[-1] - centred(backward(before, q), q)
    assert np.abs((apart + whole // 2) % whole - whole // 2).max() < q[-1] << 6


def test_coefficients_are_those_of_the_slots() -> None:
    values = np.random.default_rng(0).normal(size=8) * (1 + 1j)
    found, n = coefficients(values, 32), 64
    points = [np.exp(1j * np.pi * pow(5, j, 2 * n) / n) for j in range(n // 2)]
    np.testing.assert_allclose(
        np.polynomial.polynomial.polyval(np.array(points), found), np.tile(values, 4), atol=1e-12
    )
