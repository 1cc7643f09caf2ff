"""Sums of products of residues with one reduction for several products.

Residues are split into pieces of 30 bits, of which products have 60: eight products fit into words of 64 bits before they
have to be reduced; as doubles, products are reduced one by one, and their sums after eight. Blocks of numbers are worked on
whose sums stay in the fastest cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heliograph.runtime.native.arithmetic import kernel, reduced
from heliograph.runtime.native.floating import canonical, near, nearest, product_near

# Numbers in a block. A quarter of a ring's dimension is never smaller.
BLOCK = 256
# How many products are summed before the sum is reduced.
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


@kernel
def multiply_add_near(a0: Any, a1: Any, b: Any, sums: Any, number: int, modulus: Any, mirrored: bool) -> None:
    """Add the products of two blocks with a third to those of doubles, `sums` (2, BLOCK), as in `multiply_add`.

    The third is read from its end where it is `mirrored`.
    """
    q = float(modulus[0])
    inverse = 1.0 / q
    s0, s1 = sums[0], sums[1]
    if not number:
        s0[:] = 0.0
        s1[:] = 0.0
    elif not number % TERMS:
        for x in range(BLOCK):
            s0[x], s1[x] = nearest(s0[x], q, inverse), nearest(s1[x], q, inverse)
    if mirrored:
        for x in range(BLOCK):
            factor = near(b[BLOCK - 1 - x])
            s0[x] += product_near(near(a0[x]), factor, q, inverse)
            s1[x] += product_near(near(a1[x]), factor, q, inverse)
        return
    for x in range(BLOCK):
        factor = near(b[x])
        s0[x] += product_near(near(a0[x]), factor, q, inverse)
        s1[x] += product_near(near(a1[x]), factor, q, inverse)


@kernel
def gather_near(sums: Any, out: Any, modulus: Any) -> None:
    """Sums of doubles modulo a prime, canonical."""
    q = float(modulus[0])
    inverse = 1.0 / q
    for x in range(BLOCK):
        out[x] = canonical(nearest(sums[x], q, inverse), q)
