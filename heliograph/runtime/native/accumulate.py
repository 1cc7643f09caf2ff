"""Sums of products of residues with one reduction for several products.

Residues are split into pieces of 30 bits, of which products have 60: eight products fit into words of 64 bits before they
have to be reduced. Blocks of numbers are worked on whose sums stay in the fastest cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heliograph.runtime.native.arithmetic import kernel, reduced

# Numbers in a block; no ring is smaller.
BLOCK = 1024
# Products that are summed before the sum is reduced.
TERMS = 8
_PIECE = np.uint64(30)
_MASK = np.uint64((1 << 30) - 1)
_FOUR, _SIXTY = np.uint64(4), np.uint64(60)


@kernel
def multiply_add(a: Any, b: Any, pieces: Any, number: int, before: Any) -> None:
    """Add the products of two blocks to `pieces` (3, BLOCK).

    `number` counts the products of a sum from zero; each of `TERMS` begins anew, from what was gathered `before`.
    """
    z0, z1, z2 = pieces[0], pieces[1], pieces[2]
    if number % TERMS:
        for x in range(BLOCK):
            a0, a1, b0, b1 = a[x] & _MASK, (a[x] >> _PIECE) & _MASK, b[x] & _MASK, (b[x] >> _PIECE) & _MASK
            z0[x] += a0 * b0
            z1[x] += a0 * b1 + a1 * b0
            z2[x] += a1 * b1
        return
    for x in range(BLOCK):
        a0, a1, b0, b1 = a[x] & _MASK, (a[x] >> _PIECE) & _MASK, b[x] & _MASK, (b[x] >> _PIECE) & _MASK
        z0[x] = a0 * b0
        z1[x] = a0 * b1 + a1 * b0
        z2[x] = a1 * b1
    if number:
        for x in range(BLOCK):
            z0[x] += before[x] & _MASK
            z1[x] += before[x] >> _PIECE


@kernel
def gather(pieces: Any, out: Any, modulus: Any) -> None:
    """z0 + 2^30 z1 + 2^60 z2 modulo a prime, canonical."""
    q, bits, ratio = modulus[0], modulus[1], modulus[2]
    z0, z1, z2 = pieces[0], pieces[1], pieces[2]
    for x in range(BLOCK):
        middle = z1[x] + (z0[x] >> _PIECE)
        top = z2[x] + (middle >> _PIECE)
        low = (z0[x] & _MASK) | ((middle & _MASK) << _PIECE) | (top << _SIXTY)
        out[x] = reduced(top >> _FOUR, low, q, bits, ratio)
