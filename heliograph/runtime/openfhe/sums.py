"""Weighted sums of ciphertexts as products of matrices: weights times coefficients, prime by prime, exactly.

A product of whole numbers is exact in floating point while no sum of products reaches 2^53. Weights and coefficients are
split into pieces that keep to that; the pieces' products are put together modulo the prime. OpenFHE would take one pass over
memory for every weight. Ciphertexts come and go as the bytes of their coefficients (template.py), which OpenFHE checks
nowhere: what a stranger sent was checked against its template before it is here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from heliograph.ckks.ring import Ring
from heliograph.errors import RangeError
from heliograph.ir import Array
from heliograph.runtime.openfhe.context import library
from heliograph.runtime.openfhe.template import TAG_LENGTH, Bytes, ciphertext_template, moved, normalized

# Whole numbers up to this are exact in floating point.
_EXACT = 2.0**53
# Rounded weights beyond this fit no modulus. (Below, those above 2**53 are whole numbers with zeros at their end.)
_LARGEST = 2.0**110
# Coefficients of each ciphertext that are in floating point at once.
_COLUMNS = 1 << 12
# A matrix with a smaller share of entries is multiplied as a sparse one.
_DENSE = 0.2
# The name of a key in bytes that only pass through: those of lower parts of a chain are longer than a client's.
_UNNAMED = "0" * TAG_LENGTH


@dataclass(frozen=True, slots=True)
class Coefficients:
    """A ciphertext of two parts as the bytes of its coefficients: for inputs that only weighted sums read.

    `blocks` are (2 (level + 1), ring_dim) numbers below their primes, part by part.
    """

    blocks: tuple[Array, ...]
    level: int
    tag: str

    @staticmethod
    def of(data: Bytes, ring: Ring, level: int, tag: str) -> Coefficients:
        """From the bytes of a fresh or `normalized` ciphertext, which were checked."""
        form = ciphertext_template(ring, level)
        blocks = (np.frombuffer(data, dtype="<u8", count=ring.ring_dim, offset=begin) for begin, _ in form.blocks)
        return Coefficients(tuple(blocks), level, tag)

    def dropped(self, levels: int) -> Coefficients:
        """The same, fewer primes."""
        half, kept = self.level + 1, self.level + 1 - levels
        return Coefficients((*self.blocks[:kept], *self.blocks[half : half + kept]), self.level - levels, self.tag)


def weighted_sums(
    values: Sequence[Any], weights: scipy.sparse.csr_array, log_scale: float, ring: Ring, level: int, tag: str
) -> list[Any]:
    """For each row of the weights the sum of ciphertexts times them, rounded at 2**log_scale: a product not yet rescaled."""
    scaled = np.rint(weights.data * 2.0**log_scale)
    if not np.abs(scaled).max(initial=0.0) < _LARGEST:
        raise RangeError(f"a weight of size {np.abs(weights.data).max():.3g} is too large for scale 2^{log_scale:.1f}")
    whole = scipy.sparse.csr_array((scaled, weights.indices, weights.indptr), shape=weights.shape)
    form = ciphertext_template(ring, level)
    # One ciphertext may stand in several places.
    taken_apart = {id(value): _coefficients(value, ring, level) for value in values}
    known = [taken_apart[id(value)] for value in values]
    sums = np.empty((weights.shape[0], len(form.blocks), ring.ring_dim), dtype="<u8")
    for number, modulus in enumerate(form.blocks_moduli):
        split = _split(whole, modulus)
        for start in range(0, ring.ring_dim, _COLUMNS):
            part = slice(start, start + _COLUMNS)
            taken = np.stack([value.blocks[number][part] for value in known])
            sums[:, number, part] = _product(split, taken, modulus)
    made = []
    for row in sums:
        data = form.fill((block.data for block in row), _UNNAMED)
        ciphertext = moved(library().DeserializeCiphertextString(data, library().BINARY), ring, level, tag)
        ciphertext.SetNoiseScaleDeg(2)
        ciphertext.SetScalingFactor(ciphertext.GetScalingFactor() ** 2)
        made.append(ciphertext)
    return made


def _coefficients(value: Any, ring: Ring, level: int) -> Coefficients:
    if isinstance(value, Coefficients):
        return value
    openfhe = library()
    data = bytes(openfhe.Serialize(normalized(value, ring, level, _UNNAMED), openfhe.BINARY))
    return Coefficients.of(data, ring, level, _UNNAMED)


@dataclass(frozen=True, slots=True)
class _Split:
    """Weights as sums of pieces times powers of two: pieces[i] * 2**(bits * i); and how coefficients are to be split."""

    pieces: tuple[Any, ...]
    bits: int
    coefficient_pieces: int
    coefficient_bits: int


def _split(weights: scipy.sparse.csr_array, modulus: int) -> _Split:
    """The fewest products whose sums stay exact."""
    width = modulus.bit_length()
    for parts, pieces in _SPLITS:
        bits = math.ceil((_bits(weights.data) + 1) / parts)
        split = _pieces(weights, parts, bits)
        largest = max(float(abs(piece).sum(axis=1).max()) for piece in split)
        each = math.ceil(width / pieces)
        # What is not split is centred: half the size.
        if largest * 2.0 ** (each - 1 if pieces == 1 else each) < _EXACT:
            return _Split(tuple(_dense(piece) for piece in split), bits, pieces, each)
    raise RangeError("weights are too large for an exact sum")


# (pieces of the weights, of the coefficients), the fewest products first.
_SPLITS = sorted(itertools.product(range(1, 7), repeat=2), key=lambda pair: (pair[0] * pair[1], pair))


def _bits(numbers: Array) -> int:
    return max(1, int(np.abs(numbers).max(initial=0.0)).bit_length())


def _pieces(weights: scipy.sparse.csr_array, parts: int, bits: int) -> list[scipy.sparse.csr_array]:
    """Pieces of at most 2**(bits - 1) in size but for the last, which has the rest."""
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
    """Weights times coefficients modulo a prime: (sums, columns) from (ciphertexts, columns), numbers of 64 bits."""
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
    # Both sums by Horner's rule, from the highest pieces.
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
    # The quotient to 64 bits is off by one at most; the rest wraps around, and is small.
    quotient = (x.astype(np.longdouble) * np.longdouble(factor) / np.longdouble(modulus)).astype(np.uint64)
    rest = (x * np.uint64(factor) - quotient * np.uint64(modulus)).astype(np.int64)
    rest[rest < 0] += modulus
    rest[rest >= modulus] -= modulus
    return rest.astype(np.uint64)
