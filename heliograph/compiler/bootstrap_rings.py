"""The chains on which values can be bootstrapped: by whose construction, with how many levels, digits and bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from heliograph.ckks.noise import bootstrap_error, series_std
from heliograph.ckks.ring import Ring, bootstrap_levels
from heliograph.ckks.security import max_log_pq
from heliograph.compiler.options import Options

# Levels of CoeffsToSlots and SlotsToCoeffs: more levels are faster but leave fewer to the program.
_LEVEL_BUDGETS = ((2, 2), (3, 2), (3, 3), (4, 3))
# The most levels between bootstraps: more gain nothing, even if security allows them.
_MAX_LEVELS_BETWEEN = 24
# OpenFHE's bootstrapping keeps about scale - 35 bits where the first modulus is five bits above the scale.
_OPENFHE_SCALES = (55, 57)
_OPENFHE_HEADROOM_BITS = 5
# Scales of chains with native bootstraps: above 49 bits our kernels are slower, below 28 there are too few primes.
_NATIVE_SCALES = range(49, 27, -1)
# The first modulus is this many bits above the scale: fewer bits leave more of the scale, more bits distort values less.
_NATIVE_HEADROOM_BITS = range(4, 11)
# Bootstraps coarser than the first are of no use; finer ones than the second are not needed.
_COARSEST, _FINEST = 2.0**-9, 2.0**-20
# More digits make a chain finer but its keys larger: they count only if the error falls to this share.
_FINER = 0.7


@dataclass(frozen=True, slots=True)
class Bootstraps:
    """How values are bootstrapped: by whose construction (`Ring.bootstrap_by`), in how many iterations.

    `scale` is that of the chain, None for the finest that is secure.
    """

    by: str
    scale: int | None
    iterations: int = 1


def computes_activations(options: Options) -> bool:
    """Whether bootstraps may compute the activations that follow them."""
    return options.bootstrap_activations and options.bootstrap_by in (None, "native")


def bootstraps(options: Options) -> list[Bootstraps]:
    """What is tried, in this order: native ones first, those of two iterations last."""
    allowed = (1, 2) if options.bootstrap_iterations is None else (options.bootstrap_iterations,)
    native = [Bootstraps("native", options.scale_bits)] if 1 in allowed else []
    scales = _OPENFHE_SCALES if options.scale_bits is None else (options.scale_bits,)
    openfhe = [Bootstraps("openfhe", scale, iterations) for iterations in allowed for scale in scales]
    if options.bootstrap_by == "openfhe":
        return openfhe
    if options.bootstrap_by == "native":
        return native
    return native + [how for how in openfhe if how.iterations > 1]


def bootstrapping_rings(log_ring: int, how: Bootstraps, options: Options, series: bool = False) -> list[Ring]:
    """The secure chains that bootstrap and leave levels between: for each number of levels the one with fewest digits,
    then those with more digits whose bootstraps are finer for it.

    With `series` bootstraps may compute what follows them, and only that need be fine enough.
    """
    found = []
    for budget in _LEVEL_BUDGETS:
        # A map of one level needs as many slots as it has butterfly layers to merge.
        if max(budget) > log_ring - 2:
            continue
        for between in range(1, _MAX_LEVELS_BETWEEN + 1):
            levels = between + bootstrap_levels(how.by, budget, how.iterations)
            shape = Ring(
                log_ring,
                60,
                60,
                levels,
                2,
                options.security_bits,
                budget,
                bootstrap_iterations=how.iterations,
                bootstrap_by=how.by,
                short_specials=how.by == "native",
            )
            chains = list(_chains(shape, how, options, series))
            if not chains:
                break
            found += chains
    return found


def _chains(shape: Ring, how: Bootstraps, options: Options, series: bool) -> Iterator[Ring]:
    least = math.inf
    for digits in range(2, shape.levels + 2) if options.digits is None else (options.digits,):
        ring = _chain(replace(shape, digits=digits), how, series)
        if ring is None or bootstrap_error(ring) > _FINER * least:
            continue
        least = bootstrap_error(ring)
        yield ring
        if how.by == "openfhe" or least <= _FINEST:
            return


def _chain(shape: Ring, how: Bootstraps, series: bool) -> Ring | None:
    """The chain of these levels and digits with the finest scale, None where none is secure and fine enough."""
    most = math.inf if shape.security_bits is None else max_log_pq(shape.log_ring, shape.security_bits)
    headroom = _NATIVE_HEADROOM_BITS[0] if how.by == "native" else _OPENFHE_HEADROOM_BITS
    for scale in _NATIVE_SCALES if how.scale is None else (how.scale,):
        ring = replace(shape, scale_bits=scale, first_mod_bits=min(scale + headroom, 60))
        # A larger first modulus would not be secure either.
        if ring.nominal_log_pq >= most:
            continue
        if how.by == "native":
            ring = _finest(ring)
        if ring.legal and ring.secure:
            # Smaller scales are coarser.
            error = min(bootstrap_error(ring), series_std(ring)) if series else bootstrap_error(ring)
            return ring if how.by == "openfhe" or error <= _COARSEST else None
    return None


def _finest(ring: Ring) -> Ring:
    """The ring with the first modulus with which native bootstraps of its scale err least."""
    every = (ring.scale_bits + bits for bits in _NATIVE_HEADROOM_BITS)
    return min((replace(ring, first_mod_bits=bits) for bits in every if bits <= 60), key=bootstrap_error)
