"""Write bootstraps out: transforms, the raised modulus and the reduction by the first prime become ops of the program.

Their rotations then share keys and chains with the rest of the program, and their products are scheduled, priced and
simulated like all others. Only the keys at the top of the chain are as large as the whole chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from heliograph.ckks.chains import bootstrap_chain
from heliograph.ckks.ring import Ring
from heliograph.ckks.trigonometric import Series
from heliograph.ir import Builder, Node, Program, Stage
from heliograph.ir.bootstraps.asked import WHOLE, keeps_parts
from heliograph.ir.bootstraps.series import reached_level
from heliograph.ir.bootstraps.writer import write_bootstrap
from heliograph.ir.ops.slots.runs import cipher

# The attributes that a `refreshed` takes over from its `bootstrap`.
_SAID = ("slots", "size_bits", "ranges", "chunks", "observed", "series", "half_period", "complex")


@dataclass(frozen=True, slots=True)
class LowerBootstraps:
    """Replaces every `bootstrap` by its steps.

    `bootstrapping`: the sub-chains that may bootstrap, as in `SelectKeys`. The modulus is raised to the top of the
    lowest one that reaches the level to which the bootstrap returns.
    """

    ring: Ring
    bootstrapping: tuple[Ring, ...] = ()

    name: ClassVar[str] = "lower-bootstraps"
    needs: ClassVar[Stage] = Stage.MANAGED
    makes: ClassVar[Stage] = Stage.MANAGED

    def run(self, program: Program) -> Program:
        rings = [self.ring, *sorted(self.bootstrapping, key=lambda ring: (-ring.levels, -ring.digits))]
        builder = Builder(program.name, Stage.MANAGED, program)

        def emit(node: Node, operands: list[Node]) -> Node:
            return _written(builder, node, operands, rings) if node.op == WHOLE else builder.copy(node, operands)

        return builder.rewrite(program, emit)


def _written(builder: Builder, node: Node, operands: Sequence[Node], rings: Sequence[Ring]) -> Node:
    """The last node of the bootstrap written out."""
    a, level = node.attrs, cipher(node).level
    ring = rings[bootstrap_chain(rings, reached_level(node))]
    x = builder.op("complex_of", operands, node.loc) if len(operands) == 2 else operands[0]
    series = None
    if a.get("series") is not None:
        series = Series(builder.context.array(a["series"]), a["half_period"])
    made = write_bootstrap(builder, ring, x, a["slots"], keeps_parts(node), node.loc, series)
    if level < cipher(made).level:
        made = builder.op("level_drop", (made,), node.loc, levels=cipher(made).level - level)
    # The value came in at a small scale for its size. Multiplying by a whole number and reading the result at a larger
    # scale spends no level. Otherwise, products of values at a small scale would make it smaller and smaller.
    raised = a.get("raised_bits", 0)
    if raised:
        multiple = builder.op("mul_int", (made,), node.loc, factor=1 << raised)
        made = builder.op("reread", (multiple,), node.loc, bits=float(raised))
    said = {key: a[key] for key in _SAID if key in a}
    return builder.op("refreshed", (made, *operands), node.loc, **said)
