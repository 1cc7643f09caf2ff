"""Bit-packed coefficients: each takes as many bits as its prime has.

N coefficients of k bits are k N / 64 words of 64 bits, little-endian. Coefficient i N / 64 + j is bits i k to (i + 1) k - 1
of column j, whose words are j, N / 64 + j, and so on: whole rows are shifted at once.
"""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType

import numpy as np

from heliograph.ir import Array

_WORD = 64


@functools.cache
def kernels() -> ModuleType | None:
    """The module of compiled kernels for the same work, some ten times faster; None if numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    from heliograph.runtime.native.kernels import words

    return words


def packed_bytes(count: int, prime: int) -> int:
    """The packed size, in bytes, of `count` coefficients; `count` is a multiple of 64."""
    return count * prime.bit_length() // 8


def pack(values: Array, prime: int) -> bytes:
    """The packed bytes of residues (N) below the prime, of 32 or 64 bits."""
    bits, rows = prime.bit_length(), values.reshape(_WORD, -1)
    words = np.zeros((bits, rows.shape[1]), dtype="<u8")
    fast = kernels()
    if fast is not None:
        fast.pack(np.ascontiguousarray(rows), bits, words)
        return words.tobytes()
    rows = rows.astype(np.uint64, copy=False)
    for i in range(_WORD):
        word, shift = divmod(i * bits, _WORD)
        words[word] |= rows[i] << np.uint64(shift)
        if shift + bits > _WORD:
            words[word + 1] |= rows[i] >> np.uint64(_WORD - shift)
    return words.tobytes()


def unpack_into(row: Array, data: bytes | memoryview, offset: int, prime: int) -> bool:
    """Unpack the residues (N) at an offset of the data into `row`, of 64 bits or, for a short prime, of 32; False if one of
    them is not below the prime.
    """
    bits, rows = prime.bit_length(), row.reshape(_WORD, -1)
    width = rows.shape[1]
    words = np.frombuffer(data, dtype="<u8", count=bits * width, offset=offset).reshape(bits, width)
    fast = kernels()
    if fast is not None and rows.flags.c_contiguous:
        return int(fast.unpack(words, bits, rows)) < prime
    mask = np.uint64((1 << bits) - 1)
    for i in range(_WORD):
        word, shift = divmod(i * bits, _WORD)
        value = words[word] >> np.uint64(shift)
        if shift + bits > _WORD:
            value |= words[word + 1] << np.uint64(_WORD - shift)
        np.bitwise_and(value, mask, out=rows[i], casting="unsafe")
    return int(rows.max()) < prime
