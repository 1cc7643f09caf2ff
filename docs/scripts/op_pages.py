"""Operations as Markdown: those of PyTorch by how they are read, and every op of the IR, from the tables in use.

`python docs/scripts/op_pages.py` prints it; the site has it as operations.md.
"""

from __future__ import annotations

from heliograph.frontends.torch.coverage import coverage
from heliograph.ir import Stage
from heliograph.ir.ops.table import OPS, OpSpec

_HEAD = """# Operations

Every operation of a program, by the first stage in which it may stand. A program goes through the stages in this order:
`tensor` (what a model computes), `polynomial` (without functions that are no polynomials), `packed` (vectors of slots),
`managed` (levels and scales are set), `executable` (what the runtime runs). `heliograph inspect --stage STAGE` prints one;
`heliograph explain NAME` prints a row of this page. Attributes that end in `?` may be missing. At the end are the
[operations of PyTorch](#operations-of-pytorch).
"""
_TORCH = """
## Operations of PyTorch

How `hg.trace` reads them ([models from PyTorch](pytorch.md#how-operations-are-read)). Operations in no list are written by
torch with others, and tried again; `heliograph inspect --ops` has those of your version of torch too.
"""
_TITLES = {
    Stage.TENSOR: "Tensors",
    Stage.POLYNOMIAL: "Rows of values, after functions have become polynomials",
    Stage.PACKED: "Vectors of slots",
    Stage.MANAGED: "Ciphertexts with level and scale",
}


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for stage, title in _TITLES.items():
        rows = [spec for spec in OPS.values() if _first(spec) is stage]
        parts += [
            f"\n## {title}\n",
            "| op | operands | attributes | stages | levels | what it does |",
            "|---|---|---|---|---|---|",
        ]
        parts += [
            f"| `{spec.name}` | {' | '.join(map(_cell, _cells(spec)))} |" for spec in sorted(rows, key=lambda s: s.name)
        ]
    return "\n".join([*parts, _TORCH, coverage().table()]) + "\n"


def _first(spec: OpSpec) -> Stage:
    return next(stage for stage in Stage if stage in spec.stages)


def _cells(spec: OpSpec) -> tuple[str, ...]:
    least, most = spec.arity
    operands = str(least) if least == most else f"{least} or more" if most is None else f"{least} to {most}"
    attrs = ", ".join(f"`{name}`: {kind}" for name, kind in spec.attrs.items())
    stages = ", ".join(stage.value for stage in Stage if stage in spec.stages)
    levels = "by its degree" if spec.name == "poly" else str(spec.depth)
    return operands, attrs, stages, levels, spec.doc


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "&#124;")


if __name__ == "__main__":
    print(page(), end="")
