"""The parameters of a modulus chain: sizes, levels, and checks that it is legal and secure."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, field, replace

from heliograph.ckks.primes import WORD_BITS, WORD_BYTES, chain_primes, largest_primes, words
from heliograph.ckks.security import max_log_pq, sparse_attack, sparse_max_log_q
from heliograph.errors import ProgramError
from heliograph.records import bounds

# OpenFHE's own special primes, and the longest that our kernels work on in floating point (native/floating.py).
_LONG_SPECIAL_BITS = 60
_MOST_SHORT_SPECIAL_BITS = 49
# OpenFHE's special primes have four bits more than the longest digit. With this many more, the error of a key is an
# eighth of the rounding error.
_SPECIAL_ROOM = 8
SIGMA = 3.19
MAX_PRIME_BITS = 60
MIN_SCALE_BITS = 20
# No chain is longer, whether planned or read from a file.
MOST_LEVELS = 100
# The levels of a bootstrap's modular reduction, with a sparse encapsulated secret (ir/bootstraps/writer.py).
REDUCTION_LEVELS = 9
# Special primes of one word have at least this many bits more than N: there are too few shorter ones that are 1 modulo 2N.
_SPECIAL_BITS_ABOVE = 9
# The key to the sparse secret has special primes of this size, whatever the size of the chain's.
SPARSE_SPECIAL_BITS = 33


def sparse_log_q(first_mod_bits: int) -> int:
    """The bits of the modulus of the key to the sparse secret: the first prime and two special ones."""
    return first_mod_bits + 2 * SPARSE_SPECIAL_BITS


# Logarithms of primes are integer multiples of this, so sums and differences of them, such as scales, are exact below
# 2^8. A chain of squarings doubles any error in a scale, and summands must have the same scale.
_LOG_UNIT = 2.0**-45


@functools.lru_cache(maxsize=1024)
def _logs(primes: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(round(math.log2(q) / _LOG_UNIT) * _LOG_UNIT for q in primes)


def bootstrap_levels(budget: tuple[int, int]) -> int:
    """The levels that a bootstrap spends: `budget` for its two transforms, and the modular reduction's."""
    return sum(budget) + REDUCTION_LEVELS


# Without `__slots__`, so that derived values can be cached: planners use thousands of rings again and again.
@dataclass(frozen=True)
class Ring:
    """The parameters of one modulus chain: HYBRID key switching, uniform ternary secret, FIXEDMANUAL scaling.

    `log_ring`: log2 of the ring dimension.
    `first_mod_bits`, `scale_bits`: the bits of the first modulus and of the scale. In a chain that bootstraps, the
    first modulus is enough bits above the scale for the modular reduction to separate a value from its multiples
    (`bootstrap_share`).
    `levels`: the levels of the chain.
    `digits`: the digits for key switching; each has at most `alpha` primes, and `special` primes of `special_bits` bits
    cover the largest digit.
    `security_bits`: the bits of security; None for no security.
    `bootstrap`: the levels that a bootstrap spends on (CoeffsToSlots, SlotsToCoeffs); None if the chain does not
    bootstrap. SlotsToCoeffs comes first, at the low end of the chain: a value enters at `bootstrap_input_level` and
    returns at `bootstrap_level`.
    `chain_levels`: for a sub-chain, the levels of the whole chain. A sub-chain has its first `levels` + 1 primes, with
    its own digits and special primes. The secret is the same; keys are smaller, and bootstraps, if any, cheaper (see
    `lower`).
    `bootstrap_babies`: the baby steps of each map of the two transforms; 0 for OpenFHE's number. Fewer take fewer keys
    and more time (`ckks/fourier.py`).
    `short_specials`: whether special primes are as short as the digit allows, which leaves up to 50 bits more for the
    chain, and at most 49 bits, or one word where the chain's primes have one, which our kernels multiply faster.
    OpenFHE's have 60 bits.
    `of_bootstrapping`: whether it is a part of a chain that bootstraps.
    """

    log_ring: int = field(metadata=bounds(1, 17))
    first_mod_bits: int = field(metadata=bounds(15, MAX_PRIME_BITS))
    scale_bits: int = field(metadata=bounds(15, MAX_PRIME_BITS))
    levels: int = field(metadata=bounds(1, MOST_LEVELS))
    digits: int = field(metadata=bounds(1, MOST_LEVELS + 1))
    security_bits: int | None = field(default=128, metadata=bounds(choices=(128,)))
    bootstrap: tuple[int, int] | None = field(default=None, metadata=bounds(1, 8, optional=True))
    chain_levels: int | None = field(default=None, metadata=bounds(1, MOST_LEVELS, optional=True))
    bootstrap_babies: int = field(default=0, metadata=bounds(0, 64, optional=True))
    short_specials: bool = field(default=False, metadata=bounds(optional=True))
    of_bootstrapping: bool = field(default=False, metadata=bounds(optional=True))

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        """The hash, cached because prices are looked up by ring hundreds of thousands of times.

        It is of whole numbers only, because their hashes are the same in another process to which a ring is sent.
        """
        part = self.chain_levels or 0, self.bootstrap_babies
        return hash((self.log_ring, self.first_mod_bits, self.scale_bits, self.levels, self.digits, *part))

    @property
    def ring_dim(self) -> int:
        return 1 << self.log_ring

    @property
    def slots(self) -> int:
        return self.ring_dim // 2

    @property
    def towers(self) -> int:
        return self.levels + 1

    @functools.cached_property
    def alpha(self) -> int:
        return -(-self.towers // self.digits)

    @functools.cached_property
    def special_bits(self) -> int:
        """The size of the special primes: they are the largest below this power of two that are not in the chain."""
        if not self.short_specials:
            return _LONG_SPECIAL_BITS
        # The primes lie on both sides of the powers of two, so the product of a digit has its nominal size or a bit
        # more.
        needed = self._digit_bits + 1 + _SPECIAL_ROOM
        if self._short:
            return max(self.log_ring + _SPECIAL_BITS_ABOVE, -(-needed // -(-needed // WORD_BITS)))
        return max(SPARSE_SPECIAL_BITS + 1, -(-needed // -(-needed // _MOST_SHORT_SPECIAL_BITS)))

    @functools.cached_property
    def special(self) -> int:
        """The number of special primes, as in OpenFHE: together they have four bits more than the longest digit."""
        if (self._digit_bits + 4) % self.special_bits:
            return self.special_for_security
        primes, alpha = self.primes, self.alpha
        longest = max(math.prod(primes[i : i + alpha]).bit_length() for i in range(0, self.towers, alpha))
        return -(-(longest + 4) // self.special_bits)

    def hoists_twice(self, level: int) -> bool:
        """Whether baby steps at a level stay in the extended basis, undivided by the special primes, until their
        products are summed. Each product then includes these primes, which pays while they are few compared to the
        others.
        """
        return 2 * self.special_words <= self.words(level)

    @functools.cached_property
    def special_for_security(self) -> int:
        """The number of special primes in OpenFHE's security check: sometimes one more than it takes."""
        return -(-(self._digit_bits + 5) // self.special_bits)

    @property
    def special_room(self) -> int:
        """The bits by which the special primes together are longer than the longest digit."""
        return self.special * self.special_bits - self._digit_bits

    @functools.cached_property
    def _digit_bits(self) -> int:
        """The nominal size of the longest digit."""
        return self.first_mod_bits + (self.alpha - 1) * self.scale_bits

    @functools.cached_property
    def primes(self) -> tuple[int, ...]:
        whole = self.levels if self.chain_levels is None else self.chain_levels
        return chain_primes(self.log_ring, self.first_mod_bits, self.scale_bits, whole)[: self.towers]

    @functools.cached_property
    def special_primes(self) -> tuple[int, ...]:
        """The special primes of the chain's keys."""
        return largest_primes(self.log_ring, self.special_bits, self.special, self.primes)

    @functools.cached_property
    def log_primes(self) -> tuple[float, ...]:
        return _logs(self.primes)

    @functools.cached_property
    def log_pq(self) -> float:
        """log2 of the largest modulus of a published key; infinite if the chain does not exist."""
        if not self.primes:
            return math.inf
        return sum(self.log_primes) + self.special * self.special_bits

    @property
    def legal(self) -> bool:
        """Whether OpenFHE accepts the split into digits, and primes of every size exist."""
        return (
            1 <= self.digits <= self.towers
            and self.alpha * (self.digits - 1) < self.towers
            and self.first_mod_bits <= MAX_PRIME_BITS
            and self.scale_bits <= self.first_mod_bits
            # Primes that are 1 modulo 2N are about 2N ln(q) apart, and all must be close to 2**scale_bits.
            and self.towers * 2 * self.ring_dim * 0.7 * self.scale_bits < 2.0 ** (self.scale_bits - 2)
            and bool(self.primes)
            and (self.bootstrap is None or self.bootstrap_level > self.bootstrap_input_level)
            and (self.bootstrap is None or self.scale_bits != SPARSE_SPECIAL_BITS)
        )

    @property
    def secure(self) -> bool:
        """Whether its keys have the requested security (always, if none is requested)."""
        return self.security_bits is None or (self._sparse_key_holds and self._modulus_fits)

    @property
    def weakness(self) -> str:
        """Why its keys do not have the requested security; empty if they do."""
        if self.secure:
            return ""
        assert self.security_bits is not None
        if not self._sparse_key_holds:
            return (
                f"it bootstraps at ring dimension {self.ring_dim}, where the key to the sparse secret of bootstraps does "
                f"not have {self.security_bits} bits"
            )
        found = f"{self.log_pq:.1f} bits" if math.isfinite(self.log_pq) else "no size that exists"
        limit = max_log_pq(self.log_ring, self.security_bits)
        return f"its modulus PQ has {found}, and the table has {limit} for ring dimension {self.ring_dim}"

    @property
    def _sparse_key_holds(self) -> bool:
        """Whether finding the sparse secret of bootstraps costs at least the requested security, if there are any: by our
        estimate, and by a published table.
        """
        if self.bootstrap is None:
            return True
        estimated = (sparse_attack(self.log_ring) or 0) >= (self.security_bits or 0)
        return estimated and self.sparse_log_q <= sparse_max_log_q(self.log_ring)

    @property
    def sparse_log_q(self) -> int:
        """The bits of the modulus of the key to the sparse secret."""
        return sparse_log_q(self.first_mod_bits)

    @property
    def _modulus_fits(self) -> bool:
        """Whether log2(PQ) is within the table for the requested security."""
        assert self.security_bits is not None
        limit = max_log_pq(self.log_ring, self.security_bits)
        # OpenFHE wants the sum of the nominal sizes strictly below the limit; we want the true sizes within it.
        if self.nominal_log_pq >= limit:
            return False
        return self.log_pq + (self.special_for_security - self.special) * self.special_bits <= limit

    @property
    def nominal_log_pq(self) -> int:
        """The sum of the nominal sizes: no primes are needed for it."""
        special_bits = self.special_for_security * self.special_bits
        return self.first_mod_bits + self.levels * self.scale_bits + special_bits

    def digits_at(self, towers: int) -> int:
        """Key-switching digits in use with this many towers left."""
        return -(-towers // self.alpha)

    @property
    def bootstrap_input_level(self) -> int:
        """The level at which a value enters a bootstrap."""
        assert self.bootstrap is not None
        return self.bootstrap[1]

    @property
    def bootstrap_level(self) -> int:
        """The level at which a bootstrapped value returns."""
        assert self.bootstrap is not None
        return self.levels + self.bootstrap_input_level - bootstrap_levels(self.bootstrap)

    @property
    def bootstrap_share(self) -> int:
        """The message ratio: the first modulus over the size of a value of one at the nominal scale, in a bootstrap.

        Larger messages keep more of a coarse scale, smaller ones bend the sine of the reduction less.
        """
        return 1 << self.first_mod_bits - self.scale_bits

    @property
    def rounds_to_nearest(self) -> bool:
        """Whether key switches round to the nearest, as bootstraps and compositions of polynomials need; otherwise they
        round as in OpenFHE, down by half the number of special primes on average.
        """
        return self.bootstrap is not None or self.of_bootstrapping or self.short_specials

    @property
    def _short(self) -> bool:
        """Whether special primes have one word because the chain's primes have."""
        return self.short_specials and self.scale_bits <= WORD_BITS

    def lower(self, level: int, digits: int, bootstraps: bool = False) -> Ring:
        """The sub-chain up to `level`, with its own digits.

        If it `bootstraps`, it does so with this chain's level budgets: a value enters at the same level, its modulus is
        raised to `level` only, and it returns as many levels lower as the sub-chain is shorter.
        """
        if bootstraps and self.bootstrap is None:
            raise ProgramError("a lower part of a chain bootstraps, and its whole chain does not")
        return replace(
            self,
            levels=level,
            digits=digits,
            bootstrap=self.bootstrap if bootstraps else None,
            chain_levels=self.chain_levels or self.levels,
            bootstrap_babies=self.bootstrap_babies if bootstraps else 0,
            of_bootstrapping=self.bootstrap is not None or self.of_bootstrapping,
        )

    @functools.cached_property
    def _words(self) -> tuple[int, ...]:
        # A chain that does not exist is compared with others by its nominal sizes.
        nominal = (1 << self.first_mod_bits, *[1 << self.scale_bits] * self.levels)
        return tuple(itertools.accumulate(words((prime,)) for prime in self.primes or nominal))

    def words(self, level: int) -> int:
        """The words of a polynomial's coefficients modulo the primes of a level."""
        return self._words[level]

    @functools.cached_property
    def special_words(self) -> int:
        """The words of residues modulo the special primes."""
        return self.special * words((1 << self.special_bits,))

    @property
    def rotation_key_bytes(self) -> int:
        return 2 * self.digits * (self.words(self.levels) + self.special_words) * self.ring_dim * WORD_BYTES

    @property
    def sent_key_bytes(self) -> int:
        """The bytes of a rotation key in messages: the half without a seed, in as many bits as its primes have."""
        bits = self._prime_bits(self.towers) + self.special * self.special_bits
        return self.digits * bits * self.ring_dim // 8

    def ciphertext_bytes(self, level: int, parts: int = 2) -> int:
        return parts * self.words(level) * self.ring_dim * WORD_BYTES

    def sent_ciphertext_bytes(self, level: int) -> int:
        """The bytes of a fresh ciphertext in messages; see `sent_key_bytes`."""
        return self._prime_bits(level + 1) * self.ring_dim // 8

    def _prime_bits(self, towers: int) -> int:
        return sum(prime.bit_length() for prime in self.primes[:towers])
