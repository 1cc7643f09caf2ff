"""Operations on slot vectors: what CKKS computes. Part of the table in `ir/ops.py`.

At the packed stage values have type `slots<S>`. At the managed stage they are ciphertexts with level and true scale,
and the types hold the bookkeeping: a product adds scales and has three parts, `relinearize` brings it back to two,
`rescale` divides by the prime of its level, sums want equal levels and scales. Slots are cyclic.

What passes ask of an op stands in its block: `role` and `rules` (`ir/spec.py`). With that, and a rule in a backend where
there is no primitive for it yet, an op is complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir import slot_runs as runs
from heliograph.ir.diagonals import DiagonalMap, MapGeometry, diagonal_map, diagonal_offsets, shift_for
from heliograph.ir.layout import Layout
from heliograph.ir.node import Array, Matrix, Node
from heliograph.ir.slot_rules import (
    any_operand,
    complex_slots,
    longest,
    nowhere_zero,
    product_of_bounds,
    same_bounds,
    scaled,
    slotwise,
    sum_of_bounds,
    widened,
)
from heliograph.ir.spec import (
    LEVELED,
    NO_KEYS,
    SLOTS,
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
from heliograph.ir.types import CipherType, SlotsType, TensorType, Type

# Two true scales count as equal where their logarithms differ by at most this; the planner meets this with room to spare.
SCALE_TOLERANCE = 2.0**-32

_Infer = Callable[[Sequence[Any], Attrs, Context], Type]


def _same_slots(op: str, operands: Sequence[Any]) -> None:
    if len({operand.slots for operand in operands}) > 1:
        raise ProgramError(f"{op}: operands have {' and '.join(str(o.slots) for o in operands)} slots")


def _two_parts(op: str, operand: Any) -> None:
    if isinstance(operand, CipherType) and operand.parts != 2:
        raise ProgramError(f"{op} needs a relinearized ciphertext, this one has {operand.parts} parts")


def _same_level(op: str, operands: Sequence[CipherType]) -> None:
    levels = {operand.level for operand in operands}
    if len(levels) > 1:
        raise ProgramError(f"{op}: operands are at levels {sorted(levels)}")
    chains = {operand.chain for operand in operands}
    if len(chains) > 1:
        raise ProgramError(f"{op}: operands are in chains {sorted(chains)}")


def _same_type(op: str) -> _Infer:
    """Result like the operand; a ciphertext must have two parts."""

    def infer(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
        _two_parts(op, operands[0])
        result: Type = operands[0]
        return result

    return infer


def _sum_type(op: str) -> _Infer:
    def infer(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
        _same_slots(op, operands)
        secret = [operand for operand in operands if isinstance(operand, CipherType)]
        if not secret:
            return SlotsType(operands[0].slots, any(o.secret for o in operands))
        if len(secret) < len(operands):
            raise ProgramError(f"{op} of a ciphertext and a plain vector; use add_plain")
        _same_level(op, secret)
        scales = [operand.log_scale for operand in secret]
        if max(scales) - min(scales) > SCALE_TOLERANCE:
            raise ProgramError(f"{op}: scales 2^{min(scales):.6f} and 2^{max(scales):.6f} differ")
        return replace(secret[0], parts=max(operand.parts for operand in secret))

    return infer


def _product_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    _same_slots("mul", operands)
    left, right = operands
    if not isinstance(left, CipherType):
        return SlotsType(left.slots, left.secret or right.secret)
    _two_parts("mul", left)
    _two_parts("mul", right)
    _same_level("mul", operands)
    return replace(left, log_scale=left.log_scale + right.log_scale, parts=3)


def _plain_product_type(op: str) -> _Infer:
    def infer(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
        operand = operands[0]
        _two_parts(op, operand)
        if not isinstance(operand, CipherType):
            return SlotsType(operand.slots, operand.secret)
        if "plain_log_scale" not in a:
            raise ProgramError(f"{op}: the scale of the plaintext is not planned")
        return replace(operand, log_scale=operand.log_scale + a["plain_log_scale"])

    return infer


def _unchanged(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    result: Type = operands[0]
    return result


def _repeats(op: str, infer: _Infer) -> _Infer:
    """As `infer`, where the constant `value` is a vector that fills the slots a whole number of times."""

    def checked(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
        shape, slots = context.shape(a["value"]), operands[0].slots
        if len(shape) != 1 or not shape[0] or slots % shape[0]:
            raise ProgramError(f"{op}: a vector of shape {shape} does not repeat over {slots} slots")
        return infer(operands, a, context)

    return checked


def _tile(values: Array, slots: int) -> Array:
    """A vector of one period repeated over the slots."""
    return np.resize(values, slots)


def _slots_of(values: Sequence[Array]) -> int:
    return int(values[0].shape[-1])


# ---------------------------------------------------------------------------------------------- linear


def _transform_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    _same_slots("linear_transform", operands)
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
        _two_parts("linear_transform", operand)
    if not isinstance(operands[0], CipherType):
        return SlotsType(operands[0].slots, any(operand.secret for operand in operands))
    return _scaled_terms("linear_transform", operands, a)


def _scaled_terms(op: str, operands: Sequence[CipherType], a: Attrs) -> CipherType:
    """The type of a sum of products with plaintexts, each of its own scale, that meet at one scale."""
    _same_level(op, operands)
    if len(a.get("plain_log_scales", ())) != len(operands):
        raise ProgramError(f"{op}: the scales of its plaintexts are not planned")
    scales = [o.log_scale + s for o, s in zip(operands, a["plain_log_scales"], strict=True)]
    if max(scales) - min(scales) > SCALE_TOLERANCE:
        raise ProgramError(f"{op}: its terms have scales 2^{min(scales):.6f} to 2^{max(scales):.6f}")
    return replace(operands[0], log_scale=scales[0])


def transform_diagonals(a: Attrs, matrix: Callable[[Any], Matrix], slots: int) -> list[DiagonalMap]:
    """The diagonals of each operand of a `linear_transform`; `matrix` gives the constant of a name."""
    geometry = _geometry(a, slots)
    return [diagonal_map(matrix(name), geometry) for name in a["matrices"]]


def transform_offsets(a: Attrs, matrix: Callable[[Any], Matrix], slots: int) -> list[tuple[int, ...]]:
    """The offsets of these diagonals alone."""
    geometry = _geometry(a, slots)
    return [diagonal_offsets(matrix(name), geometry) for name in a["matrices"]]


def _geometry(a: Attrs, slots: int) -> MapGeometry:
    shape = (a["in_period"], a["out_period"], a["in_shift"], a.get("stride", 1))
    return MapGeometry(slots, *shape, a.get("in_copies", 1), a.get("out_copies", 1))


def _transform(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    total: Any = 0.0
    for x, diagonals in zip(values, transform_diagonals(a, context.linear_map, _slots_of(values)), strict=True):
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
        # Copies that are moved against each other, over a run of so many slots (see ir/diagonals.py).
        return int(a["in_period"] * a["out_period"] // a["in_shift"] * stride)
    ends = (a["in_period"] * a.get("in_copies", 1), a["out_period"] * a.get("out_copies", 1))
    return max(*(int(end * stride) for end in ends), *periods)


def _transform_depends(node: Node, operands: Sequence[Dependence], context: Context) -> Array:
    slots = operands[0].depends.size
    out = np.zeros(slots, dtype=bool)
    for operand, diagonals in zip(operands, transform_diagonals(node.attrs, context.linear_map, slots), strict=True):
        depends = operand.depends
        if depends.all():
            # Every slot depends on the input: so does every slot with an entry.
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


def _rotated(values: Array, a: Attrs) -> Array:
    """Slot i + amount at slot i; the slots are the last axis."""
    return np.roll(values, -a["amount"], axis=-1)


def _vector_of(node: Node, slots: int, context: Context) -> Array:
    """The node's plaintext vector, repeated over the slots."""
    return _tile(context.array(node.attrs["value"]), slots)


def _sum_with_vector(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    vector = _vector_of(node, operands[0][0].size, context)
    return widened(operands[0][0] + vector, operands[0][1] + vector)


def _period_with_vector(node: Node, periods: Sequence[int], context: Context) -> int:
    return max(periods[0], context.array(node.attrs["value"]).size)


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
        "rotations that follow; with a `stride` the slots hold so many samples side by side; `in_copies` and `out_copies` "
        "are moved against each other. See ir/diagonals.py.",
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
        "mul_plain",
        SLOTS,
        (1, 1),
        {"value": "constant", "plain_log_scale": "float?"},
        _repeats("mul_plain", _plain_product_type("mul_plain")),
        lambda values, a, context: values[0] * _tile(context.array(a["value"]), _slots_of(values)),
        "Product with a plaintext vector, repeated over the slots.",
        depth=1,
        role=Role.PLAIN_PRODUCT,
        rules=SlotRules(
            lambda node, operands, context: scaled(operands[0], *[_vector_of(node, operands[0][0].size, context)] * 2),
            _period_with_vector,
            lambda node, operands, context: (
                operands[0].depends & (_vector_of(node, operands[0].depends.size, context) != 0)
            ),
            NO_KEYS,
        ),
        word="product with a plaintext",
        run=runs.product_with_constant,
    )
)

define(
    OpSpec(
        "add_plain",
        SLOTS,
        (1, 1),
        {"value": "constant"},
        _repeats("add_plain", _unchanged),
        lambda values, a, context: values[0] + _tile(context.array(a["value"]), _slots_of(values)),
        "Sum with a plaintext vector, repeated over the slots, encoded at the ciphertext's own scale.",
        role=Role.TRANSPARENT,
        rules=SlotRules(_sum_with_vector, _period_with_vector, any_operand, NO_KEYS),
        run=runs.sum_with_constant,
    )
)
define(
    OpSpec(
        "add_scalar",
        SLOTS,
        (1, 1),
        {"value": "float"},
        _unchanged,
        lambda values, a, context: values[0] + a["value"],
        "Sum with one number.",
        role=Role.TRANSPARENT,
        rules=slotwise(
            lambda node, operands, context: widened(*(end + node.attrs["value"] for end in operands[0])),
        ),
        run=runs.sum_with_number,
    )
)
define(
    OpSpec(
        "mul_int",
        SLOTS,
        (1, 1),
        {"factor": "int"},
        _unchanged,
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
        _unchanged,
        lambda values, a, context: 1j * values[0],
        "Product with the imaginary unit: by a monomial, exact, so that it spends no level and leaves the scale.",
        role=Role.TRANSPARENT,
        rules=slotwise(complex_slots),
        run=runs.times_i,
    )
)


# ---------------------------------------------------------------------------------------------- plain values

_LAYOUT = ("slots", "period", "gap", "width", "block")


def layout_of_pack(shape: tuple[int, ...], a: Attrs) -> Layout:
    """The layout in which a `pack` node puts its tensor."""
    return Layout(shape, **{key: a[key] for key in _LAYOUT}, stride=a.get("stride", 1), split=a.get("split", ()))


def _pack_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    operand = operands[0]
    if not isinstance(operand, TensorType) or operand.secret:
        raise ProgramError("pack takes a plain tensor")
    stride, chunk = a.get("stride", 1), a.get("chunk", 0)
    one = a["slots"] // stride if stride > 0 and a["slots"] > 0 and a["slots"] % stride == 0 else 0
    if one < 1 or a["period"] < 1 or one % a["period"] or a["gap"] < 1 or min(a["width"], a["block"]) < 0:
        raise ProgramError(f"pack: no layout has slots {a['slots']}, period {a['period']}, gap {a['gap']}")
    layout = layout_of_pack(tuple(a["shape"]), a)
    fits = min(a["shape"], default=1) > 0 and layout.size == operand.size and 0 <= chunk < layout.ciphertexts
    # Each sample of a batch takes the same plain value.
    if not fits or layout.size > layout.ciphertexts * a["period"] or (layout.ciphertexts > 1 and a["period"] != one):
        raise ProgramError(f"pack: a tensor of shape {operand.shape} does not fit period {a['period']}")
    return SlotsType(a["slots"], secret=False)


def _pack(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    layout, chunk = layout_of_pack(tuple(a["shape"]), a), a.get("chunk", 0)
    return np.stack(
        [
            layout.pack(np.broadcast_to(sample.reshape(layout.shape), (layout.stride, *layout.shape)))[chunk]
            for sample in values[0]
        ]
    )


def _pack_bounds(node: Node, operands: Sequence[Bounds], context: Context) -> Bounds:
    low, high = (_pack([end[np.newaxis]], node.attrs, context)[0] for end in operands[0])
    return low, high


def _with_plain(op: str, infer: _Infer) -> _Infer:
    """As `infer` of the first operand; the second is a plain vector of as many slots."""

    def checked(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
        _same_slots(op, operands)
        if not isinstance(operands[1], SlotsType) or operands[1].secret:
            raise ProgramError(f"{op} takes a plain vector as its second operand")
        return infer(operands, a, context)

    return checked


define(
    OpSpec(
        "pack",
        SLOTS,
        (1, 1),
        {
            "shape": "ints",
            "slots": "int",
            "period": "int",
            "gap": "int",
            "width": "int",
            "block": "int",
            "stride": "int?",
            "split": "ints?",
            "chunk": "int?",
        },
        _pack_type,
        _pack,
        "A slot vector of a plain tensor, laid out as a tensor of `shape` (see ir/layout.py): that of ciphertext `chunk`.",
        role=Role.PACKING,
        rules=SlotRules(
            _pack_bounds,
            lambda node, periods, context: node.attrs["period"] * node.attrs.get("stride", 1),
            lambda node, operands, context: np.zeros(node.attrs["slots"], dtype=bool),
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
        _with_plain("add_pt", _unchanged),
        lambda values, a, context: values[0] + values[1],
        "Sum with a plain vector that is known at run time, encoded at the ciphertext's own scale.",
        role=Role.TRANSPARENT,
        rules=slotwise(sum_of_bounds),
        run=runs.sum_with_plain,
    )
)


def _combination_type(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    _same_slots("lincomb", operands)
    if len(a["weights"]) != len(operands):
        raise ProgramError(f"lincomb: {len(operands)} operands, {len(a['weights'])} weights")
    if not isinstance(operands[0], CipherType):
        return SlotsType(operands[0].slots, any(o.secret for o in operands))
    for operand in operands:
        _two_parts("lincomb", operand)
    return _scaled_terms("lincomb", operands, a)


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
    )
)

# ---------------------------------------------------------------------------------------------- sums, products


def _folded(node: Node, periods: Sequence[int], context: Context) -> int:
    """x + rotate(x, p/2) repeats with period p/2 where x repeats with period p."""
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
        _unchanged,
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
        _sum_type("add_ct"),
        lambda values, a, context: values[0] + values[1],
        "Slotwise sum of two ciphertexts.",
        role=Role.SUM,
        rules=SlotRules(sum_of_bounds, _folded, any_operand, NO_KEYS),
        run=runs.sum_of_two,
    )
)
define(
    OpSpec(
        "sub_ct",
        SLOTS,
        (2, 2),
        {},
        _sum_type("sub_ct"),
        lambda values, a, context: values[0] - values[1],
        "Slotwise difference of two ciphertexts.",
        role=Role.SUM,
        rules=slotwise(
            lambda node, operands, context: widened(operands[0][0] - operands[1][1], operands[0][1] - operands[1][0])
        ),
        run=runs.sum_of_two,
    )
)
define(
    OpSpec(
        "complex_of",
        SLOTS,
        (2, 2),
        {},
        _sum_type("complex_of"),
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

# ---------------------------------------------------------------------------------------------- level management


def _identity(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    return values[0]


def _rescale_type(operands: Sequence[CipherType | SlotsType], a: Attrs, context: Context) -> Type:
    operand = operands[0]
    if isinstance(operand, SlotsType):
        # At the packed stage it is a wish: the level planner puts a rescale here, or says why it cannot.
        return operand
    if operand.level < 1:
        raise ProgramError("rescale: no level is left")
    if operand.level >= len(context.log_primes):
        raise ProgramError(f"rescale: level {operand.level} is not in a chain of {len(context.log_primes)} primes")
    return replace(operand, level=operand.level - 1, log_scale=operand.log_scale - context.log_primes[operand.level])


def _drop_type(operands: Sequence[CipherType], a: Attrs, context: Context) -> Type:
    if not 0 < a["levels"] <= operands[0].level:
        raise ProgramError(f"level_drop: cannot drop {a['levels']} of {operands[0].level} levels")
    return replace(operands[0], level=operands[0].level - a["levels"])


def _switch_type(operands: Sequence[CipherType], a: Attrs, context: Context) -> Type:
    if a["chain"] < 0 or a["chain"] == operands[0].chain:
        raise ProgramError(f"switch_chain: it cannot lead from chain {operands[0].chain} to chain {a['chain']}")
    return replace(operands[0], chain=a["chain"])


define(
    OpSpec(
        "rescale",
        SLOTS,
        (1, 1),
        {},
        _rescale_type,
        _identity,
        "Divide by the prime of the level: one level down, the scale smaller by that prime. "
        "At the packed stage a wish of the program's author.",
        role=Role.LEVEL,
        rules=slotwise(same_bounds),
        run=runs.rescaled,
        stacks=True,
    )
)
define(
    OpSpec(
        "level_drop",
        LEVELED,
        (1, 1),
        {"levels": "int"},
        _drop_type,
        _identity,
        "Drop primes without dividing: lower level, same scale.",
        role=Role.LEVEL,
        rules=slotwise(same_bounds),
        run=runs.dropped,
        stacks=True,
    )
)
define(
    OpSpec(
        "switch_chain",
        LEVELED,
        (1, 1),
        {"chain": "int"},
        _switch_type,
        _identity,
        "The same value in another chain of the parameters (0: the whole one), where keys have another size: its "
        "polynomials are handed on, nothing else changes.",
        role=Role.LEVEL,
        rules=slotwise(same_bounds),
        run=runs.switched,
        stacks=True,
    )
)
define(
    OpSpec(
        "relinearize",
        LEVELED,
        (1, 1),
        {},
        lambda operands, a, context: replace(operands[0], parts=2),
        _identity,
        "Bring a product of three parts back to two (one key switch).",
        role=Role.LEVEL,
        rules=slotwise(same_bounds, Keys(relinearization=True)),
        run=runs.relinearized,
    )
)


def _bootstrap_type(operands: Sequence[CipherType | SlotsType], a: Attrs, context: Context) -> Type:
    operand = operands[0]
    _same_slots("bootstrap", operands)
    for each in operands:
        _two_parts("bootstrap", each)
    slots = a.get("slots", operand.slots)
    if not 0 < slots <= operand.slots or operand.slots % slots:
        raise ProgramError(f"bootstrap: {operand.slots} slots are no multiple of a period of {slots}")
    if ("ranges" in a) != ("chunks" in a) or any(
        len(a.get(key, operands)) != len(operands) for key in ("ranges", "chunks")
    ):
        raise ProgramError(f"bootstrap: its ranges and chunks are not those of {len(operands)} operands")
    made = _sum_type("bootstrap")(operands, a, context)
    if not isinstance(made, CipherType) or not isinstance(operand, CipherType):
        return made
    if "level" not in a or "slots" not in a:
        raise ProgramError("bootstrap: its slots, or the level that it returns to, are not planned")
    if not operand.level < a["level"] < len(context.log_primes):
        raise ProgramError(f"bootstrap: it cannot lead from level {operand.level} to level {a['level']}")
    return replace(made, level=a["level"], log_scale=made.log_scale + a.get("raised_bits", 0))


def _bootstrap(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    return values[0] if len(values) == 1 else np.asarray(values[0] + 1j * values[1])


define(
    OpSpec(
        "bootstrap",
        SLOTS,
        (1, 2),
        {
            "slots": "int?",
            "level": "int?",
            "size_bits": "int?",
            "raised_bits": "int?",
            "ranges": "ints?",
            "chunks": "ints?",
            "observed": "int?",
        },
        _bootstrap_type,
        _bootstrap,
        "Refresh a ciphertext whose slots repeat with period `slots` and are at most 2**`size_bits` in size (0 where it is "
        "not given): it comes back at `level`, its scale `raised_bits` higher. Two operands x and y are refreshed together "
        "as x + iy; `real_part` and `imaginary_part` take them apart. `ranges`, `chunks`: for each operand the entry of the "
        "table of ranges (-1: none) that bounds it, and which ciphertext of that value it is. At the packed stage a wish of "
        "the program's author, or of the pass that places bootstraps.",
        role=Role.BOOTSTRAP,
        rules=slotwise(lambda node, operands, context: operands[0] if len(operands) == 1 else None),
        run=runs.refreshed,
    )
)


def _part_type(op: str) -> _Infer:
    """z + conj(z) is twice the real part: it stands for the part itself at twice the scale."""

    def infer(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
        _two_parts(op, operands[0])
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
