"""The general way for ops without a rule: torch's own decompositions into core ops, applied repeatedly."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch.export import ExportedProgram, default_decompositions

from heliograph.frontends.torch.refusals import REFUSED
from heliograph.frontends.torch.source import op_name, short_name
from heliograph.frontends.torch.values import rule_of

# How deep torch's own decompositions may nest: a recurrent layer takes three.
_ROUNDS = 8


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Torch's decompositions by op (an overload)."""
    table = default_decompositions()
    return {op: table[op] for op in list(table)}


def covered(target: Any) -> bool:
    """Whether a call of that op has a rule, in place or not, or is refused directly."""
    name = op_name(target)
    return short_name(target) in REFUSED or any(rule_of(one) is not None for one in (name, name.removesuffix("_")))


def decomposed(exported: ExportedProgram, depending: Callable[[ExportedProgram], Iterable[Any]]) -> ExportedProgram:
    """The program without ops that have no rule, as far as torch can express them by others.

    `depending` gives the nodes that depend on an input: torch computes any op on known values. Lines and
    layers of the calls carry over to their parts.
    """
    for _ in range(_ROUNDS):
        known = decompositions()
        missing = {
            node.target: known[node.target]
            for node in depending(exported)
            if node.op == "call_function" and node.target in known and not covered(node.target)
        }
        if not missing:
            break
        exported = exported.run_decompositions(missing)
    return exported
