"""The evaluation keys that a compiled program takes."""

from __future__ import annotations

from heliograph.ckks.keys import EvaluationKey, evaluation_keys
from heliograph.ir import Program
from heliograph.ir.bootstraps import bootstrap_slots
from heliograph.ir.slot_ops import CONJUGATING


def program_keys(program: Program) -> tuple[EvaluationKey, ...]:
    """The keys of an executable program."""
    return evaluation_keys(program.planned.chains, bootstrap_slots(program), conjugates(program))


def conjugates(program: Program) -> bool:
    """Whether a program conjugates ciphertexts."""
    return any(node.op in CONJUGATING and node.type.secret for node in program.nodes)
