"""Secret random numbers, in streams under keys of the system's generator: noise, and inputs that the server draws."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from heliograph.errors import InternalError
from heliograph.ir import Array

_SEED_BYTES = 32
_FROM_ZERO = modes.CTR(bytes(16))


class SecretStream:
    """A stream of secret random bytes."""

    def __init__(self, seed: bytes | None = None) -> None:
        """`seed` is for tests alone; by default the system's generator gives one."""
        key = secrets.token_bytes(_SEED_BYTES) if seed is None else seed
        self._stream = Cipher(algorithms.AES(key), _FROM_ZERO).encryptor()

    def octets(self, count: int) -> Array:
        return np.frombuffer(self._stream.update(bytes(count)), dtype=np.uint8)

    def words(self, count: int) -> Array:
        """Random 64-bit words."""
        return np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8")


def secure_uniform(count: int) -> Array:
    """Independent numbers, uniform between 0 and 1, both left out, in steps of 2^-53.

    They come from a stream of their own, which is several times faster than the system's generator.
    """
    return _unit(SecretStream().words(count))


def _unit(words: Array) -> Array:
    """Random 64-bit words as such numbers."""
    found: Array = (words >> np.uint64(11)).astype(np.float64)
    found += 0.5
    found *= 2.0**-53
    return found


def secure_normal(count: int) -> Array:
    """Independent normal numbers of deviation one, by Box and Muller's transform: two of two uniform ones.

    Cosine and sine of the angle come from the tangent of its half, which numpy computes several times faster.
    """
    words = SecretStream().words(2 * ((count + 1) // 2)).reshape(2, -1)
    # Signed words are uniform: half an angle, between -pi / 2 and pi / 2.
    half = np.tan(words[1].view(np.int64) * (math.pi * 2.0**-64))
    radius, square = np.log(_unit(words[0])), half * half
    radius *= -2.0
    np.sqrt(radius, out=radius)
    radius /= 1.0 + square
    made = np.empty(words.shape)
    np.multiply(radius, 1.0 - square, out=made[0])
    radius *= 2.0
    np.multiply(radius, half, out=made[1])
    normal: Array = made.reshape(-1)[:count]
    return normal


def secure_draw(distribution: str, shape: Sequence[int]) -> Array:
    """A plain input that the server draws (`drawn` of the op `input`): normal, or uniform on [-1, 1]."""
    count = math.prod(shape)
    if distribution == "normal":
        return secure_normal(count).reshape(tuple(shape))
    if distribution != "uniform":
        raise InternalError(f"nothing is drawn from {distribution!r}")
    return (2.0 * secure_uniform(count) - 1.0).reshape(tuple(shape))
