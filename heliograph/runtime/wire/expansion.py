"""Uniform residues from a public seed, sent instead of the uniform half of a ciphertext or key (docs/security.md).

For each polynomial SHAKE-256 derives an AES-256 key from the seed and a context unique to the polynomial. AES in
counter mode, from counter 0 on, gives 64-bit words. Words not below the largest multiple of the prime are rejected, and
the others are taken modulo the prime, so that all residues are equally likely.
"""

from __future__ import annotations

import hashlib
import math
import secrets

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from heliograph.ir import Array
from heliograph.runtime.wire.packed import kernels

SEED_BYTES = 32
_DOMAIN = b"heliograph uniform polynomial 1\0"
_KEY_BYTES, _NONCE = 32, bytes(16)


def fresh_seed() -> bytes:
    """A seed from the system's generator, for a single ciphertext or key."""
    return secrets.token_bytes(SEED_BYTES)


def uniform_into(row: Array, context: bytes, prime: int) -> None:
    """Write residues modulo a prime below 2^62 into `row` (N). They are a function of the context alone."""
    key = hashlib.shake_256(_DOMAIN + context).digest(_KEY_BYTES)
    stream = Cipher(algorithms.AES(key), modes.CTR(_NONCE)).encryptor()
    limit = (1 << 64) // prime * prime
    q, filled, fast = np.uint64(prime), 0, kernels()
    while filled < row.size:
        # A few more than needed on average, so that a second draw is hardly ever needed.
        wanted = (row.size - filled) * 2**64 / limit
        words = np.frombuffer(stream.update(bytes(8 * int(wanted + 4 * math.sqrt(wanted) + 8))), dtype="<u8")
        if fast is not None:
            filled = fast.accept(words, np.uint64(limit), q, np.uint64((1 << 64) // prime), row, filled)
            continue
        words = words[words < np.uint64(limit)][: row.size - filled]
        row[filled : filled + words.size] = words - words // q * q
        filled += words.size
