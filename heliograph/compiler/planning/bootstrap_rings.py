"""The chains on which values can be bootstrapped: their levels, digits and bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from heliograph.ckks.noise import bootstrap_error, series_std
from heliograph.ckks.ring import Ring, bootstrap_levels
from heliograph.ckks.security import max_log_pq
from heliograph.compiler.options import Options
from heliograph.execution.bootstrap_work import bootstrap_ms

# Levels of CoeffsToSlots and SlotsToCoeffs: more levels are faster but leave fewer to the program.
_LEVEL_BUDGETS = ((2, 2), (3, 2), (3, 3), (4, 3))
# The most levels between bootstraps: more gain nothing, even if security allows them.
_MAX_LEVELS_BETWEEN = 24
# Scales: above 49 bits our kernels are slower, below 28 there are too few primes.
_SCALES = range(49, 27, -1)
# The first modulus is this many bits above the scale: fewer bits keep more of the scale, more bits distort values less.
_HEADROOM_BITS = range(4, 11)
# Bootstraps coarser than the first are of no use; finer ones than the second are not needed.
_COARSEST, _FINEST = 2.0**-9, 2.0**-20
# More digits make the keys of a chain larger: they count only if they reduce the error of bootstraps to this share, or
# their time to this share.
_FINER, _FASTER = 0.7, 0.93
# No key is more than this many times as large as with the fewest digits: shorter chains are as fine with smaller keys.
_LARGER = 4.0


def bootstrapping_rings(log_ring: int, options: Options, series: bool = False) -> list[Ring]:
    """The secure chains that bootstrap and leave levels in between: for each number of levels the one with the fewest
    digits, then those with more digits if these make bootstraps finer or faster.

    With `series`, bootstraps may compute activations, and it is enough if only such bootstraps are fine enough.
    """
    found = []
    for budget in _LEVEL_BUDGETS:
        # A map of one level needs as many slots as it has butterfly layers to merge.
        if max(budget) > log_ring - 2:
            continue
        for between in range(1, _MAX_LEVELS_BETWEEN + 1):
            levels = between + bootstrap_levels(budget)
            shape = Ring(log_ring, 60, 60, levels, 2, options.security_bits, budget, short_specials=True)
            chains = list(_chains(shape, options, series))
            if not chains:
                break
            found += chains
    return found


def _chains(shape: Ring, options: Options, series: bool) -> Iterator[Ring]:
    """The chains of these levels, by rising digits: the first secure one, then finer or faster ones."""
    error = price = most = math.inf
    for digits in range(2, shape.levels + 2):
        ring = _chain(replace(shape, digits=digits), options.scale_bits, series)
        if ring is None:
            continue
        own, own_price = bootstrap_error(ring), bootstrap_ms(ring, ring.slots, options.costs)
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
