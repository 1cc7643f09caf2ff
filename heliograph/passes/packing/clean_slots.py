"""Prove that slots without a result do not depend on the encrypted input: they hold no partial sums or anything else of
it.

They may hold numbers that depend only on the model or on the server's plain inputs, such as a polynomial's constant
term.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heliograph.errors import InternalError
from heliograph.interpret import run_nodes
from heliograph.ir import Array, Node, Program, SlotsType
from heliograph.ir.ops.table import Context, Dependence, rules_of

# A constant this small is zero up to floating-point rounding, and far below the error of encryption.
_ZERO = 1e-12


@dataclass(frozen=True, slots=True)
class CleanSlots:
    """A proof by following which slots depend on an input; it fails where an output's spare slot does.

    Returns the number of slots that depend on an input, for each output ciphertext.
    """

    name: ClassVar[str] = "clean-slots"

    def run(self, program: Program) -> tuple[int, ...]:
        counts, leak = self._outputs(program, {})
        if leak is not None:
            # Slots that are zero for every input stay clean in products; a run on zeros finds them.
            zeros = {
                node: np.zeros((1, node.type.slots)) for node in program.inputs if isinstance(node.type, SlotsType)
            }
            plain = {node: np.zeros((1, *node.attrs["shape"])) for node in program.inputs if not node.type.secret}
            values: dict[Node, Array] = {}
            run_nodes(program, {**zeros, **plain}, values.__setitem__)
            counts, leak = self._outputs(program, values)
        if leak is not None:
            raise leak
        return tuple(counts)

    def _outputs(self, program: Program, values: Mapping[Node, Array]) -> tuple[list[int], InternalError | None]:
        """The number of slots of each output that depend on an input, and an error for the first that should not."""
        depends: dict[Node, Array] = {}
        context = Context(program.constants)
        layouts = {spec.name: spec.placed for spec in program.interface.inputs}
        for node in program.nodes:
            if node.type.secret:
                if node.op == "input":
                    depends[node] = layouts[node.attrs["name"]].used(node.attrs["chunk"])
                    continue
                operands = [_dependence(operand, node, depends, values) for operand in node.inputs]
                depends[node] = rules_of(node).depends(node, operands, context)
        counts = []
        leak: InternalError | None = None
        position = 0
        for spec in program.interface.outputs:
            layout = spec.placed
            for chunk in range(layout.ciphertexts):
                node = program.outputs[position]
                position += 1
                spare = depends[node] & ~layout.used(chunk)
                if spare.any() and leak is None:
                    leak = InternalError(
                        f"output {spec.name!r} would leak: slot {int(np.argmax(spare))} depends on the input and "
                        "is not part of the result",
                        where=node.loc,
                    )
                counts.append(int(depends[node].sum()))
        return counts, leak


def _dependence(operand: Node, reader: Node, depends: Mapping[Node, Array], values: Mapping[Node, Array]) -> Dependence:
    """The dependence of an operand's slots on inputs; `values` come from a run on zeros."""
    if not operand.type.secret:
        assert isinstance(reader.type, SlotsType)
        return Dependence(np.zeros(reader.type.slots, dtype=bool))
    known = depends[operand]
    if operand not in values:
        return Dependence(known)
    return Dependence(known, ~known & ~(np.abs(values[operand][0]) > _ZERO))
