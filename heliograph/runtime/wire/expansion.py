"""Uniform residues from a public seed: in place of the uniform half of a ciphertext or key (docs/security.md).

For each polynomial SHAKE-256 makes a key of AES-256 from the seed and all that tells this polynomial from others. The
words of 64 bits of AES in counter mode, from counter 0 on, are residues: a word that is not below the largest multiple of
the prime is left out, the others are taken modulo the prime, so that every residue is as likely as any other.
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
    """A seed from the system's generator; each serves one ciphertext or key and no other."""
    return secrets.token_bytes(SEED_BYTES)


def uniform_into(row: Array, context: bytes, prime: int) -> None:
    """Residues modulo a prime below 2^62 into `row` (N). Equal contexts give equal residues; no other has them."""
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
