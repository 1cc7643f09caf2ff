"""Choose the chain of each value, and switch chains where it changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from heliograph.ckks.chains import chain_at
from heliograph.ir import Builder, CipherType, Node, Program, Stage
from heliograph.ir.analysis.carried import carried_outputs
from heliograph.ir.bootstraps.asked import place_of, refreshing
from heliograph.ir.maps.steps import needed_keys
from heliograph.ir.ops.slots.runs import cipher
from heliograph.ir.ops.table import Role, role_of


@dataclass(frozen=True, slots=True)
class PlaceChains:
    """Moves work to the lowest chain that holds its level, where keys are smallest.

    A bootstrap happens in the lowest chain that bootstraps and reaches the level to which it returns. A conjugation
    happens in the lowest chain with bootstraps, whose keys serve it, or else in the whole chain.

    A value is computed in the chain of its operands. Readers in another chain share one `switch_chain`, which counts as
    work of the first of them. Inputs arrive in the whole chain; outputs may leave in any.
    """

    name: ClassVar[str] = "place-chains"
    needs: ClassVar[Stage] = Stage.MANAGED
    makes: ClassVar[Stage] = Stage.MANAGED

    def run(self, program: Program) -> Program:
        chains = program.planned.chains
        if len(chains) == 1:
            return program
        rings = [chain.ring for chain in chains]
        # The chains in which bootstraps happen; these have a conjugation key.
        fresh = {place_of(node, rings) for node in refreshing(program)}
        builder = Builder(program.name, Stage.MANAGED, program)
        switched: dict[tuple[Node, int], Node] = {}

        def emit(node: Node, operands: list[Node]) -> Node:
            if node.op == "switch_chain":
                # A switch from before this pass: its operand may already be in the target chain.
                here = operands[0].type.chain == node.attrs["chain"]  # type: ignore[union-attr]
                return operands[0] if here else builder.copy(node, operands)
            return builder.copy(node, [read(node, operand) for operand in operands])

        def read(node: Node, operand: Node) -> Node:
            if not isinstance(operand.type, CipherType):
                return operand
            level = operand.type.level
            if role_of(node) is Role.BOOTSTRAP:
                wanted = place_of(node, rings)
            elif needed_keys(node).conjugation:
                wanted = max((number for number in fresh if rings[number].levels >= level), default=0)
            else:
                wanted = chains.index(chain_at(chains, level))
            if operand.type.chain == wanted:
                return operand
            if (operand, wanted) not in switched:
                switched[operand, wanted] = builder.op("switch_chain", (operand,), node.loc, chain=wanted)
            return switched[operand, wanted]

        carried = carried_outputs(program)

        def leave(name: str, node: Node, made: Node) -> Node:
            # A value carried to the next run leaves in the whole chain, in which inputs arrive.
            lower = name in carried and cipher(made).chain
            return builder.op("switch_chain", (made,), made.loc, chain=0) if lower else made

        return builder.rewrite(program, emit, leave=leave)
