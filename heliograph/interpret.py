"""The cleartext meaning of programs at every stage: the reference for all tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from heliograph.errors import ProgramError
from heliograph.execution.interface import batch_of, check_input, given_rows, pack_inputs, real_numbers, unpack_outputs
from heliograph.ir import Node, Program, SlotsType, Stage, shape_of
from heliograph.ir.analysis.liveness import last_use_table
from heliograph.ir.bootstraps.asked import inside_bootstraps
from heliograph.ir.node import Array
from heliograph.ir.ops.table import OPS, Context

# Samples of packed programs run together as long as no value has more slots than this in total.
_MOST_SLOTS = 1 << 20
# The number of calibration samples that are computed together.
_CHUNK = 64


# Stands in for a value that nobody reads.
_UNSEEN: Array = np.empty(0)


def run_nodes(
    program: Program,
    values: Mapping[Node, Array],
    observe: Callable[[Node, Array], None] | None = None,
) -> list[Array]:
    """The outputs for the given input nodes' values; every array has a leading axis of samples.

    A value is dropped after its last use. `observe` sees each node's value once, in program order.
    """
    # A written-out bootstrap returns the value that it refreshes; its inner nodes matter only to an observer.
    steps = walk(program, values, inside_bootstraps(program) if observe is None else frozenset())
    while True:
        try:
            node, value = next(steps)
        except StopIteration as end:
            outputs: list[Array] = end.value
            return outputs
        if observe is not None:
            observe(node, value)


def walk(
    program: Program, values: Mapping[Node, Array], unseen: Collection[Node] = frozenset()
) -> Generator[tuple[Node, Array], Array | None, list[Array]]:
    """Each node with its value, in program order; at the end, the outputs. Arguments and values as in `run_nodes`.

    A value that is sent replaces the last one. Nodes that are `unseen` are not computed.
    """
    context = Context(program.constants, program.log_primes)
    table: dict[Node, Array] = {}
    for node, freed in zip(program.nodes, last_use_table(program.nodes, program.outputs), strict=True):
        if node in unseen:
            table[node] = _UNSEEN
        elif node.op == "input":
            # Samples of one-hot vectors are stored as booleans.
            table[node] = np.asarray(values[node], dtype=np.float64)
        else:
            table[node] = np.asarray(
                OPS[node.op].evaluate([table[operand] for operand in node.inputs], node.attrs, context)
            )
        sent = yield node, table[node]
        if sent is not None:
            table[node] = sent
        for place in freed:
            del table[program.nodes[place]]
    return [table[node] for node in program.outputs]


def interpret_batch(program: Program, *samples: Any) -> list[Array]:
    """The outputs of a tensor or polynomial program for many samples: each argument has a leading sample axis."""
    values: dict[Node, Array] = {}
    if len(samples) != len(program.inputs):
        raise ProgramError(f"program {program.name} takes {len(program.inputs)} inputs, not {len(samples)}")
    for node, sample in zip(program.inputs, samples, strict=True):
        try:
            array = real_numbers(sample)
        except ValueError as error:
            raise ProgramError(
                f"samples of input {node.attrs['name']!r} are not an array of real numbers", why=str(error)
            ) from None
        if array.shape[1:] != shape_of(node):
            raise ProgramError(
                f"samples of input {node.attrs['name']!r} have shape {array.shape[1:]}, expected {shape_of(node)}"
            )
        values[node] = array
    outputs = run_nodes(program, values)
    count = max((value.shape[0] for value in values.values()), default=1)
    return [np.broadcast_to(out, (count, *out.shape[1:])) for out in outputs]


def calibration_chunks(program: Program) -> Iterator[dict[Node, Array]]:
    """The calibration samples of a program, some at a time, by input: what `run_nodes` takes."""
    for start in range(0, len(program.calibration[0]), _CHUNK):
        chunk = [samples[start : start + _CHUNK] for samples in program.calibration]
        yield dict(zip(program.inputs, chunk, strict=True))


def interpret_many(program: Program, samples: Sequence[Array]) -> list[Array]:
    """The outputs of a program of any stage for many samples: each array has a leading sample axis."""
    if program.stage.order < Stage.PACKED.order:
        return interpret_batch(program, *samples)
    batch = batch_of(program)
    groups = [
        [array[start] if batch == 1 else array[start : start + batch] for array in samples]
        for start in range(0, len(samples[0]), batch)
    ]
    slots = max((node.type.slots for node in program.nodes if isinstance(node.type, SlotsType)), default=1)
    together = max(1, _MOST_SLOTS // slots)
    rows = []
    for start in range(0, len(groups), together):
        here = groups[start : start + together]
        packed = [pack_inputs(program, group) for group in here]
        vectors = run_nodes(program, {node: np.concatenate([one[node] for one in packed]) for node in packed[0]})
        for number, group in enumerate(here):
            # Values that depend on no input have one sample for all.
            one = [vector[number if len(vector) > 1 else 0] for vector in vectors]
            outputs = given_rows(program, group, unpack_outputs(program, one))
            rows.append([out[np.newaxis] if batch == 1 else out for out in outputs])
    return [np.concatenate(column) for column in zip(*rows, strict=True)]


def interpret(program: Program, *samples: Any) -> Any:
    """The outputs for one sample per input: one array, or a tuple if the program has several outputs.

    A packed program for several samples at once takes secret inputs, and gives outputs, with a leading axis of samples.
    """
    if program.interface.packed:
        vectors = run_nodes(program, pack_inputs(program, samples))
        outputs = given_rows(program, samples, unpack_outputs(program, [vector[0] for vector in vectors]))
    else:
        if len(samples) != len(program.inputs):
            raise ProgramError(f"program {program.name} takes {len(program.inputs)} inputs, not {len(samples)}")
        checked = []
        for node, sample in zip(program.inputs, samples, strict=True):
            checked.append(check_input(node.attrs["name"], shape_of(node), sample)[np.newaxis])
        outputs = [out[0] for out in interpret_batch(program, *checked)]
    return outputs[0] if len(outputs) == 1 else tuple(outputs)
