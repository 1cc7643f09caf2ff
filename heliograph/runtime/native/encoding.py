"""Vectors of slots as plaintexts: coefficients by the canonical embedding, scaled, rounded, as residues."""

from __future__ import annotations

import math

import numpy as np

from heliograph.ckks.embedding import coefficients_of, coefficients_of_real
from heliograph.errors import RangeError
from heliograph.ir import Array
from heliograph.runtime.native.elementwise import scaled_residues
from heliograph.runtime.native.floating import LIMIT
from heliograph.runtime.native.tables import ChainTables, with_ratio
from heliograph.runtime.native.transforms import LANES, forward_mirrored, forward_numbers, forward_rows, rows_of

# A rounded coefficient of up to this many bits is exact both as a floating-point number and as a 64-bit integer.
_EXACT_BITS = 62
# Coefficients of up to this many bits are smaller than every prime that is not handled in doubles.
_SMALL_BITS = 49


def halved(ring_dim: int) -> bool:
    """Whether only half of the residues of real values is kept."""
    return bool(LIMIT) and rows_of(ring_dim) >= 2 * LANES


def encode(values: Array, log_scale: float, level: int, tables: ChainTables) -> Array:
    """The values times 2^log_scale, rounded, as residues in evaluation. Raises RangeError if too large.

    (level + 1, N), or (level + 1, N / 2) for real values at the usual scales where they are `halved`: the second half of
    their residues mirrors the first.
    """
    primes, rows, known = tables.primes[: level + 1], tables.rows[: level + 1], tables.known
    # The same number in all slots is a constant polynomial: this coefficient alone, and the same value everywhere.
    real = not np.iscomplexobj(values)
    alone = real and values.size == 1
    mirrored = real and not alone and halved(tables.ring_dim)
    if alone:
        found = values
    else:
        found = (coefficients_of_real if mirrored else coefficients_of)(values, tables.slots)
    largest = float(np.abs(found).max(initial=0.0))
    if not math.isfinite(largest):
        raise RangeError("a plaintext holds NaN or infinity")
    bits = log_scale + (math.log2(largest) if largest else -log_scale)
    room = math.log2(math.prod(tables.primes[: level + 1])) - 1
    if bits >= room:
        raise RangeError(f"a plaintext of size {np.abs(values).max():.3g} is too large at scale 2^{log_scale:.1f}")
    shift = max(0, math.ceil(bits) + 1 - _EXACT_BITS)
    whole = np.rint(found * 2.0 ** (log_scale - shift))
    out = np.empty((level + 1, whole.size), dtype=np.uint64)
    if LIMIT and bits < _SMALL_BITS and not alone:
        forward = forward_mirrored if mirrored else forward_numbers
        forward(whole, out, rows, known.moduli, known.outer, known.inner)
        return out
    if mirrored:
        whole = np.concatenate([whole, [0.0], -whole[:0:-1]])
        out = np.empty((level + 1, whole.size), dtype=np.uint64)
    factors = with_ratio([1 << shift] * (level + 1), primes)
    scaled_residues(whole.astype(np.int64), factors, out, rows, known.moduli)
    if alone:
        return np.repeat(out, tables.ring_dim, axis=1)
    forward_rows(out, rows, known.moduli, known.outer, known.inner)
    return out
