"""CKKS in Python integers: the reference for the results of a backend.

Polynomials are object arrays (primes, N), ciphertexts (parts, primes, N), of numbers below their primes, in evaluation
form: value j is taken at psi^(2 r(j) + 1), where r reverses the bits of j and psi is the smallest root of order 2N.
Nothing is fast, and no code is shared with the tested backends.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from heliograph.ckks.ring import Ring
from heliograph.errors import ProgramError
from heliograph.execution.protocol import Composed
from heliograph.ir import Array

# (kind, amount) -> the residues of a key, (2, digits, primes, N): b, then a; the special primes come last.
KeyOf = Callable[[str, int], Array]


def column(numbers: Sequence[int]) -> Array:
    """Integers as a column, one for each row of a polynomial."""
    return np.array(numbers, dtype=object)[:, np.newaxis]


@functools.cache
def exponents(ring_dim: int) -> tuple[int, ...]:
    """For each value of a polynomial, the power of psi at which it is taken."""
    bits = ring_dim.bit_length() - 1
    return tuple(2 * int(f"{j:0{bits}b}"[::-1], 2) + 1 for j in range(ring_dim))


@functools.cache
def root(ring_dim: int, prime: int) -> int:
    """The smallest number of order 2N modulo a prime."""
    found = next(
        power
        for base in range(2, prime)
        if pow(power := pow(base, (prime - 1) // (2 * ring_dim), prime), ring_dim, prime) != 1
    )
    odd, square = [found], found * found % prime
    for _ in range(ring_dim - 1):
        odd.append(odd[-1] * square % prime)
    return min(odd)


@functools.lru_cache(maxsize=256)
def _powers(ring_dim: int, prime: int, inverse: bool) -> Array:
    """psi^r(j), or its inverse, for each j."""
    psi = root(ring_dim, prime)
    if inverse:
        psi = pow(psi, -1, prime)
    powers = [1]
    for _ in range(ring_dim - 1):
        powers.append(powers[-1] * psi % prime)
    return np.array([powers[(e - 1) // 2] for e in exponents(ring_dim)], dtype=object)


def forward(rows: Array, primes: Sequence[int]) -> Array:
    """The values of polynomials (primes, N), given by coefficients."""
    count, n = rows.shape
    roots = np.stack([_powers(n, q, False) for q in primes])
    moduli = column(primes)[..., np.newaxis]
    values, blocks = rows.reshape(count, 1, n), 1
    while blocks < n:
        low, high = np.split(values, 2, axis=2)
        turned = high * roots[:, blocks : 2 * blocks, np.newaxis] % moduli
        blocks *= 2
        values = np.stack([low + turned, low - turned], axis=2).reshape(count, blocks, n // blocks)
    return values.reshape(count, n) % column(primes)


def backward(rows: Array, primes: Sequence[int]) -> Array:
    """The coefficients of polynomials (primes, N), given by values."""
    count, n = rows.shape
    roots = np.stack([_powers(n, q, True) for q in primes])
    moduli = column(primes)[..., np.newaxis]
    found, blocks = rows.reshape(count, n, 1), n
    while blocks > 1:
        blocks //= 2
        pairs = found.reshape(count, blocks, 2, n // blocks // 2)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        turned = (low - high) * roots[:, blocks : 2 * blocks, np.newaxis] % moduli
        found = np.concatenate([low + high, turned], axis=2)
    return found.reshape(count, n) * column([pow(n, -1, q) for q in primes]) % column(primes)


def centred(rows: Array, primes: Sequence[int]) -> Array:
    """The integers (N) with these residues (primes, N), at most half of the primes' product in size."""
    whole = math.prod(primes)
    parts = [row * pow(whole // q, -1, q) % q * (whole // q) for row, q in zip(rows, primes, strict=True)]
    found = sum(parts) % whole
    return np.where(found > whole // 2, found - whole, found)


def turned(rows: Array, index: int) -> Array:
    """The values of m(X^index), from the values of m."""
    powers = exponents(n := rows.shape[-1])
    place = {power: j for j, power in enumerate(powers)}
    return rows[..., [place[power * index % (2 * n)] for power in powers]]


def divided(rows: Array, kept: Sequence[int], last: Sequence[int], nearest: bool) -> Array:
    """A polynomial modulo the primes `kept` and `last`, divided by the product P of the last.

    First Σ_i [m (P / p_i)^-1 mod p_i] P / p_i is subtracted. It exceeds the remainder by a multiple of P, up to the
    number of last primes. With `nearest` this sum is first reduced by the nearest multiple of P; without, it is used as
    it is, as OpenFHE rounds key switches.
    """
    whole = math.prod(last)
    parts = column([whole // p for p in last])
    coefficients = backward(rows[len(kept) :], last)
    rest = (coefficients * column([pow(whole // p, -1, p) for p in last]) % column(last) * parts).sum(axis=0)
    if nearest:
        rest = rest - (2 * rest + whole) // (2 * whole) * whole
    taken = forward(rest % column(kept), kept)
    return (rows[: len(kept)] - taken) * column([pow(whole, -1, q) for q in kept]) % column(kept)


def switched(
    rows: Array, key: Array, primes: Sequence[int], special: Sequence[int], alpha: int, nearest: bool, index: int = 1
) -> Array:
    """A polynomial times a key's source secret, under the key's target secret, with X^index for X: (2, primes, N).

    The construction is by Han and Ki (2020): for each digit d_g of `alpha` primes with product D, the integer
    Σ_i [m (D / p_i)^-1 mod p_i] D / p_i, modulo all primes, is multiplied by the key of the digit. X^index is put into
    the sum, which is then `divided` by the special primes.
    """
    every = (*primes, *special)
    places = [*range(len(primes)), *range(key.shape[2] - len(special), key.shape[2])]
    wide = np.zeros((2, len(every), rows.shape[1]), dtype=object)
    for digit, begin in enumerate(range(0, len(primes), alpha)):
        own = primes[begin : begin + alpha]
        whole = math.prod(own)
        coefficients = backward(rows[begin : begin + alpha], own)
        scaled = coefficients * column([pow(whole // p, -1, p) for p in own]) % column(own)
        number = (scaled * column([whole // p for p in own])).sum(axis=0)
        wide += forward(number % column(every), every) * key[:, digit, places].astype(object)
    return np.stack([divided(part, primes, special, nearest) for part in turned(wide % column(every), index)])


class Exact(Composed):
    """The primitives (execution/protocol.py) in the chain of `ring`. Plaintexts are polynomials; nothing encodes them.

    `special`: the special primes.
    `sparse`: the special primes of the key to the sparse secret, if the ring bootstraps.
    """

    def __init__(self, ring: Ring, key_of: KeyOf, special: Sequence[int], sparse: Sequence[int] = ()) -> None:
        self.ring, self.special, self._key_of, self._sparse = ring, special, key_of, sparse
        self._nearest = ring.rounds_to_nearest

    def describe(self, x: Array) -> tuple[int, int]:
        return x.shape[1] - 1, x.shape[0]

    def _primes(self, x: Array) -> tuple[int, ...]:
        return self.ring.primes[: x.shape[-2]]

    def _reduced(self, x: Array) -> Array:
        return x % column(self._primes(x))

    def add(self, x: Array, y: Array) -> Array:
        parts = max(len(x), len(y))
        total = np.zeros((parts, *x.shape[1:]), dtype=object)
        total[: len(x)] += x
        total[: len(y)] += y
        return self._reduced(total)

    accumulate = add

    def negate(self, x: Array) -> Array:
        return self._reduced(-x)

    def sub(self, x: Array, y: Array) -> Array:
        return self.add(x, -y)

    def mul(self, x: Array, y: Array) -> Array:
        return self._reduced(np.stack([x[0] * y[0], x[0] * y[1] + x[1] * y[0], x[1] * y[1]]))

    def add_plain(self, x: Array, plain: Array) -> Array:
        return self.add(x, plain[np.newaxis])

    def mul_plain(self, x: Array, plain: Array) -> Array:
        return self._reduced(x * plain)

    def mul_scalar(self, x: Array, value: float, log_scale: float) -> Array:
        return self._reduced(x * rounded(value, log_scale))

    def sums_of_products(
        self, values: Sequence[Array], plains: Sequence[Array], groups: Sequence[Sequence[tuple[int, int]]]
    ) -> list[Array]:
        return [self._sum((values[i], plains[k]) for i, k in group) for group in groups]

    def weighted_sums(self, values: Sequence[Array], weights: Any, log_scale: float) -> list[Array]:
        rows = [[rounded(weight, log_scale) for weight in row] for row in weights.toarray().tolist()]
        return [self._sum(zip(values, row, strict=True)) for row in rows]

    def _sum(self, terms: Iterable[tuple[Array, Any]]) -> Array:
        return self._reduced(functools.reduce(np.add, (x * plain for x, plain in terms)))

    def times_i(self, x: Array) -> Array:
        """A product with X^(N/2), which is i at the first value of each conjugate pair, that is, in the slots."""
        primes = self._primes(x)
        monomial = np.zeros((len(primes), self.ring.ring_dim), dtype=object)
        monomial[:, self.ring.ring_dim // 2] = 1
        return self._reduced(x * forward(monomial, primes))

    def _switched(self, rows: Array, kind: str, amount: int = 0, index: int = 1) -> Array:
        key = self._key_of(kind, amount)
        return switched(rows, key, self._primes(rows), self.special, self.ring.alpha, self._nearest, index)

    def _moved(self, x: Array, kind: str, amount: int, index: int) -> Array:
        return self.add(self._switched(x[1], kind, amount, index), turned(x[:1], index))

    def relinearize(self, x: Array) -> Array:
        return self.add(x[:2], self._switched(x[2], "relinearization"))

    def rotate(self, x: Array, amount: int) -> Array:
        return self._moved(x, "rotation", amount, pow(5, amount, 2 * self.ring.ring_dim))

    def decompose(self, x: Array) -> Array:
        return x

    def rotate_hoisted(self, x: Array, amount: int, digits: Array) -> Array:
        return self.rotate(x, amount)

    def conjugate(self, x: Array) -> Array:
        return self._moved(x, "conjugation", 0, 2 * self.ring.ring_dim - 1)

    def rescale(self, x: Array) -> Array:
        *kept, last = self._primes(x)
        return np.stack([divided(part, kept, [last], True) for part in x])

    def level_drop(self, x: Array, levels: int) -> Array:
        return x[:, : x.shape[1] - levels]

    def move(self, x: Array, level: int) -> Array:
        return x

    def reread(self, x: Array, log_scale: float) -> Array:
        return x

    def raise_modulus(self, x: Array, slots: int, share: float | None = None) -> Array:
        """Switch to the sparse secret, raise the modulus, and switch back; coefficients are centred in between."""
        first, primes = self.ring.primes[:1], self.ring.primes
        there = self._key_of("there", 0)
        sparse = self.add(switched(x[1], there, first, self._sparse, 1, self._nearest), x[:1])
        raised = np.stack([forward(centred(backward(part, first), first) % column(primes), primes) for part in sparse])
        return self.add(self._switched(raised[1], "back"), raised[:1])

    def encode(self, values: Array | float, log_scale: float, level: int, beside: Any = None) -> Array:
        raise ProgramError("plaintexts have an error bound instead of an exact result")

    constant = diagonal = encode


def rounded(value: float, log_scale: float) -> int:
    """A number times 2^log_scale, rounded to the nearest integer."""
    whole = math.floor(log_scale)
    exact = Fraction(value * 2.0 ** (log_scale - whole)) * Fraction(2) ** whole
    return math.floor(exact + Fraction(1, 2))


def coefficients(values: Array, slots: int) -> Array:
    """The coefficients (2 slots, float64) of a polynomial by its values, repeated, at exp(5^j i pi / (2 slots))."""
    n, repeated = 2 * slots, np.resize(values, slots)
    spectrum = np.zeros(n, dtype=np.complex128)
    for j, value in enumerate(repeated):
        power = pow(5, j, 2 * n)
        spectrum[(power - 1) // 2] = value
        spectrum[(2 * n - power - 1) // 2] = np.conj(value)
    found: Array = (np.fft.fft(spectrum) * np.exp(-1j * np.pi * np.arange(n) / n)).real / n
    return found
