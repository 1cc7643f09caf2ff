"""The chains of a ring, without bootstraps and with them: their levels, digits and bits."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import replace

from heliograph.ckks.costs import CostTable
from heliograph.ckks.noise import bootstrap_error, series_std
from heliograph.ckks.ring import MIN_SCALE_BITS, MOST_LEVELS, Ring, bootstrap_levels
from heliograph.ckks.security import MAX_LOG_PQ_128, max_log_pq
from heliograph.compiler.options import Options
from heliograph.execution.bootstrap_work import bootstrap_ms

# A scale finer than this gains nothing: errors are then far below float32's, and our kernels are slower.
_MAX_SCALE_BITS = 49
# This many bits of the scale may be given up for one special prime less.
_BITS_FOR_A_PRIME = 3
# The first modulus is at least this many bits above the scale, as room for the size of the outputs.
MIN_HEADROOM_BITS = 8
# Levels of CoeffsToSlots and SlotsToCoeffs: more levels are faster but leave fewer to the program.
_LEVEL_BUDGETS = ((2, 2), (3, 2), (3, 3), (4, 3))
# The most levels between bootstraps: more gain nothing, even if security allows them.
_MAX_LEVELS_BETWEEN = 24
# The scales of chains that bootstrap: below 28 bits there are too few primes.
_SCALES = range(_MAX_SCALE_BITS, 27, -1)
# The first modulus is this many bits above the scale: fewer bits keep more of the scale, more bits distort values less.
_HEADROOM_BITS = range(4, 11)
# Bootstraps coarser than the first are of no use; finer ones than the second are not needed.
_COARSEST, _FINEST = 2.0**-9, 2.0**-20
# More digits make the keys of a chain larger: they count only if they reduce the error of bootstraps to this share, or
# their time to this share.
_FINER, _FASTER = 0.7, 0.93
# No key is more than this many times as large as with the fewest digits: shorter chains are as fine with smaller keys.
_LARGER = 4.0

# The longer time that half the bytes of keys and tables are worth.
_FOR_HALF_THE_BYTES = 1.15


def with_keys(milliseconds: float, key_bytes: int) -> float:
    """What plans are compared by where larger keys must save enough time: the least is the best."""
    return milliseconds * math.pow(key_bytes, math.log2(_FOR_HALF_THE_BYTES))


def log_rings(options: Options) -> list[int]:
    """The rings that may be chosen, the smallest first."""
    return sorted(MAX_LOG_PQ_128) if options.log_ring is None else [options.log_ring]


def candidates(log_ring: int, levels: int, headroom: int, options: Options) -> list[Ring]:
    """The chains with enough levels on a ring, the cheapest key switch first.

    For each number of digits these are the one with the finest scale, and one that saves a special prime, if that costs
    only a few bits of the scale.
    """
    middle = max(1, levels // 2)
    return sorted(
        _candidates(log_ring, levels, headroom, options),
        key=lambda ring: (options.costs.rotate_ms(ring, middle), ring.rotation_key_bytes),
    )


def _candidates(log_ring: int, levels: int, headroom: int, options: Options) -> Iterator[Ring]:
    """`candidates` by rising digits."""
    scales = range(_MAX_SCALE_BITS, MIN_SCALE_BITS - 1, -1) if options.scale_bits is None else (options.scale_bits,)
    for digits in range(1, levels + 2):
        finest: Ring | None = None
        for scale in scales:
            ring = Ring(
                log_ring, min(scale + headroom, 60), scale, levels, digits, options.security_bits, short_specials=True
            )
            if scale + headroom > 60 or not (ring.secure and ring.legal):
                continue
            if finest is None or ring.special < finest.special:
                yield ring
            finest = finest or ring
            if ring.special < finest.special or scale <= finest.scale_bits - _BITS_FOR_A_PRIME:
                break


def most_levels(log_ring: int, options: Options) -> int:
    """The levels of the longest secure chain on a ring, at the smallest scale that is ever planned."""
    return longest(log_ring, 1, MOST_LEVELS, MIN_HEADROOM_BITS, replace(options, scale_bits=None))


def longest(log_ring: int, least: int, most: int, headroom: int, options: Options) -> int:
    """The longest chain between `least` and `most` levels on a ring; less than `least` if there is none."""
    low, high = least - 1, min(most, MOST_LEVELS)
    while low < high:
        middle = (low + high + 1) // 2
        fits = next(_candidates(log_ring, middle, headroom, options), None) is not None
        low, high = (middle, high) if fits else (low, middle - 1)
    return low


def bootstrapping_rings(log_ring: int, options: Options, series: bool = False) -> list[Ring]:
    """The secure chains that bootstrap and leave levels in between: for each number of levels the one with the fewest
    digits, then those with more digits if these make bootstraps finer or faster.

    With `series`, bootstraps may compute activations, and it is enough if only such bootstraps are fine enough.
    """
    return list(_bootstrapping_rings(log_ring, options.security_bits, options.scale_bits, options.costs, series))


@functools.lru_cache(maxsize=32)
def _bootstrapping_rings(
    log_ring: int, security_bits: int | None, scale_bits: int | None, costs: CostTable, series: bool
) -> tuple[Ring, ...]:
    """`bootstrapping_rings`, kept because allocation and planner ask for the same ones several times."""
    found: list[Ring] = []
    for budget in _LEVEL_BUDGETS:
        # A map of one level needs as many slots as it has butterfly layers to merge.
        if max(budget) > log_ring - 2:
            continue
        for between in range(1, _MAX_LEVELS_BETWEEN + 1):
            levels = between + bootstrap_levels(budget)
            shape = Ring(log_ring, 60, 60, levels, 2, security_bits, budget, short_specials=True)
            chains = list(_chains(shape, scale_bits, costs, series))
            if not chains:
                break
            found += chains
    return tuple(found)


def _chains(shape: Ring, scale_bits: int | None, costs: CostTable, series: bool) -> Iterator[Ring]:
    """The chains of these levels, by rising digits: the first secure one, then finer or faster ones."""
    error = price = most = math.inf
    for digits in range(2, shape.levels + 2):
        ring = _chain(replace(shape, digits=digits), scale_bits, series)
        if ring is None:
            continue
        own, own_price = bootstrap_error(ring), bootstrap_ms(ring, ring.slots, costs)
        finer = own <= _FINER * error and error > _FINEST
        if not finer and own_price > _FASTER * price:
            continue
        if ring.rotation_key_bytes > most:
            return
        error, price = min(own, error), min(own_price, price)
        most = min(most, int(_LARGER * ring.rotation_key_bytes))
        yield ring


def _chain(shape: Ring, scale_bits: int | None, series: bool) -> Ring | None:
    """The chain of these levels and digits with the finest scale; None if none is secure and fine enough."""
    most = math.inf if shape.security_bits is None else max_log_pq(shape.log_ring, shape.security_bits)
    for scale in _SCALES if scale_bits is None else (scale_bits,):
        ring = replace(shape, scale_bits=scale, first_mod_bits=min(scale + _HEADROOM_BITS[0], 60))
        # A larger first modulus would not be secure either.
        if ring.nominal_log_pq >= most:
            continue
        ring = _finest(ring)
        if ring.legal and ring.secure:
            # Smaller scales are coarser.
            error = min(bootstrap_error(ring), series_std(ring)) if series else bootstrap_error(ring)
            return ring if error <= _COARSEST else None
    return None


def _finest(ring: Ring) -> Ring:
    """The ring with the first modulus that gives bootstraps of its scale the least error."""
    every = (ring.scale_bits + bits for bits in _HEADROOM_BITS)
    return min((replace(ring, first_mod_bits=bits) for bits in every if bits <= 60), key=bootstrap_error)


def lower_parts(ring: Ring) -> tuple[Ring, ...]:
    """The sub-chains that can bootstrap, each with the fewest possible digits, highest first."""
    assert ring.bootstrap is not None
    room = ring.bootstrap_level - ring.bootstrap_input_level
    found = []
    for less in range(1, room):
        level = ring.levels - less
        tried = (ring.lower(level, digits, bootstraps=True) for digits in range(2, level + 2))
        fitting = next((part for part in tried if part.legal and part.secure), None)
        if fitting is not None:
            found.append(fitting)
    return tuple(found)
