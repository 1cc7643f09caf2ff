"""Number-theoretic transforms of polynomials modulo X^N + 1: kernels, and the tables of one prime.

Values are in OpenFHE's order: value j of a transform is the polynomial at psi^(2 r(j) + 1), where r reverses the bits
of j and psi is the smallest root of order 2N.

N = R C. The first log2 R steps work in place on runs of at least C numbers. The rest are R transforms of C numbers each;
several of them are copied into a tile that fits the cache, one per column, so that every step works on runs there too.

Modulo primes below `floating.LIMIT` the steps are on doubles (`forward_near`, `backward_near`).

Plaintexts take less work (`plaintexts`). If the slots are real, value N - 1 - j equals value j, because psi^-1 in
place of psi gives the same values: half of the transform suffices, and only the first half is kept. If the slots
repeat, the polynomial is a shorter one in a power of X, and the first steps work on fewer numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph.ir import Array
from heliograph.runtime.native.kernels.arithmetic import (
    inlined,
    kernel,
    settled,
    times_constant,
)
from heliograph.runtime.native.kernels.floating import (
    LIMIT,
    canonical,
    centred,
    centred_constant,
    near,
    nearest,
    product_near,
)
from heliograph.runtime.residues import bit_reversed, powers, ratios, smallest_root

# Transforms in one tile, for long runs in a tile of 8 kB or more.
LANES = 32


@dataclass(frozen=True, slots=True, eq=False)
class PrimeTables:
    """The powers of psi for transforms modulo one prime, each with its ratio (see `times_constant`).

    For a prime below `floating.LIMIT` they are the bits of doubles between -q / 2 and q / 2, without ratios.

    `outer`: (2, 2, R), forward and backward, numbers and ratios, for the steps on the whole polynomial.
    `inner`: (2, 2, R / LANES, C - 1, LANES), the same for the steps inside tiles.
    `last`: 1/N and its ratio.
    """

    prime: int
    outer: Array
    inner: Array
    last: Array


def rows_of(ring_dim: int) -> int:
    """The number of rows R."""
    return ring_dim // columns_of(ring_dim)


def columns_of(ring_dim: int) -> int:
    """The number of columns C. Steps on a polynomial in the second-level cache are cheaper than steps in tiles."""
    return max(32, ring_dim >> 10)


def ratio_of(number: int, prime: int) -> int:
    """The ratio of a number for `times_constant`."""
    return (number << 64) // prime


def barrett_ratio(prime: int) -> int:
    """The ratio of a prime for `reduced`."""
    return (1 << (prime.bit_length() + 63)) // prime


def prime_tables(ring_dim: int, prime: int) -> PrimeTables:
    """The tables of a prime that is 1 modulo 2N."""
    rows, columns = rows_of(ring_dim), columns_of(ring_dim)
    outer = np.empty((2, 2, rows), dtype=np.uint64)
    inner = np.empty((2, 2, rows // LANES, columns - 1, LANES), dtype=np.uint64)
    psi = smallest_root(ring_dim, prime)
    for way, root in enumerate((psi, pow(psi, -1, prime))):
        values_of_root = powers(root, prime, ring_dim)[bit_reversed(ring_dim)]
        numbers: tuple[Array, ...]
        if prime < LIMIT:
            numbers = (centred(values_of_root, prime).view(np.uint64),)
        else:
            numbers = values_of_root, ratios(values_of_root, prime)
        for part, values in enumerate(numbers):
            outer[way, part] = values[:rows]
            done, size = 0, 1
            while size < columns:
                # The step that splits each of the R transforms into `size` parts: number i of transform r.
                step = values[rows * size : 2 * rows * size].reshape(rows // LANES, LANES, size)
                inner[way, part, :, done : done + size] = step.transpose(0, 2, 1)
                done, size = done + size, 2 * size
    inverse = pow(ring_dim, -1, prime)
    last = np.array([inverse, ratio_of(inverse, prime)], dtype=np.uint64)
    return PrimeTables(prime, outer, inner, last)


@inlined
def _forth(x: Any, y: Any, w: Any, ratio: Any, q: Any, q4: Any) -> Any:
    """One butterfly, from numbers below 8 q to numbers below 8 q."""
    low = min(x, x - q4)
    turned = times_constant(y, w, ratio, q)
    return low + turned, low + q4 - turned


@inlined
def _back(x: Any, y: Any, w: Any, ratio: Any, q: Any, q4: Any) -> Any:
    """The butterfly the other way, from numbers below 4 q to numbers below 4 q."""
    both = x + y
    return min(both, both - q4), times_constant(x + q4 - y, w, ratio, q)


@kernel
def _into_columns(lines: Any, tile: Any) -> None:
    """Copy runs into a tile, one per column."""
    for c in range(tile.shape[0]):
        for k in range(LANES):
            tile[c, k] = lines[k, c]


@kernel
def forward(a: Any, outer: Any, inner: Any, q: Any) -> None:
    """The transform of a polynomial, in place: canonical residues become canonical values."""
    if q < LIMIT:
        doubles = a.view(np.float64)
        for j in range(a.size):
            doubles[j] = near(a[j])
        forward_near(a, outer, inner, q)
    else:
        forward_whole(a, outer, inner, q)


@kernel
def backward(a: Any, outer: Any, inner: Any, last: Any, q: Any) -> None:
    """The polynomial of canonical values times a constant, `last`, in place, canonical."""
    if q < LIMIT:
        doubles = a.view(np.float64)
        for j in range(a.size):
            doubles[j] = near(a[j])
        backward_near(a, outer, inner, last, q)
    else:
        backward_whole(a, outer, inner, last, q)


@kernel
def forward_whole(a: Any, outer: Any, inner: Any, q: Any, half: int = 0) -> None:
    """The transform of a polynomial, in place: numbers below 8 q become canonical values.

    With `half` = 1 it computes the first half, from the result of the first step. A shorter polynomial takes fewer
    steps.
    """
    n, rows = a.size, outer.shape[1] >> half
    columns = n // rows
    q4 = np.uint64(4) * q
    run, count = n, 1 << half
    while count < outer.shape[1]:
        run >>= 1
        for i in range(count >> half):
            w, ratio, begin = outer[0, count + i], outer[1, count + i], 2 * i * run
            x, y = a[begin : begin + run], a[begin + run : begin + 2 * run]
            for j in range(run):
                x[j], y[j] = _forth(x[j], y[j], w, ratio, q, q4)
        count <<= 1
    grid = a.reshape(rows, columns)
    tile = np.empty((columns, LANES), dtype=np.uint64)
    for block in range(rows // LANES):
        lines = grid[LANES * block : LANES * (block + 1)]
        _into_columns(lines, tile)
        run, count, done = columns, 1, 0
        while count < columns:
            run >>= 1
            for i in range(count):
                w_row, ratio_row = inner[0, block, done + i], inner[1, block, done + i]
                for j in range(2 * i * run, 2 * i * run + run):
                    x_row, y_row = tile[j], tile[j + run]
                    for k in range(LANES):
                        x_row[k], y_row[k] = _forth(x_row[k], y_row[k], w_row[k], ratio_row[k], q, q4)
            done += count
            count <<= 1
        for k in range(LANES):
            for c in range(columns):
                lines[k, c] = settled(tile[c, k], q)


@kernel
def backward_whole(a: Any, outer: Any, inner: Any, last: Any, q: Any) -> None:
    """The polynomial of values below 4 q, in place, canonical."""
    n, rows = a.size, outer.shape[1]
    columns = n // rows
    q4 = np.uint64(4) * q
    grid = a.reshape(rows, columns)
    tile = np.empty((columns, LANES), dtype=np.uint64)
    for block in range(rows // LANES):
        lines = grid[LANES * block : LANES * (block + 1)]
        _into_columns(lines, tile)
        run, count, done = 1, columns >> 1, columns - 1
        while count >= 1:
            done -= count
            for i in range(count):
                w_row, ratio_row = inner[0, block, done + i], inner[1, block, done + i]
                for j in range(2 * i * run, 2 * i * run + run):
                    x_row, y_row = tile[j], tile[j + run]
                    for k in range(LANES):
                        x_row[k], y_row[k] = _back(x_row[k], y_row[k], w_row[k], ratio_row[k], q, q4)
            run <<= 1
            count >>= 1
        for k in range(LANES):
            for c in range(columns):
                lines[k, c] = tile[c, k]
    run, count = columns, rows >> 1
    while count >= 1:
        for i in range(count):
            w, ratio, begin = outer[0, count + i], outer[1, count + i], 2 * i * run
            x, y = a[begin : begin + run], a[begin + run : begin + 2 * run]
            for j in range(run):
                x[j], y[j] = _back(x[j], y[j], w, ratio, q, q4)
        run <<= 1
        count >>= 1
    w, ratio = last[0], last[1]
    for j in range(n):
        a[j] = settled(times_constant(a[j], w, ratio, q), q)


# A number that has only been added to is reduced once in this many steps. In the forward direction, numbers stay below
# 3.7 q and products with powers of psi below 0.94 q. In the backward direction sums double: numbers stay below 2 q,
# products below 0.95 q.
_STEPS_FORTH, _STEPS_BACK = 4, 2
# Modulo primes below these, numbers are reduced at the end only. After 17 steps forth, numbers are below 11 q and products
# below 0.56 q; after 17 steps back, numbers are below 2^17 q and products below 0.88 q.
_SMALL_FORTH, _SMALL_BACK = np.uint64(1 << 44), np.uint64(1 << 33)


@inlined
def _forth_near(x: Any, y: Any, w: Any, q: Any, inverse: Any, small: Any) -> Any:
    """One butterfly on doubles; where it is `small`, x is reduced first."""
    turned = product_near(y, w, q, inverse)
    low = nearest(x, q, inverse) if small else x
    return low + turned, low - turned


@inlined
def _back_near(x: Any, y: Any, w: Any, q: Any, inverse: Any, small: Any) -> Any:
    """The butterfly the other way; where it is `small`, the sum is reduced."""
    both = x + y
    return nearest(both, q, inverse) if small else both, product_near(x - y, w, q, inverse)


@kernel
def forward_near(a: Any, outer: Any, inner: Any, prime: Any, half: int = 0) -> None:
    """The transform, in place, of a polynomial of doubles up to q in size. The values become canonical integers.

    `half` is as in `forward_whole`; the doubles are then up to 1.1 q in size.
    """
    n, rows = a.size, outer.shape[1] >> half
    columns = n // rows
    q = float(prime)
    inverse = 1.0 / q
    doubles, w_outer, w_inner = a.view(np.float64), outer.view(np.float64)[0], inner.view(np.float64)[0]
    run, count, step = n, 1 << half, half
    while count < outer.shape[1]:
        run >>= 1
        step += 1
        small = prime > _SMALL_FORTH and step % _STEPS_FORTH == 0
        for i in range(count >> half):
            w, begin = w_outer[count + i], 2 * i * run
            x, y = doubles[begin : begin + run], doubles[begin + run : begin + 2 * run]
            for j in range(run):
                x[j], y[j] = _forth_near(x[j], y[j], w, q, inverse, small)
        count <<= 1
    grid, out = doubles.reshape(rows, columns), a.reshape(rows, columns)
    tile, outer_steps = np.empty((columns, LANES)), step
    for block in range(rows // LANES):
        lines = grid[LANES * block : LANES * (block + 1)]
        _into_columns(lines, tile)
        run, count, done, step = columns, 1, 0, outer_steps
        while count < columns:
            run >>= 1
            step += 1
            small = prime > _SMALL_FORTH and step % _STEPS_FORTH == 0
            for i in range(count):
                w_row = w_inner[block, done + i]
                for j in range(2 * i * run, 2 * i * run + run):
                    x_row, y_row = tile[j], tile[j + run]
                    for k in range(LANES):
                        x_row[k], y_row[k] = _forth_near(x_row[k], y_row[k], w_row[k], q, inverse, small)
            done += count
            count <<= 1
        whole = tile.view(np.uint64)
        for c in range(columns):
            for k in range(LANES):
                whole[c, k] = canonical(nearest(tile[c, k], q, inverse), q)
        for k in range(LANES):
            for c in range(columns):
                out[LANES * block + k, c] = whole[c, k]


@kernel
def backward_near(a: Any, outer: Any, inner: Any, last: Any, prime: Any) -> None:
    """The polynomial of values in doubles up to q in size, times a constant, in place; then canonical integers."""
    n, rows = a.size, outer.shape[1]
    columns = n // rows
    q = float(prime)
    inverse = 1.0 / q
    doubles, w_outer, w_inner = a.view(np.float64), outer.view(np.float64)[0], inner.view(np.float64)[0]
    grid, tile = doubles.reshape(rows, columns), np.empty((columns, LANES))
    outer_steps = 0
    for block in range(rows // LANES):
        lines = grid[LANES * block : LANES * (block + 1)]
        _into_columns(lines, tile)
        run, count, done, step = 1, columns >> 1, columns - 1, 0
        while count >= 1:
            done -= count
            step += 1
            small = prime > _SMALL_BACK and step % _STEPS_BACK == 0
            for i in range(count):
                w_row = w_inner[block, done + i]
                for j in range(2 * i * run, 2 * i * run + run):
                    x_row, y_row = tile[j], tile[j + run]
                    for k in range(LANES):
                        x_row[k], y_row[k] = _back_near(x_row[k], y_row[k], w_row[k], q, inverse, small)
            run <<= 1
            count >>= 1
        outer_steps = step
        for k in range(LANES):
            for c in range(columns):
                lines[k, c] = tile[c, k]
    run, count, step = columns, rows >> 1, outer_steps
    while count >= 1:
        step += 1
        small = prime > _SMALL_BACK and step % _STEPS_BACK == 0
        for i in range(count):
            w, begin = w_outer[count + i], 2 * i * run
            x, y = doubles[begin : begin + run], doubles[begin + run : begin + 2 * run]
            for j in range(run):
                x[j], y[j] = _back_near(x[j], y[j], w, q, inverse, small)
        run <<= 1
        count >>= 1
    w = centred_constant(last[0], prime)
    for j in range(n):
        a[j] = canonical(product_near(doubles[j], w, q, inverse), q)
