"""Operations on slot vectors, as CKKS computes them. Part of `ir/ops/table.py`.

Here are rotations, sums and products of ciphertexts; ops with plaintexts are in `plain.py`, linear maps in
`transforms.py`, levels and bootstraps in `levels.py`, sums of stacks in `stacks.py`.

At the packed stage values have type `slots<S>`. At the managed stage they are ciphertexts with level and true scale,
and the types hold the bookkeeping: a product adds scales and has three parts, `relinearize` brings it back to two,
`rescale` divides by the prime of its level, sums need equal levels and scales. Slots are cyclic.

The facts about an op that passes need are in its block: `role` and `rules` (`ir/ops/spec.py`). With these, and a rule
in a backend that has no primitive for it yet, an op is complete.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.node import Array, Node
from heliograph.ir.ops.bounds import widened
from heliograph.ir.ops.slots import runs
from heliograph.ir.ops.slots.rules import (
    any_operand,
    complex_slots,
    longest,
    nowhere_zero,
    product_of_bounds,
    same_bounds,
    scaled,
    slotwise,
    sum_of_bounds,
)
from heliograph.ir.ops.slots.types import same_level, same_slots, scaled_terms, sum_type, two_parts, unchanged
from heliograph.ir.ops.spec import (
    NO_KEYS,
    SLOTS,
    Attrs,
    Bounds,
    Context,
    InferType,
    Keys,
    OpSpec,
    Role,
    SlotRules,
    define,
)
from heliograph.ir.types import CipherType, SlotsType, Type


def _same_type(op: str) -> InferType:
    """The operand's type as the result's; a ciphertext must have two parts."""

    def infer(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
        two_parts(op, operands[0])
        result: Type = operands[0]
        return result

    return infer


def _product_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    same_slots("mul", operands)
    left, right = operands
    if not isinstance(left, CipherType):
        return SlotsType(left.slots, left.secret or right.secret)
    two_parts("mul", left)
    two_parts("mul", right)
    same_level("mul", operands)
    return replace(left, log_scale=left.log_scale + right.log_scale, parts=3)


def _rotated(values: Array, a: Attrs) -> Array:
    """The values rotated: slot i + amount moves to slot i; the slots are the last axis."""
    return np.roll(values, -a["amount"], axis=-1)


define(
    OpSpec(
        "rotate",
        SLOTS,
        (1, 1),
        {"amount": "int"},
        _same_type("rotate"),
        lambda values, a, context: _rotated(values[0], a),
        "Slot i + amount moves to slot i.",
        role=Role.ROTATION,
        rules=SlotRules(
            lambda node, operands, context: (
                _rotated(operands[0][0], node.attrs),
                _rotated(operands[0][1], node.attrs),
            ),
            longest,
            lambda node, operands, context: _rotated(operands[0].depends, node.attrs),
            Keys(lambda a: (a["amount"],)),
        ),
        run=runs.rotated,
    )
)


define(
    OpSpec(
        "conjugate",
        SLOTS,
        (1, 1),
        {},
        _same_type("conjugate"),
        lambda values, a, context: np.conj(values[0]),
        "The complex conjugate of each slot.",
        role=Role.ROTATION,
        rules=slotwise(same_bounds, Keys(conjugation=True)),
        run=runs.conjugated,
    )
)


define(
    OpSpec(
        "add_scalar",
        SLOTS,
        (1, 1),
        {"value": "float"},
        unchanged,
        lambda values, a, context: values[0] + a["value"],
        "Sum with one number.",
        role=Role.TRANSPARENT,
        rules=slotwise(
            lambda node, operands, context: widened(*(end + node.attrs["value"] for end in operands[0])),
        ),
        run=runs.sum_with_number,
        plaintext=True,
    )
)
define(
    OpSpec(
        "mul_int",
        SLOTS,
        (1, 1),
        {"factor": "int"},
        unchanged,
        lambda values, a, context: values[0] * a["factor"],
        "Product with a small whole number; spends no level and leaves the scale.",
        role=Role.TRANSPARENT,
        rules=slotwise(
            lambda node, operands, context: scaled(operands[0], *[np.array(float(node.attrs["factor"]))] * 2)
        ),
        run=runs.whole_multiple,
    )
)
define(
    OpSpec(
        "mul_i",
        SLOTS,
        (1, 1),
        {},
        unchanged,
        lambda values, a, context: 1j * values[0],
        "Product with the imaginary unit: by a monomial, exact, so that it spends no level and leaves the scale.",
        role=Role.TRANSPARENT,
        rules=slotwise(complex_slots),
        run=runs.times_i,
    )
)


def _combination_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    same_slots("lincomb", operands)
    if len(a["weights"]) != len(operands):
        raise ProgramError(f"lincomb: {len(operands)} operands, {len(a['weights'])} weights")
    if not isinstance(operands[0], CipherType):
        return SlotsType(operands[0].slots, any(o.secret for o in operands))
    for operand in operands:
        two_parts("lincomb", operand)
    return scaled_terms("lincomb", operands, a)


def _combination(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    total: Any = a["constant"]
    for value, weight in zip(values, a["weights"], strict=True):
        total = total + weight * value
    return np.asarray(total)


def _combination_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    slots = operands[0][0].size
    least: Array = np.full(slots, node.attrs["constant"])
    most: Array = least
    for bounds, weight in zip(operands, node.attrs["weights"], strict=True):
        low, high = scaled(bounds, *[np.array(weight)] * 2)
        least, most = widened(least + low, most + high)
    return least, most


define(
    OpSpec(
        "lincomb",
        SLOTS,
        (1, None),
        {"weights": "floats", "constant": "float", "plain_log_scales": "floats?", "range": "int?", "chunk": "int?"},
        _combination_type,
        _combination,
        "Sum of weights times operands, plus a constant. `range`: its first operand is ciphertext `chunk` of the input of "
        "that polynomial.",
        depth=1,
        role=Role.PLAIN_PRODUCT,
        rules=slotwise(_combination_bounds),
        run=runs.combination,
        plaintext=True,
    )
)


def _folded(node: Node, periods: Sequence[int], context: Context) -> int:
    """x + rotate(x, p/2) repeats with period p/2 if x repeats with period p."""
    pair = list(zip(node.inputs, periods, strict=True))
    for (whole, period), (turned, _) in (pair, pair[::-1]):
        amount = turned.attrs.get("amount", 0)
        if turned.op == "rotate" and turned.inputs[0] is whole and 2 * amount % period == 0:
            return math.gcd(period, amount)
    return longest(node, periods, context)


define(
    OpSpec(
        "negate",
        SLOTS,
        (1, 1),
        {},
        unchanged,
        lambda values, a, context: -values[0],
        "The negative of each slot.",
        role=Role.TRANSPARENT,
        rules=slotwise(lambda node, operands, context: (-operands[0][1], -operands[0][0])),
        run=runs.negated,
    )
)
define(
    OpSpec(
        "add_ct",
        SLOTS,
        (2, 2),
        {},
        sum_type("add_ct"),
        lambda values, a, context: values[0] + values[1],
        "Slotwise sum of two ciphertexts.",
        role=Role.SUM,
        rules=SlotRules(sum_of_bounds, _folded, any_operand, NO_KEYS),
        run=runs.added,
    )
)
define(
    OpSpec(
        "sub_ct",
        SLOTS,
        (2, 2),
        {},
        sum_type("sub_ct"),
        lambda values, a, context: values[0] - values[1],
        "Slotwise difference of two ciphertexts.",
        role=Role.SUM,
        rules=slotwise(
            lambda node, operands, context: widened(operands[0][0] - operands[1][1], operands[0][1] - operands[1][0])
        ),
        run=runs.subtracted,
    )
)
define(
    OpSpec(
        "complex_of",
        SLOTS,
        (2, 2),
        {},
        sum_type("complex_of"),
        lambda values, a, context: values[0] + 1j * values[1],
        "x + iy: two real values as the parts of complex ones, which then share products, rotations and bootstraps.",
        role=Role.SUM,
        rules=slotwise(complex_slots),
        run=runs.complex_of,
    )
)
define(
    OpSpec(
        "mul_ct",
        SLOTS,
        (2, 2),
        {"range": "int?", "chunk": "int?"},
        _product_type,
        lambda values, a, context: values[0] * values[1],
        "Slotwise product of two ciphertexts, not relinearized. `range`: its first operand is ciphertext `chunk` of the "
        "input of that polynomial.",
        depth=1,
        role=Role.PRODUCT,
        rules=SlotRules(product_of_bounds, longest, nowhere_zero, NO_KEYS),
        word="product",
        run=runs.product,
    )
)


def _part_type(op: str) -> InferType:
    """z + conj(z) is twice the real part: read at twice the scale, it is the part itself."""

    def infer(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
        two_parts(op, operands[0])
        if not isinstance(operands[0], CipherType):
            result: Type = operands[0]
            return result
        return replace(operands[0], log_scale=operands[0].log_scale + 1.0)

    return infer


define(
    OpSpec(
        "real_part",
        SLOTS,
        (1, 1),
        {},
        _part_type("real_part"),
        lambda values, a, context: np.real(values[0]),
        "The real part of each slot, by a sum with the conjugate: the scale doubles.",
        role=Role.PART,
        rules=slotwise(complex_slots, Keys(conjugation=True)),
        run=runs.part_of_complex,
    )
)
define(
    OpSpec(
        "imaginary_part",
        SLOTS,
        (1, 1),
        {},
        _part_type("imaginary_part"),
        lambda values, a, context: np.imag(values[0]),
        "The imaginary part of each slot, by a difference from the conjugate: the scale doubles.",
        role=Role.PART,
        rules=slotwise(complex_slots, Keys(conjugation=True)),
        run=runs.part_of_complex,
    )
)
