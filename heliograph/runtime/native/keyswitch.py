"""Key switching: digits, their product with a key, division by the special primes; rescaling is such a division too.

The construction is OpenFHE's (HYBRID, Han and Ki 2020), and so is every rounding: results are the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from heliograph.runtime.native.accumulate import BLOCK, TERMS, gather, multiply_add
from heliograph.runtime.native.arithmetic import (
    difference,
    kernel,
    parallel_kernel,
    reduced,
    settled,
    times_constant,
    total,
)
from heliograph.runtime.native.transforms import backward, forward


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


@kernel
def _centred(s: Any, half: Any, less: Any, out: Any, modulus: Any, outer: Any, inner: Any) -> None:
    """Coefficients modulo a prime, the upper half of them negative, as values modulo another.

    `less` is the other prime less the first.
    """
    q, bits, barrett, zero = modulus[0], modulus[1], modulus[2], np.uint64(0)
    for i in range(out.size):
        out[i] = reduced(zero, s[i], q, bits, barrett) + (less if s[i] > half else zero)
    forward(out, outer, inner, q)


@kernel
def _quotient(x: Any, rest: Any, inverse: Any, q: Any) -> None:
    """(x - rest) times a constant, into `rest`."""
    w, ratio = inverse[0], inverse[1]
    for i in range(rest.size):
        rest[i] = settled(times_constant(difference(x[i], rest[i], q), w, ratio, q), q)


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


@parallel_kernel
def key_product(digits: Any, key: Any, key_rows: Any, out: Any, rows: Any, moduli: Any) -> None:
    """Digits (d, rows, N) times a key (2, digits, its rows, N), summed over the digits: (2, rows, N).

    `key_rows` are the places of the digits' primes in the key.
    """
    for job in prange(2 * rows.size):
        part, j = job % 2, job // 2
        pieces = np.empty((3, BLOCK), np.uint64)
        for begin in range(0, out.shape[2], BLOCK):
            o = out[part, j, begin : begin + BLOCK]
            for g in range(digits.shape[0]):
                a, b = digits[g, j, begin : begin + BLOCK], key[part, g, key_rows[j], begin : begin + BLOCK]
                multiply_add(a, b, pieces, g, o)
                if g % TERMS == TERMS - 1 or g == digits.shape[0] - 1:
                    gather(pieces, o, moduli[rows[j]])


@parallel_kernel
def wholes(scaled: Any, rows: Any, moduli: Any) -> None:
    """How often the product of primes P is in the sum of `scaled` coefficients (parts, primes, N) times P over each prime,
    to the nearest, into the row behind them."""
    parts, primes = scaled.shape[0], scaled.shape[1] - 1
    step = 1024
    count = scaled.shape[2] // step + (scaled.shape[2] % step > 0)
    for job in prange(parts * count):
        part, begin = job % parts, job // parts * step
        for x in range(begin, min(begin + step, scaled.shape[2])):
            share = 0.5
            for i in range(primes):
                share += float(scaled[part, i, x]) / float(moduli[rows[i], 0])
            scaled[part, primes, x] = np.uint64(share)


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
        _quotient(x, o, inverse[j], q)


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
        q, o = moduli[row, 0], out[part, j]
        _centred(scaled[part, 0], half, q - last % q, o, moduli[row], outer[row, 0], inner[row, 0])
        _quotient(values[part, j], o, inverse[j], q)


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


@parallel_kernel
def raise_modulus(scaled: Any, prime: Any, out: Any, rows: Any, moduli: Any, outer: Any, inner: Any) -> None:
    """Coefficients (parts, N) modulo one prime, centred around zero, as values modulo many: (parts, rows, N)."""
    parts, half = scaled.shape[0], prime >> np.uint64(1)
    for job in prange(parts * rows.size):
        part, j = job % parts, job // parts
        row = rows[j]
        q = moduli[row, 0]
        _centred(scaled[part], half, q - prime % q, out[part, j], moduli[row], outer[row, 0], inner[row, 0])
