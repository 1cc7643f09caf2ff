"""Uniform residues from a public seed, sent instead of the uniform half of a ciphertext or key (docs/security.md).

For each polynomial SHAKE-256 derives an AES-256 key from the seed and a context unique to the polynomial. AES in
counter mode, from counter 0 on, gives words: of 32 bits for short primes (ckks/primes.py), of 64 bits for others. Words
not below the largest multiple of the prime are rejected, and the others are taken modulo the prime, so that all residues
are equally likely.
"""

from __future__ import annotations

import hashlib
import math
import secrets

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from heliograph.ckks.primes import is_short
from heliograph.ir import Array
from heliograph.runtime.wire.packed import kernels

SEED_BYTES = 32
_DOMAIN = b"heliograph uniform polynomial 2\0"
_KEY_BYTES = 32
_FROM_ZERO = modes.CTR(bytes(16))


def fresh_seed() -> bytes:
    """A seed from the system's generator, for a single ciphertext or key."""
    return secrets.token_bytes(SEED_BYTES)


def uniform_into(row: Array, context: bytes, prime: int) -> None:
    """Write residues modulo a prime below 2^62 into `row` (N), of 64 bits or, if they fit, of 32. They are a function of
    the context alone.
    """
    key = hashlib.shake_256(_DOMAIN + context).digest(_KEY_BYTES)
    stream = Cipher(algorithms.AES(key), _FROM_ZERO).encryptor()
    short, fast = is_short(prime), kernels()
    bits, kind = (32, "<u4") if short else (64, "<u8")
    times = (1 << bits) // prime
    limit, q, ratio = np.uint64(times * prime), np.uint64(prime), np.uint64(times)
    share, filled = times * prime / 2**bits, 0
    while filled < row.size:
        # A few more than needed on average, so that a second draw is hardly ever needed.
        wanted = (row.size - filled) / share
        count = int(wanted + 4 * math.sqrt(wanted) + 8)
        words = np.frombuffer(stream.update(bytes(bits // 8 * count)), dtype=kind)
        if fast is not None:
            accept = fast.accept_short if short else fast.accept
            filled = accept(words, limit, q, ratio, row, filled)
            continue
        kept = words[words < limit].astype(np.uint64)[: row.size - filled]
        row[filled : filled + kept.size] = kept - kept // q * q
        filled += kept.size
