"""The parameters of a modulus chain: its sizes, its levels, whether it is legal and secure."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field, replace

from heliograph.ckks.primes import chain_primes
from heliograph.ckks.security import max_log_pq, sparse_attack
from heliograph.errors import ProgramError
from heliograph.records import bounds

# OpenFHE's own special primes, and the longest that our kernels work on in floating point (native/floating.py).
_LONG_SPECIAL_BITS = 60
_MOST_SHORT_SPECIAL_BITS = 49
# OpenFHE takes special primes for four bits more than the longest digit. With so many more, the error of a key is an eighth
# of what rounding adds.
_SPECIAL_ROOM = 8
SIGMA = 3.19
MAX_PRIME_BITS = 60
MIN_SCALE_BITS = 20
# No chain is longer, whether planned or read from a file.
MOST_LEVELS = 100
# Levels that the modular reduction of a bootstrap takes, with a sparse encapsulated secret (ir/bootstraps/writer.py).
REDUCTION_LEVELS = 9
# The key to the sparse secret has special primes of this size, whatever the chain's have.
SPARSE_SPECIAL_BITS = 33


# Logarithms of primes are integer multiples of this, so sums and differences of them, such as scales, are exact below 2^8.
# A chain of squarings doubles any error in a scale, and summands must have the same scale.
_LOG_UNIT = 2.0**-45


@functools.lru_cache(maxsize=1024)
def _logs(primes: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(round(math.log2(q) / _LOG_UNIT) * _LOG_UNIT for q in primes)


def bootstrap_levels(budget: tuple[int, int]) -> int:
    """The levels that a bootstrap spends: those of its two transforms, `budget`, and of the modular reduction."""
    return sum(budget) + REDUCTION_LEVELS


# Without slots: planners ask thousands of rings again and again, so what follows from the fields is kept.
@dataclass(frozen=True)
class Ring:
    """The parameters of one modulus chain: HYBRID key switching, uniform ternary secret, FIXEDMANUAL scaling.

    `digits` splits the chain for key switching; each digit has at most `alpha` primes, and `special` primes of
    `special_bits` bits cover the largest digit. OpenFHE takes 60 bits; with `short_specials` they are as short as the digit
    allows, which leaves up to 50 bits more for the chain, and never above 49, which our kernels multiply faster.

    `bootstrap` has the levels that a bootstrap spends on (CoeffsToSlots, SlotsToCoeffs), None where there is none.
    SlotsToCoeffs comes first, at the low end of the chain: a value enters at `bootstrap_input_level` and comes back at
    `bootstrap_level`.

    The first modulus of a chain that bootstraps is so many bits above the scale that the modular reduction tells a value
    from multiples of it (`bootstrap_share`).

    `bootstrap_babies` is how many baby steps each map of the two transforms takes; 0: as many as OpenFHE takes. Fewer take
    fewer keys and more time (`ckks/fourier.py`).

    With `chain_levels` the ring is a lower part of the chain of that many levels: its first `levels` + 1 primes, with
    digits and special primes of its own. The secret is the same; keys made here are smaller, and bootstraps, where it has
    them, cheaper (see `lower`). `of_bootstrapping`: a part of a chain that bootstraps.
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
        """Kept: prices are looked up by ring hundreds of thousands of times. Of whole numbers alone, whose hashes are the
        same in the process that a ring is sent to.
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
        # The primes lie on both sides of the powers of two, so the product of a digit has its nominal size or a bit more.
        needed = self._digit_bits + 1 + _SPECIAL_ROOM
        return max(SPARSE_SPECIAL_BITS + 1, -(-needed // -(-needed // _MOST_SHORT_SPECIAL_BITS)))

    @functools.cached_property
    def special(self) -> int:
        """How many special primes OpenFHE takes: they have four bits more than the longest digit."""
        if (self._digit_bits + 4) % self.special_bits:
            return self.special_for_security
        primes, alpha = self.primes, self.alpha
        longest = max(math.prod(primes[i : i + alpha]).bit_length() for i in range(0, self.towers, alpha))
        return -(-(longest + 4) // self.special_bits)

    def hoists_twice(self, level: int) -> bool:
        """Whether baby steps at a level stay undivided by the special primes until their products are summed: each product
        then takes these primes too, which pays while they are few beside the others.
        """
        return 2 * self.special <= level + 1

    @functools.cached_property
    def special_for_security(self) -> int:
        """How many special primes OpenFHE assumes when it judges the security: one more than it takes, sometimes."""
        return -(-(self._digit_bits + 5) // self.special_bits)

    @property
    def special_room(self) -> int:
        """By how many bits the special primes are longer than the longest digit."""
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
    def log_primes(self) -> tuple[float, ...]:
        return _logs(self.primes)

    @functools.cached_property
    def log_pq(self) -> float:
        """log2 of the largest modulus that a key is published under; infinite where the chain does not exist."""
        if not self.primes:
            return math.inf
        return sum(self.log_primes) + self.special * self.special_bits

    @property
    def legal(self) -> bool:
        """Whether the digits split the chain as OpenFHE accepts, and every prime has a size that exists."""
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
        """Whether its keys keep the security asked for (always, where none was)."""
        return self.security_bits is None or (self._sparse_key_holds and self._modulus_fits)

    @property
    def weakness(self) -> str:
        """Why its keys do not keep the security asked for; an empty text where they do."""
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
        """Whether no bootstrap needs a sparse secret that costs less to find than the security asked for."""
        return self.bootstrap is None or (sparse_attack(self.log_ring) or 0) >= (self.security_bits or 0)

    @property
    def _modulus_fits(self) -> bool:
        """Whether log2(PQ) is within the table for the security asked for."""
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
        """Where a value must stand to be bootstrapped."""
        assert self.bootstrap is not None
        return self.bootstrap[1]

    @property
    def bootstrap_level(self) -> int:
        """Where a bootstrapped value comes back."""
        assert self.bootstrap is not None
        return self.levels + self.bootstrap_input_level - bootstrap_levels(self.bootstrap)

    @property
    def bootstrap_share(self) -> int:
        """A value of one, at the nominal scale, is the first modulus divided by this where it is bootstrapped.

        Larger messages keep more of a coarse scale, smaller ones bend the sine of the reduction less.
        """
        return 1 << self.first_mod_bits - self.scale_bits

    @property
    def rounds_to_nearest(self) -> bool:
        """Whether key switches are rounded to the nearest, as bootstraps need it; else as OpenFHE rounds them, down by half
        the number of special primes in the mean.
        """
        return self.bootstrap is not None or self.of_bootstrapping

    def lower(self, level: int, digits: int, bootstraps: bool = False) -> Ring:
        """The lower part of this chain up to `level`, with digits of its own.

        Where it `bootstraps`, it does so with this chain's level budgets: a value enters at the same level, its
        modulus is raised to `level` only, and it comes back as many levels lower as the part is shorter.
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
            of_bootstrapping=self.rounds_to_nearest,
        )

    @property
    def rotation_key_bytes(self) -> int:
        return 2 * self.digits * (self.towers + self.special) * self.ring_dim * 8

    @property
    def sent_key_bytes(self) -> int:
        """A rotation key as it is sent: the half that no seed gives, in as many bits as its primes have."""
        bits = self._prime_bits(self.towers) + self.special * self.special_bits
        return self.digits * bits * self.ring_dim // 8

    def ciphertext_bytes(self, level: int, parts: int = 2) -> int:
        return parts * (level + 1) * self.ring_dim * 8

    def sent_ciphertext_bytes(self, level: int) -> int:
        """A fresh ciphertext as it is sent; see `sent_key_bytes`."""
        return self._prime_bits(level + 1) * self.ring_dim // 8

    def _prime_bits(self, towers: int) -> int:
        return sum(prime.bit_length() for prime in self.primes[:towers])
