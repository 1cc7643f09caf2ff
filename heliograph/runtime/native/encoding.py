"""Encoding of slot vectors as plaintexts: canonical embedding, scaling, rounding, residues.

A plaintext may also be stored as its coefficients, in a tenth of the memory or less; its residues are then computed for
each use (`evaluated`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heliograph.ckks.embedding import coefficients_of_run, half_of_coefficients, rounded_at, spread
from heliograph.errors import ProgramError, RangeError
from heliograph.ir import Array
from heliograph.runtime.native.kernels.elementwise import scaled_residues
from heliograph.runtime.native.kernels.floating import LIMIT
from heliograph.runtime.native.kernels.plaintexts import forward_numbers, forward_rows
from heliograph.runtime.native.kernels.pointers import addresses
from heliograph.runtime.native.kernels.rows import SHORT
from heliograph.runtime.native.kernels.transforms import LANES, rows_of
from heliograph.runtime.native.kernels.word_transforms import LEAST
from heliograph.runtime.native.tables import ChainTables, with_ratio

# Coefficients of up to this many bits are smaller than every prime that is not handled in doubles.
_SMALL_BITS = 49
# Rounded coefficients of up to this many bits are kept as numbers of 32 bits.
_SHORT_BITS = 30


@dataclass(frozen=True, slots=True, eq=False)
class Coefficients:
    """A plaintext as rounded coefficients of a polynomial in a power of X: whole numbers of 32 bits, or whole doubles below
    2^49.

    If `mirrored`, m_(N - k) = -m_k and only the first half is stored. If `wide`, there are residues modulo the special
    primes too.
    """

    numbers: Array
    level: int
    mirrored: bool
    wide: bool

    @property
    def nbytes(self) -> int:
        """The size in memory, in bytes."""
        return int(self.numbers.nbytes)


Plaintext = Array | Coefficients


def halved(ring_dim: int) -> bool:
    """Whether only half of the residues is kept for real values."""
    return bool(LIMIT) and rows_of(ring_dim) >= 2 * LANES


def encoded_bytes(run: int, log_scale: float, polynomial_bytes: int, ring_dim: int) -> int:
    """The bytes that `encode` returns for real values up to one, repeating after `run` slots.

    `polynomial_bytes`: the bytes of a whole polynomial at this level.
    """
    return polynomial_bytes >> (halved(ring_dim) and run > 1 and log_scale < _SMALL_BITS)


def rounded_bytes(run: int, log_scale: float, polynomial_bytes: int, ring_dim: int) -> int:
    """The bytes that `rounded` returns for such values; for a single number, or at large scales, those are residues."""
    if not LIMIT or run == 1 or log_scale >= _SMALL_BITS:
        return encoded_bytes(run, log_scale, polynomial_bytes, ring_dim)
    mirrored = halved(ring_dim)
    return (4 if log_scale < _SHORT_BITS else 8) * (max(2 * run, least_size(ring_dim)) >> mirrored)


def least_size(ring_dim: int) -> int:
    """The fewest coefficients of a transform."""
    return max(rows_of(ring_dim), min(LEAST, ring_dim))


def encode(values: Array, log_scale: float, level: int, tables: ChainTables, wide: bool = False) -> Array:
    """The values times 2^log_scale, rounded, as residues in evaluation form. Raises RangeError if too large.

    The shape is (words / N, N), or (words / N, N / 2) for real values at the usual scales if `halved`: the second half
    of their residues mirrors the first. With `wide`, rows for the special primes follow.
    """
    return evaluated(rounded(values, log_scale, level, tables, wide), tables)


class Residues:
    """The residues of plaintexts of one level, of those that are stored as coefficients computed for some rows at a time.

    `sizes`: the number of values in a row of each.
    """

    def __init__(self, plains: Sequence[Plaintext], tables: ChainTables) -> None:
        self._tables = tables
        self.sizes = np.array([row_size(plain, tables.ring_dim) for plain in plains], dtype=np.int64)
        stored = {i: plain for i, plain in enumerate(plains) if isinstance(plain, np.ndarray)}
        self._where: Array = np.zeros(len(plains), dtype=np.uint64)
        self._where[list(stored)] = addresses(list(stored.values()))
        self._waiting: list[tuple[bool, list[int], list[Array]]] = []
        for mirrored in (False, True):
            waiting = {
                i: plain.numbers.astype(np.float64, copy=False).view(np.uint32)
                for i, plain in enumerate(plains)
                if isinstance(plain, Coefficients) and plain.mirrored == mirrored
            }
            if waiting:
                self._waiting.append((mirrored, list(waiting), list(waiting.values())))

    def at(self, rows: Array) -> tuple[Array, list[Array]]:
        """The addresses of the plaintexts (uint64), and the arrays that must live as long as they are used.

        At these addresses there would be whole plaintexts, of which only these neighbouring rows are there.
        """
        known, first = self._tables.known, int(rows[0, 1])
        words = int(rows[-1, 1]) - first + (1 if known.moduli[rows[-1, 0], SHORT] else 2)
        where, made = self._where.copy(), list[Array]()
        for mirrored, places, numbers in self._waiting:
            size = self._tables.ring_dim >> mirrored
            out = np.empty((len(places), words, size), dtype=np.uint32)
            counts = np.array([each.size // 2 for each in numbers], dtype=np.int64)
            forward_numbers(addresses(numbers), counts, mirrored, out, rows - np.array([0, first]), known)
            where[places] = addresses(list(out)) - np.uint64(out.itemsize * first * size)
            made.append(out)
        return where, made


def row_size(plain: Plaintext, ring_dim: int) -> int:
    """The number of values in a row of a plaintext's residues."""
    return int(plain.shape[1]) if isinstance(plain, np.ndarray) else ring_dim >> plain.mirrored


def evaluated(plain: Plaintext, tables: ChainTables) -> Array:
    """The residues of a plaintext."""
    if isinstance(plain, np.ndarray):
        return plain
    _, ((found,),) = Residues([plain], tables).at(tables.basis(plain.level, plain.wide)[1])
    return np.asarray(found)


def rounded(values: Array, log_scale: float, level: int, tables: ChainTables, wide: bool = False) -> Plaintext:
    """The values times 2^log_scale, rounded: coefficients, or residues for a single real number or large coefficients.

    Raises RangeError like `encode`, and ProgramError for values that do not repeat over the slots.
    """
    (primes, rows), known = tables.basis(level, wide), tables.known
    if not values.size or tables.slots % values.size:
        raise ProgramError(f"{values.size} values do not repeat over {tables.slots} slots")
    # The same number in all slots is a constant polynomial: one coefficient, and the same value everywhere.
    real = not np.iscomplexobj(values)
    alone = real and values.size == 1
    mirrored = real and not alone and halved(tables.ring_dim)
    if alone:
        found = values
    else:
        found = (half_of_coefficients if mirrored else coefficients_of_run)(values)
    whole, shift, bits = rounded_at(found, log_scale, "a plaintext")
    room = math.log2(math.prod(primes[: level + 1])) - 1
    if bits >= room:
        # The text leaves out the size: the caller may not be the owner of the values.
        raise RangeError(f"a plaintext is too large at scale 2^{log_scale:.1f}")
    if LIMIT and bits < _SMALL_BITS and not alone:
        # A transform has no fewer numbers than rows.
        numbers = spread(whole, max(whole.size, least_size(tables.ring_dim) >> mirrored))
        if bits < _SHORT_BITS:
            numbers = numbers.astype(np.int32)
        return Coefficients(numbers, level, mirrored, wide)
    if mirrored:
        whole = np.concatenate([whole, [0.0], -whole[:0:-1]])
    if not alone:
        whole = spread(whole, tables.ring_dim)
    # A constant has the same value everywhere.
    whole = np.repeat(whole, tables.ring_dim) if alone else whole
    out = np.empty((tables.words(level, wide), whole.size), dtype=np.uint32)
    scaled_residues(whole.astype(np.int64), with_ratio([1 << shift] * len(primes), primes), out, rows, known)
    if not alone:
        forward_rows(out, rows, known)
    return out
