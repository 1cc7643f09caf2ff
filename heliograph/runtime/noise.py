"""Random numbers from the system's secure generator: noise that hides a key, and inputs that the server draws."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np

from heliograph.errors import InternalError
from heliograph.ir import Array


def secure_uniform(count: int) -> Array:
    """Independent numbers, uniform between 0 and 1, both left out, in steps of 2^-53."""
    words = np.frombuffer(os.urandom(8 * max(count, 1)), dtype=np.uint64)
    return np.asarray(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)[:count]


def secure_normal(count: int) -> Array:
    """Independent standard normal numbers by the Box-Muller transform, two from each pair of uniform ones."""
    half = (count + 1) // 2
    size, angle = np.sqrt(-2.0 * np.log(secure_uniform(half))), 2.0 * math.pi * secure_uniform(half)
    made: Array = np.concatenate([size * np.cos(angle), size * np.sin(angle)])[:count]
    return made


def secure_draw(distribution: str, shape: Sequence[int]) -> Array:
    """A plain input that the server draws (`drawn` of the op `input`): normal, or uniform on [-1, 1]."""
    count = math.prod(shape)
    if distribution == "normal":
        return secure_normal(count).reshape(tuple(shape))
    if distribution != "uniform":
        raise InternalError(f"nothing is drawn from {distribution!r}")
    return (2.0 * secure_uniform(count) - 1.0).reshape(tuple(shape))
