"""Secret random polynomials: uniform and sparse ternary ones, and discrete Gaussian errors.

Each object (a secret key, an evaluation key, a ciphertext) has its own stream: AES-256 in counter mode under a fresh
256-bit key from the system's generator, which is never stored or sent. So processes that continue from one memory image
share nothing. The uniform halves of keys and ciphertexts are public and come from another seed, which is sent
(runtime/wire/expansion.py).

Timing and secrets: `gaussian` runs in constant time, as it compares each sample with the whole table. In `ternary` the
rejected bytes are independent of the kept ones. `sparse_ternary` draws again when it hits an occupied place, so its
running time reveals the number of collisions, but not where they were.
"""

from __future__ import annotations

import functools
import math
from decimal import Decimal, localcontext

import numpy as np

from heliograph.ckks.ring import SIGMA
from heliograph.ir import Array
from heliograph.runtime.noise import SecretStream
from heliograph.runtime.wire.packed import kernels

# Bytes below 255 = 3 * 85, taken modulo 3, are equally likely to be 0, 1 or 2.
_THIRDS = 255
# Bits of the thresholds in the table of errors; an error with a probability below the last bit never occurs.
_PRECISION = 128
_WORD = 64


def ternary(stream: SecretStream, size: int) -> Array:
    """Numbers -1, 0 and 1, each with probability 1/3: int64."""
    made, filled = np.empty(size, dtype=np.int64), 0
    while filled < size:
        octets = stream.octets(size - filled + (size >> 6) + 16)
        kept = octets[octets < _THIRDS][: size - filled]
        made[filled : filled + kept.size] = kept % 3
        filled += kept.size
    return made - 1


def sparse_ternary(stream: SecretStream, size: int, weight: int) -> Array:
    """A uniformly random ternary vector with exactly `weight` nonzero entries, each -1 or 1: int64.

    `size` is a power of two.
    """
    made = np.zeros(size, dtype=np.int64)
    while weight:
        word = int(stream.words(1)[0])
        place, sign = word % size, word >> (_WORD - 1)
        if not made[place]:
            made[place] = 1 - 2 * sign
            weight -= 1
    return made


def gaussian(stream: SecretStream, size: int) -> Array:
    """Discrete Gaussian numbers of standard deviation 3.19: int64.

    The probability of k is proportional to exp(-k^2 / (2 sigma^2)), to within 2^-128. The size comes from comparing 128
    random bits with all thresholds of a table. The sign is a separate bit, which has no effect on zero.
    """
    high, low = stream.words(size), stream.words(size)
    signs = np.unpackbits(stream.octets(-(-size // 8)), count=size)
    found, fast = np.zeros(size, dtype=np.int64), kernels()
    if fast is not None:
        fast.count_reached(high, low, thresholds(), found)
    else:
        for threshold_high, threshold_low in thresholds():
            found += (high > threshold_high) | (high == threshold_high) & (low >= threshold_low)
    found *= 1 - 2 * signs.view(np.int8)
    return found


@functools.cache
def thresholds() -> Array:
    """2^128 times the probabilities that an error is at most 0, 1, 2, ... in size, rounded: high and low words (n, 2)."""
    found, sums = [], Decimal(0)
    with localcontext() as context:
        context.prec = 80
        two_variances = 2 * Decimal(str(SIGMA)) ** 2
        # Beyond this size even the sum of all probabilities is below the precision.
        sizes = range(math.ceil(SIGMA * math.sqrt(2 * _PRECISION)) + 1)
        weights = [(2 if size else 1) * (-(Decimal(size) ** 2) / two_variances).exp() for size in sizes]
        whole = sum(weights)
        for weight in weights:
            sums += weight
            threshold = int((sums / whole * 2**_PRECISION).to_integral_value())
            if threshold >> _PRECISION:
                break
            found.append((threshold >> _WORD, threshold & (1 << _WORD) - 1))
    return np.array(found, dtype=np.uint64)
