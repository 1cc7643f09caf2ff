"""Random numbers from the system's secure generator: noise that hides a key, and inputs that the server draws."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from heliograph.errors import InternalError
from heliograph.ir import Array

_KEY_BYTES = 32


def secure_uniform(count: int) -> Array:
    """Independent numbers, uniform between 0 and 1, both left out, in steps of 2^-53.

    They come from AES-256 in counter mode under a key of the system's generator that serves this call alone, which is
    several times faster than the generator itself.
    """
    stream = Cipher(algorithms.AES(os.urandom(_KEY_BYTES)), modes.CTR(bytes(16))).encryptor()
    words = np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8")
    return np.asarray(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)


def secure_normal(count: int) -> Array:
    """Independent normal numbers of deviation one, by Box and Muller's transform: two of two uniform ones.

    Cosine and sine of the angle come from the tangent of its half, which numpy computes several times faster.
    """
    size, turn = secure_uniform(2 * ((count + 1) // 2)).reshape(2, -1)
    half = np.tan(math.pi * (turn - 0.5))
    radius = np.sqrt(-2.0 * np.log(size)) / (1.0 + half * half)
    made: Array = np.concatenate([radius * (1.0 - half * half), 2.0 * radius * half])[:count]
    return made


def secure_draw(distribution: str, shape: Sequence[int]) -> Array:
    """A plain input that the server draws (`drawn` of the op `input`): normal, or uniform on [-1, 1]."""
    count = math.prod(shape)
    if distribution == "normal":
        return secure_normal(count).reshape(tuple(shape))
    if distribution != "uniform":
        raise InternalError(f"nothing is drawn from {distribution!r}")
    return (2.0 * secure_uniform(count) - 1.0).reshape(tuple(shape))
