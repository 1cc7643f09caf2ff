"""Levels, scales, chains and bootstraps, which only ciphertexts have. Part of `ir/ops/table.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heliograph.errors import ProgramError
from heliograph.ir.bootstraps.series import bootstrap_bounds, check_series, computed
from heliograph.ir.node import Array, Stage
from heliograph.ir.ops.slots import runs
from heliograph.ir.ops.slots.rules import same_bounds, slotwise
from heliograph.ir.ops.slots.types import same_slots, sum_type, two_parts
from heliograph.ir.ops.spec import LEVELED, SLOTS, Attrs, Context, Keys, OpSpec, Role, define
from heliograph.ir.types import CipherType, SlotsType, Type


def _identity(values: Sequence[Array], a: Attrs, context: Context) -> Array:
    return values[0]


def _rescale_type(operands: Sequence[CipherType | SlotsType], a: Attrs, context: Context) -> Type:
    operand = operands[0]
    if isinstance(operand, SlotsType):
        # At the packed stage this is only a request: the level planner puts a rescale here, or reports why it cannot.
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


def _product_type(operands: Sequence[CipherType], a: Attrs, context: Context) -> Type:
    if operands[0].parts != 3:
        raise ProgramError(f"relinearize: this ciphertext has {operands[0].parts} parts already, it takes three")
    return replace(operands[0], parts=2)


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
        _product_type,
        _identity,
        "Bring a product of three parts back to two (one key switch).",
        role=Role.LEVEL,
        rules=slotwise(same_bounds, Keys(relinearization=True)),
        run=runs.relinearized,
    )
)


def _bootstrap_type(operands: Sequence[CipherType | SlotsType], a: Attrs, context: Context) -> Type:
    operand = operands[0]
    same_slots("bootstrap", operands)
    for each in operands:
        two_parts("bootstrap", each)
    slots = a.get("slots", operand.slots)
    if not 0 < slots <= operand.slots or operand.slots % slots:
        raise ProgramError(f"bootstrap: {operand.slots} slots are not a multiple of a period of {slots}")
    if ("ranges" in a) != ("chunks" in a) or any(
        len(a.get(key, operands)) != len(operands) for key in ("ranges", "chunks")
    ):
        raise ProgramError(f"bootstrap: its ranges and chunks are not those of {len(operands)} operands")
    check_series("bootstrap", a, context)
    if a.get("series") is not None and len(operands) != 1:
        raise ProgramError("bootstrap: a series is computed of one value alone")
    made = sum_type("bootstrap")(operands, a, context)
    if not isinstance(made, CipherType) or not isinstance(operand, CipherType):
        return made
    if "level" not in a or "slots" not in a:
        raise ProgramError("bootstrap: its slots, or the level that it returns to, are not planned")
    # A bootstrap with a series does more than raise the level.
    least = operand.level + 1 if a.get("series") is None else 0
    if not least <= a["level"] < len(context.log_primes):
        raise ProgramError(f"bootstrap: it cannot lead from level {operand.level} to level {a['level']}")
    return replace(made, level=a["level"], log_scale=made.log_scale + a.get("raised_bits", 0))


define(
    OpSpec(
        "bootstrap",
        frozenset({Stage.PACKED, Stage.MANAGED}),
        (1, 2),
        {
            "slots": "int?",
            "level": "int?",
            "size_bits": "int?",
            "raised_bits": "int?",
            "ranges": "ints?",
            "chunks": "ints?",
            "observed": "int?",
            "series": "constant?",
            "half_period": "float?",
            "deeper": "int?",
            "complex": "bool?",
        },
        _bootstrap_type,
        computed,
        "Refresh a ciphertext whose slots repeat with period `slots` and are at most 2**`size_bits` in size (0 where it is "
        "not given): it comes back at `level`, its scale `raised_bits` higher. Slots are real; two operands x and y are "
        "refreshed together as x + iy, and `real_part` and `imaginary_part` take them apart. `ranges`, `chunks`: for each "
        "operand the entry of the table of ranges (-1: none) that bounds it, and which ciphertext of that value it is. At "
        "the packed stage a wish of the program's author, or of the pass that places bootstraps; once levels are planned it "
        "is written out. `series`, `half_period`: what comes back is this trigonometric polynomial of the value "
        "(ckks/trigonometric.py), which takes it `deeper` levels down. `complex`: slots are complex, and what is said of "
        "a value holds for each of its parts.",
        role=Role.BOOTSTRAP,
        rules=slotwise(bootstrap_bounds),
    )
)
