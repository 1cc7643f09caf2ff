"""The special ops of a bootstrap, for `writer.py`. Part of `ir/ops/table.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heliograph.ckks.fourier import FourierFactor
from heliograph.ckks.trigonometric import MOST_HALF_PERIOD
from heliograph.errors import ProgramError
from heliograph.ir.bootstraps.series import bootstrap_bounds, check_series, computed
from heliograph.ir.node import Array, Node
from heliograph.ir.ops.bounds import widened
from heliograph.ir.ops.slots import runs
from heliograph.ir.ops.slots.rules import any_operand, complex_slots, longest
from heliograph.ir.ops.slots.types import same_slots, two_parts
from heliograph.ir.ops.spec import (
    LEVELED,
    NO_KEYS,
    Attrs,
    Bounds,
    Context,
    Dependence,
    Keys,
    OpSpec,
    Role,
    SlotRules,
    define,
)
from heliograph.ir.types import CipherType, Type


def fourier_factor(a: Attrs) -> FourierFactor:
    """The factor of a `fourier_factor`; a ProgramError if no factor has these numbers."""
    found = FourierFactor(a["slots"], a["inverse"], a["scale"], a["layers"], a["giant"], a["shift"])
    slots, scale = found.slots, found.scale
    if slots < 2 or scale < 1 or slots & (slots - 1) or scale & (scale - 1):
        raise ProgramError(f"fourier_factor: {slots} slots and a scale of {scale} are not powers of two")
    if not 1 <= found.layers < slots.bit_length() or scale << found.layers > slots:
        raise ProgramError(f"fourier_factor: {slots} slots have no {found.layers} layers from {scale} on")
    if not 1 <= found.giant <= slots or not 0 <= found.shift < slots:
        raise ProgramError(f"fourier_factor: giant steps of {found.giant}, a shift of {found.shift}")
    return found


def _factor_type(operands: Sequence[CipherType], a: Attrs, context: Context) -> Type:
    operand, factor = operands[0], fourier_factor(a)
    two_parts("fourier_factor", operand)
    if operand.slots % factor.slots:
        raise ProgramError(f"fourier_factor: {operand.slots} slots are not a multiple of {factor.slots}")
    return replace(operand, log_scale=operand.log_scale + a["plain_log_scale"])


def _apply_factor(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    factor, x = fourier_factor(a), values[0]
    total = np.zeros(x.shape, dtype=np.complex128)
    diagonals, copies = factor.values(), x.shape[-1] // factor.slots
    rotated = [np.roll(x, -amount, axis=-1) for amount in factor.babies]
    for group in reversed(factor.groups):
        total = np.roll(total, -factor.giant_step, axis=-1)
        for place, turned in zip(group, rotated, strict=False):
            total += np.tile(diagonals[place], copies) * turned
    return total


def _factor_depends(node: Node, operands: Sequence[Dependence], context: Context) -> Array:
    factor, depends = fourier_factor(node.attrs), operands[0].depends
    diagonals, copies = factor.values(), depends.size // factor.slots
    total = np.zeros_like(depends)
    for group in reversed(factor.groups):
        total = np.roll(total, -factor.giant_step)
        for place, amount in zip(group, factor.babies, strict=False):
            total |= np.tile(diagonals[place] != 0, copies) & np.roll(depends, -amount)
    return total


def _depends_on_all(node: Node, operands: Sequence[Dependence], context: Context) -> Array:
    """The added multiples are in all slots, and depend on the ciphertext."""
    return np.full_like(operands[0].depends, operands[0].depends.any())


define(
    OpSpec(
        "fourier_factor",
        LEVELED,
        (1, 1),
        {
            "slots": "int",
            "inverse": "bool",
            "scale": "int",
            "layers": "int",
            "giant": "int",
            "shift": "int",
            "plain_log_scale": "float",
        },
        _factor_type,
        _apply_factor,
        "The product with one factor of the transform of `slots` slots to coefficients, or of its `inverse`, by its "
        "diagonals; what comes out is rotated (ckks/fourier.py).",
        depth=1,
        role=Role.PLAIN_PRODUCT,
        rules=SlotRules(
            complex_slots,
            lambda node, periods, context: max(periods[0], node.attrs["slots"]),
            _factor_depends,
            Keys(lambda a: fourier_factor(a).rotations),
        ),
        run=runs.fourier_factor,
    )
)


def _all_slots(node: Node, periods: Sequence[int], context: Context) -> int:
    """The result may be different in every slot."""
    assert isinstance(node.type, CipherType)
    return node.type.slots


def _raised_type(operands: Sequence[CipherType], a: Attrs, context: Context) -> Type:
    operand = operands[0]
    two_parts("raise_modulus", operand)
    if operand.level:
        raise ProgramError(f"raise_modulus: it begins at level 0, not at {operand.level}")
    if not 0 < a["level"] < len(context.log_primes):
        raise ProgramError(
            f"raise_modulus: there is no level {a['level']} in a chain of {len(context.log_primes)} primes"
        )
    if not 0 < a["slots"] <= operand.slots or operand.slots % a["slots"]:
        raise ProgramError(f"raise_modulus: {operand.slots} slots are not a multiple of a period of {a['slots']}")
    if not 2.0 < a.get("share", 2 * MOST_HALF_PERIOD) <= 2 * MOST_HALF_PERIOD:
        raise ProgramError(f"raise_modulus: {a['share']} is not the period of a series")
    return replace(operand, level=a["level"])


define(
    OpSpec(
        "raise_modulus",
        LEVELED,
        (1, 1),
        {"slots": "int", "level": "int", "share": "float?"},
        _raised_type,
        lambda values, a, context: values[0] + 0j,
        "A ciphertext of level 0 at the top level of a chain, by way of the sparse secret: its polynomial is then off by "
        "whole multiples of the first prime, which the reduction that follows takes off. Its coefficients are values that "
        "repeat with period `slots`. `share` is the message ratio (the first prime over a value of one), if it differs from "
        "the chain's.",
        role=Role.BOOTSTRAP,
        rules=SlotRules(complex_slots, _all_slots, _depends_on_all, NO_KEYS),
        run=runs.raised,
    )
)
define(
    OpSpec(
        "reread",
        LEVELED,
        (1, 1),
        {"bits": "float"},
        lambda operands, a, context: replace(operands[0], log_scale=operands[0].log_scale + a["bits"]),
        lambda values, a, context: values[0] * 2.0 ** -a["bits"],
        "The same ciphertext, its slots read at a scale that is 2^`bits` larger: each stands for less by that factor.",
        role=Role.LEVEL,
        rules=SlotRules(
            lambda node, operands, context: _divided(operands[0], 2.0 ** node.attrs["bits"]),
            longest,
            any_operand,
            NO_KEYS,
        ),
        run=runs.reread,
    )
)


def _divided(bounds: Bounds, factor: float) -> Bounds:
    return widened(bounds[0] / factor, bounds[1] / factor)


def _refreshed_type(operands: Sequence[CipherType], a: Attrs, context: Context) -> Type:
    same_slots("refreshed", operands)
    made = operands[0]
    two_parts("refreshed", made)
    if ("ranges" in a) != ("chunks" in a) or any(
        len(a.get(key, operands[1:])) != len(operands) - 1 for key in ("ranges", "chunks")
    ):
        raise ProgramError(f"refreshed: its ranges and chunks are not those of {len(operands) - 1} operands")
    check_series("refreshed", a, context)
    if a.get("series") is not None and len(operands) != 2:
        raise ProgramError("refreshed: a series is computed of one value alone")
    return made


def _refreshed_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds | None:
    return bootstrap_bounds(node, operands[1:], context)


define(
    OpSpec(
        "refreshed",
        LEVELED,
        (2, 3),
        {
            "slots": "int",
            "size_bits": "int?",
            "ranges": "ints?",
            "chunks": "ints?",
            "observed": "int?",
            "series": "constant?",
            "half_period": "float?",
            "complex": "bool?",
        },
        _refreshed_type,
        lambda values, a, context: computed(values[1:], a, context),
        "The end of a written-out bootstrap: the first operand is the refreshed value, the second one (and the third, as "
        "imaginary part) the value before. It has the attributes of `bootstrap`.",
        role=Role.LEVEL,
        rules=SlotRules(
            _refreshed_bounds,
            lambda node, periods, context: longest(node, periods[1:], context),
            lambda node, operands, context: any_operand(node, operands[1:], context),
            NO_KEYS,
        ),
        run=runs.first,
    )
)
