"""The primes of a modulus chain, by OpenFHE's choice."""

from __future__ import annotations

import functools
from collections.abc import Iterable

# Residues modulo a prime below this, 2^30.2, take one word of 32 bits, others two. Eight products of two such residues,
# and such a prime times 2^32, fit into 64 bits together, so that one reduction serves eight products
# (runtime/native/kernels/vectors.py).
WORD_LIMIT = 1_234_803_097
WORD_BYTES = 4
# The longest special primes that are surely below it.
WORD_BITS = 30


def is_short(prime: int) -> bool:
    """Whether residues modulo a prime take one word."""
    return prime < WORD_LIMIT


def words(primes: Iterable[int]) -> int:
    """The words of residues modulo all of these primes."""
    return sum(1 if is_short(prime) else 2 for prime in primes)


def _is_prime(n: int) -> bool:
    """Miller-Rabin with the first twelve primes as bases: exact below 3.3e24 (Sorenson and Webster, 2015)."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    for p in bases:
        if n % p == 0:
            return n == p
    d, s = n - 1, 0
    while d % 2 == 0:
        d, s = d // 2, s + 1
    for a in bases:
        x = pow(a, d, n)
        if x in (1, n - 1):
            continue
        for _ in range(s - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


class _NoPrimeError(ArithmeticError):
    """There are not enough primes of the wanted size."""


def _step_prime(start: int, step: int, bits: int) -> int:
    """The first prime of `bits` bits, one more or one less, in steps from `start`."""
    n = start + step
    while not _is_prime(n):
        n += step
        if not bits - 1 <= n.bit_length() <= bits + 1 or n < 0:
            raise _NoPrimeError
    return n


@functools.lru_cache(maxsize=4096)
def chain_primes(log_ring: int, first_mod_bits: int, scale_bits: int, levels: int) -> tuple[int, ...]:
    """The primes q_0 .. q_levels, by OpenFHE's choice with FIXEDMANUAL scaling.

    All are 1 modulo 2N. q_levels is the first above 2**scale_bits, then alternately the next below and the next above;
    q_0 is the last below 2**first_mod_bits or, if it has the size of the others, the next above all of them. The
    backend refuses to run if OpenFHE's chain is different. Empty if this many primes of that size do not exist.
    """
    try:
        return _chain_primes(log_ring, first_mod_bits, scale_bits, levels)
    except _NoPrimeError:
        return ()


def _chain_primes(log_ring: int, first_mod_bits: int, scale_bits: int, levels: int) -> tuple[int, ...]:
    m = 2 << log_ring
    start = (1 << scale_bits) // m * m + 1
    top = _step_prime(start if start < (1 << scale_bits) else start - m, m, scale_bits)
    primes = [0] * (levels + 1)
    primes[levels] = top
    below = above = top
    for count, index in enumerate(range(levels - 1, 0, -1)):
        if count % 2 == 0:
            below = _step_prime(below, -m, scale_bits)
            primes[index] = below
        else:
            above = _step_prime(above, m, scale_bits)
            primes[index] = above
    if first_mod_bits == scale_bits:
        primes[0] = _step_prime(max(above, top), m, scale_bits)
    else:
        last = ((1 << first_mod_bits) - 1) // m * m + 1
        primes[0] = last if last < (1 << first_mod_bits) and _is_prime(last) else _step_prime(last, -m, first_mod_bits)
    return tuple(primes)


@functools.lru_cache(maxsize=256)
def largest_primes(log_ring: int, bits: int, count: int, but: tuple[int, ...]) -> tuple[int, ...]:
    """The largest primes below 2**bits that are 1 modulo 2N, except those in `but`: OpenFHE's special primes."""
    found: list[int] = []
    number = (1 << bits) + 1
    while len(found) < count:
        number = _step_prime(number, -(2 << log_ring), bits)
        if number not in but:
            found.append(number)
    return tuple(found)
