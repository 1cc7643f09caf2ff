"""What a client draws, against exact probabilities: secrets, errors, uniform residues; and what OpenFHE draws for itself.

Each test runs on two million numbers, and as a slow one on a hundred million. Bounds of moments are six standard deviations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from heliograph.ckks.keys import EvaluationKey
from heliograph.ckks.ring import Ring
from heliograph.ir import Array
from heliograph.runtime.client.cryptor.arithmetic import arithmetic
from heliograph.runtime.client.cryptor.cryptor import Cryptor
from heliograph.runtime.client.cryptor.randomness import gaussian, sparse_ternary, ternary, thresholds
from heliograph.runtime.noise import SecretStream
from heliograph.runtime.residues import automorphism_places, centered
from heliograph.runtime.wire.expansion import fresh_seed, uniform_into
from heliograph.runtime.wire.forms import key_form

COUNTS = (1 << 21, pytest.param(10**8, marks=pytest.mark.slow))
_AT_ONCE = 1 << 20


def fits(counts: Sequence[int] | Array, probabilities: Sequence[float] | Array) -> bool:
    """Whether counts agree with probabilities: chi-square, one false alarm in a million."""
    total = sum(map(int, counts))
    return bool(scipy.stats.chisquare(counts, np.asarray(probabilities) * total).pvalue > 1e-6)


def in_pieces(count: int) -> Iterable[int]:
    """Sizes that sum up to at least the count; memory holds one at a time."""
    return itertools.repeat(_AT_ONCE, -(-count // _AT_ONCE))


# ------------------------------------------------------------------------- errors


def normal(size: int, deviation: float = 3.19) -> float:
    return math.exp(-(size**2) / (2 * deviation**2))


class Errors:
    """Counts of errors by their size and sign, and of the products of neighbours; of one deviation."""

    reach = 60

    def __init__(self, deviation: float = 3.19) -> None:
        weights = [normal(size, deviation) for size in range(-self.reach, self.reach + 1)]
        self.chances = np.array(weights) / math.fsum(weights)
        self.counts = np.zeros(2 * self.reach + 1, dtype=np.int64)
        self.neighbours, self.pairs = 0, 0

    def add(self, drawn: Array) -> None:
        assert np.abs(drawn).max() <= self.reach
        self.counts += np.bincount(drawn + self.reach, minlength=self.counts.size)
        self.neighbours += int(drawn[1:] @ drawn[:-1])
        self.pairs += drawn.size - 1

    def check(self) -> None:
        """They are discrete Gaussians, as exactly as so many of them show it."""
        total, sizes = int(self.counts.sum()), np.arange(-self.reach, self.reach + 1)
        # As far out as ten are expected; what is further is one class on each side.
        first = int(np.flatnonzero(total * self.chances > 10)[0])
        edges = [0, *range(first, sizes.size - first + 1)]
        assert fits(np.add.reduceat(self.counts, edges), np.add.reduceat(self.chances, edges))
        moments = [float((self.chances * sizes.astype(np.float64) ** power).sum()) for power in range(9)]
        for power in (1, 2, 3, 4):
            spread = math.sqrt((moments[2 * power] - moments[power] ** 2) / total)
            found = float((self.counts * sizes.astype(np.float64) ** power).sum() / total)
            assert abs(found - moments[power]) < 6 * spread, power
        # What is not expected once in a million tests does not occur; neighbours have nothing to do with each other.
        assert not self.counts[total * self.chances < 1e-7].any()
        assert abs(self.neighbours) < 6 * moments[2] * math.sqrt(self.pairs)


def test_thresholds_are_the_exact_probabilities() -> None:
    """To 2^-120, against the same sums in fractions of numbers of double precision, and the last is the last below 1."""
    found = [int(high) << 64 | int(low) for high, low in thresholds()]
    assert found == sorted(set(found))
    assert 40 < len(found) < 46
    assert (1 << 128) - found[-1] < 1 << 6
    chances, so_far = Errors().chances, 0.0
    for size, threshold in enumerate(found):
        so_far += chances[Errors.reach + size] * (2 if size else 1)
        assert float(Fraction(threshold, 1 << 128)) == pytest.approx(so_far, rel=1e-14)


@pytest.mark.parametrize("count", COUNTS)
def test_errors_are_discrete_gaussians(count: int) -> None:
    found, stream = Errors(), SecretStream()
    for size in in_pieces(count):
        found.add(gaussian(stream, size))
    found.check()


def test_other_errors_are_noticed() -> None:
    """Those of a deviation of 3.21, and those whose zeros are too many by a fiftieth: two million are enough."""
    for sizes in ((3.21, 1.0), (3.19, 1.02)):
        weights = np.array([math.exp(-(k**2) / (2 * sizes[0] ** 2)) * (1 if k else sizes[1]) for k in range(-20, 21)])
        found = Errors()
        found.add(np.random.default_rng(0).choice(np.arange(-20, 21), 1 << 21, p=weights / weights.sum()))
        with pytest.raises(AssertionError):
            found.check()


# ------------------------------------------------------------------------- secrets


@pytest.mark.parametrize("count", COUNTS)
def test_secrets_are_uniform_ternary(count: int) -> None:
    """One by one, and five neighbours at a time."""
    stream, counts, fives = SecretStream(), np.zeros(3, dtype=np.int64), np.zeros(243, dtype=np.int64)
    for size in in_pieces(count):
        drawn = ternary(stream, size) + 1
        counts += np.bincount(drawn, minlength=3)
        fives += np.bincount(drawn[: size // 5 * 5].reshape(-1, 5) @ 3 ** np.arange(5), minlength=243)
    assert fits(counts, [1 / 3] * 3)
    assert fits(fives, [1 / 243] * 243)
    assert abs(int(counts[2] - counts[0])) < 6 * math.sqrt(2 / 3 * counts.sum())


@pytest.mark.parametrize("times", [2000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_sparse_secrets_have_their_weight(times: int) -> None:
    size, stream = 1 << 10, SecretStream()
    counts = np.zeros((2, size), dtype=np.int64)
    for _ in range(times):
        drawn = sparse_ternary(stream, size, 32)
        assert np.count_nonzero(drawn) == 32
        counts += drawn == 1, drawn == -1
    # Within one secret places are without repetition, which makes their counts a little more even than chi-square expects.
    assert fits(counts.sum(axis=0), [1 / size] * size)
    assert fits(counts.sum(axis=1), [0.5, 0.5])
    # All places, where nearly every draw hits one that is taken.
    assert np.count_nonzero(sparse_ternary(stream, 64, 64)) == 64


def test_no_two_streams_are_the_same() -> None:
    seen = {SecretStream().octets(32).tobytes() for _ in range(1000)}
    assert len(seen) == 1000
    assert SecretStream(bytes(32)).octets(32).tobytes() == SecretStream(bytes(32)).octets(32).tobytes()


# ------------------------------------------------------------------------- uniform residues


class Residues:
    """Counts of residues modulo a prime by their highest and by their lowest ten bits, and sums of their powers."""

    def __init__(self, prime: int) -> None:
        self.prime, self.shift = prime, max(0, prime.bit_length() - 10)
        self.high, self.low = np.zeros(1 << 10, dtype=np.int64), np.zeros(1 << 10, dtype=np.int64)
        self.sums, self.neighbours = np.zeros(4), 0.0

    def add(self, row: Array) -> None:
        assert int(row.max()) < self.prime
        self.high += np.bincount((row >> np.uint64(self.shift)).astype(np.int64), minlength=1 << 10)
        self.low += np.bincount((row & np.uint64(1023)).astype(np.int64), minlength=1 << 10)
        scaled = row * (1.0 / self.prime) - 0.5
        self.sums += [float((scaled**power).sum()) for power in (1, 2, 3, 4)]
        self.neighbours += float(scaled[1:] @ scaled[:-1])

    def check(self) -> None:
        q, total = self.prime, int(self.high.sum())
        width = 1 << self.shift
        most = -(-q // width)
        assert fits(self.high[:most], [min(width, q - i * width) / q for i in range(most)])
        assert not self.high[most:].any()
        assert fits(self.low, [(q - i + 1023) // 1024 / q for i in range(1024)])
        # Of a number that is uniform between -1/2 and 1/2; that it is a fraction changes these by 1 / q.
        for power, found in zip((1, 2, 3, 4), self.sums / total, strict=True):
            expected, square = (0.5**power / (power + 1) if power % 2 == 0 else 0.0), 0.25**power / (2 * power + 1)
            assert abs(found - expected) < 6 * math.sqrt((square - expected**2) / total) + power / q, power
        assert abs(self.neighbours) < 6 / 12 * math.sqrt(total) + total / q


# A small one, one that leaves a sixteenth of all words out, and one that would show by 3 % if none were left out.
UNEVEN = (1 << 65) // 33 | 1


@pytest.mark.parametrize("prime", [(1 << 15) + 3, (1 << 60) + 33, UNEVEN])
@pytest.mark.parametrize("count", COUNTS)
def test_residues_are_uniform(count: int, prime: int) -> None:
    found, seed = Residues(prime), fresh_seed()
    row = np.empty(1 << 17, dtype=np.uint64)
    for number in range(-(-count // row.size)):
        uniform_into(row, seed + number.to_bytes(4, "little"), prime)
        found.add(row)
    found.check()


def test_residues_that_are_not_uniform_are_noticed() -> None:
    """Words with none left out, and even numbers alone."""
    words = np.random.default_rng(0).integers(1 << 64, size=1 << 21, dtype=np.uint64)
    for row in (words % np.uint64(UNEVEN), words // np.uint64(34) * np.uint64(2)):
        found = Residues(UNEVEN)
        found.add(row)
        with pytest.raises(AssertionError):
            found.check()


# ------------------------------------------------------------------------- OpenFHE's own

OPENFHES = Ring(14, 50, 40, 9, 10, None)


def errors_of(rows: Array, ring: Ring, prime: int, secret: Array) -> Array:
    """The errors in pairs (a, b) of rows modulo one prime, where b + a s = e: (pairs, N)."""
    known = arithmetic(ring.ring_dim, (prime,))
    factor, made = known.factor(secret, 0), []
    for a, b in rows:
        opened = known.row(b, 0)
        known.add_product(opened, known.row(a, 0), factor, 0)
        made.append(centered(known.backward(opened, 0), prime))
    return np.stack(made)


@pytest.mark.slow
def test_openfhe_draws_the_same() -> None:
    """Errors and uniform halves of its keys, ten million of each; errors of its encryptions, five million; its secrets.

    The errors of its keys are smaller than it means them to be (docs/security.md); ours are not.
    """
    pytest.importorskip("openfhe")
    from heliograph.runtime.openfhe.cryptor import OpenFHECryptor
    from heliograph.runtime.openfhe.serial import blocks_of, key_template, residues_of, serialize

    ring, key = OPENFHES, EvaluationKey("r", OPENFHES, "relinearization")
    moduli, template = key_form(key).moduli, key_template(key)
    prime, towers = moduli[-1], len(moduli) // 2 // ring.digits
    theirs = OpenFHECryptor(ring)
    ours = Cryptor.from_secret_bytes(ring, theirs.secret_bytes(), theirs.tag)
    last = ours._basis(ring).values[-1]
    drawn, uniform = Errors(1.0), Residues(prime)
    for _ in range(62):
        rows = blocks_of(serialize(theirs.evaluation_key(key)), template).reshape(2, ring.digits, towers, ring.ring_dim)
        a, b = rows[:, :, -1]
        uniform.add(a.ravel())
        drawn.add(errors_of(np.stack([a, b], axis=1), ring, prime, last).ravel())
    assert drawn.counts.sum() > 10**7
    uniform.check()
    drawn.check()

    first, encrypted = ours._basis(ring).values[0], Errors()
    for _ in range(310):
        b, a = residues_of(theirs.encrypt(np.zeros(ring.slots), 0, 40.0), ring, 0)[:, 0]
        encrypted.add(errors_of(np.stack([[a, b]]), ring, ring.primes[0], first).ravel())
    assert encrypted.counts.sum() > 5 * 10**6
    encrypted.check()

    counts, known = np.zeros(3, dtype=np.int64), arithmetic(ring.ring_dim, ring.primes[:1])
    for _ in range(60):
        values = np.frombuffer(OpenFHECryptor(ring).secret_bytes(), "<u8", ring.ring_dim).astype(np.uint64)
        coefficients = centered(known.backward(known.row(values, 0), 0), ring.primes[0])
        counts += np.bincount(coefficients + 1, minlength=3)
    assert fits(counts, [1 / 3] * 3)


@pytest.mark.parametrize("kind", ["relinearization", "rotation"])
def test_errors_of_our_keys_have_the_deviation_that_the_table_is_for(kind: str) -> None:
    """Opened as OpenFHE's are above."""
    ring, key = OPENFHES, EvaluationKey("k", OPENFHES, kind, int(kind == "rotation"))
    cryptor, form, found = Cryptor(ring), key_form(key), Errors()
    rows = np.empty((len(form.moduli), ring.ring_dim), dtype=np.uint64)
    form.read(cryptor.evaluation_key_bytes(key), cryptor.tag, "a key", list(rows))
    secret = cryptor._basis(ring).values[-1]
    if kind == "rotation":
        secret = secret[automorphism_places(ring.ring_dim, pow(key.index, -1, 2 * ring.ring_dim))]
    pairs = rows.reshape(2, ring.digits, -1, ring.ring_dim)[:, :, -1].swapaxes(0, 1)
    found.add(errors_of(pairs, ring, form.moduli[-1], secret).ravel())
    found.check()
