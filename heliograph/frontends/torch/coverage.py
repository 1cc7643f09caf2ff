"""The PyTorch operations that are supported, and by which way, from the tables that the tracer itself reads."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from heliograph.frontends.torch import export  # noqa: F401  (its imports fill the tables)
from heliograph.frontends.torch.refusals import REFUSED
from heliograph.frontends.torch.source import op_name
from heliograph.frontends.torch.values import RULES
from heliograph.frontends.torch.ways.decompose import decompositions
from heliograph.frontends.torch.ways.linear import LINEAR
from heliograph.frontends.torch.ways.pointwise import POINTWISE

_WIDTH = 110
# Parts of the names of ops that no model uses in evaluation: gradients, losses, weight packing, queries about tensors.
_NO_LAYERS = ("backward", "_loss", "fbgemm", "quant", "is_", "get_", "qparams", "cudnn", "can_cast", "histogram")


@dataclass(frozen=True, slots=True)
class Coverage:
    """Short names of torch's operations (`relu` for `aten.relu`), each in one list, in alphabetical order."""

    rules: tuple[str, ...]
    linear: tuple[str, ...]
    functions: tuple[str, ...]
    decomposed: tuple[str, ...]
    refused: tuple[str, ...]

    def __str__(self) -> str:
        parts = []
        for title, names in self.sections():
            parts.append(f"{title} ({len(names)}):\n" + textwrap.fill(", ".join(names), _WIDTH, break_on_hyphens=False))
        return "\n\n".join(parts)

    def table(self) -> str:
        """The table of the page of operations: all but the ops that torch decomposes, which differ between its versions."""
        lines = ["| way | operations |", "|---|---|"]
        for title, names in self.sections():
            if names is not self.decomposed:
                lines.append(f"| {title} | {', '.join(f'`{name}`' for name in names)} |")
        return "\n".join(lines)

    def sections(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Each list with its heading."""
        return (
            ("with a rule of their own", self.rules),
            ("linear, their matrix from torch itself", self.linear),
            ("functions of one value, approximated by a polynomial", self.functions),
            ("written by torch with other operations, and tried again", self.decomposed),
            ("refused, with a hint", self.refused),
        )


def coverage() -> Coverage:
    """The coverage of this version with the installed torch."""
    ours = {name.removeprefix("aten.") for name in RULES}
    known = {op_name(op) for op in decompositions()}
    short = {name.removeprefix("aten.") for name in known if name.startswith("aten.")}
    written = {name for name in short if not name.startswith("_") and not any(word in name for word in _NO_LAYERS)}
    general = set(LINEAR) | set(POINTWISE)
    return Coverage(
        tuple(sorted(ours - general)),
        tuple(sorted(LINEAR)),
        tuple(sorted(POINTWISE)),
        tuple(sorted(name for name in written - ours - REFUSED if not name.endswith("_"))),
        tuple(sorted(REFUSED - ours)),
    )
