"""Matrix times encrypted vector by diagonals, for libraries that have none: plans in the clear, in NumPy alone.

A matrix of m rows and n columns, both powers of two, m <= n, has m generalised diagonals (Halevi and Shoup, CRYPTO 2014),
whose sums are folded log2(n / m) times. Baby and giant steps need about 2 sqrt(m) rotations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Plan:
    """How a matrix is multiplied.

    Fields:
        period: Of the input in the slots: columns, the next power of two.
        result: Period of the result: rows, the next power of two.
        baby: Number of baby steps.
        giants: For each giant step, its amount and its baby steps' vectors of `period` numbers, turned back already.
        folds: Amounts by which the sum is turned and added to itself.
    """

    period: int
    result: int
    baby: int
    giants: tuple[tuple[int, tuple[np.ndarray, ...]], ...]
    folds: tuple[int, ...]

    @property
    def rotations(self) -> set[int]:
        """The amounts of rotation for which there must be keys."""
        return {*range(1, self.baby), *(amount for amount, _ in self.giants if amount), *self.folds}


def power(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()


def planned(weights: np.ndarray) -> Plan:
    """The plan for a matrix of shape (rows, columns)."""
    m, n = map(power, weights.shape)
    padded = np.zeros((m, n))
    padded[: weights.shape[0], : weights.shape[1]] = weights
    slots = np.arange(n)
    baby = 1 << (m.bit_length() // 2)
    giants = []
    for start in range(0, m, baby):
        diagonals = (padded[slots % m, (slots + start + step) % n] for step in range(baby))
        giants.append((start, tuple(np.roll(each, start) for each in diagonals)))
    folds = [n >> shift for shift in range(1, (n // m).bit_length())]
    return Plan(n, m, baby, tuple(giants), tuple(folds))


def spread(values: np.ndarray, period: int, slots: int) -> np.ndarray:
    """Values with zeros up to the period, repeated in all slots."""
    return np.tile(np.concatenate([values, np.zeros(period - len(values))]), slots // period)
