"""Linear maps of slot vectors, by their diagonals. Part of `ir/ops/table.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.maps.diagonals import DiagonalMap, MapGeometry, diagonal_map
from heliograph.ir.node import Array, Matrix, Node
from heliograph.ir.ops.bounds import widened
from heliograph.ir.ops.slots import runs
from heliograph.ir.ops.slots.rules import scaled
from heliograph.ir.ops.slots.types import same_slots, scaled_terms, two_parts
from heliograph.ir.ops.spec import SLOTS, Attrs, Bounds, Context, Dependence, Keys, OpSpec, Role, SlotRules, define
from heliograph.ir.types import CipherType, SlotsType, Type


def _transform_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    same_slots("linear_transform", operands)
    if len(a["matrices"]) != len(operands):
        raise ProgramError(f"linear_transform: {len(operands)} operands, {len(a['matrices'])} matrices")
    geometry: MapGeometry = a["geometry"]
    if geometry.slots != operands[0].slots:
        raise ProgramError(f"linear_transform: a map on {geometry.slots} slots of vectors of {operands[0].slots}")
    for name in a["matrices"]:
        if context.shape(name) != (geometry.out_period, geometry.in_period):
            raise ProgramError(
                f"linear_transform: matrix @{name} is {context.shape(name)}, "
                f"the periods say ({geometry.out_period}, {geometry.in_period})"
            )
    if not geometry.exists:
        raise ProgramError(f"linear_transform: {geometry.refusal}")
    for operand in operands:
        two_parts("linear_transform", operand)
    if not isinstance(operands[0], CipherType):
        return SlotsType(operands[0].slots, any(operand.secret for operand in operands))
    return scaled_terms("linear_transform", operands, a)


def transform_diagonals(a: Attrs, matrix: Callable[[Any], Matrix]) -> list[DiagonalMap]:
    """The diagonals of each operand of a `linear_transform`; `matrix` gives the constant of a name."""
    return [diagonal_map(matrix(name), a["geometry"]) for name in a["matrices"]]


def _transform(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    total: Any = 0.0
    for x, diagonals in zip(values, transform_diagonals(a, context.linear_map), strict=True):
        total = total + diagonals.apply(x)
    return np.asarray(total)


def _transform_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    slots = operands[0][0].size
    least: Array = np.zeros(slots)
    most: Array = np.zeros(slots)
    for bounds, diagonals in zip(operands, transform_diagonals(node.attrs, context.linear_map), strict=True):
        for offset in diagonals.offsets:
            diagonal = diagonals.diagonal(offset)
            low, high = scaled((np.roll(bounds[0], -offset), np.roll(bounds[1], -offset)), diagonal, diagonal)
            least, most = widened(least + low, most + high)
    return least, most


def _transform_period(node: Node, periods: Sequence[int], context: Context) -> int:
    geometry: MapGeometry = node.attrs["geometry"]
    ends = geometry.in_period * geometry.in_copies, geometry.out_period * geometry.out_copies
    return max(*(end * geometry.samples for end in ends), *periods)


def _transform_depends(node: Node, operands: Sequence[Dependence], context: Context) -> Array:
    slots = operands[0].depends.size
    out = np.zeros(slots, dtype=bool)
    for operand, diagonals in zip(operands, transform_diagonals(node.attrs, context.linear_map), strict=True):
        depends = operand.depends
        if depends.all():
            # Every slot of the operand depends on the input, so every slot with an entry does too.
            there = np.zeros(diagonals.run, dtype=bool)
            for offset in diagonals.offsets:
                there[diagonals.slots_of(offset)] = True
                if there.all():
                    break
            out |= np.tile(np.repeat(there, diagonals.samples), slots // (diagonals.run * diagonals.samples))
            continue
        period = diagonals.run * diagonals.samples
        for offset in diagonals.offsets:
            there = np.zeros(diagonals.run, dtype=bool)
            there[diagonals.slots_of(offset)] = True
            moved = np.roll(depends, -offset).reshape(-1, period)
            out |= (np.repeat(there, diagonals.samples) & moved).reshape(-1)
            if out.all():
                break
    return out


define(
    OpSpec(
        "linear_transform",
        SLOTS,
        (1, None),
        {
            "matrices": "constants",
            "geometry": "geometry",
            "baby_steps": "ints",
            "giant_steps": "ints",
            "plain_log_scales": "floats?",
        },
        _transform_type,
        _transform,
        "Partial sums of sparse maps of the operands by diagonals: out[s] = sum of diag_k[s] * x[s + k], k = giant + baby; "
        "giant steps are taken once for all operands. Slots that share a row (equal modulo the result's period) are summed "
        "by the rotations that follow. See ir/maps/diagonals.py.",
        depth=1,
        role=Role.PLAIN_PRODUCT,
        rules=SlotRules(
            _transform_bounds,
            _transform_period,
            _transform_depends,
            Keys(lambda a: (*a["baby_steps"], *a["giant_steps"]), composed=True),
        ),
        run=runs.transformed,
    )
)
