"""The client's kernels on single rows (see `rows`). No branch and no index depends on a residue.

They run on the thread that calls them: the client's threads each take rows of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heliograph.runtime.native.kernels.arithmetic import difference, kernel, product, total
from heliograph.runtime.native.kernels.floating import LIMIT, canonical, near, nearest, product_near
from heliograph.runtime.native.kernels.rows import BITS, PRIME, RATIO, SHORT, forward_row, long_row, reduction_of
from heliograph.runtime.native.kernels.vectors import (
    LANES,
    load,
    products,
    settled_words,
    store,
    times_word,
    word_difference,
    word_total,
)


@kernel
def small_values(numbers: Any, out: Any, row: Any, known: Any) -> None:
    """The transform of signed integers (N), smaller than the prime, into a row."""
    q = np.int64(known.moduli[row, PRIME])
    if known.moduli[row, SHORT]:
        words = out[0]
        for i in range(words.size):
            words[i] = np.uint32(numbers[i] + (numbers[i] >> 63 & q))
    else:
        longs = long_row(out, 0)
        for i in range(longs.size):
            longs[i] = np.uint64(numbers[i] + (numbers[i] >> 63 & q))
    forward_row(out, 0, row, known)


@kernel
def add_product(sums: Any, x: Any, y: Any, minus: bool, row: Any, known: Any) -> None:
    """Add the product of two rows to a third one, or subtract it with `minus`."""
    q, bits, ratio = known.moduli[row, PRIME], known.moduli[row, BITS], known.moduli[row, RATIO]
    if known.moduli[row, SHORT]:
        prime, inverse, whole, ratio_word = reduction_of(known.moduli[row])
        a, b, o = x[0], y[0], sums[0]
        for i in range(0, o.size, LANES):
            found = settled_words(products(load(a, i), load(b, i)), prime, inverse)
            found = times_word(found, whole, ratio_word, prime)
            if minus:
                store(o, i, word_difference(load(o, i), found, prime))
            else:
                store(o, i, word_total(load(o, i), found, prime))
        return
    first, second, out = long_row(x, 0), long_row(y, 0), long_row(sums, 0)
    if q < LIMIT:
        number = float(q)
        reciprocal, sign = 1.0 / number, -1.0 if minus else 1.0
        for i in range(out.size):
            near_sum = near(out[i]) + sign * product_near(near(first[i]), near(second[i]), number, reciprocal)
            out[i] = canonical(nearest(near_sum, number, reciprocal), number)
    elif minus:
        for i in range(out.size):
            out[i] = difference(out[i], product(first[i], second[i], q, bits, ratio), q)
    else:
        for i in range(out.size):
            out[i] = total(out[i], product(first[i], second[i], q, bits, ratio), q)
