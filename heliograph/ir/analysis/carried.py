"""Carried values, which one run of a program leaves to the next: outputs that come back as inputs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from heliograph.errors import ProgramError
from heliograph.ir.interface import TensorSpec
from heliograph.ir.node import Node, live_nodes
from heliograph.ir.ops.slots.types import SCALE_TOLERANCE
from heliograph.ir.program import Program
from heliograph.ir.types import CipherType, Type

T = TypeVar("T")


def carried_outputs(program: Program) -> dict[str, list[Node]]:
    """The inputs that each carried output (of each ciphertext) becomes, by its name."""
    inputs: dict[str, list[Node]] = {}
    for node in program.inputs:
        inputs.setdefault(node.attrs["name"], []).append(node)
    found: dict[str, list[Node]] = {}
    for output, name in program.interface.carried:
        into = inputs.get(name, [])
        for chunk, node in enumerate(into):
            found.setdefault(output if len(into) == 1 else f"{output}/{chunk}", []).append(node)
    return found


def carried_on(program: Program, results: Sequence[T]) -> dict[Node, T]:
    """The value that each carried input of the next run takes from `results`, a run's outputs in order."""
    carried = carried_outputs(program)
    named = zip(program.output_names, results, strict=True)
    return {source: result for name, result in named for source in carried.get(name, ())}


def carried_pairs(program: Program) -> Iterator[tuple[Node, Node]]:
    """(output, input) for each ciphertext that is carried."""
    return ((output, source) for source, output in carried_on(program, program.outputs).items())


def released(program: Program) -> dict[str, int]:
    """The outputs (of each ciphertext) that leave the server and are not carried, with their numbers in an answer."""
    carried = carried_outputs(program)
    names = (name for name in program.output_names if name not in carried)
    return {name: number for number, name in enumerate(names)}


def fits(output: Type, source: Type) -> bool:
    """Whether a ciphertext that leaves a run can enter the next: level, chain, parts and scale are the same."""
    if not isinstance(output, CipherType) or not isinstance(source, CipherType):
        return output == source
    same = (output.slots, output.level, output.chain, output.parts) == (
        source.slots,
        source.level,
        source.chain,
        source.parts,
    )
    return same and abs(output.log_scale - source.log_scale) <= SCALE_TOLERANCE


def carried_nodes(program: Program) -> dict[Node, Node]:
    """The input that each carried output becomes; an output that becomes several counts once."""
    return dict(carried_pairs(program))


def only(program: Program, names: Collection[str]) -> Program:
    """The part of an executable program that these outputs need; a ProgramError for an unknown output.

    It also has the inputs that its outputs become, whether they are read or not.
    """
    specs: list[TensorSpec] = []
    nodes: list[Node] = []
    labels: list[str] = []
    position = 0
    for spec in program.interface.outputs:
        count = spec.placed.ciphertexts
        if spec.name in names:
            specs.append(spec)
            nodes += program.outputs[position : position + count]
            labels += program.output_names[position : position + count]
        position += count
    if missing := set(names) - {spec.name for spec in specs}:
        known = ", ".join(repr(spec.name) for spec in program.interface.outputs)
        raise ProgramError(f"{program.name} has no output {sorted(missing)[0]!r}", hint=f"its outputs are {known}")
    carried = tuple(pair for pair in program.interface.carried if pair[0] in names)
    becomes = {name for _, name in carried}
    kept = set(live_nodes(tuple(nodes))) | {node for node in program.inputs if node.attrs["name"] in becomes}
    interface = replace(program.interface, outputs=tuple(specs), carried=carried)
    return replace(
        program,
        inputs=tuple(node for node in program.inputs if node in kept),
        nodes=tuple(node for node in program.nodes if node in kept),
        outputs=tuple(nodes),
        output_names=tuple(labels),
        interface=interface,
    )
