"""The rings for tests of backends and clients: toy rings, without security."""

from __future__ import annotations

from heliograph.ckks.ring import Ring

RINGS = (
    # Small and large primes, one and many digits, several special primes, digits that lower levels cut.
    Ring(10, 60, 59, 3, 2, None),
    Ring(12, 40, 30, 2, 1, None),
    Ring(10, 60, 45, 6, 3, None),
    Ring(10, 50, 35, 9, 10, None),
    # Digits with more primes than are summed before a reduction, of primes that fit doubles and of larger ones.
    Ring(10, 49, 49, 7, 1, None),
    Ring(10, 60, 55, 11, 2, None),
    # Special primes as short as the digits allow.
    Ring(10, 40, 32, 8, 2, None, short_specials=True),
    Ring(11, 60, 55, 5, 3, None, short_specials=True),
    # Rows of one word: everywhere; beside a longer first prime, with more primes in a digit than are summed before a
    # reduction; with special primes of two words.
    Ring(10, 30, 28, 6, 2, None, short_specials=True),
    Ring(11, 38, 30, 9, 1, None, short_specials=True),
    Ring(10, 36, 27, 11, 4, None),
    # Chains that bootstrap, where key switches are rounded to the nearest.
    Ring(10, 39, 34, 18, 7, None, (2, 2), short_specials=True),
    Ring(10, 34, 30, 18, 3, None, (2, 2), short_specials=True),
)


def name_of(ring: Ring) -> str:
    """A ring in one word: log2 of its dimension, bits of the first prime and of the scale, levels, digits."""
    more = "-short" * ring.short_specials + "-bootstrap" * (ring.bootstrap is not None)
    return f"{ring.log_ring}-{ring.first_mod_bits}-{ring.scale_bits}-{ring.levels}-{ring.digits}{more}"


def levels_of(ring: Ring) -> tuple[int, ...]:
    """The levels for tests: the highest, and one at which the last digit may be cut."""
    return ring.levels, ring.levels // 2


def lower_part(ring: Ring) -> Ring:
    """A lower part of the chain, with its own keys and digits."""
    level = (ring.levels + 1) // 2
    return ring.lower(level, min(2, level + 1))
