"""Decide the chain that each value is in, and switch where it changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from heliograph.ckks.chains import chain_at
from heliograph.ir import Builder, CipherType, Node, Program, Stage
from heliograph.ir.ops import Role, role_of
from heliograph.ir.transforms import needed_keys


@dataclass(frozen=True, slots=True)
class PlaceChains:
    """Work happens in the lowest chain that holds the level, where keys are smallest; bootstraps and conjugations in the
    whole one, where alone their keys are.

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
        builder = Builder(program.name, Stage.MANAGED, program)
        switched: dict[tuple[Node, int], Node] = {}

        def emit(node: Node, operands: list[Node]) -> Node:
            if node.op == "switch_chain":
                # One that stands there already: its operand may have been brought where it leads.
                here = operands[0].type.chain == node.attrs["chain"]  # type: ignore[union-attr]
                return operands[0] if here else builder.copy(node, operands)
            return builder.copy(node, [read(node, operand) for operand in operands])

        def read(node: Node, operand: Node) -> Node:
            if not isinstance(operand.type, CipherType):
                return operand
            whole = role_of(node) is Role.BOOTSTRAP or needed_keys(node).conjugation
            wanted = 0 if whole else chains.index(chain_at(chains, operand.type.level))
            if operand.type.chain == wanted:
                return operand
            if (operand, wanted) not in switched:
                switched[operand, wanted] = builder.op("switch_chain", (operand,), node.loc, chain=wanted)
            return switched[operand, wanted]

        return builder.rewrite(program, emit)
