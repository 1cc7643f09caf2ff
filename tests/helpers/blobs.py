"""A small classification problem: blobs in the unit cube."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Blobs:
    """Inputs (count, features) in [0, 1] and their classes."""

    inputs: Array
    labels: NDArray[np.int64]


def make_blobs(count: int, features: int = 8, classes: int = 3, seed: int = 0) -> Blobs:
    """Points around one centre for each class."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0.2, 0.8, (classes, features))
    labels = rng.integers(0, classes, count)
    return Blobs(np.clip(centres[labels] + 0.08 * rng.standard_normal((count, features)), 0.0, 1.0), labels)
