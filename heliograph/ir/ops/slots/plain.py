"""Ciphertexts with plaintexts: constants, and plain run-time values. Part of `ir/ops/table.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.maps.layout import check_layout
from heliograph.ir.node import Array, Node
from heliograph.ir.ops.bounds import widened
from heliograph.ir.ops.slots import runs
from heliograph.ir.ops.slots.rules import any_operand, product_of_bounds, scaled, slotwise, sum_of_bounds
from heliograph.ir.ops.slots.types import same_slots, two_parts, unchanged
from heliograph.ir.ops.spec import (
    NO_KEYS,
    SLOTS,
    Attrs,
    Bounds,
    Context,
    InferType,
    OpSpec,
    Role,
    SlotRules,
    check_constant,
    define,
)
from heliograph.ir.types import CipherType, SlotsType, TensorType, Type


def _plain_product_type(op: str) -> InferType:
    def infer(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
        operand = operands[0]
        two_parts(op, operand)
        if not isinstance(operand, CipherType):
            return SlotsType(operand.slots, operand.secret)
        if "plain_log_scale" not in a:
            raise ProgramError(f"{op}: the scale of the plaintext is not planned")
        return replace(operand, log_scale=operand.log_scale + a["plain_log_scale"])

    return infer


def _repeats(op: str, infer: InferType) -> InferType:
    """`infer`, with a check that the constant `value` is a vector that fills the slots a whole number of times."""

    def checked(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
        shape, slots = context.shape(a["value"]), operands[0].slots
        if len(shape) != 1 or not shape[0] or slots % shape[0]:
            raise ProgramError(f"{op}: a vector of shape {shape} does not repeat over {slots} slots")
        check_constant(op, a, context, "imaginary", shape)
        return infer(operands, a, context)

    return checked


def _tile(values: Array, slots: int) -> Array:
    """A vector of one period repeated over the slots."""
    return np.resize(values, slots)


def _slots_of(values: Sequence[Array]) -> int:
    return int(values[0].shape[-1])


def _vector_of(node: Node, slots: int, context: Context) -> Array:
    """The node's plaintext vector, repeated over the slots."""
    return _tile(runs.plain_vector(node.attrs, context.array), slots)


def _bounds_of_product(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds | None:
    """The bounds of the product; None if slots become complex."""
    if "imaginary" in node.attrs:
        return None
    return scaled(operands[0], *[_vector_of(node, operands[0][0].size, context)] * 2)


def _sum_with_vector(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds | None:
    """The bounds of the sum; None if slots become complex."""
    if "imaginary" in node.attrs:
        return None
    vector = _vector_of(node, operands[0][0].size, context)
    return widened(operands[0][0] + vector, operands[0][1] + vector)


def _period_with_vector(node: Node, periods: Sequence[int], context: Context) -> int:
    return max(periods[0], context.array(node.attrs["value"]).size)


define(
    OpSpec(
        "mul_plain",
        SLOTS,
        (1, 1),
        {"value": "constant", "imaginary": "constant?", "plain_log_scale": "float?"},
        _repeats("mul_plain", _plain_product_type("mul_plain")),
        lambda values, a, context: values[0] * _tile(runs.plain_vector(a, context.array), _slots_of(values)),
        "Product with a plaintext vector, repeated over the slots; `imaginary` has its imaginary parts, for complex slots.",
        depth=1,
        role=Role.PLAIN_PRODUCT,
        rules=SlotRules(
            _bounds_of_product,
            _period_with_vector,
            lambda node, operands, context: (
                operands[0].depends & (_vector_of(node, operands[0].depends.size, context) != 0)
            ),
            NO_KEYS,
        ),
        word="product with a plaintext",
        run=runs.product_with_constant,
        plaintext=True,
    )
)

define(
    OpSpec(
        "add_plain",
        SLOTS,
        (1, 1),
        {"value": "constant", "imaginary": "constant?"},
        _repeats("add_plain", unchanged),
        lambda values, a, context: values[0] + _tile(runs.plain_vector(a, context.array), _slots_of(values)),
        "Sum with a plaintext vector, repeated over the slots, encoded at the ciphertext's own scale; `imaginary` as for "
        "`mul_plain`.",
        role=Role.TRANSPARENT,
        rules=SlotRules(_sum_with_vector, _period_with_vector, any_operand, NO_KEYS),
        run=runs.sum_with_constant,
        plaintext=True,
    )
)


def _pack_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    operand, layout = operands[0], check_layout(a["layout"], a["layout"].slots, "what a pack makes")
    if not isinstance(operand, TensorType) or operand.secret:
        raise ProgramError("pack takes a plain tensor")
    count = layout.ciphertexts
    if layout.size != operand.size or not 0 <= a.get("chunk", 0) < count or layout.size > count * layout.period:
        raise ProgramError(f"pack: a tensor of shape {operand.shape} does not fit period {layout.period}")
    if count > 1 and layout.period != layout.own_slots:
        raise ProgramError(f"pack: {count} vectors of period {layout.period}, which is not all of their slots")
    return SlotsType(layout.slots, secret=False)


def _pack(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    # All samples of a batch take the same value: the vector of one sample, with each slot repeated.
    samples = a["layout"].samples
    one = replace(a["layout"], slots=a["layout"].own_slots, samples=1)
    vectors = [one.pack(sample.reshape(one.shape), a.get("chunk", 0))[0] for sample in values[0]]
    return np.stack([np.repeat(vector, samples) for vector in vectors])


def _pack_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    low, high = (_pack([end[np.newaxis]], node.attrs, context)[0] for end in operands[0])
    return low, high


def _with_plain(op: str, infer: InferType) -> InferType:
    """`infer` on the first operand; the second is a plain vector of as many slots."""

    def checked(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
        same_slots(op, operands)
        if not isinstance(operands[1], SlotsType) or operands[1].secret:
            raise ProgramError(f"{op} takes a plain vector as its second operand")
        return infer(operands, a, context)

    return checked


define(
    OpSpec(
        "pack",
        SLOTS,
        (1, 1),
        {"layout": "layout", "chunk": "int?"},
        _pack_type,
        _pack,
        "A slot vector of a plain tensor: ciphertext `chunk` of its layout (see ir/maps/layout.py).",
        role=Role.PACKING,
        rules=SlotRules(
            _pack_bounds,
            lambda node, periods, context: node.attrs["layout"].period * node.attrs["layout"].samples,
            lambda node, operands, context: np.zeros(node.attrs["layout"].slots, dtype=bool),
            NO_KEYS,
        ),
    )
)
define(
    OpSpec(
        "mul_pt",
        SLOTS,
        (2, 2),
        {"plain_log_scale": "float?"},
        _with_plain("mul_pt", _plain_product_type("mul_pt")),
        lambda values, a, context: values[0] * values[1],
        "Product with a plain vector that is known at run time.",
        depth=1,
        role=Role.PLAIN_PRODUCT,
        rules=slotwise(product_of_bounds),
        word="product with a plaintext",
        run=runs.product_with_plain,
    )
)
define(
    OpSpec(
        "add_pt",
        SLOTS,
        (2, 2),
        {},
        _with_plain("add_pt", unchanged),
        lambda values, a, context: values[0] + values[1],
        "Sum with a plain vector that is known at run time, encoded at the ciphertext's own scale.",
        role=Role.TRANSPARENT,
        rules=slotwise(sum_of_bounds),
        run=runs.sum_with_plain,
    )
)
