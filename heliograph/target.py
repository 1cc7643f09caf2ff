"""What a ring can carry and what it costs: the security table, the modulus chain, and the prices of primitives."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from heliograph.errors import SecurityError

# Largest log2(PQ) for 128-bit classical security, uniform ternary secret, sigma 3.19, by log2 of the ring dimension:
# Bossuat et al., "Security Guidelines for Implementing Homomorphic Encryption" (2024), table 5.2. It is stricter than the
# table of 2018 that OpenFHE 1.6.1 checks (27, 54, 109, 218, 438, 881, then the same) and has the same estimator's limits
# for all dimensions; docs/security.md says how to compute them again.
MAX_LOG_PQ_128 = {10: 26, 11: 53, 12: 106, 13: 214, 14: 430, 15: 868, 16: 1747, 17: 3523}
SPECIAL_PRIME_BITS = 60
SIGMA = 3.19
MAX_PRIME_BITS = 60
MIN_SCALE_BITS = 20
# What OpenFHE's bootstrapping takes besides its two linear transforms, under a sparse encapsulated secret: the modular
# reduction after CoeffsToSlots, and before SlotsToCoeffs one product that brings the message to its place.
MODULAR_REDUCTION_LEVELS = 10
ADJUSTMENT_LEVELS = 1
MODULAR_REDUCTION_PRODUCTS = 20
# OpenFHE's bootstrap takes this share of what its operations would cost one by one: it keeps sums of rotations in the
# extended basis. (Six settings at N = 2**16 lie between 0.66 and 0.77.)
_BOOTSTRAP_SHARE = 0.7


def max_log_pq(log_ring: int, security_bits: int) -> int:
    """The largest log2(PQ) that keeps the security asked for."""
    if security_bits != 128:
        raise SecurityError(
            f"a security level of {security_bits} bits is not in our table",
            why="the table has 128 bits, classical",
            hint="use security_bits=128 (or None, for tests, without any security)",
        )
    if log_ring not in MAX_LOG_PQ_128:
        raise SecurityError(f"ring dimension 2^{log_ring} is not in the security table")
    return MAX_LOG_PQ_128[log_ring]


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
    """There are not enough primes of the size wanted."""


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
    """The primes q_0 .. q_levels, as OpenFHE chooses them with FIXEDMANUAL scaling.

    All are 1 modulo 2N. q_levels is the first above 2**scale_bits, then alternately the next below and the next above;
    q_0 is the last below 2**first_mod_bits, or, where it has the size of the others, the next above all of them. The
    backend refuses to run if OpenFHE's chain is another one. Empty where so many primes of that size do not exist.
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


@dataclass(frozen=True, slots=True)
class Ring:
    """The parameters of one modulus chain: HYBRID key switching, uniform ternary secret, FIXEDMANUAL scaling.

    `digits` splits the chain for key switching; each digit has at most `alpha` primes, and `special` primes of 60 bits
    cover the largest digit.

    `bootstrap` has the levels that a bootstrap spends on (CoeffsToSlots, SlotsToCoeffs), None where there is none.
    SlotsToCoeffs comes first, at the low end of the chain: a value enters at `bootstrap_input_level` and comes back at
    `bootstrap_level`.

    With two `bootstrap_iterations` a bootstrap is followed by one of what it left over, which takes a level more (Bae,
    Cheon, Cho, Kim and Kim, "META-BTS", 2022).

    With `chain_levels` the ring is a lower part of the chain of that many levels: its first `levels` + 1 primes, with
    digits and special primes of its own. The secret is the same; keys made here are smaller (see `lower`).
    """

    log_ring: int
    first_mod_bits: int
    scale_bits: int
    levels: int
    digits: int
    security_bits: int | None = 128
    bootstrap: tuple[int, int] | None = None
    chain_levels: int | None = None
    bootstrap_iterations: int = 1

    @property
    def ring_dim(self) -> int:
        return 1 << self.log_ring

    @property
    def slots(self) -> int:
        return self.ring_dim // 2

    @property
    def towers(self) -> int:
        return self.levels + 1

    @property
    def alpha(self) -> int:
        return -(-self.towers // self.digits)

    @property
    def special(self) -> int:
        """How many special primes OpenFHE takes: they have four bits more than the longest digit."""
        sum_of_bits = self.first_mod_bits + (self.alpha - 1) * self.scale_bits
        # The primes lie on both sides of the powers of two: their product has this many bits or one more.
        if (sum_of_bits + 4) % SPECIAL_PRIME_BITS:
            return self.special_for_security
        primes, alpha = self.primes, self.alpha
        longest = max(math.prod(primes[i : i + alpha]).bit_length() for i in range(0, self.towers, alpha))
        return -(-(longest + 4) // SPECIAL_PRIME_BITS)

    @property
    def special_for_security(self) -> int:
        """How many special primes OpenFHE assumes when it judges the security: one more than it takes, sometimes."""
        return -(-(self.first_mod_bits + (self.alpha - 1) * self.scale_bits + 5) // SPECIAL_PRIME_BITS)

    @property
    def primes(self) -> tuple[int, ...]:
        whole = self.levels if self.chain_levels is None else self.chain_levels
        return chain_primes(self.log_ring, self.first_mod_bits, self.scale_bits, whole)[: self.towers]

    @property
    def log_primes(self) -> tuple[float, ...]:
        return tuple(math.log2(q) for q in self.primes)

    @property
    def log_pq(self) -> float:
        """log2 of the largest modulus that a key is published under; infinite where the chain does not exist."""
        if not self.primes:
            return math.inf
        return sum(self.log_primes) + self.special * SPECIAL_PRIME_BITS

    @property
    def legal(self) -> bool:
        """Whether the digits split the chain as OpenFHE accepts, and every prime has a size that exists."""
        return (
            1 <= self.digits <= self.towers
            and self.alpha * (self.digits - 1) < self.towers
            and self.first_mod_bits <= MAX_PRIME_BITS
            and self.scale_bits <= self.first_mod_bits
            # Primes that are 1 modulo 2N lie about 2N ln(q) apart; all must lie close to 2**scale_bits.
            and self.towers * 2 * self.ring_dim * 0.7 * self.scale_bits < 2.0 ** (self.scale_bits - 2)
            and bool(self.primes)
            and (self.bootstrap is None or self.bootstrap_level > self.bootstrap_input_level)
        )

    @property
    def secure(self) -> bool:
        """Whether log2(PQ) is within the table for the security asked for (always, where none was)."""
        if self.security_bits is None:
            return True
        limit = max_log_pq(self.log_ring, self.security_bits)
        # OpenFHE wants the sum of the nominal sizes below the limit, not at it; we want the true sizes within it.
        special_bits = self.special_for_security * SPECIAL_PRIME_BITS
        roughly = self.first_mod_bits + self.levels * self.scale_bits + special_bits
        if roughly >= limit:
            return False
        return self.log_pq + special_bits - self.special * SPECIAL_PRIME_BITS <= limit

    def digits_at(self, towers: int) -> int:
        """Key-switching digits in use with so many towers left."""
        return -(-towers // self.alpha)

    @property
    def bootstrap_input_level(self) -> int:
        """Where a value must stand to be bootstrapped."""
        assert self.bootstrap is not None
        return self.bootstrap[1] + ADJUSTMENT_LEVELS

    @property
    def bootstrap_level(self) -> int:
        """Where a bootstrapped value comes back."""
        assert self.bootstrap is not None
        return self.levels - self.bootstrap[0] - MODULAR_REDUCTION_LEVELS - (self.bootstrap_iterations - 1)

    def lower(self, level: int, digits: int) -> Ring:
        """The lower part of this chain up to `level`, with digits of its own."""
        return replace(
            self,
            levels=level,
            digits=digits,
            bootstrap=None,
            chain_levels=self.chain_levels or self.levels,
            bootstrap_iterations=1,
        )

    @property
    def rotation_key_bytes(self) -> int:
        return 2 * self.digits * (self.towers + self.special) * self.ring_dim * 8

    def ciphertext_bytes(self, level: int, parts: int = 2) -> int:
        return parts * (level + 1) * self.ring_dim * 8

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            "log_ring": self.log_ring,
            "first_mod_bits": self.first_mod_bits,
            "scale_bits": self.scale_bits,
            "levels": self.levels,
            "digits": self.digits,
            "security_bits": self.security_bits,
        }
        if self.bootstrap is not None:
            made["bootstrap"] = list(self.bootstrap)
        if self.bootstrap_iterations > 1:
            made["bootstrap_iterations"] = self.bootstrap_iterations
        return made

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Ring:
        """The ring that `to_json` described."""
        bootstrap = value.get("bootstrap")
        return Ring(**{**value, "bootstrap": None if bootstrap is None else tuple(bootstrap)})


@dataclass(frozen=True, slots=True)
class CostTable:
    """Milliseconds of the primitives, by a linear model of their transforms and products.

    `ntt_ns` prices one butterfly layer of one coefficient, `mul_ns` one modular product of one coefficient, `conv_ns` one
    product of a base conversion, `add_ns` one sum, `encode_ns` one layer of the encoder's complex transform; `call_us` is
    the overhead of a call and `switch_us` that of each half of a key switch; `sample_ns` prices one random coefficient of
    a key. Fitted to medians on `machine`.
    """

    machine: str
    ntt_ns: float
    mul_ns: float
    conv_ns: float
    add_ns: float
    encode_ns: float
    call_us: float
    switch_us: float
    sample_ns: float = 30.0

    def _ms(self, ring: Ring, ntts: float, muls: float, convs: float) -> float:
        n = ring.ring_dim
        return (
            ntts * n * ring.log_ring * self.ntt_ns + muls * n * self.mul_ns + convs * n * self.conv_ns
        ) * 1e-6 + self.call_us * 1e-3

    def decompose_ms(self, ring: Ring, towers: int) -> float:
        """Splitting a ciphertext into digits and raising each (done once for hoisted rotations)."""
        digits, k, alpha = ring.digits_at(towers), ring.special, ring.alpha
        parts = [min(alpha, towers - i * alpha) for i in range(digits)]
        ntts = towers + sum(towers + k - part for part in parts)
        convs = sum(part * (towers + k - part) for part in parts)
        return self._ms(ring, ntts, 0.0, convs) + self.switch_us * 1e-3

    def switch_ms(self, ring: Ring, towers: int) -> float:
        """The product with a key and the division by the special primes."""
        digits, k = ring.digits_at(towers), ring.special
        ms = self._ms(ring, 2 * (k + towers), 2 * digits * (towers + k), 2 * k * towers)
        return ms + self.switch_us * 1e-3

    def rotate_ms(self, ring: Ring, level: int, hoisted: bool = False) -> float:
        """One rotation; a hoisted one shares the decomposition, which is priced apart."""
        towers = level + 1
        ms = self.switch_ms(ring, towers) + self._ms(ring, 0, 2 * towers, 0)
        return ms if hoisted else ms + self.decompose_ms(ring, towers)

    def relinearize_ms(self, ring: Ring, level: int) -> float:
        return self.switch_ms(ring, level + 1) + self.decompose_ms(ring, level + 1)

    def mul_plain_ms(self, ring: Ring, level: int, parts: int = 2) -> float:
        return self._ms(ring, 0, parts * (level + 1), 0)

    def mul_ms(self, ring: Ring, level: int) -> float:
        """A product of two ciphertexts, not relinearized."""
        return self._ms(ring, 0, 4 * (level + 1), 0)

    def bootstrap_ms(self, ring: Ring, slots: int, paired: bool = False) -> float:
        """One bootstrap of that many slots: its rotations, products and rescales at the levels where they happen.

        CoeffsToSlots at the top and SlotsToCoeffs at the bottom take log2(slots) butterfly layers in as many maps as they
        have levels, with baby and giant steps; the modular reduction between is a polynomial with about thirty products.
        A bootstrap that keeps imaginary parts reduces twice; sparse values are first summed over their copies. A second
        iteration takes as long as the first (measured: 1.8 to 2.2 times in all).
        """
        assert ring.bootstrap is not None
        layers = slots.bit_length() - 1
        total, level = 0.0, ring.levels
        total += (ring.slots.bit_length() - 1 - layers) * self.rotate_ms(ring, level)
        for maps, top in ((ring.bootstrap[0], ring.levels), (ring.bootstrap[1], ring.bootstrap_input_level)):
            for i in range(maps):
                level = top - i
                diagonals = 2 ** (-(-layers // maps) + 1) - 1
                baby = 2 ** math.ceil(math.log2(diagonals) / 2)
                total += self.decompose_ms(ring, level + 1) + baby * self.rotate_ms(ring, level, hoisted=True)
                total += -(-diagonals // baby) * self.rotate_ms(ring, level)
                total += 1.3 * diagonals * self.mul_plain_ms(ring, level) + self.rescale_ms(ring, level)
        begin = ring.levels - ring.bootstrap[0]
        for i in range(MODULAR_REDUCTION_PRODUCTS):
            level = begin - i * MODULAR_REDUCTION_LEVELS // MODULAR_REDUCTION_PRODUCTS
            each = self.mul_ms(ring, level) + self.relinearize_ms(ring, level) + self.rescale_ms(ring, level)
            total += each * (2 if paired else 1)
        return _BOOTSTRAP_SHARE * total * ring.bootstrap_iterations

    def rescale_ms(self, ring: Ring, level: int, parts: int = 2) -> float:
        return self._ms(ring, parts * (level + 1), parts * level, 0)

    def add_ms(self, ring: Ring, level: int, parts: int = 2) -> float:
        return parts * (level + 1) * ring.ring_dim * self.add_ns * 1e-6 + self.call_us * 1e-3

    def encode_ms(self, ring: Ring, level: int) -> float:
        """Encoding one vector of all slots at a level: a complex transform and one transform per prime."""
        return self._ms(ring, level + 1, 0, 0) + ring.ring_dim * ring.log_ring * self.encode_ns * 1e-6

    def key_ms(self, ring: Ring) -> float:
        """Making one evaluation key: an encryption of zero for each digit, over all primes."""
        parts = ring.digits * (ring.towers + ring.special)
        return parts * ring.ring_dim * (ring.log_ring * self.ntt_ns + self.sample_ns) * 1e-6

    def encrypt_ms(self, ring: Ring, level: int) -> float:
        """Encoding and encrypting one vector under the secret key."""
        towers = level + 1
        fresh = towers * ring.ring_dim * (ring.log_ring * self.ntt_ns + self.sample_ns) * 1e-6
        return self.encode_ms(ring, level) + fresh

    def decrypt_ms(self, ring: Ring) -> float:
        """Decrypting and decoding one ciphertext at level 0."""
        # Decoding and the copy into an array take about five times what encoding takes.
        return self._ms(ring, 1, 2, 0) + 5 * ring.ring_dim * ring.log_ring * self.encode_ns * 1e-6


# Two cores of an AMD EPYC virtual machine, OpenFHE 1.6.1 from its wheel, two OpenMP threads.
BUILT_IN = CostTable(
    "built in", ntt_ns=0.76, mul_ns=1.9, conv_ns=0.22, add_ns=1.0, encode_ns=2.5, call_us=50.0, switch_us=430.0
)


@dataclass(frozen=True, slots=True)
class Target:
    """The rings to choose from and the prices to choose by."""

    security_bits: int | None = 128
    log_rings: tuple[int, ...] = (12, 13, 14, 15, 16, 17)
    costs: CostTable = field(default=BUILT_IN)
