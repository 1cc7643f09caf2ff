"""A small task for training on ciphertexts: three blobs, and a toy ring."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import heliograph as hg

TOY = hg.Options(security_bits=None, log_ring=10)


def blobs(count: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Features (count, 6) of three classes, and the classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    middles = np.random.default_rng(5).normal(0.0, 0.5, (3, 6))
    return np.clip(middles[labels] + rng.normal(0.0, 0.35, (count, 6)), -2, 2), labels
