"""Elementwise sums and products of ciphertexts and plaintexts. Residues are canonical, before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, prange

from heliograph.runtime.native.kernels.accumulate import (
    BLOCK,
    SPLIT_BITS,
    TERMS,
    TOGETHER,
    add_split,
    around_zero,
    gather,
    gather_near,
    gather_split,
    multiply_add,
    multiply_add_near,
    settle_split,
)
from heliograph.runtime.native.kernels.arithmetic import (
    difference,
    kernel,
    parallel_kernel,
    product,
    settled,
    times_constant,
    total,
)
from heliograph.runtime.native.kernels.floating import LIMIT, canonical, centred_constant, near, nearest, product_near
from heliograph.runtime.native.kernels.pointers import pointer


@parallel_kernel
def add(x: Any, y: Any, out: Any, rows: Any, moduli: Any) -> None:
    """x + y, both (parts, towers, N); parts missing from y count as zero."""
    towers = x.shape[1]
    for job in prange(x.shape[0] * towers):
        part, j = job // towers, job % towers
        q, a, o = moduli[rows[j], 0], x[part, j], out[part, j]
        if part < y.shape[0]:
            b = y[part, j]
            for i in range(o.size):
                o[i] = total(a[i], b[i], q)
        else:
            for i in range(o.size):
                o[i] = a[i]


@parallel_kernel
def add_plain(x: Any, plain: Any, out: Any, rows: Any, moduli: Any) -> None:
    """x (parts, towers, N) plus a plaintext (towers, N), or (towers, N / 2) for real slots."""
    towers, size = x.shape[1], x.shape[2]
    for job in prange(x.shape[0] * towers):
        part, j = job // towers, job % towers
        q, a, b, o = moduli[rows[j], 0], x[part, j], plain[j], out[part, j]
        if part > 0:
            # Not o[:] = a: numba 0.68 drops that in this loop.
            for i in range(size):
                o[i] = a[i]
        else:
            for i in range(b.size):
                o[i] = total(a[i], b[i], q)
            for i in range(b.size, size):
                o[i] = total(a[i], b[size - 1 - i], q)


@parallel_kernel
def subtract(x: Any, y: Any, out: Any, rows: Any, moduli: Any) -> None:
    """x - y, both (parts, towers, N)."""
    towers = x.shape[1]
    for job in prange(x.shape[0] * towers):
        part, j = job // towers, job % towers
        q, a, b, o = moduli[rows[j], 0], x[part, j], y[part, j], out[part, j]
        for i in range(o.size):
            o[i] = difference(a[i], b[i], q)


@parallel_kernel
def multiply(x: Any, y: Any, out: Any, rows: Any, moduli: Any) -> None:
    """The product of two ciphertexts of two parts: (3, towers, N)."""
    for j in prange(x.shape[1]):
        q, bits, ratio = moduli[rows[j], 0], moduli[rows[j], 1], moduli[rows[j], 2]
        x0, x1, y0, y1 = x[0, j], x[1, j], y[0, j], y[1, j]
        o0, o1, o2 = out[0, j], out[1, j], out[2, j]
        if q < LIMIT:
            prime = float(q)
            inverse = 1.0 / prime
            for i in range(o0.size):
                a0, a1, b0, b1 = near(x0[i]), near(x1[i]), near(y0[i]), near(y1[i])
                o0[i] = canonical(product_near(a0, b0, prime, inverse), prime)
                o2[i] = canonical(product_near(a1, b1, prime, inverse), prime)
                both = product_near(a0, b1, prime, inverse) + product_near(a1, b0, prime, inverse)
                o1[i] = canonical(nearest(both, prime, inverse), prime)
            continue
        for i in range(o0.size):
            o0[i] = product(x0[i], y0[i], q, bits, ratio)
            o2[i] = product(x1[i], y1[i], q, bits, ratio)
            o1[i] = total(product(x0[i], y1[i], q, bits, ratio), product(x1[i], y0[i], q, bits, ratio), q)


@parallel_kernel
def multiply_plain(x: Any, plain: Any, out: Any, rows: Any, moduli: Any) -> None:
    """x (parts, towers, N) times a plaintext (towers, N), or (towers, N / 2) for real slots."""
    parts, size = x.shape[0], x.shape[2]
    for job in prange(parts * x.shape[1]):
        part, j = job % parts, job // parts
        q, bits, ratio = moduli[rows[j], 0], moduli[rows[j], 1], moduli[rows[j], 2]
        a, b, o = x[part, j], plain[j], out[part, j]
        if q < LIMIT:
            prime = float(q)
            inverse = 1.0 / prime
            for i in range(b.size):
                o[i] = canonical(product_near(near(a[i]), near(b[i]), prime, inverse), prime)
            for i in range(b.size, size):
                o[i] = canonical(product_near(near(a[i]), near(b[size - 1 - i]), prime, inverse), prime)
            continue
        for i in range(b.size):
            o[i] = product(a[i], b[i], q, bits, ratio)
        for i in range(b.size, size):
            o[i] = product(a[i], b[size - 1 - i], q, bits, ratio)


@parallel_kernel
def add_product(sums: Any, x: Any, y: Any, minus: bool, rows: Any, moduli: Any) -> None:
    """Add the products of x and y to the sums, or subtract them with `minus`: all (towers, N)."""
    for j in prange(x.shape[0]):
        q, bits, ratio = moduli[rows[j], 0], moduli[rows[j], 1], moduli[rows[j], 2]
        a, b, o = x[j], y[j], sums[j]
        if q < LIMIT:
            prime = float(q)
            inverse, sign = 1.0 / prime, -1.0 if minus else 1.0
            for i in range(o.size):
                found = near(o[i]) + sign * product_near(near(a[i]), near(b[i]), prime, inverse)
                o[i] = canonical(nearest(found, prime, inverse), prime)
        elif minus:
            for i in range(o.size):
                o[i] = difference(o[i], product(a[i], b[i], q, bits, ratio), q)
        else:
            for i in range(o.size):
                o[i] = total(o[i], product(a[i], b[i], q, bits, ratio), q)


@parallel_kernel
def signed_residues(numbers: Any, out: Any, rows: Any, moduli: Any) -> None:
    """Signed integers (N), smaller than each prime, as residues (towers, N). No branch depends on a number."""
    for j in prange(out.shape[0]):
        q, o = np.int64(moduli[rows[j], 0]), out[j]
        for i in range(o.size):
            o[i] = np.uint64(numbers[i] + (numbers[i] >> 63 & q))


@parallel_kernel
def multiply_constants(x: Any, constants: Any, out: Any, rows: Any, moduli: Any) -> None:
    """x (parts, towers, N) times constants (halves, towers, 2), one for each prime and each half of the values."""
    parts, halves = x.shape[0], constants.shape[0]
    for job in prange(parts * x.shape[1]):
        part, j = job % parts, job // parts
        q, size = moduli[rows[j], 0], x.shape[2] // halves
        for half in range(halves):
            w, ratio = constants[half, j, 0], constants[half, j, 1]
            a, o = x[part, j, half * size : (half + 1) * size], out[part, j, half * size : (half + 1) * size]
            if q < LIMIT:
                prime, factor = float(q), centred_constant(w, q)
                inverse = 1.0 / prime
                for i in range(size):
                    o[i] = canonical(product_near(near(a[i]), factor, prime, inverse), prime)
            else:
                for i in range(size):
                    o[i] = settled(times_constant(a[i], w, ratio, q), q)


@parallel_kernel
def scaled_residues(numbers: Any, factors: Any, out: Any, rows: Any, moduli: Any) -> None:
    """Signed integers (N), below 2^63, times a factor (towers, 2) modulo each prime: (towers, N)."""
    zero = np.uint64(0)
    for j in prange(out.shape[0]):
        q, o, w, ratio = moduli[rows[j], 0], out[j], factors[j, 0], factors[j, 1]
        for i in range(o.size):
            number = numbers[i]
            rest = settled(times_constant(np.uint64(abs(number)), w, ratio, q), q)
            o[i] = difference(zero, rest, q) if number < 0 else rest


@parallel_kernel
def sums_of_products(
    ciphertexts: Any, plains: Any, sizes: Any, terms: Any, begins: Any, out: Any, rows: Any, moduli: Any
) -> None:
    """Several sums of ciphertexts (2, towers, N) times plaintexts (towers, size), both given by address.

    `out` is (sums, 2, towers, N). Sum s has the terms from begins[s] to begins[s + 1]; each of `terms` is (ciphertext,
    plaintext). The `sizes` of plaintexts are N, or N / 2 for real slots.

    A block is processed together with its mirror image, so that a half plaintext is read from memory once. All sums
    over a block are computed together, so that the ciphertexts are read once. Their blocks are copied first: at their
    original addresses they are powers of two apart and evict each other from the caches.
    """
    towers, size = out.shape[2], out.shape[3]
    for job in prange(2 * towers):
        half, j = job % 2, job // 2
        modulus = moduli[rows[j]]
        split = modulus[1] <= SPLIT_BITS and modulus[0] < LIMIT
        values = np.empty((2, ciphertexts.size, 2, BLOCK), np.uint64)
        images = np.zeros((TOGETHER + 1, BLOCK), np.uint64)
        for block in range(half * size // 4, (half + 1) * size // 4, BLOCK):
            for i in range(ciphertexts.size):
                x = carray(pointer(ciphertexts[i]), (2, towers, size))
                for side in range(2):
                    begin = size - BLOCK - block if side else block
                    for part in range(2):
                        a, copy = x[part, j, begin : begin + BLOCK], values[side, i, part]
                        if split:
                            around_zero(a, copy.view(np.float64), modulus)
                        else:
                            for k in range(BLOCK):
                                copy[k] = a[k]
            for s in range(out.shape[0]):
                some = terms[begins[s] : begins[s + 1]]
                sums = out[s, :, j]
                if split:
                    _sum_split(values.view(np.float64), plains, sizes, some, images, sums, block, j, towers, modulus)
                else:
                    _sum(values, plains, sizes, some, images, sums, block, j, towers, modulus)


@kernel
def _factor(
    plains: Any, sizes: Any, place: Any, towers: Any, j: Any, block: Any, side: Any, size: Any, image: Any
) -> Any:
    """A block of a plaintext, or the mirrored block, copied to `image` if only half of the plaintext is stored."""
    plain = carray(pointer(plains[place]), (towers, sizes[place]))[j]
    if side == 0:
        return plain[block : block + BLOCK]
    if plain.size == size:
        return plain[size - BLOCK - block : size - block]
    b = plain[block : block + BLOCK]
    for k in range(BLOCK):
        image[k] = b[BLOCK - 1 - k]
    return image


@kernel
def _sum_split(
    values: Any,
    plains: Any,
    sizes: Any,
    terms: Any,
    images: Any,
    out: Any,
    block: Any,
    j: Any,
    towers: Any,
    modulus: Any,
) -> None:
    """One sum over a block and its mirror image, `TOGETHER` terms at a time; the last group is padded with zeros."""
    size = out.shape[1]
    sums = np.zeros((2, 2, 2, BLOCK))
    for t in range(0, terms.shape[0], TOGETHER):
        for side in range(2):
            if t and t % TERMS == 0:
                settle_split(sums[side], modulus)
            last = terms.shape[0] - 1
            p0, p1, p2, p3 = terms[t], terms[min(t + 1, last)], terms[min(t + 2, last)], terms[min(t + 3, last)]
            b0 = _factor(plains, sizes, p0[1], towers, j, block, side, size, images[0])
            b1, b2, b3 = images[TOGETHER], images[TOGETHER], images[TOGETHER]
            if t + 1 <= last:
                b1 = _factor(plains, sizes, p1[1], towers, j, block, side, size, images[1])
            if t + 2 <= last:
                b2 = _factor(plains, sizes, p2[1], towers, j, block, side, size, images[2])
            if t + 3 <= last:
                b3 = _factor(plains, sizes, p3[1], towers, j, block, side, size, images[3])
            add_split(values[side], p0[0], p1[0], p2[0], p3[0], b0, b1, b2, b3, sums[side])
    for side in range(2):
        settle_split(sums[side], modulus)
        begin = size - BLOCK - block if side else block
        for part in range(2):
            gather_split(sums[side, part], out[part, begin : begin + BLOCK], modulus)


@kernel
def _sum(
    values: Any,
    plains: Any,
    sizes: Any,
    terms: Any,
    images: Any,
    out: Any,
    block: Any,
    j: Any,
    towers: Any,
    modulus: Any,
) -> None:
    """One sum over a block and its mirror image for all other primes, term by term."""
    size = out.shape[1]
    doubles, pieces = np.empty((2, 2, BLOCK)), np.empty((2, 2, 3, BLOCK), np.uint64)
    for t in range(terms.shape[0]):
        for side in range(2):
            x = values[side, terms[t, 0]]
            b = _factor(plains, sizes, terms[t, 1], towers, j, block, side, size, images[0])
            if modulus[0] < LIMIT:
                multiply_add_near(x[0], x[1], b, doubles[side], t, modulus)
                continue
            begin = size - BLOCK - block if side else block
            for part in range(2):
                o = out[part, begin : begin + BLOCK]
                multiply_add(x[part], b, pieces[side, part], t, o)
                if t % TERMS == TERMS - 1 or t == terms.shape[0] - 1:
                    gather(pieces[side, part], o, modulus)
    if modulus[0] < LIMIT:
        for side in range(2):
            begin = size - BLOCK - block if side else block
            for part in range(2):
                gather_near(doubles[side, part], out[part, begin : begin + BLOCK], modulus)
