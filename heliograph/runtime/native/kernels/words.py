"""The client's kernels on single words: packing, unpacking, uniform residues, sizes of errors.

The numpy versions are in runtime/wire/packed.py and expansion.py, and in runtime/client/cryptor/randomness.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heliograph.runtime.native.kernels.arithmetic import high_product, kernel, settled

_WORD = 64
_SHORT = np.uint64(32)


@kernel
def pack(rows: Any, bits: int, words: Any) -> None:
    """Pack residues of `bits` bits, (64, n) numbers of 32 or 64 bits, into `words` (bits, n), which start as zeros."""
    for i in range(_WORD):
        word, shift = i * bits // _WORD, i * bits % _WORD
        values, low = rows[i], words[word]
        left = np.uint64(shift)
        for j in range(values.size):
            low[j] |= np.uint64(values[j]) << left
        if shift + bits > _WORD:
            high, right = words[word + 1], np.uint64(_WORD - shift)
            for j in range(values.size):
                high[j] |= np.uint64(values[j]) >> right


@kernel
def unpack(words: Any, bits: int, rows: Any) -> Any:
    """Unpack words into residues `rows` (64, n), numbers of 32 or 64 bits; returns the largest residue."""
    mask, largest = (np.uint64(1) << np.uint64(bits)) - np.uint64(1), np.uint64(0)
    for i in range(_WORD):
        word, shift = i * bits // _WORD, i * bits % _WORD
        values, low = rows[i], words[word]
        right = np.uint64(shift)
        if shift + bits > _WORD:
            high, left = words[word + 1], np.uint64(_WORD - shift)
            for j in range(values.size):
                values[j] = (low[j] >> right | high[j] << left) & mask
        else:
            for j in range(values.size):
                values[j] = low[j] >> right & mask
        for j in range(values.size):
            largest = max(largest, np.uint64(values[j]))
    return largest


@kernel
def count_reached(high: Any, low: Any, table: Any, found: Any) -> None:
    """Count the thresholds (n, 2) that each 128-bit number reaches; every number is compared with all of them."""
    for k in range(table.shape[0]):
        threshold_high, threshold_low = table[k, 0], table[k, 1]
        for j in range(found.size):
            above, same = high[j] > threshold_high, high[j] == threshold_high
            found[j] += above | (same & (low[j] >= threshold_low))


@kernel
def accept(words: Any, limit: Any, q: Any, ratio: Any, row: Any, filled: int) -> int:
    """Write the words of 64 bits below the limit, modulo q, into the row from `filled` on; returns the new number of
    residues.

    `ratio` is floor(2^64 / q); the quotient is up to three too small. The residues are public: branches may depend on
    them.
    """
    for j in range(words.size):
        word = words[j]
        if word < limit and filled < row.size:
            row[filled] = settled(word - high_product(word, ratio) * q, q)
            filled += 1
    return filled


@kernel
def accept_short(words: Any, limit: Any, q: Any, ratio: Any, row: Any, filled: int) -> int:
    """The same with words of 32 bits, and `ratio` floor(2^32 / q); the quotient is up to one too small."""
    for j in range(words.size):
        if filled == row.size:
            break
        word = np.uint64(words[j])
        rest = word - (word * ratio >> _SHORT) * q
        # Up to a quarter of the words is not accepted. They are overwritten by the next ones: a branch would often be
        # guessed wrong.
        row[filled] = min(rest, rest - q)
        filled += word < limit
    return filled
