"""Arithmetic on polynomials modulo primes below 2^61 in numpy, for one-time work: tables, and the client's keys.

The values of a polynomial are in OpenFHE's order: value j is taken at psi^(2 r(j) + 1), where r reverses the bits of j
and psi is the smallest root of order 2N. All arrays hold unsigned 64-bit numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.ir import Array

_HALF, _LOW = np.uint64(32), np.uint64((1 << 32) - 1)


def ratios(numbers: Array, prime: int) -> Array:
    """floor(number 2^64 / prime) for numbers below the prime, computed bit by bit."""
    rest, q = numbers.astype(np.uint64), np.uint64(prime)
    found = np.zeros_like(rest)
    for _ in range(64):
        rest = rest << np.uint64(1)
        over = rest >= q
        found = found << np.uint64(1) | over
        rest -= over * q
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """Numbers to multiply by modulo a prime, each with its ratio (Shoup's products)."""

    numbers: Array
    ratios: Array
    prime: int

    @staticmethod
    def of(numbers: Array, prime: int) -> Factors:
        """The factors for numbers below the prime."""
        return Factors(numbers, ratios(numbers, prime), prime)

    def taken(self, places: Array) -> Factors:
        """The factors at some places."""
        return Factors(self.numbers[places], self.ratios[places], self.prime)

    def reshaped(self, *shape: int) -> Factors:
        """The factors in another shape."""
        return Factors(self.numbers.reshape(shape), self.ratios.reshape(shape), self.prime)

    def times(self, values: Array) -> Array:
        """The products with values below 2^63, canonical."""
        q = np.uint64(self.prime)
        a0, a1, b0, b1 = values & _LOW, values >> _HALF, self.ratios & _LOW, self.ratios >> _HALF
        # The quotient is at most three too small: one from the ratio, two from the omitted product of the low halves.
        quotient = a1 * b1 + ((a1 * b0) >> _HALF) + ((a0 * b1) >> _HALF)
        rest = values * self.numbers - quotient * q
        rest = np.minimum(rest, rest - (q + q))
        least: Array = np.minimum(rest, rest - q)
        return least


def total(left: Array, right: Array, prime: int) -> Array:
    """left + right modulo the prime, of canonical residues."""
    found = left + right
    least: Array = np.minimum(found, found - np.uint64(prime))
    return least


def difference(left: Array, right: Array, prime: int) -> Array:
    """left - right modulo the prime, of canonical residues."""
    found = left - right
    least: Array = np.minimum(found, found + np.uint64(prime))
    return least


def centered(values: Array, prime: int) -> Array:
    """Residues as signed numbers (int64), at most half the prime in size."""
    signed = values.astype(np.int64)
    # The sign fills all bits: no branch depends on a number.
    larger = prime // 2 - signed
    larger >>= 63
    larger &= prime
    signed -= larger
    return signed


def signed(rows: Sequence[Array], primes: Sequence[int]) -> Array:
    """The numbers with these residues, a row for each prime, at most half the product in size, as floating-point numbers.

    The digits in the mixed radix 1, q_0, q_0 q_1, ... are at most half their prime in size: small numbers have few
    digits, and the largest digit gives the number to within its last bit.
    """
    digits: list[Array] = []
    for place, q in enumerate(primes):
        rest = rows[place]
        for earlier, digit in zip(primes[:place], digits, strict=True):
            inverse = Factors.of(np.array([pow(earlier, -1, q)], dtype=np.uint64), q)
            rest = inverse.times(difference(rest, residues(digit % q, q), q))
        digits.append(centered(rest, q))
    found: Array = digits.pop().astype(np.float64)
    for digit, q in zip(reversed(digits), reversed(primes[:-1]), strict=True):
        found *= q
        found += digit
    return found


def residues(values: Array, prime: int) -> Array:
    """Signed numbers (int64) smaller than the prime as residues."""
    # The sign fills all bits: no branch depends on a number.
    found: Array = (values + (values >> 63 & prime)).view(np.uint64)
    return found


def powers(root: int, prime: int, count: int) -> Array:
    """The first powers of a number modulo the prime, from the zeroth on; `count` is a power of two."""
    found = np.ones(1, dtype=np.uint64)
    while found.size < count:
        step = np.array([pow(root, found.size, prime)], dtype=np.uint64)
        found = np.concatenate([found, Factors.of(step, prime).times(found)])
    return found


@functools.lru_cache(maxsize=512)
def smallest_root(ring_dim: int, prime: int) -> int:
    """The smallest root of order 2N, as in OpenFHE."""
    order = 2 * ring_dim
    base = 2
    while pow(root := pow(base, (prime - 1) // order, prime), ring_dim, prime) != prime - 1:
        base += 1
    return int(powers(root, prime, order)[1::2].min())


@functools.lru_cache(maxsize=16)
def bit_reversed(size: int) -> Array:
    """For each number below a power of two, the number with its bits reversed."""
    found: Array = np.zeros(size, dtype=np.int64)
    for bit in range(size.bit_length() - 1):
        found = found << 1 | np.arange(size) >> bit & 1
    return found


@functools.lru_cache(maxsize=128)
def automorphism_places(ring_dim: int, index: int) -> Array:
    """For each value of m(X^index), the place of the equal value of m(X), in the order of transforms."""
    order = bit_reversed(ring_dim)
    exponents = (2 * order + 1) * index % (2 * ring_dim)
    places: Array = order[exponents >> 1].astype(np.int32)
    return places


def forward(coefficients: Array, prime: int) -> Array:
    """The values of the polynomial with these coefficients (N)."""
    n = coefficients.size
    values = coefficients.reshape(1, n)
    roots = Factors.of(powers(smallest_root(n, prime), prime, n)[bit_reversed(n)], prime)
    while values.shape[0] < n:
        count, run = values.shape[0], values.shape[1] // 2
        low = values[:, :run]
        turned = roots.taken(np.arange(count, 2 * count)).reshaped(count, 1).times(values[:, run:])
        values = np.stack([total(low, turned, prime), difference(low, turned, prime)], axis=1).reshape(2 * count, run)
    return values.reshape(n)


def backward(values: Array, prime: int) -> Array:
    """The coefficients of the polynomial with these values (N)."""
    n = values.size
    psi = smallest_root(n, prime)
    roots = Factors.of(powers(pow(psi, -1, prime), prime, n)[bit_reversed(n)], prime)
    found: Array = values.reshape(n, 1)
    while found.shape[0] > 1:
        count, run = found.shape[0] // 2, found.shape[1]
        pairs = found.reshape(count, 2, run)
        low, high = pairs[:, 0], pairs[:, 1]
        turned = roots.taken(np.arange(count, 2 * count)).reshaped(count, 1)
        both = turned.times(difference(low, high, prime))
        found = np.concatenate([total(low, high, prime), both], axis=1)
    last = np.array([pow(n, -1, prime)], dtype=np.uint64)
    return Factors.of(last, prime).times(found.reshape(n))
