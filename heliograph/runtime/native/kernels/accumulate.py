"""Sums of products of residues with one reduction for several products.

Residues are split into 30-bit pieces, whose products have 60 bits: eight products fit into a 64-bit word before it has
to be reduced. In doubles, products are reduced one by one, and their sums after eight. Work proceeds in blocks whose
sums stay in the fastest cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heliograph.runtime.native.kernels.arithmetic import kernel, reduced
from heliograph.runtime.native.kernels.floating import canonical, centred_constant, fma, near, nearest, product_near

# Numbers in a block. A quarter of a ring's dimension is never smaller.
BLOCK = 256
# How many products are summed before the sum is reduced.
TERMS = 8
# For primes of up to this many bits a factor is split into halves: their products with centred residues, and sums of
# `TERMS` such products, are exact in doubles.
SPLIT_BITS = 33
# This many products are added at once, because the sums are read and written each time.
TOGETHER = 4
_SPLIT = np.uint64(17)
_LOWER = np.uint64((1 << 17) - 1)
_PIECE = np.uint64(30)
_MASK = np.uint64((1 << 30) - 1)
_FOUR, _SIXTY = np.uint64(4), np.uint64(60)


@kernel
def multiply_add(a: Any, b: Any, pieces: Any, number: int, before: Any) -> None:
    """Add the products of two blocks to `pieces` (3, BLOCK).

    `number` counts the products of a sum from zero. After every `TERMS` of them the pieces start again from `before`,
    the sum gathered so far.
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
def multiply_add_near(a0: Any, a1: Any, b: Any, sums: Any, number: int, modulus: Any) -> None:
    """Add a0 b and a1 b to `sums` (2, BLOCK), in doubles: `multiply_add` for primes below `LIMIT`."""
    q = float(modulus[0])
    inverse = 1.0 / q
    s0, s1 = sums[0], sums[1]
    if not number:
        s0[:] = 0.0
        s1[:] = 0.0
    elif not number % TERMS:
        for x in range(BLOCK):
            s0[x], s1[x] = nearest(s0[x], q, inverse), nearest(s1[x], q, inverse)
    for x in range(BLOCK):
        factor = near(b[x])
        s0[x] += product_near(near(a0[x]), factor, q, inverse)
        s1[x] += product_near(near(a1[x]), factor, q, inverse)


@kernel
def gather_near(sums: Any, out: Any, modulus: Any) -> None:
    """Reduce sums in doubles to canonical residues modulo a prime."""
    q = float(modulus[0])
    inverse = 1.0 / q
    for x in range(BLOCK):
        out[x] = canonical(nearest(sums[x], q, inverse), q)


@kernel
def around_zero(a: Any, out: Any, modulus: Any) -> None:
    """Centre residues: write them as doubles between -q / 2 and q / 2."""
    q, half = float(modulus[0]), float(modulus[0] >> np.uint64(1))
    for x in range(BLOCK):
        value = near(a[x])
        out[x] = value - q if value > half else value


@kernel
def add_split(values: Any, i0: Any, i1: Any, i2: Any, i3: Any, b0: Any, b1: Any, b2: Any, b3: Any, sums: Any) -> None:
    """For each of four pairs of i and b, add the products of the two centred blocks values[i] with the block b.

    `sums` are (2, 2, BLOCK): products with the upper halves of b, and with the lower halves.
    """
    for x in range(BLOCK):
        h0, h1, h2, h3 = near(b0[x] >> _SPLIT), near(b1[x] >> _SPLIT), near(b2[x] >> _SPLIT), near(b3[x] >> _SPLIT)
        l0, l1, l2, l3 = near(b0[x] & _LOWER), near(b1[x] & _LOWER), near(b2[x] & _LOWER), near(b3[x] & _LOWER)
        for part in range(2):
            v0, v1, v2, v3 = values[i0, part, x], values[i1, part, x], values[i2, part, x], values[i3, part, x]
            sums[part, 0, x] = fma(v3, h3, fma(v2, h2, fma(v1, h1, fma(v0, h0, sums[part, 0, x]))))
            sums[part, 1, x] = fma(v3, l3, fma(v2, l2, fma(v1, l1, fma(v0, l0, sums[part, 1, x]))))


@kernel
def settle_split(sums: Any, modulus: Any) -> None:
    """Reduce these sums, so that `TERMS` more can be added."""
    q = float(modulus[0])
    inverse = 1.0 / q
    flat = sums.reshape(4 * BLOCK)
    for x in range(flat.size):
        flat[x] = nearest(flat[x], q, inverse)


@kernel
def gather_split(sums: Any, out: Any, modulus: Any) -> None:
    """Settled sums of one block's products as canonical residues."""
    q = float(modulus[0])
    inverse = 1.0 / q
    upper = centred_constant(np.uint64(1) << _SPLIT, modulus[0])
    for x in range(BLOCK):
        out[x] = canonical(nearest(product_near(sums[0, x], upper, q, inverse) + sums[1, x], q, inverse), q)
