"""The rows of a polynomial: for each prime, N residues in words of 32 bits.

A prime below `WORD_LIMIT` is short: its row is N words, and vectors of words work on it. Any other is long: its row is 2N
words, N residues of 64 bits. An array of polynomials is (parts, words / N, N), its rows one after the other.

Kernels are told where a row is, and which prime it has, by `rows`, (n, 2): the prime's place in the tables, and the
row's place in the array. Places are of rows of N words.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heliograph.ir import Array
from heliograph.runtime.native.kernels.arithmetic import inlined, kernel
from heliograph.runtime.native.kernels.transforms import backward, forward
from heliograph.runtime.native.kernels.vectors import splat
from heliograph.runtime.native.kernels.word_transforms import backward_words, forward_words

# Columns of `Known.moduli`.
PRIME, BITS, RATIO, PLACE, MINUS, SHORT = range(6)


class Known(NamedTuple):
    """The tables of primes.

    `moduli`: (n, 6), for each prime: itself, its bits, Barrett's ratio, its place in the other tables, -1 / q modulo
    2^32, and whether it is short.
    `outer`, `inner`: of long primes (`transforms.PrimeTables`).
    `steps`, `lanes`, `lanes_back`: of short primes (`word_transforms.WordTables`).
    `last`: 1/N with its ratio, (n, 2).
    """

    moduli: Array
    outer: Array
    inner: Array
    steps: Array
    lanes: Array
    lanes_back: Array
    last: Array


@inlined
def long_row(x: Any, at: Any) -> Any:
    """The row of a long prime, (N) numbers of 64 bits, of a polynomial (words / N, N)."""
    return x[at : at + 2].reshape(2 * x.shape[1]).view(np.uint64)


@inlined
def high_half(ratio: Any) -> Any:
    """The ratio of a constant for words, floor(w 2^32 / q), from its ratio for numbers of 64 bits."""
    return np.uint32(ratio >> np.uint64(32))


@inlined
def reduction_of(modulus: Any) -> Any:
    """What sums of products of words modulo a short prime are reduced with: the prime, -1 / q modulo 2^32, and 2^32
    modulo q with its ratio, because Montgomery's reduction divides by 2^32.
    """
    prime = modulus[PRIME]
    whole = (np.uint64(1) << np.uint64(32)) % prime
    ratio = np.uint32((whole << np.uint64(32)) // prime)
    return splat(np.uint32(prime)), splat(np.uint32(modulus[MINUS])), splat(np.uint32(whole)), splat(ratio)


@kernel
def copy_row(x: Any, at: Any, out: Any, to: Any, short: Any) -> None:
    """Copy a row."""
    for word in range(1 if short else 2):
        # Not o[:] = a: numba 0.68 drops that in parallel loops.
        a, o = x[at + word], out[to + word]
        for i in range(o.size):
            o[i] = a[i]


@kernel
def forward_row(x: Any, at: Any, row: Any, known: Any) -> None:
    """The transform of one row, in place, canonical."""
    q, place = known.moduli[row, PRIME], known.moduli[row, PLACE]
    if known.moduli[row, SHORT]:
        forward_words(x[at], known.steps[place, 0], known.lanes[place], q, 0)
    else:
        forward(long_row(x, at), known.outer[place, 0], known.inner[place, 0], q)


@kernel
def backward_row(x: Any, at: Any, row: Any, last: Any, known: Any) -> None:
    """The coefficients of one row times a constant with its ratio, `last`, in place, canonical."""
    q, place = known.moduli[row, PRIME], known.moduli[row, PLACE]
    if known.moduli[row, SHORT]:
        backward_words(x[at], known.steps[place, 1], known.lanes_back[place], np.uint32(last[0]), high_half(last[1]), q)
    else:
        backward(long_row(x, at), known.outer[place, 1], known.inner[place, 1], last, q)
