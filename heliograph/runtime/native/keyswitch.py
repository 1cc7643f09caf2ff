"""Key switching: digits, their product with a key, division by the special primes. Rescaling is a similar division.

The construction is OpenFHE's (HYBRID, Han and Ki 2020), and so is every rounding: results are the same to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import prange

from heliograph.runtime.native.kernels.accumulate import (
    BLOCK,
    TERMS,
    gather,
    gather_near,
    multiply_add,
    multiply_add_near,
)
from heliograph.runtime.native.kernels.arithmetic import (
    difference,
    kernel,
    parallel_kernel,
    reduced,
    settled,
    times_constant,
    total,
)
from heliograph.runtime.native.kernels.floating import LIMIT, canonical, centred_constant, near, nearest, product_near
from heliograph.runtime.native.kernels.transforms import backward, forward, forward_near, forward_whole


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


# The number of products that are summed before the sum is reduced.
_SUMMANDS = 4
_PIECE, _MASK = np.uint64(30), np.uint64((1 << 30) - 1)


@kernel
def _combined_near(sources: Any, primes: Any, factors: Any, out: Any, prime: Any) -> None:
    """The sum of polynomials times constants modulo q, in doubles between -q / 2 and q / 2.

    `primes` are the sources' primes; residues with more bits than doubles are multiplied in two pieces. A source beyond
    the last prime holds small numbers (`wholes`).
    """
    q = float(prime)
    inverse = 1.0 / q
    for begin in range(0, out.size, BLOCK):
        o = out[begin : begin + BLOCK]
        o[:] = 0.0
        for i in range(sources.shape[0]):
            w, source = centred_constant(factors[i, 0], prime), sources[i, begin : begin + BLOCK]
            if i >= primes.size or primes[i] < LIMIT:
                for x in range(o.size):
                    o[x] += product_near(near(source[x]), w, q, inverse)
            else:
                upper = product_near(2.0**30, w, q, inverse)
                for x in range(o.size):
                    high, low = near(source[x] >> _PIECE), near(source[x] & _MASK)
                    o[x] += product_near(high, upper, q, inverse) + product_near(low, w, q, inverse)
            if i % _SUMMANDS == _SUMMANDS - 1 or i == sources.shape[0] - 1:
                for x in range(o.size):
                    o[x] = nearest(o[x], q, inverse)


@kernel
def _primes(moduli: Any, rows: Any) -> Any:
    """The primes of some rows."""
    found = np.empty(rows.size, np.uint64)
    for i in range(rows.size):
        found[i] = moduli[rows[i], 0]
    return found


@kernel
def _combined_values(sources: Any, primes: Any, factors: Any, out: Any, prime: Any, outer: Any, inner: Any) -> None:
    """The sum of polynomials times constants modulo a prime, in evaluation form."""
    if prime < LIMIT:
        _combined_near(sources, primes, factors, out.view(np.float64), prime)
        forward_near(out, outer, inner, prime)
    else:
        _combined(sources, factors, out, prime)
        forward_whole(out, outer, inner, prime)


@kernel
def _centred(s: Any, first: Any, out: Any, modulus: Any, outer: Any, inner: Any) -> None:
    """Coefficients modulo the prime `first`, centred around zero, as values modulo another prime."""
    q, bits, barrett, zero = modulus[0], modulus[1], modulus[2], np.uint64(0)
    half = first >> np.uint64(1)
    if q < LIMIT and first < LIMIT:
        doubles, prime, other = out.view(np.float64), float(q), float(first)
        inverse = 1.0 / prime
        for i in range(out.size):
            doubles[i] = nearest(near(s[i]) - (other if s[i] > half else 0.0), prime, inverse)
        forward_near(out, outer, inner, q)
        return
    less = q - first % q
    for i in range(out.size):
        out[i] = reduced(zero, s[i], q, bits, barrett) + (less if s[i] > half else zero)
    if q < LIMIT:
        for i in range(out.size):
            out[i] = min(out[i], out[i] - q)
    forward(out, outer, inner, q)


@kernel
def _quotient(x: Any, rest: Any, inverse: Any, prime: Any) -> None:
    """Write (x - rest) times a constant into `rest`."""
    if prime < LIMIT:
        q = float(prime)
        w, one_over = centred_constant(inverse[0], prime), 1.0 / q
        for i in range(rest.size):
            rest[i] = canonical(product_near(near(x[i]) - near(rest[i]), w, q, one_over), q)
    else:
        w, ratio = inverse[0], inverse[1]
        for i in range(rest.size):
            rest[i] = settled(times_constant(difference(x[i], rest[i], prime), w, ratio, prime), prime)


@parallel_kernel
def coefficients(values: Any, scaled: Any, rows: Any, constants: Any, moduli: Any, outer: Any, inner: Any) -> None:
    """Write coefficients of values (parts, n, N), times constants that include 1/N, into the first n rows of `scaled`.

    Each row is modulo its own prime."""
    parts = values.shape[0]
    for job in prange(parts * values.shape[1]):
        part, i = job % parts, job // parts
        row, a, o = rows[i], values[part, i], scaled[part, i]
        for x in range(o.size):
            o[x] = a[x]
        backward(o, outer[row, 1], inner[row, 1], constants[i], moduli[row, 0])


@parallel_kernel
def raise_digits(
    values: Any, scaled: Any, digits: Any, alpha: int, rows: Any, up: Any, moduli: Any, outer: Any, inner: Any
) -> None:
    """The digits of a polynomial in the extended basis, (digits, rows, N), from values (towers, N) and `scaled` ones.

    Modulo its own primes a digit is a copy. The other jobs take equally long, so that threads share them evenly.
    """
    towers, count = values.shape[0], digits.shape[0]
    for j in prange(towers):
        a, o = values[j], digits[j // alpha, j]
        for x in range(o.size):
            o[x] = a[x]
    # Modulo a prime of the value all digits but one are raised; modulo a special prime all are.
    others = towers * (count - 1)
    for job in prange(count * rows.size - towers):
        if job < others:
            j, other = job // (count - 1), job % (count - 1)
            g = other + 1 if other >= j // alpha else other
        else:
            j, g = towers + (job - others) // count, (job - others) % count
        begin, end = g * alpha, min(towers, (g + 1) * alpha)
        row, primes = rows[j], _primes(moduli, rows[begin:end])
        _combined_values(
            scaled[begin:end], primes, up[begin:end, j], digits[g, j], moduli[row, 0], outer[row, 0], inner[row, 0]
        )


@kernel
def _key_block(
    digits: Any, key: Any, j: Any, key_row: Any, begin: Any, sums: Any, pieces: Any, o0: Any, o1: Any, modulus: Any
) -> None:
    """One block of the digits' product with a key modulo prime j, written into two blocks.

    `sums` (2, BLOCK) and `pieces` (2, 3, BLOCK) are scratch space.
    """
    last = digits.shape[0] - 1
    for g in range(digits.shape[0]):
        a = digits[g, j, begin : begin + BLOCK]
        b0, b1 = key[0, g, key_row, begin : begin + BLOCK], key[1, g, key_row, begin : begin + BLOCK]
        if modulus[0] < LIMIT:
            multiply_add_near(b0, b1, a, sums, g, modulus)
            continue
        for part in range(2):
            o = o0 if part == 0 else o1
            multiply_add(a, b0 if part == 0 else b1, pieces[part], g, o)
            if g % TERMS == TERMS - 1 or g == last:
                gather(pieces[part], o, modulus)
    if modulus[0] < LIMIT:
        gather_near(sums[0], o0, modulus)
        gather_near(sums[1], o1, modulus)


@parallel_kernel
def key_product(digits: Any, key: Any, key_rows: Any, out: Any, rows: Any, moduli: Any) -> None:
    """Digits (d, rows, N) times a key (2, digits, its rows, N), summed over the digits: (2, rows, N).

    `key_rows` are the places of the digits' primes in the key.
    """
    half_size = out.shape[2] // 2
    for job in prange(2 * rows.size):
        half, j = job % 2, job // 2
        modulus = moduli[rows[j]]
        sums, pieces = np.empty((2, BLOCK)), np.empty((2, 3, BLOCK), np.uint64)
        for begin in range(half * half_size, (half + 1) * half_size, BLOCK):
            o0, o1 = out[0, j, begin : begin + BLOCK], out[1, j, begin : begin + BLOCK]
            _key_block(digits, key, j, key_rows[j], begin, sums, pieces, o0, o1, modulus)


@parallel_kernel
def rotated(
    digits: Any,
    key: Any,
    key_rows: Any,
    base: Any,
    lift: Any,
    more: Any,
    targets: Any,
    out: Any,
    rows: Any,
    moduli: Any,
) -> None:
    """A key switch and an automorphism in the extended basis: (2, rows, N), still to be divided by the product P of the
    special primes.

    The digits (d, rows, N) are multiplied by a key (2, digits, its rows, N), and `base` is added to the first part over
    the primes of `base`: times P, if `lift` holds P modulo each prime (towers, 2), or unchanged if `lift` is empty. The
    value at x moves to targets[x], where `more`, (2, rows, N) or empty, is added. `key_rows` are the places of the
    digits' primes in the key.
    """
    for j in prange(rows.size):
        modulus = moduli[rows[j]]
        q = modulus[0]
        sums, pieces, made = np.empty((2, BLOCK)), np.empty((2, 3, BLOCK), np.uint64), np.empty((2, BLOCK), np.uint64)
        for begin in range(0, out.shape[2], BLOCK):
            _key_block(digits, key, j, key_rows[j], begin, sums, pieces, made[0], made[1], modulus)
            if j < base.shape[0]:
                _add_lifted(made[0], base[j, begin : begin + BLOCK], lift, j, q)
            for part in range(2):
                m, o = made[part], out[part, j]
                if more.shape[0] > 0:
                    summand = more[part, j]
                    for x in range(BLOCK):
                        target = targets[begin + x]
                        o[target] = total(m[x], summand[target], q)
                else:
                    for x in range(BLOCK):
                        o[targets[begin + x]] = m[x]


@kernel
def _add_lifted(sums: Any, values: Any, lift: Any, j: int, q: Any) -> None:
    """Add values times lift[j], or the values themselves if `lift` is empty."""
    if lift.shape[0] == 0:
        for x in range(sums.size):
            sums[x] = total(sums[x], values[x], q)
        return
    w, ratio = lift[j, 0], lift[j, 1]
    if q < LIMIT:
        prime, factor = float(q), centred_constant(w, q)
        inverse = 1.0 / prime
        for x in range(sums.size):
            sums[x] = total(sums[x], canonical(product_near(near(values[x]), factor, prime, inverse), prime), q)
        return
    for x in range(sums.size):
        sums[x] = total(sums[x], settled(times_constant(values[x], w, ratio, q), q), q)


@parallel_kernel
def widened(values: Any, lift: Any, out: Any, rows: Any, moduli: Any) -> None:
    """Values (2, towers, N) times P in the extended basis, (2, rows, N): zero modulo the special primes."""
    parts = out.shape[0]
    for job in prange(parts * out.shape[1]):
        part, j = job % parts, job // parts
        o = out[part, j]
        for x in range(o.size):
            o[x] = 0
        if j < values.shape[1]:
            _add_lifted(o, values[part, j], lift, j, moduli[rows[j], 0])


@parallel_kernel
def wholes(scaled: Any, rows: Any, moduli: Any) -> None:
    """The sum of `scaled` coefficients (parts, primes, N) over their primes, rounded to an integer, into the next row.

    This is how often the product of the primes P fits into the sum of the coefficients times P over each prime."""
    parts, primes = scaled.shape[0], scaled.shape[1] - 1
    step = 1024
    count = scaled.shape[2] // step + (scaled.shape[2] % step > 0)
    for job in prange(parts * count):
        part, begin = job % parts, job // parts * step
        shares = np.full(min(step, scaled.shape[2] - begin), 0.5)
        for i in range(primes):
            row, prime = scaled[part, i, begin : begin + shares.size], moduli[rows[i], 0]
            inverse = 1.0 / float(prime)
            if prime < LIMIT:
                for x in range(shares.size):
                    shares[x] += near(row[x]) * inverse
            else:
                for x in range(shares.size):
                    shares[x] += float(row[x]) * inverse
        o = scaled[part, primes, begin : begin + shares.size]
        for x in range(shares.size):
            o[x] = np.uint64(np.int64(shares[x]))


@parallel_kernel
def divide(
    values: Any, scaled: Any, out: Any, rows: Any, down: Any, inverse: Any, moduli: Any, outer: Any, inner: Any
) -> None:
    """(parts, kept, N) from (parts, kept + last, N): subtract the remainder by the last primes, given as `scaled`, and
    divide by their product."""
    parts, kept = out.shape[0], out.shape[1]
    primes = _primes(moduli, rows[kept:])
    for job in prange(parts * kept):
        part, j = job % parts, job // parts
        row = rows[j]
        o, x, q = out[part, j], values[part, j], moduli[row, 0]
        _combined_values(scaled[part], primes, down[:, j], o, q, outer[row, 0], inner[row, 0])
        _quotient(x, o, inverse[j], q)


@parallel_kernel
def divide_by_last(
    values: Any, scaled: Any, out: Any, rows: Any, inverse: Any, moduli: Any, outer: Any, inner: Any
) -> None:
    """Division by one last prime, whose coefficients are first centred around zero, as OpenFHE rescales."""
    parts, kept = out.shape[0], out.shape[1]
    last = moduli[rows[kept], 0]
    for job in prange(parts * kept):
        part, j = job % parts, job // parts
        row = rows[j]
        q, o = moduli[row, 0], out[part, j]
        _centred(scaled[part, 0], last, o, moduli[row], outer[row, 0], inner[row, 0])
        _quotient(values[part, j], o, inverse[j], q)


@parallel_kernel
def raise_modulus(scaled: Any, prime: Any, out: Any, rows: Any, moduli: Any, outer: Any, inner: Any) -> None:
    """Coefficients (parts, N) modulo one prime, centred around zero, as values modulo many primes: (parts, rows, N)."""
    parts = scaled.shape[0]
    for job in prange(parts * rows.size):
        part, j = job % parts, job // parts
        row = rows[j]
        _centred(scaled[part], prime, out[part, j], moduli[row], outer[row, 0], inner[row, 0])
