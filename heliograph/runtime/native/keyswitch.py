"""Key switching: digits, their product with a key, division by the special primes. Rescaling is a similar division.

The construction is OpenFHE's (HYBRID, Han and Ki 2020), and so is every rounding: results are the same to the last bit.
A division by the special primes and a level's prime at once rounds once, where two divisions round twice.
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
from heliograph.runtime.native.kernels.rows import (
    BITS,
    MINUS,
    PLACE,
    PRIME,
    RATIO,
    SHORT,
    backward_row,
    copy_row,
    high_half,
    long_row,
    reduction_of,
)
from heliograph.runtime.native.kernels.transforms import forward, forward_near, forward_whole
from heliograph.runtime.native.kernels.vectors import (
    LANES,
    SUMMANDS,
    above,
    load,
    no_sum,
    pair_at,
    permuted,
    plus_pieces,
    plus_products,
    products,
    settled_words,
    splat,
    store,
    times_word,
    word_difference,
    word_total,
)
from heliograph.runtime.native.kernels.word_transforms import forward_words


@kernel
def _sources(rows: Any, origin: Any, count: Any, moduli: Any) -> Any:
    """For each of `count` sources the place of its row, in an array that begins at `origin`, and whether it has one word.

    A source beyond the last of the `rows` follows them, and holds small numbers in words (`wholes`).
    """
    places, short, following = np.empty(count, np.int64), np.empty(count, np.bool_), np.int64(0)
    for i in range(count):
        known = i < rows.shape[0]
        places[i] = rows[i, 1] - origin if known else following
        short[i] = moduli[rows[i, 0], SHORT] != 0 if known else True
        following = places[i] + (1 if short[i] else 2)
    return places, short


@kernel
def _combined(scaled: Any, rows: Any, origin: Any, factors: Any, out: Any, moduli: Any, q: Any) -> None:
    """The sum of polynomials times constants modulo q, below 4 q; `factors` are (sources, 2). See `_sources`."""
    q4 = np.uint64(4) * q
    places, short = _sources(rows, origin, factors.shape[0], moduli)
    for x in range(out.size):
        out[x] = np.uint64(0)
    for i in range(factors.shape[0]):
        w, ratio = factors[i, 0], factors[i, 1]
        if short[i]:
            words = scaled[places[i]]
            for x in range(out.size):
                value = out[x] + times_constant(np.uint64(words[x]), w, ratio, q)
                out[x] = min(value, value - q4)
        else:
            source = long_row(scaled, places[i])
            for x in range(out.size):
                value = out[x] + times_constant(source[x], w, ratio, q)
                out[x] = min(value, value - q4)


# The number of products that are summed before the sum is reduced.
_SUMMANDS = 4
_PIECE, _MASK = np.uint64(30), np.uint64((1 << 30) - 1)


@kernel
def _combined_near(scaled: Any, rows: Any, origin: Any, factors: Any, out: Any, moduli: Any, prime: Any) -> None:
    """The same in doubles between -q / 2 and q / 2. Residues with more bits than doubles are multiplied in two pieces."""
    q = float(prime)
    inverse = 1.0 / q
    places, short = _sources(rows, origin, factors.shape[0], moduli)
    for begin in range(0, out.size, BLOCK):
        o = out[begin : begin + BLOCK]
        o[:] = 0.0
        for i in range(factors.shape[0]):
            w = centred_constant(factors[i, 0], prime)
            if short[i]:
                words = scaled[places[i], begin : begin + BLOCK]
                for x in range(o.size):
                    o[x] += product_near(near(np.uint64(words[x])), w, q, inverse)
            else:
                source = long_row(scaled, places[i])[begin : begin + BLOCK]
                if moduli[rows[i, 0], PRIME] < LIMIT:
                    for x in range(o.size):
                        o[x] += product_near(near(source[x]), w, q, inverse)
                else:
                    upper = product_near(2.0**30, w, q, inverse)
                    for x in range(o.size):
                        high, low = near(source[x] >> _PIECE), near(source[x] & _MASK)
                        o[x] += product_near(high, upper, q, inverse) + product_near(low, w, q, inverse)
            if i % _SUMMANDS == _SUMMANDS - 1 or i == factors.shape[0] - 1:
                for x in range(o.size):
                    o[x] = nearest(o[x], q, inverse)


@kernel
def _combined_words(scaled: Any, rows: Any, origin: Any, factors: Any, out: Any, moduli: Any, modulus: Any) -> None:
    """The same for a short prime, canonical. Residues of long primes are multiplied in two pieces of 30 bits."""
    prime, shift, n = modulus[PRIME], np.uint64(32), out.size
    q, minus, flat = splat(np.uint32(prime)), splat(np.uint32(modulus[MINUS])), scaled.reshape(scaled.size)
    count = factors.shape[0]
    where, short = _sources(rows, origin, count, moduli)
    places, constants = np.empty(count, np.int64), np.empty((count, 2), np.uint32)
    # Sources in words come first, then those of long primes.
    shorts = 0
    for i in range(count):
        number = shorts if short[i] else count - 1 - (i - shorts)
        # Times 2^32, for Montgomery's reduction.
        lifted = (factors[i, 0] << shift) % prime
        places[number], constants[number, 0] = where[i] * n, np.uint32(lifted)
        constants[number, 1] = np.uint32((lifted << _PIECE) % prime)
        if short[i]:
            shorts += 1
    for x in range(0, n, LANES):
        found = splat(np.uint32(0))
        for first in range(0, shorts, SUMMANDS):
            sums = products(load(flat, places[first] + x), splat(constants[first, 0]))
            for i in range(first + 1, min(first + SUMMANDS, shorts)):
                sums = plus_products(sums, load(flat, places[i] + x), splat(constants[i, 0]))
            found = word_total(found, settled_words(sums, q, minus), q)
        for i in range(shorts, count):
            numbers = pair_at(flat, places[i] + 2 * x)
            sums = plus_pieces(no_sum(found), numbers, splat(constants[i, 0]), splat(constants[i, 1]))
            found = word_total(found, settled_words(sums, q, minus), q)
        store(out, x, found)


@kernel
def _combined_values(
    scaled: Any, rows: Any, origin: Any, factors: Any, out: Any, at: Any, row: Any, known: Any
) -> None:
    """The sum of polynomials times constants modulo a prime, in evaluation form, in the row of `out` at a place."""
    modulus, place = known.moduli[row], known.moduli[row, PLACE]
    prime = modulus[PRIME]
    if modulus[SHORT]:
        _combined_words(scaled, rows, origin, factors, out[at], known.moduli, modulus)
        forward_words(out[at], known.steps[place, 0], known.lanes[place], prime, 0)
        return
    o = long_row(out, at)
    if prime < LIMIT:
        _combined_near(scaled, rows, origin, factors, o.view(np.float64), known.moduli, prime)
        forward_near(o, known.outer[place, 0], known.inner[place, 0], prime)
    else:
        _combined(scaled, rows, origin, factors, o, known.moduli, prime)
        forward_whole(o, known.outer[place, 0], known.inner[place, 0], prime)


@kernel
def _centred(s: Any, at: Any, source: Any, out: Any, to: Any, row: Any, known: Any) -> None:
    """Coefficients modulo the prime `source`, in a row of s, centred around zero, as values modulo another prime, in a
    row of `out`.
    """
    modulus, place = known.moduli[row], known.moduli[row, PLACE]
    q, bits, barrett, first = modulus[PRIME], modulus[BITS], modulus[RATIO], known.moduli[source, PRIME]
    zero = np.uint64(0)
    half, less, n = first >> np.uint64(1), q - first % q, out.shape[1]
    if modulus[SHORT]:
        o = out[to]
        if known.moduli[source, SHORT]:
            x = s[at]
            prime, one, whole = np.uint32(q), np.uint32(1), np.uint32((np.uint64(1) << np.uint64(32)) // q)
            for i in range(0, n, LANES):
                value = load(x, i)
                rest = times_word(value, splat(one), splat(whole), splat(prime))
                more = above(value, splat(np.uint32(half)), splat(np.uint32(less)))
                store(o, i, word_total(rest, more, splat(prime)))
        else:
            y = long_row(s, at)
            for i in range(n):
                value = reduced(zero, y[i], q, bits, barrett) + (less if y[i] > half else zero)
                o[i] = np.uint32(min(value, value - q))
        forward_words(o, known.steps[place, 0], known.lanes[place], q, 0)
        return
    wide = long_row(out, to)
    if known.moduli[source, SHORT]:
        x = s[at]
        for i in range(n):
            wide[i] = np.uint64(x[i])
        numbers = wide
    else:
        numbers = long_row(s, at)
    if q < LIMIT and first < LIMIT:
        doubles, prime_near, other = wide.view(np.float64), float(q), float(first)
        inverse = 1.0 / prime_near
        for i in range(n):
            doubles[i] = nearest(near(numbers[i]) - (other if numbers[i] > half else 0.0), prime_near, inverse)
        forward_near(wide, known.outer[place, 0], known.inner[place, 0], q)
        return
    for i in range(n):
        wide[i] = reduced(zero, numbers[i], q, bits, barrett) + (less if numbers[i] > half else zero)
    if q < LIMIT:
        for i in range(n):
            wide[i] = min(wide[i], wide[i] - q)
    forward(wide, known.outer[place, 0], known.inner[place, 0], q)


@kernel
def _quotient(x: Any, from_: Any, rest: Any, at: Any, inverse: Any, modulus: Any) -> None:
    """Write (x - rest) times a constant into the row of `rest`."""
    prime = modulus[PRIME]
    if modulus[SHORT]:
        a, o, q = x[from_], rest[at], splat(np.uint32(prime))
        factor, ratio = splat(np.uint32(inverse[0])), splat(high_half(inverse[1]))
        for i in range(0, o.size, LANES):
            store(o, i, times_word(word_difference(load(a, i), load(o, i), q), factor, ratio, q))
        return
    values, found = long_row(x, from_), long_row(rest, at)
    if prime < LIMIT:
        near_prime = float(prime)
        w, one_over = centred_constant(inverse[0], prime), 1.0 / near_prime
        for i in range(found.size):
            found[i] = canonical(product_near(near(values[i]) - near(found[i]), w, near_prime, one_over), near_prime)
    else:
        w_whole, ratio_whole = inverse[0], inverse[1]
        for i in range(found.size):
            found[i] = settled(
                times_constant(difference(values[i], found[i], prime), w_whole, ratio_whole, prime), prime
            )


@parallel_kernel
def coefficients(values: Any, scaled: Any, rows: Any, constants: Any, known: Any) -> None:
    """Write coefficients of values, (parts, words / N, N), times constants that include 1/N, into `scaled`.

    The first row goes to the beginning of `scaled`. Each row is modulo its own prime.
    """
    parts = values.shape[0]
    for job in prange(parts * rows.shape[0]):
        part, i = job % parts, job // parts
        row, at = rows[i, 0], rows[i, 1]
        to = at - rows[0, 1]
        copy_row(values[part], at, scaled[part], to, known.moduli[row, SHORT])
        backward_row(scaled[part], to, row, constants[i], known)


@parallel_kernel
def raise_digits(
    values: Any, scaled: Any, digits: Any, alpha: int, towers: int, rows: Any, up: Any, known: Any
) -> None:
    """The digits of a polynomial in the extended basis, (digits, words / N, N), from values over the first `towers` of
    the rows, and `scaled` ones.

    Modulo its own primes a digit is a copy. The other jobs take equally long, so that threads share them evenly.
    """
    count = digits.shape[0]
    for j in prange(towers):
        copy_row(values, rows[j, 1], digits[j // alpha], rows[j, 1], known.moduli[rows[j, 0], SHORT])
    # Modulo a prime of the value all digits but one are raised; modulo a special prime all are.
    others = towers * (count - 1)
    for job in prange(count * rows.shape[0] - towers):
        if job < others:
            j, other = job // (count - 1), job % (count - 1)
            g = other + 1 if other >= j // alpha else other
        else:
            j, g = towers + (job - others) // count, (job - others) % count
        begin, end = g * alpha, min(towers, (g + 1) * alpha)
        _combined_values(
            scaled, rows[begin:end], np.int64(0), up[begin:end, j], digits[g], rows[j, 1], rows[j, 0], known
        )


@kernel
def _key_block(
    digits: Any, key: Any, at: Any, key_at: Any, begin: Any, sums: Any, pieces: Any, o0: Any, o1: Any, modulus: Any
) -> None:
    """One block of the digits' product with a key modulo a long prime, written into two blocks.

    `sums` (2, BLOCK) and `pieces` (2, 3, BLOCK) are scratch space.
    """
    last = digits.shape[0] - 1
    for g in range(digits.shape[0]):
        a = long_row(digits[g], at)[begin : begin + BLOCK]
        b0 = long_row(key[0, g], key_at)[begin : begin + BLOCK]
        b1 = long_row(key[1, g], key_at)[begin : begin + BLOCK]
        if modulus[PRIME] < LIMIT:
            multiply_add_near(b0, b1, a, sums, g, modulus)
            continue
        for part in range(2):
            o = o0 if part == 0 else o1
            multiply_add(a, b0 if part == 0 else b1, pieces[part], g, o)
            if g % TERMS == TERMS - 1 or g == last:
                gather(pieces[part], o, modulus)
    if modulus[PRIME] < LIMIT:
        gather_near(sums[0], o0, modulus)
        gather_near(sums[1], o1, modulus)


@parallel_kernel
def key_product(digits: Any, key: Any, key_places: Any, out: Any, rows: Any, known: Any) -> None:
    """Digits (d, words / N, N) times a key (2, digits, its words / N, N), summed over the digits: (2, words / N, N).

    `key_places` are the places of the digits' rows in the key.
    """
    n, nothing = out.shape[2], np.empty((0, 0), np.uint32)
    no_lift, no_summand = np.empty((0, 2), np.uint64), np.empty((0, 0, 0), np.uint32)
    same, no_targets = np.empty(0, np.uint32), np.empty(0, np.int32)
    for job in prange(2 * rows.shape[0]):
        half, j = job % 2, job // 2
        row, at = rows[j, 0], rows[j, 1]
        modulus = known.moduli[row]
        begin, end = half * (n // 2), (half + 1) * (n // 2)
        if modulus[SHORT]:
            _turned_words(
                digits,
                key,
                at,
                key_places[j],
                nothing,
                no_lift,
                j,
                no_summand,
                no_targets,
                same,
                out,
                begin,
                end,
                modulus,
            )
            continue
        sums, pieces = np.empty((2, BLOCK)), np.empty((2, 3, BLOCK), np.uint64)
        first, second = long_row(out[0], at), long_row(out[1], at)
        for start in range(begin, end, BLOCK):
            o0, o1 = first[start : start + BLOCK], second[start : start + BLOCK]
            _key_block(digits, key, at, key_places[j], start, sums, pieces, o0, o1, modulus)


@kernel
def _turned_words(
    digits: Any,
    key: Any,
    at: Any,
    key_at: Any,
    base: Any,
    lift: Any,
    j: Any,
    more: Any,
    targets: Any,
    lanes: Any,
    out: Any,
    begin: Any,
    end: Any,
    modulus: Any,
) -> None:
    """The words from `begin` to `end` of one row of `rotated`, for a short prime; without `targets`, values stay.

    Neighbours of one aligned vector go to one aligned vector: `lanes` are the places there from which the values come.
    """
    n, count = out.shape[2], digits.shape[0]
    q, minus, w, ratio = reduction_of(modulus)
    a, k = digits.reshape(digits.size), key.reshape(key.size)
    step, key_step = digits.shape[1] * n, key.shape[2] * n
    first, second = at * n, key_at * n
    other = second + key.shape[1] * key_step
    o0, o1 = out[0, at], out[1, at]
    has_base, lifted = at < base.shape[0], lift.shape[0] > 0
    factor, factor_ratio = q, q
    if has_base and lifted:
        factor, factor_ratio = splat(np.uint32(lift[j, 0])), splat(high_half(lift[j, 1]))
    for x in range(begin, end, LANES):
        found0, found1 = splat(np.uint32(0)), splat(np.uint32(0))
        for g in range(0, count, SUMMANDS):
            digit = load(a, first + g * step + x)
            sums0 = products(digit, load(k, second + g * key_step + x))
            sums1 = products(digit, load(k, other + g * key_step + x))
            for h in range(g + 1, min(g + SUMMANDS, count)):
                digit = load(a, first + h * step + x)
                sums0 = plus_products(sums0, digit, load(k, second + h * key_step + x))
                sums1 = plus_products(sums1, digit, load(k, other + h * key_step + x))
            found0 = word_total(found0, settled_words(sums0, q, minus), q)
            found1 = word_total(found1, settled_words(sums1, q, minus), q)
        found0, found1 = times_word(found0, w, ratio, q), times_word(found1, w, ratio, q)
        if has_base:
            value = load(base[at], x)
            if lifted:
                value = times_word(value, factor, factor_ratio, q)
            found0 = word_total(found0, value, q)
        to: Any = x
        if targets.size > 0:
            to = np.int64(targets[x]) // LANES * LANES
            places = load(lanes, to)
            found0, found1 = permuted(found0, places), permuted(found1, places)
        if more.shape[0] > 0:
            found0 = word_total(found0, load(more[0, at], to), q)
            found1 = word_total(found1, load(more[1, at], to), q)
        store(o0, to, found0)
        store(o1, to, found1)


@parallel_kernel
def rotated(
    digits: Any,
    key: Any,
    key_places: Any,
    base: Any,
    lift: Any,
    more: Any,
    targets: Any,
    lanes: Any,
    out: Any,
    rows: Any,
    known: Any,
) -> None:
    """A key switch and an automorphism in the extended basis: (2, words / N, N), still to be divided by the product P
    of the special primes.

    The digits (d, words / N, N) are multiplied by a key (2, digits, its words / N, N), and `base` (words / N, N) is
    added to the first part over its primes: times P, if `lift` holds P modulo each prime (towers, 2), or unchanged if
    `lift` is empty. The value at x moves to targets[x], where `more`, (2, words / N, N) or empty, is added.
    `key_places` are the places of the digits' rows in the key; `lanes` are the sources of targets within a vector.
    """
    for j in prange(rows.shape[0]):
        row, at = rows[j, 0], rows[j, 1]
        modulus, n = known.moduli[row], out.shape[2]
        q = modulus[PRIME]
        if modulus[SHORT]:
            _turned_words(digits, key, at, key_places[j], base, lift, j, more, targets, lanes, out, 0, n, modulus)
            continue
        sums, pieces, made = np.empty((2, BLOCK)), np.empty((2, 3, BLOCK), np.uint64), np.empty((2, BLOCK), np.uint64)
        for begin in range(0, n, BLOCK):
            _key_block(digits, key, at, key_places[j], begin, sums, pieces, made[0], made[1], modulus)
            if at < base.shape[0]:
                _add_lifted(made[0], long_row(base, at)[begin : begin + BLOCK], lift, j, q)
            for part in range(2):
                m, o = made[part], long_row(out[part], at)
                if more.shape[0] > 0:
                    summand = long_row(more[part], at)
                    for x in range(BLOCK):
                        target = targets[begin + x]
                        o[target] = total(m[x], summand[target], q)
                else:
                    for x in range(BLOCK):
                        o[targets[begin + x]] = m[x]


@kernel
def _add_lifted(sums: Any, values: Any, lift: Any, j: int, q: Any) -> None:
    """Add values times lift[j], or the values themselves if `lift` is empty, modulo a long prime."""
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
def widened(values: Any, lift: Any, onto: bool, out: Any, rows: Any, known: Any) -> None:
    """Values (2, words / N, N) times P in the extended basis, where they are zero modulo the special primes: written
    into `out` or, if `onto`, added to its `rows`, which are then those of the values.
    """
    parts, towers = out.shape[0], lift.shape[0]
    for job in prange(parts * rows.shape[0]):
        part, j = job % parts, job // parts
        row, at = rows[j, 0], rows[j, 1]
        short = known.moduli[row, SHORT]
        if j < towers and short:
            a, o, q = values[part, at], out[part, at], splat(np.uint32(known.moduli[row, PRIME]))
            w, ratio = splat(np.uint32(lift[j, 0])), splat(high_half(lift[j, 1]))
            if onto:
                for x in range(0, o.size, LANES):
                    store(o, x, word_total(load(o, x), times_word(load(a, x), w, ratio, q), q))
            else:
                for x in range(0, o.size, LANES):
                    store(o, x, times_word(load(a, x), w, ratio, q))
            continue
        if not onto:
            for word in range(1 if short else 2):
                o = out[part, at + word]
                for x in range(o.size):
                    o[x] = np.uint32(0)
        if j < towers:
            _add_lifted(long_row(out[part], at), long_row(values[part], at), lift, j, known.moduli[row, PRIME])


@parallel_kernel
def wholes(scaled: Any, rows: Any, known: Any) -> None:
    """The sum of `scaled` coefficients, (parts, words / N, N), over their primes, rounded to an integer, into the last
    row, in words.

    This is how often the product of the primes P fits into the sum of the coefficients times P over each prime.
    """
    parts, size, step = scaled.shape[0], scaled.shape[2], 1024
    count = size // step
    for job in prange(parts * count):
        part, begin = job % parts, job // parts * step
        shares = np.full(step, 0.5)
        for i in range(rows.shape[0]):
            prime, at = known.moduli[rows[i, 0], PRIME], rows[i, 1] - rows[0, 1]
            inverse = 1.0 / float(prime)
            if known.moduli[rows[i, 0], SHORT]:
                words = scaled[part, at, begin : begin + step]
                for x in range(step):
                    shares[x] += near(np.uint64(words[x])) * inverse
                continue
            row = long_row(scaled[part], at)[begin : begin + step]
            if prime < LIMIT:
                for x in range(step):
                    shares[x] += near(row[x]) * inverse
            else:
                for x in range(step):
                    shares[x] += float(row[x]) * inverse
        o = scaled[part, scaled.shape[1] - 1, begin : begin + step]
        for x in range(step):
            o[x] = np.uint32(np.int64(shares[x]))


@parallel_kernel
def divide(values: Any, scaled: Any, out: Any, kept: int, rows: Any, down: Any, inverse: Any, known: Any) -> None:
    """Over the first `kept` of the rows: subtract the remainder by the other primes, given as `scaled`, and divide by
    their product.
    """
    parts = out.shape[0]
    for job in prange(parts * kept):
        part, j = job % parts, job // parts
        row, at = rows[j, 0], rows[j, 1]
        _combined_values(scaled[part], rows[kept:], rows[kept, 1], down[:, j], out[part], at, row, known)
        _quotient(values[part], at, out[part], at, inverse[j], known.moduli[row])


@parallel_kernel
def divide_by_last(values: Any, scaled: Any, out: Any, rows: Any, inverse: Any, known: Any) -> None:
    """Division by the last row's prime, whose coefficients are first centred around zero, as OpenFHE rescales."""
    parts, kept = out.shape[0], rows.shape[0] - 1
    for job in prange(parts * kept):
        part, j = job % parts, job // parts
        row, at = rows[j, 0], rows[j, 1]
        _centred(scaled[part], 0, rows[kept, 0], out[part], at, row, known)
        _quotient(values[part], at, out[part], at, inverse[j], known.moduli[row])


@parallel_kernel
def raise_modulus(scaled: Any, source: Any, out: Any, rows: Any, known: Any) -> None:
    """Coefficients (parts, words / N, N) modulo one prime, `source` in the tables, centred around zero, as values modulo
    many primes: (parts, words / N, N).
    """
    parts = scaled.shape[0]
    for job in prange(parts * rows.shape[0]):
        part, j = job % parts, job // parts
        _centred(scaled[part], 0, source, out[part], rows[j, 1], rows[j, 0], known)
