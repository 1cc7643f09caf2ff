"""Type rules that several ops on slots share; `vectors.py` lists the fields of a ciphertext's type that an op keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from heliograph.errors import ProgramError
from heliograph.ir.ops.spec import Attrs, Context, InferType
from heliograph.ir.types import CipherType, SlotsType, Type

# Two true scales count as equal if their logarithms differ by at most this; the planner stays well within it.
SCALE_TOLERANCE = 2.0**-32


def same_slots(op: str, operands: Sequence[Any]) -> None:
    """Raise a ProgramError unless all operands have as many slots."""
    if len({operand.slots for operand in operands}) > 1:
        raise ProgramError(f"{op}: operands have {' and '.join(str(o.slots) for o in operands)} slots")


def two_parts(op: str, operand: Any) -> None:
    """Raise a ProgramError for a ciphertext that is not relinearized."""
    if isinstance(operand, CipherType) and operand.parts != 2:
        raise ProgramError(f"{op} needs a relinearized ciphertext, this one has {operand.parts} parts")


def same_level(op: str, operands: Sequence[CipherType]) -> None:
    """Raise a ProgramError unless all operands are at one level, in one chain."""
    levels = {operand.level for operand in operands}
    if len(levels) > 1:
        raise ProgramError(f"{op}: operands are at levels {sorted(levels)}")
    chains = {operand.chain for operand in operands}
    if len(chains) > 1:
        raise ProgramError(f"{op}: operands are in chains {sorted(chains)}")


def sum_type(op: str) -> InferType:
    """The rule for a sum: all operands are ciphertexts at one level and scale, or none is."""

    def infer(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
        same_slots(op, operands)
        secret = [operand for operand in operands if isinstance(operand, CipherType)]
        if not secret:
            return SlotsType(operands[0].slots, any(o.secret for o in operands))
        if len(secret) < len(operands):
            raise ProgramError(f"{op} of a ciphertext and a plain vector; use add_plain")
        same_level(op, secret)
        scales = [operand.log_scale for operand in secret]
        if max(scales) - min(scales) > SCALE_TOLERANCE:
            raise ProgramError(f"{op}: scales 2^{min(scales):.6f} and 2^{max(scales):.6f} differ")
        return replace(secret[0], parts=max(operand.parts for operand in secret))

    return infer


def unchanged(operands: Sequence[Any], a: Attrs, context: Context) -> Type:
    """The type of the first operand."""
    result: Type = operands[0]
    return result


def scaled_terms(op: str, operands: Sequence[CipherType], a: Attrs) -> CipherType:
    """The type of a sum of products with plaintexts, each with its own scale, that share one scale as products."""
    same_level(op, operands)
    if len(a.get("plain_log_scales", ())) != len(operands):
        raise ProgramError(f"{op}: the scales of its plaintexts are not planned")
    scales = [o.log_scale + s for o, s in zip(operands, a["plain_log_scales"], strict=True)]
    if max(scales) - min(scales) > SCALE_TOLERANCE:
        raise ProgramError(f"{op}: its terms have scales 2^{min(scales):.6f} to 2^{max(scales):.6f}")
    return replace(operands[0], log_scale=scales[0])
