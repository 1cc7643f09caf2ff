"""Rules that several ops on slots share (`SlotRules` in `ir/ops/spec.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from heliograph.ir.node import Array, Node
from heliograph.ir.ops.spec import NO_KEYS, Bounds, Context, Dependence, Keys, SlotRules

# Widens bounds to cover rounding errors in their sums.
WIDEN = 1e-12


def slotwise(
    bounds: Callable[[Node, Sequence[Bounds], Context], Bounds | None] | None, keys: Keys = NO_KEYS
) -> SlotRules:
    """The rules of an op whose slot i is made of the operands' slots i alone, in every slot alike."""
    return SlotRules(bounds, longest, any_operand, keys)


def longest(node: Node, periods: Sequence[int], context: Context) -> int:
    """All periods are powers of two: what repeats with one repeats with each longer one."""
    return max(periods)


def any_operand(node: Node, operands: Sequence[Dependence], context: Context) -> Array:
    """A slot depends where that slot of an operand does."""
    result = operands[0].depends
    for operand in operands[1:]:
        result = result | operand.depends
    return result


def nowhere_zero(node: Node, operands: Sequence[Dependence], context: Context) -> Array:
    """As `any_operand`, of a product: where an operand is always zero, the result is."""
    result = any_operand(node, operands, context)
    for operand in operands:
        if operand.zero is not None:
            result = result & ~operand.zero
    return result


def same_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    """Those of the operand."""
    return operands[0]


def complex_slots(node: Node, operands: Sequence[Bounds], context: Context) -> None:
    """What it makes, or takes apart, is complex: no bounds."""


def sum_of_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    """Of two operands."""
    (a, b), (c, d) = operands
    return widened(a + c, b + d)


def product_of_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    """Of two operands; of one with itself, a square."""
    if node.inputs[0] is node.inputs[1]:
        return widened(*square_bounds(operands[0]))
    return widened(*product_bounds(*operands))


def scaled(operand: Bounds, least: Array, most: Array) -> Bounds:
    """Bounds of products with factors between two."""
    return widened(*product_bounds(operand, (least, most)))


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
    """Bounds that hold those although they were computed with rounding."""
    slack = WIDEN * np.maximum(np.abs(low), np.abs(high))
    return low - slack, high + slack
