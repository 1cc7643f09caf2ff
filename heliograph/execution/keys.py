"""The evaluation keys of a compiled program."""

from __future__ import annotations

from heliograph.ckks.keys import EvaluationKey, evaluation_keys
from heliograph.ir import CipherType, Program
from heliograph.ir.bootstraps.asked import raising_chains
from heliograph.ir.maps.steps import needed_keys


def program_keys(program: Program) -> tuple[EvaluationKey, ...]:
    """The keys of an executable program."""
    return evaluation_keys(program.planned.chains, conjugates(program), raising_chains(program))


def conjugates(program: Program) -> bool:
    """Whether a program conjugates ciphertexts in its whole chain. In sub-chains, bootstraps bring the key for it."""
    return any(
        isinstance(node.type, CipherType) and not node.type.chain and needed_keys(node).conjugation
        for node in program.nodes
    )
