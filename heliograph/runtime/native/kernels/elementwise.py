"""Elementwise sums and products of ciphertexts and plaintexts. Residues are canonical, before and after.

Polynomials are (words / N, N), plaintexts of real slots (words / N, N / 2): see `rows`.
"""

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
from heliograph.runtime.native.kernels.rows import (
    BITS,
    PRIME,
    RATIO,
    SHORT,
    copy_row,
    high_half,
    long_row,
    reduction_of,
)
from heliograph.runtime.native.kernels.vectors import (
    LANES,
    SUMMANDS,
    load,
    load_at,
    mirrored,
    plus_products,
    products,
    settled_words,
    splat,
    store,
    times_word,
    word_difference,
    word_total,
)

# Numbers in a block of rows of words, of which nothing is copied. A quarter of a ring's dimension may be smaller.
_LONG_BLOCK = 1024


@parallel_kernel
def add(x: Any, y: Any, out: Any, rows: Any, known: Any) -> None:
    """x + y, both (parts, words / N, N); parts missing from y count as zero."""
    towers = rows.shape[0]
    for job in prange(x.shape[0] * towers):
        part, j = job // towers, job % towers
        row, at = rows[j, 0], rows[j, 1]
        q, short = known.moduli[row, PRIME], known.moduli[row, SHORT]
        if part >= y.shape[0]:
            copy_row(x[part], at, out[part], at, short)
        elif short:
            _add_words(x[part, at], y[part, at], out[part, at], q)
        else:
            first, second, sums = long_row(x[part], at), long_row(y[part], at), long_row(out[part], at)
            for i in range(sums.size):
                sums[i] = total(first[i], second[i], q)


@kernel
def _add_words(a: Any, b: Any, o: Any, prime: Any) -> None:
    """a + b in one row; b may be the first half of a row that mirrors it."""
    q = splat(np.uint32(prime))
    for i in range(0, b.size, LANES):
        store(o, i, word_total(load(a, i), load(b, i), q))
    for i in range(b.size, o.size, LANES):
        store(o, i, word_total(load(a, i), mirrored(load(b, o.size - LANES - i)), q))


@parallel_kernel
def add_plain(x: Any, plain: Any, out: Any, rows: Any, known: Any) -> None:
    """x (parts, words / N, N) plus a plaintext."""
    towers, size = rows.shape[0], x.shape[2]
    for job in prange(x.shape[0] * towers):
        part, j = job // towers, job % towers
        row, at = rows[j, 0], rows[j, 1]
        q, short = known.moduli[row, PRIME], known.moduli[row, SHORT]
        if part > 0:
            copy_row(x[part], at, out[part], at, short)
        elif short:
            _add_words(x[part, at], plain[at], out[part, at], q)
        else:
            first, second, sums = long_row(x[part], at), long_row(plain, at), long_row(out[part], at)
            for i in range(second.size):
                sums[i] = total(first[i], second[i], q)
            for i in range(second.size, size):
                sums[i] = total(first[i], second[size - 1 - i], q)


@parallel_kernel
def subtract(x: Any, y: Any, out: Any, rows: Any, known: Any) -> None:
    """x - y, both (parts, words / N, N)."""
    towers = rows.shape[0]
    for job in prange(x.shape[0] * towers):
        part, j = job // towers, job % towers
        row, at = rows[j, 0], rows[j, 1]
        prime = known.moduli[row, PRIME]
        if known.moduli[row, SHORT]:
            a, b, o, q = x[part, at], y[part, at], out[part, at], splat(np.uint32(prime))
            for i in range(0, o.size, LANES):
                store(o, i, word_difference(load(a, i), load(b, i), q))
        else:
            first, second, found = long_row(x[part], at), long_row(y[part], at), long_row(out[part], at)
            for i in range(found.size):
                found[i] = difference(first[i], second[i], prime)


@kernel
def _multiply_words(x: Any, y: Any, out: Any, at: Any, modulus: Any) -> None:
    """One row of `multiply`, for a short prime."""
    q, minus, w, ratio = reduction_of(modulus)
    x0, x1, y0, y1, o0, o1, o2 = x[0, at], x[1, at], y[0, at], y[1, at], out[0, at], out[1, at], out[2, at]
    for i in range(0, o0.size, LANES):
        a0, a1, b0, b1 = load(x0, i), load(x1, i), load(y0, i), load(y1, i)
        store(o0, i, times_word(settled_words(products(a0, b0), q, minus), w, ratio, q))
        store(o1, i, times_word(settled_words(plus_products(products(a0, b1), a1, b0), q, minus), w, ratio, q))
        store(o2, i, times_word(settled_words(products(a1, b1), q, minus), w, ratio, q))


@parallel_kernel
def multiply(x: Any, y: Any, out: Any, rows: Any, known: Any) -> None:
    """The product of two ciphertexts of two parts: (3, words / N, N)."""
    for j in prange(rows.shape[0]):
        row, at = rows[j, 0], rows[j, 1]
        q, bits, ratio = known.moduli[row, PRIME], known.moduli[row, BITS], known.moduli[row, RATIO]
        if known.moduli[row, SHORT]:
            _multiply_words(x, y, out, at, known.moduli[row])
            continue
        x0, x1, y0, y1 = long_row(x[0], at), long_row(x[1], at), long_row(y[0], at), long_row(y[1], at)
        o0, o1, o2 = long_row(out[0], at), long_row(out[1], at), long_row(out[2], at)
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


@kernel
def _product_words(a: Any, b: Any, o: Any, modulus: Any) -> None:
    """a b in one row, for a short prime; b may be the first half of a row that mirrors it."""
    q, minus, w, ratio = reduction_of(modulus)
    for i in range(0, b.size, LANES):
        store(o, i, times_word(settled_words(products(load(a, i), load(b, i)), q, minus), w, ratio, q))
    for i in range(b.size, o.size, LANES):
        other = mirrored(load(b, o.size - LANES - i))
        store(o, i, times_word(settled_words(products(load(a, i), other), q, minus), w, ratio, q))


@parallel_kernel
def multiply_plain(x: Any, plain: Any, out: Any, rows: Any, known: Any) -> None:
    """x (parts, words / N, N) times a plaintext."""
    parts, size = x.shape[0], x.shape[2]
    for job in prange(parts * rows.shape[0]):
        part, j = job % parts, job // parts
        row, at = rows[j, 0], rows[j, 1]
        q, bits, ratio = known.moduli[row, PRIME], known.moduli[row, BITS], known.moduli[row, RATIO]
        if known.moduli[row, SHORT]:
            _product_words(x[part, at], plain[at], out[part, at], known.moduli[row])
            continue
        a, b, o = long_row(x[part], at), long_row(plain, at), long_row(out[part], at)
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
def multiply_constants(x: Any, constants: Any, out: Any, rows: Any, known: Any) -> None:
    """x (parts, words / N, N) times constants (halves, towers, 2), one for each prime and each half of the values."""
    parts, halves = x.shape[0], constants.shape[0]
    for job in prange(parts * rows.shape[0]):
        part, j = job % parts, job // parts
        row, at, size = rows[j, 0], rows[j, 1], x.shape[2] // halves
        q, short = known.moduli[row, PRIME], known.moduli[row, SHORT]
        for half in range(halves):
            w, ratio, begin = constants[half, j, 0], constants[half, j, 1], half * size
            if short:
                words, made = x[part, at], out[part, at]
                factor_word, ratio_word = splat(np.uint32(w)), splat(high_half(ratio))
                prime_word = splat(np.uint32(q))
                for i in range(begin, begin + size, LANES):
                    store(made, i, times_word(load(words, i), factor_word, ratio_word, prime_word))
                continue
            a = long_row(x[part], at)[begin : begin + size]
            o = long_row(out[part], at)[begin : begin + size]
            if q < LIMIT:
                prime, factor = float(q), centred_constant(w, q)
                inverse = 1.0 / prime
                for i in range(size):
                    o[i] = canonical(product_near(near(a[i]), factor, prime, inverse), prime)
            else:
                for i in range(size):
                    o[i] = settled(times_constant(a[i], w, ratio, q), q)


@parallel_kernel
def scaled_residues(numbers: Any, factors: Any, out: Any, rows: Any, known: Any) -> None:
    """Signed integers below 2^63 times a factor (towers, 2) modulo each prime: (words / n, n)."""
    zero = np.uint64(0)
    for j in prange(rows.shape[0]):
        row, at, w, ratio = rows[j, 0], rows[j, 1], factors[j, 0], factors[j, 1]
        q = known.moduli[row, PRIME]
        if known.moduli[row, SHORT]:
            words = out[at]
            for i in range(words.size):
                rest = settled(times_constant(np.uint64(abs(numbers[i])), w, ratio, q), q)
                words[i] = np.uint32(difference(zero, rest, q) if numbers[i] < 0 else rest)
            continue
        o = long_row(out, at)
        for i in range(o.size):
            rest = settled(times_constant(np.uint64(abs(numbers[i])), w, ratio, q), q)
            o[i] = difference(zero, rest, q) if numbers[i] < 0 else rest


@parallel_kernel
def sums_of_products(
    ciphertexts: Any, plains: Any, sizes: Any, terms: Any, begins: Any, out: Any, rows: Any, known: Any
) -> None:
    """Several sums of ciphertexts (2, words / N, N) times plaintexts (words / N, size), both given by address.

    `out` is (sums, 2, words / N, N). Sum s has the terms from begins[s] to begins[s + 1]; each of `terms` is
    (ciphertext, plaintext). The `sizes` of plaintexts are N, or N / 2 for real slots.

    A block is processed together with its mirror image, so that a half plaintext is read from memory once. All sums
    over a block are computed together, so that the ciphertexts are read once. Blocks of long primes are copied first:
    at their original addresses they are powers of two apart and evict each other from the caches.
    """
    width, size = out.shape[2], out.shape[3]
    for job in prange(2 * rows.shape[0]):
        half, j = job % 2, job // 2
        row, at = rows[j, 0], rows[j, 1]
        modulus = known.moduli[row]
        if modulus[SHORT]:
            step = min(_LONG_BLOCK, size // 4)
            # Ciphertexts that several sums read are copied, a little apart, and stay in a cache near the core.
            copied = ciphertexts.size if out.shape[0] > 1 else 0
            copies = np.empty((copied, 2, 2, step + LANES), np.uint32)
            parts, where = np.empty((ciphertexts.size, 2, 2), np.uint64), np.empty((5, terms.shape[0]), np.uint64)
            for block in range(half * size // 4, (half + 1) * size // 4, step):
                _place_parts(ciphertexts, parts, copies, block, step, at, width, size)
                for s in range(out.shape[0]):
                    some = terms[begins[s] : begins[s + 1]]
                    _sum_words(parts, plains, sizes, some, where, out[s], block, step, at, modulus)
            continue
        split = modulus[BITS] <= SPLIT_BITS and modulus[PRIME] < LIMIT
        values = np.empty((2, ciphertexts.size, 2, BLOCK), np.uint64)
        images = np.zeros((TOGETHER + 1, BLOCK), np.uint64)
        for block in range(half * size // 4, (half + 1) * size // 4, BLOCK):
            for i in range(ciphertexts.size):
                x = carray(pointer(ciphertexts[i]), (2, width, size))
                for side in range(2):
                    begin = size - BLOCK - block if side else block
                    for part in range(2):
                        a, copy = long_row(x[part], at)[begin : begin + BLOCK], values[side, i, part]
                        if split:
                            around_zero(a, copy.view(np.float64), modulus)
                        else:
                            for k in range(BLOCK):
                                copy[k] = a[k]
            for s in range(out.shape[0]):
                some = terms[begins[s] : begins[s + 1]]
                if split:
                    _sum_split(values.view(np.float64), plains, sizes, some, images, out[s], block, at, width, modulus)
                else:
                    _sum(values, plains, sizes, some, images, out[s], block, at, width, modulus)


@kernel
def _place_parts(
    ciphertexts: Any, parts: Any, copies: Any, block: Any, step: Any, at: Any, width: Any, size: Any
) -> None:
    """The addresses (ciphertexts, 2 sides, 2 parts) of a row of ciphertexts, or of those at which the row would be if
    `copies`, to which a block and its mirror image are copied, were parts of it.
    """
    four = np.uint64(4)
    for i in range(ciphertexts.size):
        for side in range(2):
            begin = size - step - block if side else block
            for part in range(2):
                row = ciphertexts[i] + four * np.uint64((part * width + at) * size)
                if copies.shape[0]:
                    copy = copies[i, side, part]
                    for k in range(0, step, LANES):
                        store(copy, k, load_at(row, begin + k))
                    row = np.uint64(copy.ctypes.data) - four * np.uint64(begin)
                parts[i, side, part] = row


@kernel
def _sum_words(
    parts: Any,
    plains: Any,
    sizes: Any,
    terms: Any,
    where: Any,
    out: Any,
    block: Any,
    step: Any,
    at: Any,
    modulus: Any,
) -> None:
    """One sum over a block of `step` numbers and its mirror image, for a short prime; `where` is scratch space."""
    size, count, four = out.shape[2], terms.shape[0], np.uint64(4)
    # Plaintexts of which only half is stored come last: they are read backwards in the mirror image.
    whole = 0
    for t in range(count):
        place = terms[t, 1]
        if sizes[place] == size:
            number = whole
            whole += 1
        else:
            number = count - 1 - (t - whole)
        for side in range(2):
            for part in range(2):
                where[2 * side + part, number] = parts[terms[t, 0], side, part]
        where[4, number] = plains[place] + four * np.uint64(at * sizes[place])
    o0, o1 = out[0, at], out[1, at]
    _add_terms(where, 0, 0, whole, False, o0, o1, block, step, True, modulus)
    _add_terms(where, 2, 0, whole, False, o0, o1, size - step - block, step, True, modulus)
    _add_terms(where, 0, whole, count, False, o0, o1, block, step, whole == 0, modulus)
    _add_terms(where, 2, whole, count, True, o0, o1, size - step - block, step, whole == 0, modulus)


@kernel
def _add_terms(
    where: Any,
    side: Any,
    begin: Any,
    end: Any,
    back: Any,
    o0: Any,
    o1: Any,
    block: Any,
    step: Any,
    fresh: Any,
    modulus: Any,
) -> None:
    """Add some of the terms to both parts of a sum over a block, or begin the sum if it is `fresh`.

    `where` has the addresses of both parts of a ciphertext's row, at `side` and behind it, and at its end those of a
    plaintext's, which is read `back` to front if only its first half is stored.
    """
    if begin == end:
        return
    q, minus, w, ratio = reduction_of(modulus)
    first, second, factors, size = where[side], where[side + 1], where[4], o0.size
    for x in range(block, block + step, LANES):
        found0, found1 = splat(np.uint32(0)), splat(np.uint32(0))
        there = size - LANES - x if back else x
        for t in range(begin, end, SUMMANDS):
            factor = load_at(factors[t], there)
            factor = mirrored(factor) if back else factor
            sums0 = products(load_at(first[t], x), factor)
            sums1 = products(load_at(second[t], x), factor)
            for u in range(t + 1, min(t + SUMMANDS, end)):
                factor = load_at(factors[u], there)
                factor = mirrored(factor) if back else factor
                sums0 = plus_products(sums0, load_at(first[u], x), factor)
                sums1 = plus_products(sums1, load_at(second[u], x), factor)
            found0 = word_total(found0, settled_words(sums0, q, minus), q)
            found1 = word_total(found1, settled_words(sums1, q, minus), q)
        found0, found1 = times_word(found0, w, ratio, q), times_word(found1, w, ratio, q)
        if not fresh:
            found0, found1 = word_total(found0, load(o0, x), q), word_total(found1, load(o1, x), q)
        store(o0, x, found0)
        store(o1, x, found1)


@kernel
def _factor(
    plains: Any, sizes: Any, place: Any, towers: Any, j: Any, block: Any, side: Any, size: Any, image: Any
) -> Any:
    """A block of a plaintext's row at place j, or the mirrored block, copied to `image` if only half of the plaintext is
    stored.
    """
    plain = long_row(carray(pointer(plains[place]), (towers, sizes[place])), j)
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
    size = out.shape[2]
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
            gather_split(sums[side, part], long_row(out[part], j)[begin : begin + BLOCK], modulus)


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
    size = out.shape[2]
    doubles, pieces = np.empty((2, 2, BLOCK)), np.empty((2, 2, 3, BLOCK), np.uint64)
    for t in range(terms.shape[0]):
        for side in range(2):
            x = values[side, terms[t, 0]]
            b = _factor(plains, sizes, terms[t, 1], towers, j, block, side, size, images[0])
            if modulus[PRIME] < LIMIT:
                multiply_add_near(x[0], x[1], b, doubles[side], t, modulus)
                continue
            begin = size - BLOCK - block if side else block
            for part in range(2):
                o = long_row(out[part], j)[begin : begin + BLOCK]
                multiply_add(x[part], b, pieces[side, part], t, o)
                if t % TERMS == TERMS - 1 or t == terms.shape[0] - 1:
                    gather(pieces[side, part], o, modulus)
    if modulus[PRIME] < LIMIT:
        for side in range(2):
            begin = size - BLOCK - block if side else block
            for part in range(2):
                gather_near(doubles[side, part], long_row(out[part], j)[begin : begin + BLOCK], modulus)
