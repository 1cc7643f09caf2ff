"""Sums of whole ciphertexts, for programs on as many samples as a ciphertext has slots. Part of `ir/ops/table.py`.

In such programs an element of a tensor is one ciphertext, with that element of every sample. A linear map is a weighted
sum of ciphertexts for each element of its result: no rotation, and no key. The ciphertexts that a map reads are a
stack, a value of its own, so that a backend can compute all sums together, as one product of matrices (the weights
times the coefficients).

A stack of one vector is that vector, by its type and by its value: all ops read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.node import Array, Node
from heliograph.ir.ops.bounds import widened
from heliograph.ir.ops.slots import runs
from heliograph.ir.ops.slots.rules import any_operand, longest, scaled
from heliograph.ir.ops.slots.types import SCALE_TOLERANCE, two_parts
from heliograph.ir.ops.spec import NO_KEYS, SLOTS, Attrs, Bounds, Context, OpSpec, Role, SlotRules, define
from heliograph.ir.types import CipherType, SlotsType, Type


def _stack_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    first = operands[0]
    if not isinstance(first, (CipherType, SlotsType)):
        raise ProgramError("stack takes slot vectors")
    if isinstance(first, SlotsType):
        if {operand.slots for operand in operands} != {first.slots} or not all(operand.secret for operand in operands):
            raise ProgramError("stack: its operands are not secret vectors of as many slots")
    elif first.parts != 2 or len({replace(operand, log_scale=0.0) for operand in operands}) > 1:
        raise ProgramError("stack: its operands are not at one level, in one chain, of two parts")
    elif max(o.log_scale for o in operands) - min(o.log_scale for o in operands) > SCALE_TOLERANCE:
        raise ProgramError("stack: its operands have different scales")
    return replace(first, count=len(operands))


def _stacked(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    """(samples, count, slots) from vectors (samples, slots)."""
    return values[0] if len(values) == 1 else np.stack(np.broadcast_arrays(*values), axis=-2)


def _stack_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    if len(operands) == 1:
        return operands[0]
    return np.stack([low for low, _ in operands]), np.stack([high for _, high in operands])


def _rows(stack: Array, a: Attrs, context: Context) -> Array:
    """A stack with an axis of vectors; a stack of one vector comes without this axis."""
    return stack if context.shape(a["matrix"])[1] > 1 else stack[..., np.newaxis, :]


define(
    OpSpec(
        "stack",
        SLOTS,
        (1, None),
        {},
        _stack_type,
        _stacked,
        "Vectors side by side, in order, for the weighted sums that read all of them.",
        role=Role.STACK,
        rules=SlotRules(_stack_bounds, longest, any_operand, NO_KEYS),
        run=runs.stacked,
    )
)


def _row(a: Attrs, context: Context) -> tuple[Array, Array]:
    """The operands of the sum, and their weights."""
    matrix = context.linear_map(a["matrix"]).sparse()
    part = slice(int(matrix.indptr[a["row"]]), int(matrix.indptr[a["row"] + 1]))
    return matrix.indices[part], matrix.data[part]


def _sum_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    (operand,) = operands
    shape = context.shape(a["matrix"])
    if not isinstance(operand, (CipherType, SlotsType)) or len(shape) != 2 or shape[1] != operand.count:
        raise ProgramError(f"weighted_sum: a matrix of shape {shape} does not fit what is summed")
    two_parts("weighted_sum", operand)
    if not 0 <= a["row"] < shape[0]:
        raise ProgramError(f"weighted_sum: a matrix of {shape[0]} rows has no row {a['row']}")
    result = replace(operand, count=1)
    if isinstance(result, SlotsType):
        return result
    if "plain_log_scale" not in a:
        raise ProgramError("weighted_sum: the scale of its weights is not planned")
    return replace(result, log_scale=result.log_scale + a["plain_log_scale"])


def _sum(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    columns, weights = _row(a, context)
    return np.asarray(np.tensordot(weights, _rows(values[0], a, context)[..., columns, :], axes=(0, -2)))


def _sum_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    columns, weights = _row(node.attrs, context)
    low, high = (_rows(end, node.attrs, context)[columns] for end in operands[0])
    least, most = scaled((low, high), weights[:, np.newaxis], weights[:, np.newaxis])
    total = least.sum(axis=0), most.sum(axis=0)
    # A sum of n terms is rounded n times.
    size = max(1, columns.size) * np.finfo(float).eps * np.maximum(np.abs(least), np.abs(most)).sum(axis=0)
    return widened(total[0] - size, total[1] + size)


define(
    OpSpec(
        "weighted_sum",
        SLOTS,
        (1, 1),
        {"matrix": "constant", "row": "int", "plain_log_scale": "float?"},
        _sum_type,
        _sum,
        "The sum of a stack's vectors, weighted by one row of a matrix, whose numbers are rounded at `plain_log_scale`.",
        depth=1,
        role=Role.PLAIN_PRODUCT,
        rules=SlotRules(_sum_bounds, longest, any_operand, NO_KEYS),
        word="sum of ciphertexts",
        run=runs.weighted_sum,
        stacks=True,
    )
)
