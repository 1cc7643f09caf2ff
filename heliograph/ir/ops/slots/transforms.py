"""Linear maps of slot vectors, by their diagonals. Part of `ir/ops/table.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir.maps.diagonals import DiagonalMap, MapGeometry, diagonal_map, diagonal_offsets, shift_for
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
    for name in a["matrices"]:
        if context.shape(name) != (a["out_period"], a["in_period"]):
            raise ProgramError(
                f"linear_transform: matrix @{name} is {context.shape(name)}, "
                f"the periods say ({a['out_period']}, {a['in_period']})"
            )
    stride = a.get("stride", 1)
    if stride < 1 or operands[0].slots % stride:
        raise ProgramError(f"linear_transform: stride {stride} does not divide {operands[0].slots} slots")
    slots = operands[0].slots // stride
    for name in ("in_period", "out_period"):
        if a[name] < 1 or slots % a[name]:
            raise ProgramError(f"linear_transform: {name} {a[name]} does not divide {slots} slots")
    if a["in_shift"] and shift_for(slots, a["in_period"], a["out_period"])[0] != a["in_shift"]:
        raise ProgramError(f"linear_transform: no layout of these periods has copies shifted by {a['in_shift']}")
    copies = (a.get("in_copies", 1), a.get("out_copies", 1))
    if not _geometry(a, operands[0].slots).copies_fit or (a["in_shift"] and copies != (1, 1)):
        raise ProgramError(f"linear_transform: no map leads from {copies[0]} moved copies to {copies[1]}")
    entries = a["in_period"] * a["out_period"]
    if a["in_shift"] and (entries % a["in_shift"] or entries // a["in_shift"] > slots):
        raise ProgramError(
            f"linear_transform: in_shift {a['in_shift']} does not spread {entries} entries over the slots"
        )
    for operand in operands:
        two_parts("linear_transform", operand)
    if not isinstance(operands[0], CipherType):
        return SlotsType(operands[0].slots, any(operand.secret for operand in operands))
    return scaled_terms("linear_transform", operands, a)


def transform_diagonals(a: Attrs, matrix: Callable[[Any], Matrix], slots: int) -> list[DiagonalMap]:
    """The diagonals of each operand of a `linear_transform`; `matrix` gives the constant of a name."""
    geometry = _geometry(a, slots)
    return [diagonal_map(matrix(name), geometry) for name in a["matrices"]]


def transform_offsets(a: Attrs, matrix: Callable[[Any], Matrix], slots: int) -> list[tuple[int, ...]]:
    """Only the offsets of these diagonals."""
    geometry = _geometry(a, slots)
    return [diagonal_offsets(matrix(name), geometry) for name in a["matrices"]]


def _geometry(a: Attrs, slots: int) -> MapGeometry:
    shape = (a["in_period"], a["out_period"], a["in_shift"], a.get("stride", 1))
    return MapGeometry(slots, *shape, a.get("in_copies", 1), a.get("out_copies", 1))


def _transform(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    total: Any = 0.0
    for x, diagonals in zip(values, transform_diagonals(a, context.linear_map, values[0].shape[-1]), strict=True):
        total = total + diagonals.apply(x)
    return np.asarray(total)


def _transform_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    slots = operands[0][0].size
    least: Array = np.zeros(slots)
    most: Array = np.zeros(slots)
    for bounds, diagonals in zip(operands, transform_diagonals(node.attrs, context.linear_map, slots), strict=True):
        for offset in diagonals.offsets:
            diagonal = diagonals.diagonal(offset)
            low, high = scaled((np.roll(bounds[0], -offset), np.roll(bounds[1], -offset)), diagonal, diagonal)
            least, most = widened(least + low, most + high)
    return least, most


def _transform_period(node: Node, periods: Sequence[int], context: Context) -> int:
    a = node.attrs
    stride = int(a.get("stride", 1))
    if a["in_shift"]:
        # Copies are shifted relative to each other, over a run of this many slots (see ir/maps/diagonals.py).
        return int(a["in_period"] * a["out_period"] // a["in_shift"] * stride)
    ends = (a["in_period"] * a.get("in_copies", 1), a["out_period"] * a.get("out_copies", 1))
    return max(*(int(end * stride) for end in ends), *periods)


def _transform_depends(node: Node, operands: Sequence[Dependence], context: Context) -> Array:
    slots = operands[0].depends.size
    out = np.zeros(slots, dtype=bool)
    for operand, diagonals in zip(operands, transform_diagonals(node.attrs, context.linear_map, slots), strict=True):
        depends = operand.depends
        if depends.all():
            # Every slot of the operand depends on the input, so every slot with an entry does too.
            there = np.zeros(diagonals.run, dtype=bool)
            for offset in diagonals.offsets:
                there[diagonals.slots_of(offset)] = True
                if there.all():
                    break
            out |= np.tile(np.repeat(there, diagonals.stride), slots // (diagonals.run * diagonals.stride))
            continue
        period = diagonals.run * diagonals.stride
        for offset in diagonals.offsets:
            there = np.zeros(diagonals.run, dtype=bool)
            there[diagonals.slots_of(offset)] = True
            moved = np.roll(depends, -offset).reshape(-1, period)
            out |= (np.repeat(there, diagonals.stride) & moved).reshape(-1)
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
            "in_period": "int",
            "in_shift": "int",
            "out_period": "int",
            "stride": "int?",
            "in_copies": "int?",
            "out_copies": "int?",
            "baby_steps": "ints",
            "giant_steps": "ints",
            "plain_log_scales": "floats?",
        },
        _transform_type,
        _transform,
        "Partial sums of sparse maps of the operands by diagonals: out[s] = sum of diag_k[s] * x[s + k], k = giant + baby; "
        "giant steps are taken once for all operands. Slots that share a row (equal modulo out_period) are summed by the "
        "rotations that follow; with a `stride` the slots hold this many samples side by side; `in_copies` and `out_copies` "
        "are moved against each other. See ir/maps/diagonals.py.",
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
