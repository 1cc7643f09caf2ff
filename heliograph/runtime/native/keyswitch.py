"""Key switching: digits, their product with a key, division by the special primes; rescaling is such a division too.

The construction is OpenFHE's (HYBRID, Han and Ki 2020), and so is every rounding: results are the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from heliograph.runtime.native.arithmetic import (
    difference,
    inlined,
    kernel,
    parallel_kernel,
    reduced,
    settled,
    times_constant,
    total,
)
from heliograph.runtime.native.transforms import backward, forward

# Numbers that are worked on at once: accumulators of so many stay in the fastest cache.
_BLOCK = 1024
_PIECE = np.uint64(30)
_MASK = np.uint64((1 << 30) - 1)
_FOUR, _SIXTY = np.uint64(4), np.uint64(60)
# Products of two residues that are summed in pieces of 30 bits before the sum is reduced.
_TERMS = 8


@kernel
def _combined(sources: Any, factors: Any, out: Any, q: Any) -> None:
    """The sum of polynomials times constants modulo q, below 4 q; `factors` are (sources, 2)."""
    q4 = np.uint64(4) * q
    w, ratio = factors[0, 0], factors[0, 1]
    first = sources[0]
    for x in range(out.size):
        out[x] = times_constant(first[x], w, ratio, q)
    for i in range(1, sources.shape[0]):
        w, ratio, source = factors[i, 0], factors[i, 1], sources[i]
        for x in range(out.size):
            value = out[x] + times_constant(source[x], w, ratio, q)
            out[x] = min(value, value - q4)


@parallel_kernel
def coefficients(values: Any, scaled: Any, rows: Any, constants: Any, moduli: Any, outer: Any, inner: Any) -> None:
    """Values (n, N) as coefficients times constants, in which 1/N is, each modulo the prime of its row, into `scaled`."""
    for i in prange(values.shape[0]):
        row = rows[i]
        scaled[i] = values[i]
        backward(scaled[i], outer[row, 1], inner[row, 1], constants[i], moduli[row, 0])


@parallel_kernel
def raise_digits(
    values: Any, scaled: Any, digits: Any, alpha: int, rows: Any, up: Any, moduli: Any, outer: Any, inner: Any
) -> None:
    """The digits of a polynomial modulo every prime: (digits, rows, N) from values (towers, N) and `scaled` ones."""
    towers, count = values.shape[0], digits.shape[0]
    for job in prange(count * rows.size):
        g, j = job % count, job // count
        begin, end = g * alpha, min(towers, (g + 1) * alpha)
        out = digits[g, j]
        if begin <= j < end:
            out[:] = values[j]
        else:
            row = rows[j]
            q = moduli[row, 0]
            _combined(scaled[begin:end], up[begin:end, j], out, q)
            forward(out, outer[row, 0], inner[row, 0], q)


@inlined
def _gathered(z0: Any, z1: Any, z2: Any, q: Any, bits: Any, ratio: Any) -> Any:
    """z0 + 2^30 z1 + 2^60 z2 modulo q."""
    z1 += z0 >> _PIECE
    z2 += z1 >> _PIECE
    low = (z0 & _MASK) | ((z1 & _MASK) << _PIECE) | (z2 << _SIXTY)
    return reduced(z2 >> _FOUR, low, q, bits, ratio)


@kernel
def _inner(digits: Any, key: Any, j: int, row: int, out: Any, modulus: Any) -> None:
    """The sum of products of digits (d, rows, N) and parts of a key (d, rows, N), modulo one prime."""
    q, bits, ratio = modulus[0], modulus[1], modulus[2]
    z0, z1, z2 = np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint64)
    size = min(_BLOCK, out.size)
    for begin in range(0, out.size, size):
        o = out[begin : begin + size]
        for g in range(digits.shape[0]):
            a, b = digits[g, j, begin : begin + size], key[g, row, begin : begin + size]
            if g % _TERMS == 0:
                for x in range(size):
                    a0, a1, b0, b1 = a[x] & _MASK, (a[x] >> _PIECE) & _MASK, b[x] & _MASK, (b[x] >> _PIECE) & _MASK
                    z0[x] = a0 * b0
                    z1[x] = a0 * b1 + a1 * b0
                    z2[x] = a1 * b1
                if g:
                    for x in range(size):
                        z0[x] += o[x] & _MASK
                        z1[x] += o[x] >> _PIECE
            else:
                for x in range(size):
                    a0, a1, b0, b1 = a[x] & _MASK, (a[x] >> _PIECE) & _MASK, b[x] & _MASK, (b[x] >> _PIECE) & _MASK
                    z0[x] += a0 * b0
                    z1[x] += a0 * b1 + a1 * b0
                    z2[x] += a1 * b1
            if g % _TERMS == _TERMS - 1 or g == digits.shape[0] - 1:
                for x in range(size):
                    o[x] = _gathered(z0[x], z1[x], z2[x], q, bits, ratio)


@parallel_kernel
def key_product(digits: Any, key: Any, key_rows: Any, out: Any, rows: Any, moduli: Any) -> None:
    """Digits (d, rows, N) times a key (2, digits, its rows, N), summed over the digits: (2, rows, N).

    `key_rows` are the places of the digits' primes in the key.
    """
    for job in prange(2 * rows.size):
        part, j = job % 2, job // 2
        _inner(digits, key[part], j, key_rows[j], out[part, j], moduli[rows[j]])


@parallel_kernel
def divide(
    values: Any, scaled: Any, out: Any, rows: Any, down: Any, inverse: Any, moduli: Any, outer: Any, inner: Any
) -> None:
    """(parts, kept, N) from (parts, kept + last, N): less what the last primes have, `scaled`, divided by their product."""
    parts, kept = out.shape[0], out.shape[1]
    for job in prange(parts * kept):
        part, j = job % parts, job // parts
        row = rows[j]
        q = moduli[row, 0]
        o, x = out[part, j], values[part, j]
        _combined(scaled[part], down[:, j], o, q)
        forward(o, outer[row, 0], inner[row, 0], q)
        w, ratio = inverse[j, 0], inverse[j, 1]
        for i in range(o.size):
            o[i] = settled(times_constant(difference(x[i], o[i], q), w, ratio, q), q)


@parallel_kernel
def divide_by_last(
    values: Any, scaled: Any, out: Any, rows: Any, inverse: Any, moduli: Any, outer: Any, inner: Any
) -> None:
    """The same for one last prime, whose coefficients are centred around zero first, as OpenFHE rescales."""
    parts, kept = out.shape[0], out.shape[1]
    last = moduli[rows[kept], 0]
    half = last >> np.uint64(1)
    for job in prange(parts * kept):
        part, j = job % parts, job // parts
        row = rows[j]
        q, bits, barrett = moduli[row, 0], moduli[row, 1], moduli[row, 2]
        o, x, s = out[part, j], values[part, j], scaled[part, 0]
        less = q - last % q
        zero = np.uint64(0)
        for i in range(o.size):
            o[i] = reduced(zero, s[i], q, bits, barrett) + (less if s[i] > half else zero)
        forward(o, outer[row, 0], inner[row, 0], q)
        w, ratio = inverse[j, 0], inverse[j, 1]
        for i in range(o.size):
            o[i] = settled(times_constant(difference(x[i], o[i], q), w, ratio, q), q)


@parallel_kernel
def turned(values: Any, places: Any, out: Any) -> None:
    """An automorphism of (parts, rows, N), by the places that values come from."""
    parts = values.shape[0]
    for job in prange(parts * values.shape[1]):
        x, o = values[job % parts, job // parts], out[job % parts, job // parts]
        for i in range(o.size):
            o[i] = x[places[i]]


@parallel_kernel
def add_turned(sums: Any, values: Any, places: Any, rows: Any, moduli: Any) -> None:
    """An automorphism of (towers, N), added in place."""
    for j in prange(values.shape[0]):
        q, x, o = moduli[rows[j], 0], values[j], sums[j]
        for i in range(o.size):
            o[i] = total(o[i], x[places[i]], q)
