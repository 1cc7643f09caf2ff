"""The keys and plaintexts of bootstraps, for plans with bootstraps that are not written out yet."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable

from heliograph.ckks.fourier import transform
from heliograph.ckks.primes import WORD_BYTES
from heliograph.ckks.ring import Ring


@functools.lru_cache(maxsize=256)
def bootstrap_rotations(ring: Ring, slots: int) -> tuple[int, ...]:
    """The rotations of a bootstrap of values with period `slots`, ascending."""
    found = {*_of_transform(ring, slots, False), *_of_transform(ring, slots, True)}
    # The sum over the copies of a value that does not fill the slots, four copies at a time.
    step = slots
    while step < ring.slots:
        count = min(4, ring.slots // step)
        found.update(step * i for i in range(1, count))
        step *= count
    return tuple(sorted(found - {0}))


def _of_transform(ring: Ring, slots: int, inverse: bool) -> frozenset[int]:
    """The rotations of SlotsToCoeffs or, with `inverse`, of CoeffsToSlots."""
    factors, back = transform(ring, slots, inverse)
    return frozenset({back, *(amount % ring.slots for factor in factors for amount in factor.rotations)})


def bootstrap_key_bytes(ring: Ring, slot_counts: Collection[int]) -> int:
    """The bytes of the rotation keys of bootstraps of all these slot counts together.

    Rotations of SlotsToCoeffs alone happen in a sub-chain at the low end, with small keys.
    """
    low = {amount for slots in slot_counts for amount in _of_transform(ring, slots, False)}
    high = {amount for slots in slot_counts for amount in _of_transform(ring, slots, True)}
    every = set(all_bootstrap_rotations(ring, slot_counts))
    few = len(low & every - high)
    small = ring.lower(ring.bootstrap_input_level, 1).rotation_key_bytes
    return (len(every) - few) * ring.rotation_key_bytes + few * small


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
