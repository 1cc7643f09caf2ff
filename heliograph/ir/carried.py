"""Values that one run of a program leaves to the next: outputs that come back as inputs."""

from __future__ import annotations

from collections.abc import Iterator

from heliograph.ir.node import Node
from heliograph.ir.program import Program


def carried_pairs(program: Program) -> Iterator[tuple[Node, Node]]:
    """(output, input) for each ciphertext that is carried; a tensor in several ciphertexts has several."""
    if not program.interface.carried:
        return
    outputs = dict(zip(program.output_names, program.outputs, strict=True))
    inputs: dict[str, list[Node]] = {}
    for node in program.inputs:
        inputs.setdefault(node.attrs["name"], []).append(node)
    for output, name in program.interface.carried:
        into = inputs.get(name, [])
        for chunk, node in enumerate(into):
            label = output if len(into) == 1 else f"{output}/{chunk}"
            if label in outputs:
                yield outputs[label], node


def carried_nodes(program: Program) -> dict[Node, Node]:
    """By output the input that it becomes; an output that becomes several counts once."""
    return dict(carried_pairs(program))
