"""Errors of a softmax over random rows, in chunks: bounded memory, the same figures on any number of threads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from heliograph.approx.result import Vector

BOXES = (4.0, 8.0, 32.0, 128.0)  # HETAL, appendix A.3
CHUNK = 4096


@dataclass(frozen=True)
class SampledError:
    """Errors over `rows` rows: the largest absolute error, and the mean over rows of a row's largest absolute error."""

    max_error: float
    mean_error: float
    rows: int
    boxes: tuple[float, ...]


def softmax_values(rows: Vector) -> Vector:
    """The softmax of each row."""
    made = np.exp(rows - rows.max(axis=-1, keepdims=True))
    made /= made.sum(axis=-1, keepdims=True)
    return np.asarray(made)


def boxes(limit: float) -> tuple[float, ...]:
    """The sides s of the boxes [-s, s]^C for sampling: all up to the limit, and the limit itself."""
    return tuple(sorted({s for s in BOXES if s <= limit} | {limit}))


def sampled_error(
    evaluate: Callable[[Vector], Vector], columns: int, limit: float, samples: int, seed: int
) -> SampledError:
    """Errors of a softmax of (rows, columns) over `samples` rows in total, spread evenly over the boxes up to `limit`.

    `evaluate` gets at most `CHUNK` rows at a time.
    """
    sides = boxes(limit)
    chunks = []
    for number, side in enumerate(sides):
        count = samples // len(sides) + (number < samples % len(sides))
        chunks += [(number, i, side, min(CHUNK, count - start)) for i, start in enumerate(range(0, count, CHUNK))]

    def errors(chunk: tuple[int, int, float, int]) -> tuple[float, float]:
        number, place, side, count = chunk
        rows = np.random.default_rng([seed, number, place]).uniform(-side, side, (count, columns))
        difference = evaluate(rows) - softmax_values(rows)
        worst = np.abs(difference).max(axis=-1)
        return float(worst.max()), float(worst.sum())

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found: Sequence[tuple[float, float]] = list(pool.map(errors, chunks))
    return SampledError(max(m for m, _ in found), math.fsum(s for _, s in found) / samples, samples, sides)
