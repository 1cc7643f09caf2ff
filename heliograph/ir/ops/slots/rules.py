"""Rules that several ops on slots share (`SlotRules` in `ir/ops/spec.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heliograph.ir.node import Array, Node
from heliograph.ir.ops.bounds import product_bounds, square_bounds, widened
from heliograph.ir.ops.spec import NO_KEYS, Bounds, Context, Dependence, Keys, SlotRules


def slotwise(
    bounds: Callable[[Node, Sequence[Bounds], Context], Bounds | None] | None, keys: Keys = NO_KEYS
) -> SlotRules:
    """The rules of an op whose slot i depends only on the operands' slots i, alike in every slot."""
    return SlotRules(bounds, longest, any_operand, keys)


def longest(node: Node, periods: Sequence[int], context: Context) -> int:
    """The longest period: all are powers of two, so the operands all repeat with the longest one."""
    return max(periods)


def any_operand(node: Node, operands: Sequence[Dependence], context: Context) -> Array:
    """A slot depends on the input if that slot of an operand does."""
    result = operands[0].depends
    for operand in operands[1:]:
        result = result | operand.depends
    return result


def nowhere_zero(node: Node, operands: Sequence[Dependence], context: Context) -> Array:
    """`any_operand` for a product: where an operand is always zero, so is the result."""
    result = any_operand(node, operands, context)
    for operand in operands:
        if operand.zero is not None:
            result = result & ~operand.zero
    return result


def same_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    """The bounds of the operand."""
    return operands[0]


def complex_slots(node: Node, operands: Sequence[Bounds], context: Context) -> None:
    """No bounds: the result or the operand is complex."""


def sum_of_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    """Bounds of the sum of two operands."""
    (a, b), (c, d) = operands
    return widened(a + c, b + d)


def product_of_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    """Bounds of the product of two operands; of a square if they are the same."""
    if node.inputs[0] is node.inputs[1]:
        return widened(*square_bounds(operands[0]))
    return widened(*product_bounds(*operands))


def scaled(operand: Bounds, least: Array, most: Array) -> Bounds:
    """Bounds of products with factors between two bounds."""
    return widened(*product_bounds(operand, (least, most)))
