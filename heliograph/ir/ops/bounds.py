"""Arithmetic of bounds: bounds of sums and products from the bounds of their operands, element by element."""

from __future__ import annotations

import numpy as np

from heliograph.ir.node import Array
from heliograph.ir.ops.spec import Bounds

# Widens bounds to cover rounding errors in their sums.
WIDEN = 1e-12


def product_bounds(x: Bounds, y: Bounds) -> Bounds:
    """Bounds of the elementwise product of two values; not finite where they grow beyond all numbers."""
    (a, b), (c, d) = x, y
    with np.errstate(over="ignore", invalid="ignore"):
        corners = np.stack([a * c, a * d, b * c, b * d])
    return corners.min(axis=0), corners.max(axis=0)


def square_bounds(x: Bounds) -> Bounds:
    """Bounds of a value times itself, which is never negative."""
    a, b = x
    with np.errstate(over="ignore"):
        squares = a * a, b * b
    return np.where((a <= 0) & (b >= 0), 0.0, np.minimum(*squares)), np.maximum(*squares)


def widened(low: Array, high: Array) -> Bounds:
    """These bounds, widened by the rounding errors of their computation."""
    slack = WIDEN * np.maximum(np.abs(low), np.abs(high))
    return low - slack, high + slack
