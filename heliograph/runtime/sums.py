"""Weighted sums of ciphertexts as matrix products: weights times coefficients, prime by prime, exactly.

An integer matrix product is exact in floating point while no sum of products reaches 2^53. Weights and coefficients are
split into pieces within this bound, and the pieces' products are combined modulo the prime. One pass over memory serves
all sums; separate products would take one pass for each weight.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from heliograph.errors import RangeError
from heliograph.ir import Array

# Integers up to this are exact in floating point.
_EXACT = 2.0**53
# Rounded weights beyond this fit no modulus. (Below it, weights above 2**53 are integers with trailing zeros.)
_LARGEST = 2.0**110
# The number of coefficients of each ciphertext that are in floating point at once.
_COLUMNS = 1 << 12
# The most bits by which a residue is shifted at once.
_STEP = 30
# A matrix with a smaller share of nonzero entries is multiplied as a sparse one.
_DENSE = 0.2


def weighted_sums(
    values: Sequence[Sequence[Array]], weights: scipy.sparse.csr_array, log_scale: float, moduli: Sequence[int]
) -> Array:
    """For each row of the weights, the weighted sum of the ciphertexts: (rows, blocks, N).

    The weights are rounded at 2**log_scale. Each ciphertext is a sequence of blocks of N residues modulo `moduli`.
    """
    scaled = np.rint(weights.data * 2.0**log_scale)
    if not np.abs(scaled).max(initial=0.0) < _LARGEST:
        raise RangeError(f"a weight is too large for scale 2^{log_scale:.1f}")
    whole = scipy.sparse.csr_array((scaled, weights.indices, weights.indptr), shape=weights.shape)
    size = values[0][0].size
    sums = np.empty((weights.shape[0], len(moduli), size), dtype="<u8")
    for number, modulus in enumerate(moduli):
        split = _split(whole, modulus)
        for start in range(0, size, _COLUMNS):
            part = slice(start, start + _COLUMNS)
            taken = np.stack([value[number][part] for value in values])
            sums[:, number, part] = _product(split, taken, modulus)
    return sums


@dataclass(frozen=True, slots=True)
class _Split:
    """Weights as a sum of pieces[i] * 2**(bits * i), and the number and width of the pieces of coefficients."""

    pieces: tuple[Any, ...]
    bits: int
    coefficient_pieces: int
    coefficient_bits: int


def _split(weights: scipy.sparse.csr_array, modulus: int) -> _Split:
    """The split into the fewest products whose sums stay exact."""
    width = modulus.bit_length()
    for parts, pieces in _SPLITS:
        bits = math.ceil((_bits(weights.data) + 1) / parts)
        split = _pieces(weights, parts, bits)
        largest = max(float(abs(piece).sum(axis=1).max()) for piece in split)
        each = math.ceil(width / pieces)
        # Values that are not split are centred, which halves their size.
        if largest * 2.0 ** (each - 1 if pieces == 1 else each) < _EXACT:
            return _Split(tuple(_dense(piece) for piece in split), bits, pieces, each)
    raise RangeError("weights are too large for an exact sum")


# (pieces of the weights, pieces of the coefficients), fewest products first.
_SPLITS = sorted(itertools.product(range(1, 7), repeat=2), key=lambda pair: (pair[0] * pair[1], pair))


def _bits(numbers: Array) -> int:
    return max(1, int(np.abs(numbers).max(initial=0.0)).bit_length())


def _pieces(weights: scipy.sparse.csr_array, parts: int, bits: int) -> list[scipy.sparse.csr_array]:
    """Pieces of the weights, each at most 2**(bits - 1) in size; the last holds the rest."""
    rest, pieces = weights.data.copy(), []
    for _ in range(parts - 1):
        upper = np.rint(rest * 2.0**-bits)
        pieces.append(rest - upper * 2.0**bits)
        rest = upper
    shape = weights.indices, weights.indptr
    return [scipy.sparse.csr_array((data, *shape), shape=weights.shape) for data in (*pieces, rest)]


def _dense(piece: scipy.sparse.csr_array) -> Any:
    return piece.toarray() if piece.nnz > _DENSE * math.prod(piece.shape) else piece


def _product(split: _Split, taken: Array, modulus: int) -> Array:
    """Weights times coefficients modulo a prime: (sums, columns) from (ciphertexts, columns), 64-bit numbers."""
    parts = []
    if split.coefficient_pieces == 1:
        centred = taken.astype(np.int64)
        centred[centred > modulus // 2] -= modulus
        parts.append(centred.astype(np.float64))
    else:
        mask = np.uint64((1 << split.coefficient_bits) - 1)
        for number in range(split.coefficient_pieces):
            piece = (taken >> np.uint64(split.coefficient_bits * number)) & mask
            parts.append(piece.astype(np.float64))
    total: Array | None = None
    # Both sums use Horner's rule, starting from the highest pieces.
    for piece in reversed(split.pieces):
        inner: Array | None = None
        for part in reversed(parts):
            value = np.remainder((piece @ part).astype(np.int64), modulus).astype(np.uint64)
            inner = value if inner is None else _added(_times(inner, split.coefficient_bits, modulus), value, modulus)
        assert inner is not None
        total = inner if total is None else _added(_times(total, split.bits, modulus), inner, modulus)
    assert total is not None
    return total


def _added(x: Array, y: Array, modulus: int) -> Array:
    total = x + y
    return np.where(total >= np.uint64(modulus), total - np.uint64(modulus), total)


def _times(x: Array, bits: int, modulus: int) -> Array:
    """x * 2**bits modulo a prime below 2**61."""
    factor = pow(2, bits, modulus)
    if modulus.bit_length() + factor.bit_length() <= 63:
        return x * np.uint64(factor) % np.uint64(modulus)
    while bits:
        step = min(bits, _STEP)
        # The quotient is below 2**(step + 1), so that in doubles it is off by at most one. The remainder is computed with
        # wraparound and is small.
        quotient = (x.astype(np.float64) * 2.0**step / modulus).astype(np.uint64)
        rest = ((x << np.uint64(step)) - quotient * np.uint64(modulus)).astype(np.int64)
        rest[rest < 0] += modulus
        rest[rest >= modulus] -= modulus
        x, bits = rest.astype(np.uint64), bits - step
    return x
