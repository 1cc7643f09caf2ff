"""The evaluation keys that a compiled program takes."""

from __future__ import annotations

from heliograph.ckks.keys import EvaluationKey, evaluation_keys
from heliograph.ir import Program
from heliograph.ir.bootstraps import bootstrap_slots
from heliograph.ir.transforms import needed_keys


def program_keys(program: Program) -> tuple[EvaluationKey, ...]:
    """The keys of an executable program."""
    return evaluation_keys(program.planned.chains, bootstrap_slots(program), conjugates(program))


def conjugates(program: Program) -> bool:
    """Whether a program conjugates ciphertexts."""
    return any(node.type.secret and needed_keys(node).conjugation for node in program.nodes)
