"""What a client does word by word, beside its arithmetic: packing, unpacking, uniform residues, sizes of errors. The same
in numpy: runtime/wire/packed.py and expansion.py, runtime/client/cryptor/randomness.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heliograph.runtime.native.kernels.arithmetic import high_product, kernel, settled

_WORD = 64


@kernel
def pack(rows: Any, bits: int, words: Any) -> None:
    """Rows (64, n) of residues of so many bits into words (bits, n), which are zero."""
    for i in range(_WORD):
        word, shift = i * bits // _WORD, i * bits % _WORD
        values, low = rows[i], words[word]
        left = np.uint64(shift)
        for j in range(values.size):
            low[j] |= values[j] << left
        if shift + bits > _WORD:
            high, right = words[word + 1], np.uint64(_WORD - shift)
            for j in range(values.size):
                high[j] |= values[j] >> right


@kernel
def unpack(words: Any, bits: int, rows: Any) -> Any:
    """The residues (64, n) in such words, and the largest of them."""
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
            largest = max(largest, values[j])
    return largest


@kernel
def count_reached(high: Any, low: Any, table: Any, found: Any) -> None:
    """How many of the thresholds (n, 2) each number of 128 bits reaches: all are compared, whatever the number."""
    for k in range(table.shape[0]):
        threshold_high, threshold_low = table[k, 0], table[k, 1]
        for j in range(found.size):
            above, same = high[j] > threshold_high, high[j] == threshold_high
            found[j] += above | (same & (low[j] >= threshold_low))


@kernel
def accept(words: Any, limit: Any, q: Any, ratio: Any, row: Any, filled: int) -> int:
    """Words below the limit modulo q into the row, from `filled` on: how many residues it has then.

    `ratio` is floor(2^64 / q): the quotient is up to three too small. Residues are sent: branches may depend on them.
    """
    for j in range(words.size):
        word = words[j]
        if word < limit and filled < row.size:
            row[filled] = settled(word - high_product(word, ratio) * q, q)
            filled += 1
    return filled
