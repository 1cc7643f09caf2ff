"""The impact of each activation's error on the loss, by which degrees are allocated (OLA, section 2.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from heliograph.errors import ProgramError, UnsupportedError
from heliograph.interpret import run_nodes
from heliograph.ir import Array, Node, Program, size_of
from heliograph.ir.analysis.loss import Loss, check_samples, has_classes
from heliograph.ir.node import live_nodes
from heliograph.ir.ops.table import OPS, Context

# The most values, over all nodes, in one chunk of samples: 8 bytes each, and the same again in a perturbed run.
_MOST_VALUES = 1 << 24
# The step, relative to an activation's root mean square: far above float64's rounding, and few kinks are that close.
_STEP = 1e-5
# The least number of samples times directions. The standard deviation is then at most sqrt(2 / 512) = 6 % if all
# samples weigh alike, and sqrt(2 / directions) if one outweighs the others.
_PAIRS, _MOST_DIRECTIONS = 512, 64
_SEED = 21


def impacts_of(program: Program, samples: Sequence[Array]) -> tuple[float, ...]:
    """The impact of each secret activation of a tensor program, in program order.

    A_i = the mean over samples of sum_j (dLoss/da_ij)^2, with a_ij its outputs and the loss of `ir/analysis/loss.py`.
    `samples` is one array for each input, with a leading sample axis. The impacts come from the program's own
    `gradients` if it has them, else from finite differences through the interpreter.

    No derivative goes through a decision (a comparison, an argmax). For activations that reach the outputs only through
    decisions, the operands of the last decisions take the place of the outputs; the resulting impacts cannot be
    compared with those of other activations. Raises ProgramError where all impacts are zero or one is not finite, and
    for samples of other shapes.
    """
    check_samples(program, samples)
    activations = [node for node in program.nodes if OPS[node.op].activation is not None and node.type.secret]
    table: dict[Node, float] = {}
    source: Program | None = program
    while source is not None:
        smooth = _smooth(source)
        if any(node in smooth and node not in table for node in activations):
            found = _taken(source, samples)
            table |= {node: impact for node, impact in found.items() if node in smooth and node not in table}
        source = _cut(source)
    impacts = tuple(table.get(node, 0.0) for node in activations)
    if activations and not any(impacts):
        raise ProgramError(
            f"no activation of {program.name} has an impact on its outputs",
            where=activations[0].loc,
            why="the derivatives of the outputs by each activation are zero on all samples",
            hint="look at the samples (an activation may be cut off on all of them), or give degrees by layer",
        )
    return impacts


def _taken(program: Program, samples: Sequence[Array]) -> dict[Node, float]:
    """The impacts of the program's secret activations, by its own gradients where these are usable, else by
    differences.
    """
    activations = [node for node in program.nodes if OPS[node.op].activation is not None and node.type.secret]
    found: Sequence[float] = ()
    if program.gradients is not None:
        try:
            found = program.gradients(program, samples)
        except UnsupportedError:
            found = ()
    # A gradient may be infinite at a single point, as for sqrt at 0.
    if len(found) != len(activations) or not np.isfinite(found).all():
        found = differences(program, samples)
    for node, impact in zip(activations, found, strict=True):
        if not np.isfinite(impact):
            raise ProgramError(
                f"the impact of {node.op} on the loss is not finite",
                where=node.loc,
                why="a value behind it is NaN or infinity on a sample",
                hint="check the samples",
            )
    return dict(zip(activations, found, strict=True))


def _smooth(program: Program) -> set[Node]:
    """The nodes on which an output depends by a path without decisions; includes the last decisions themselves."""
    found = set(program.outputs)
    for node in reversed(program.nodes):
        if node in found and not OPS[node.op].steps:
            found.update(node.inputs)
    return found


def _cut(program: Program) -> Program | None:
    """The program with the last decisions' operands as outputs; None where there are none."""
    smooth = _smooth(program)
    read = [operand for node in program.nodes if node in smooth and OPS[node.op].steps for operand in node.inputs]
    outputs = tuple(dict.fromkeys(node for node in read if node.type.secret))
    if not outputs:
        return None
    nodes = live_nodes(outputs, program.inputs)
    return replace(program, nodes=nodes, outputs=outputs, output_names=tuple(f"y{i}" for i in range(len(outputs))))


# ---------------------------------------------------------------------------------------------- finite differences


def differences(program: Program, samples: Sequence[Array]) -> list[float]:
    """Impacts (see `impacts_of`) by central differences of the loss, unbiased up to the length of the step.

    An activation's output moves by a step times a vector v of +-1, drawn for each sample and direction from a fixed
    seed: the mean of (v . g)^2 over v is |g|^2. Only the nodes after it are evaluated again, and decisions keep their
    results.
    """
    count = check_samples(program, samples)
    activations = [node for node in program.nodes if OPS[node.op].activation is not None and node.type.secret]
    together = max(1, _MOST_VALUES // sum(map(size_of, program.nodes)))
    starts = range(0, count, together)
    loss = Loss()
    if not has_classes(program):
        parts = [_outputs(program, run_nodes(program, _given(program, samples, start, together))) for start in starts]
        loss = Loss.of_outputs([np.concatenate(column) for column in zip(*parts, strict=True)])
    directions = min(_MOST_DIRECTIONS, max(2, -(-_PAIRS // count)))
    behind = [_behind(program, node) for node in activations]
    random = np.random.default_rng(_SEED)
    totals = np.zeros(len(activations))
    for start in starts:
        values: dict[Node, Array] = {}
        run_nodes(program, _given(program, samples, start, together), values.__setitem__)
        for number, (node, nodes) in enumerate(zip(activations, behind, strict=True)):
            if not nodes and node not in program.outputs:
                continue
            for _ in range(directions):
                slope = _slope(program, loss, values, node, nodes, random, start)
                totals[number] += float(np.square(slope).sum()) / directions
    return [float(total) / count for total in totals]


def _given(program: Program, samples: Sequence[Array], start: int, together: int) -> dict[Node, Array]:
    return {
        node: np.asarray(array[start : start + together], dtype=np.float64)
        for node, array in zip(program.inputs, samples, strict=True)
    }


def _outputs(program: Program, found: Sequence[Array]) -> list[Array]:
    """Each output with one row per sample."""
    count = max(len(out) for out in found)
    return [np.broadcast_to(out, (count, *out.shape[1:])) for out in found]


def _behind(program: Program, activation: Node) -> list[Node]:
    """The nodes after the activation on which an output depends smoothly, in program order."""
    smooth, found = _smooth(program), {activation}
    order = []
    for node in program.nodes:
        if node in smooth and not OPS[node.op].steps and not found.isdisjoint(node.inputs):
            found.add(node)
            order.append(node)
    return order


def _slope(
    program: Program,
    loss: Loss,
    values: Mapping[Node, Array],
    activation: Node,
    behind: Sequence[Node],
    random: np.random.Generator,
    start: int,
) -> Array:
    """The derivative of each sample's loss along one direction of the activation's output."""
    base = values[activation]
    signs = 2.0 * random.integers(0, 2, base.shape) - 1.0
    step = _STEP * (float(np.sqrt(np.square(base).mean())) or 1.0)
    ends = []
    for move in (step, -step):
        moved = {activation: base + move * signs}
        _evaluate(program, behind, values, moved)
        outputs = [moved.get(node, values[node]) for node in program.outputs]
        ends.append(loss.values(_outputs(program, outputs), start))
    return np.asarray((ends[0] - ends[1]) / (2.0 * step))


def _evaluate(program: Program, nodes: Sequence[Node], values: Mapping[Node, Array], moved: dict[Node, Array]) -> None:
    """Put the value of each of these nodes into `moved`, from moved and unmoved operands; drop values after their last
    use.
    """
    context = Context(program.constants)
    last = {operand: node for node in nodes for operand in node.inputs}
    for node in nodes:
        operands = [moved.get(operand, values[operand]) for operand in node.inputs]
        moved[node] = np.asarray(OPS[node.op].evaluate(operands, node.attrs, context))
        for operand in node.inputs:
            if last[operand] is node and operand not in program.outputs:
                moved.pop(operand, None)
