"""Transforms of rows, and of plaintexts from their coefficients."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray, prange

from heliograph.runtime.native.kernels.arithmetic import kernel, parallel_kernel, times_constant
from heliograph.runtime.native.kernels.floating import LIMIT, canonical, nearest, product_near
from heliograph.runtime.native.kernels.pointers import pointer
from heliograph.runtime.native.kernels.rows import PLACE, PRIME, SHORT, forward_row, long_row
from heliograph.runtime.native.kernels.transforms import forward_near, forward_whole
from heliograph.runtime.native.kernels.word_transforms import forward_words


@parallel_kernel
def forward_rows(values: Any, rows: Any, known: Any) -> None:
    """The transforms of polynomials (words / N, N), in place, each modulo the prime of its row."""
    for j in prange(rows.shape[0]):
        forward_row(values, rows[j, 1], rows[j, 0], known)


@kernel
def _residues_of(numbers: Any, o: Any, q: Any) -> None:
    """Integral doubles, smaller than a prime in size, as residues from 0 up to the prime itself."""
    for j in range(o.size):
        number = np.int64(numbers[j])
        o[j] = q - np.uint64(-number) if number < 0 else np.uint64(number)


@kernel
def _numbers_forward(numbers: Any, o: Any, q: Any, outer: Any, inner: Any) -> None:
    """The transform of integral doubles below 2^49 modulo a long prime, of the length of `o`."""
    if q < LIMIT:
        prime, doubles = float(q), o.view(np.float64)
        inverse = 1.0 / prime
        for j in range(o.size):
            doubles[j] = nearest(numbers[j], prime, inverse)
        forward_near(o, outer, inner, q)
    else:
        _residues_of(numbers, o, q)
        forward_whole(o, outer, inner, q)


@kernel
def _mirrored_forward(numbers: Any, o: Any, q: Any, outer: Any, inner: Any) -> None:
    """The first half of the transform of mirrored coefficients, m_(N - k) = -m_k, from their first half.

    The first step adds m_(N / 2 + k) = -m_(N / 2 - k), times psi^(N / 2), to that half.
    """
    size = o.size
    if q < LIMIT:
        prime, doubles = float(q), o.view(np.float64)
        inverse, root = 1.0 / prime, outer.view(np.float64)[0, 1]
        doubles[0] = nearest(numbers[0], prime, inverse)
        for j in range(1, size):
            other = product_near(nearest(numbers[size - j], prime, inverse), root, prime, inverse)
            doubles[j] = nearest(numbers[j], prime, inverse) - other
        forward_near(o, outer, inner, q, 1)
    else:
        w, ratio, q4 = outer[0, 1], outer[1, 1], np.uint64(4) * q
        _residues_of(numbers, o, q)
        # Both places of a pair are read before either is overwritten.
        for j in range(1, size // 2 + 1):
            x, y = o[j], o[size - j]
            o[j] = x + q4 - times_constant(y, w, ratio, q)
            o[size - j] = y + q4 - times_constant(x, w, ratio, q)
        forward_whole(o, outer, inner, q, 1)


@kernel
def _words_forward(numbers: Any, half: Any, o: Any, q: Any, steps: Any, lanes: Any) -> None:
    """The transform modulo a short prime, or the first half of it."""
    prime, size = float(q), o.size
    inverse = 1.0 / prime
    if half:
        whole = float(steps[0, 1])
        root = whole - (prime if whole > 0.5 * prime else 0.0)
        o[0] = np.uint32(canonical(nearest(numbers[0], prime, inverse), prime))
        for j in range(1, size):
            other = product_near(nearest(numbers[size - j], prime, inverse), root, prime, inverse)
            o[j] = np.uint32(canonical(nearest(nearest(numbers[j], prime, inverse) - other, prime, inverse), prime))
    else:
        for j in range(size):
            o[j] = np.uint32(canonical(nearest(numbers[j], prime, inverse), prime))
    forward_words(o, steps, lanes, q, half)


@kernel
def _repeated(o: Any, size: Any) -> None:
    """Repeat each of the first `size` values, from the end, so that none is overwritten before it is read."""
    times = o.size // size
    for j in range(size - 1, -1, -1):
        value = o[j]
        for k in range(times):
            o[j * times + k] = value


@parallel_kernel
def forward_numbers(polynomials: Any, sizes: Any, mirrored: bool, out: Any, rows: Any, known: Any) -> None:
    """The transforms of polynomials, integral doubles below 2^49 by address, modulo each row's prime: (P, words / N, N).

    `sizes` are the numbers of coefficients of each, in a power of X. If `mirrored`, the coefficients are first halves,
    and so are the transforms in `out`, (P, words / N, N / 2).
    """
    towers = rows.shape[0]
    for job in prange(out.shape[0] * towers):
        p, j = job // towers, job % towers
        row, at, size = rows[j, 0], rows[j, 1], sizes[p]
        q, place = known.moduli[row, PRIME], known.moduli[row, PLACE]
        numbers = carray(pointer(polynomials[p]), (2 * size,)).view(np.float64)
        if known.moduli[row, SHORT]:
            words = out[p, at]
            _words_forward(numbers, 1 if mirrored else 0, words[:size], q, known.steps[place, 0], known.lanes[place])
            _repeated(words, size)
            continue
        o = long_row(out[p], at)
        if mirrored:
            _mirrored_forward(numbers, o[:size], q, known.outer[place, 0], known.inner[place, 0])
        else:
            _numbers_forward(numbers, o[:size], q, known.outer[place, 0], known.inner[place, 0])
        _repeated(o, size)
