"""Secret random polynomials: uniform and sparse ternary ones, and discrete Gaussian errors.

Each object that is made (a secret key, an evaluation key, a ciphertext) has a stream of its own: AES-256 in counter mode
under 256 bits that the system's generator gave for it alone, which are never stored or sent. So processes that continue
from one memory image share nothing. The uniform halves of keys and ciphertexts are public and come from another seed, which
is sent (runtime/wire/expansion.py).

What depends on secret values: nothing in `gaussian`, which compares each sample with the whole table; which bytes `ternary`
leaves out is independent of those it keeps; `sparse_ternary` repeats a draw where it hits a place again, so that its time
tells how often that happened, of places that nobody knows.
"""

from __future__ import annotations

import functools
import math
import secrets
from decimal import Decimal, localcontext

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from heliograph.ckks.ring import SIGMA
from heliograph.ir import Array
from heliograph.runtime.wire.packed import kernels

_SEED_BYTES = 32
_NONCE = bytes(16)
# Bytes below 255 = 3 * 85 are one of three values, each as likely as the others.
_THIRDS = 255
# Thresholds of the table of errors have so many bits; errors that are rarer than one of them never occur.
_PRECISION = 128
_WORD = 64


class SecretStream:
    """Random bytes that nobody else has."""

    def __init__(self, seed: bytes | None = None) -> None:
        """`seed` is for tests alone; by default the system's generator gives one."""
        key = secrets.token_bytes(_SEED_BYTES) if seed is None else seed
        self._stream = Cipher(algorithms.AES(key), modes.CTR(_NONCE)).encryptor()

    def octets(self, count: int) -> Array:
        return np.frombuffer(self._stream.update(bytes(count)), dtype=np.uint8)

    def words(self, count: int) -> Array:
        """Of 64 bits."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")


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
    """Numbers of which exactly `weight` are -1 or 1 and the others 0, each such vector as likely as any other: int64.

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

    The probability of k is that of exp(-k^2 / (2 sigma^2)), to 2^-128. The size is found by comparing 128 random bits with
    all thresholds of a table; the sign is a bit of its own, which does nothing to a zero.
    """
    high, low = stream.words(size), stream.words(size)
    signs = np.unpackbits(stream.octets(-(-size // 8)), count=size)
    found, fast = np.zeros(size, dtype=np.int64), kernels()
    if fast is not None:
        fast.count_reached(high, low, np.array(thresholds()), found)
    else:
        for threshold_high, threshold_low in thresholds():
            found += (high > threshold_high) | (high == threshold_high) & (low >= threshold_low)
    return found * (1 - 2 * signs.astype(np.int64))


@functools.cache
def thresholds() -> tuple[tuple[np.uint64, np.uint64], ...]:
    """2^128 times the probabilities that an error is at most 0, 1, 2, ... in size, rounded, as high and low words."""
    found, sums = [], Decimal(0)
    with localcontext() as context:
        context.prec = 80
        two_variances = 2 * Decimal(str(SIGMA)) ** 2
        # Beyond this size even their sum has no bit of the precision.
        sizes = range(math.ceil(SIGMA * math.sqrt(2 * _PRECISION)) + 1)
        weights = [(2 if size else 1) * (-(Decimal(size) ** 2) / two_variances).exp() for size in sizes]
        whole = sum(weights)
        for weight in weights:
            sums += weight
            threshold = int((sums / whole * 2**_PRECISION).to_integral_value())
            if threshold >> _PRECISION:
                break
            found.append((np.uint64(threshold >> _WORD), np.uint64(threshold & (1 << _WORD) - 1)))
    return tuple(found)
