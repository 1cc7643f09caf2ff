"""Decide the chain that each value is in, and switch where it changes."""

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
    """Work happens in the lowest chain that holds the level, where keys are smallest. A bootstrap happens in the lowest one
    that bootstraps and reaches the level that it returns to; a conjugation in the lowest in which bootstraps happen, for
    their keys serve it, or else in the whole one.

    A value is made in the chain of its operands; whoever reads it in another one reads a `switch_chain` of it, one for all
    that read it there, which counts as work of the first. Inputs come in the whole chain; outputs go out of any.
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
                # A switch that was there before: its operand may already have been brought to the chain it leads to.
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
            # A value carried to the next run leaves in the chain in which that run takes it.
            lower = name in carried and cipher(made).chain
            return builder.op("switch_chain", (made,), made.loc, chain=0) if lower else made

        return builder.rewrite(program, emit, leave=leave)
