"""The keys and plaintexts of bootstraps, for plans with bootstraps that are not written out yet."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from heliograph.ckks.fourier import transform
from heliograph.ckks.primes import WORD_BYTES
from heliograph.ckks.ring import Ring


@functools.lru_cache(maxsize=256)
def bootstrap_rotations(ring: Ring, slots: int) -> tuple[int, ...]:
    """The rotations of a bootstrap of values with period `slots`, ascending."""
    found: set[int] = set()
    for inverse in (False, True):
        factors, back = transform(ring, slots, inverse)
        found |= {back, *(amount % ring.slots for factor in factors for amount in factor.rotations)}
    # The sum over the copies of a value that does not fill the slots, four copies at a time.
    step = slots
    while step < ring.slots:
        count = min(4, ring.slots // step)
        found.update(step * i for i in range(1, count))
        step *= count
    return tuple(sorted(found - {0}))


def all_bootstrap_rotations(ring: Ring, slot_counts: Iterable[int]) -> tuple[int, ...]:
    """The rotations of bootstraps of all these slot counts together, ascending."""
    return tuple(sorted({amount for slots in slot_counts for amount in bootstrap_rotations(ring, slots)}))


def bootstrap_table_bytes(ring: Ring, slots: int) -> int:
    """The bytes of the two transforms' plaintexts on the server, for one number of slots.

    There is a plaintext for each diagonal, over the primes left at its factor and the special primes, and the numbers
    from which it was encoded. (Measured for rings from 2**12 to 2**16: within 4 %.)
    """
    total = 0
    for inverse, top in ((True, ring.levels), (False, ring.bootstrap_input_level)):
        for number, factor in enumerate(transform(ring, slots, inverse)[0]):
            words = ring.words(top - number) + ring.special_words
            total += factor.diagonals * (WORD_BYTES * words * ring.ring_dim + 16 * slots)
    return total
