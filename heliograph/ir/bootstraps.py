"""What the bootstraps of a program ask for: read off its nodes, stored nowhere."""

from __future__ import annotations

from heliograph.ir.program import Program


def bootstrap_slots(program: Program) -> tuple[int, ...]:
    """The numbers of slots that are bootstrapped, rising."""
    return tuple(sorted({node.attrs["slots"] for node in program.nodes if node.op == "bootstrap"}))


def paired_slots(program: Program) -> tuple[int, ...]:
    """Those of which some bootstrap refreshes two values at once: all bootstraps of such a number keep imaginary parts."""
    return tuple(sorted({n.attrs["slots"] for n in program.nodes if n.op == "bootstrap" and len(n.inputs) == 2}))


def observed_sizes(program: Program) -> int:
    """How many bootstrapped values have a size that samples showed, not one that is proved."""
    return sum(node.attrs.get("observed", 0) for node in program.nodes if node.op == "bootstrap")
