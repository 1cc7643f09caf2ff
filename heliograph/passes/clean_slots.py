"""Prove that slots which carry no result tell nothing of the encrypted input: neither partial sums nor anything else of it.

<<<<<<< HEAD
Numbers of the model may stand there, such as the constant term of a polynomial: the same in every answer for every input.
=======
Numbers of the model, or made of the server's plain inputs, may stand there, such as the constant term of a polynomial.
>>>>>>> wip-B
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from heliograph.errors import InternalError
from heliograph.interpret import run_nodes
from heliograph.ir import Array, Node, Program, SlotsType
from heliograph.ir.layout import Layout
from heliograph.ir.slot_ops import transform_diagonals

# A constant this small is zero but for the rounding of floating point, and far below the error of encryption.
_ZERO = 1e-12


@dataclass(frozen=True, slots=True)
class CleanSlots:
    """Follows which slots depend on an input; raises where an output's spare slot does.

    Returns, for each output ciphertext, how many slots depend on an input.
    """

    name: ClassVar[str] = "clean-slots"

    def run(self, program: Program) -> tuple[int, ...]:
        counts, leak = self._outputs(program, {})
        if leak is not None:
            # Slots that hold zero whatever the input stay clean in products; what they hold takes a run to know.
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
        """How many slots of each output depend on an input, and the first that should not."""
        depends: dict[Node, Array] = {}
        layouts = {spec.name: spec.placed for spec in program.interface.inputs}
        for node in program.nodes:
            if node.type.secret:
                operands = {operand: depends[operand] for operand in node.inputs if operand.type.secret}
                depends[node] = self._transfer(program, node, operands, layouts, values)
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

    @staticmethod
    def _transfer(
        program: Program,
        node: Node,
        known: Mapping[Node, Array],
        layouts: dict[str, Layout],
        values: Mapping[Node, Array],
    ) -> Array:
        operands = [known[n] for n in node.inputs if n.type.secret]
        if node.op == "input":
            return layouts[node.attrs["name"]].used(node.attrs["chunk"])
        if node.op == "linear_transform":
            slots = operands[0].size
            out = np.zeros(slots, dtype=bool)
            every = transform_diagonals(node.attrs, program.matrix, slots)
            for source, diagonals in zip(node.inputs, every, strict=True):
                depends = known[source]
                if depends.all():
                    # Every slot depends on the input: so does every slot with an entry.
                    there = np.zeros(diagonals.run, dtype=bool)
                    for offset in diagonals.offsets:
                        there[diagonals.slots_of(offset)] = True
                    out |= np.tile(np.repeat(there, diagonals.stride), slots // (diagonals.run * diagonals.stride))
                    continue
                for offset in diagonals.offsets:
                    out |= (diagonals.diagonal(offset) != 0) & np.roll(depends, -offset)
            return out
        if node.op == "rotate":
            return np.roll(operands[0], -node.attrs["amount"])
        if node.op == "mul_plain":
            factor = np.resize(program.array(node.attrs["value"]), operands[0].size)
            return np.asarray(operands[0] & (factor != 0))
        if node.op == "mul_ct":
            made = operands[0] | operands[1]
            for member in node.inputs:
                if member in values:
                    made = made & (known[member] | (np.abs(values[member][0]) > _ZERO))
            return np.asarray(made)
        result = operands[0]
        for operand in operands[1:]:
            result = result | operand
        return result
