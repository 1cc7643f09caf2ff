"""Write ReLUs for which one polynomial is too coarse as (x + |x|) / 2; |x| = x sign(x) is a composition of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heliograph.errors import ProgramError
from heliograph.ir import Builder, Node, Program, Stage


@dataclass(frozen=True, slots=True)
class ComposeReLU:
    """Replaces the ReLUs of the layers in `errors` by sums with an `abs` within twice the layer's largest error.

    The polynomials of sign(x) are minimax compositions (Lee, Lee, No and Kim, 2021; approx/compositions/sign.py): their
    degrees multiply and their levels add up, so that an error of 2^-12 of the range takes 10 levels, where one
    polynomial would need degree 1,000. Raises ProgramError where a layer is not a ReLU.
    """

    errors: Mapping[str, float]

    name: ClassVar[str] = "compose-relu"
    needs: ClassVar[Stage] = Stage.TENSOR
    makes: ClassVar[Stage] = Stage.TENSOR

    def run(self, program: Program) -> Program:
        layers = {node.loc.layer for node in program.nodes if node.op == "relu" and node.type.secret}
        unknown = sorted(set(self.errors) - layers)
        if unknown:
            raise ProgramError(
                f"no ReLU of an encrypted value is called {unknown[0]!r}",
                where="Options.errors",
                hint=f"the ReLUs are called {', '.join(map(repr, sorted(layers)[:5]))}"
                if layers
                else "there is no ReLU",
            )
        builder = Builder(program.name, Stage.TENSOR, program)

        def emit(node: Node, operands: list[Node]) -> Node:
            if node.op != "relu" or not node.type.secret or node.loc.layer not in self.errors:
                return builder.copy(node, operands)
            (x,) = operands
            size = builder.op("abs", (x,), node.loc, gap=2.0 * self.errors[node.loc.layer])
            half = builder.op("constant", (), node.loc, value=builder.constant(np.array(0.5), "half"))
            return builder.op("mul", (builder.op("add", (x, size), node.loc), half), node.loc)

        return builder.rewrite(program, emit)
