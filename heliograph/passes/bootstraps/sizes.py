"""Observed sizes and slot periods of packed values: which ones can be bootstrapped, and in how many slots."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from heliograph.interpret import run_nodes
from heliograph.ir import Array, Node, Program, SlotsType
from heliograph.ir.analysis.depth import node_depth
from heliograph.ir.analysis.liveness import last_use_table
from heliograph.ir.ops.table import Context, rules_of

# The sizes of at most this many values are measured; each value doubles what the search has to try.
_MOST_SIZES = 128
# A stretch of a statement goes through at most this many levels, and has at least this many values.
_LEVELS, _FEWEST = 8, 4


def slot_periods(program: Program) -> dict[Node, int]:
    """The period of each secret value's slots in a packed program; the number of slots where they do not repeat."""
    periods: dict[Node, int] = {}
    layouts = {spec.name: spec.placed for spec in program.interface.inputs}
    context = Context(program.constants)
    for node in program.nodes:
        if not node.type.secret:
            continue
        assert isinstance(node.type, SlotsType)
        slots = node.type.slots
        if node.op == "input":
            layout = layouts.get(node.attrs["name"])
            periods[node] = slots if layout is None else layout.run * layout.samples
        else:
            known = [periods.get(operand, slots) for operand in node.inputs]
            periods[node] = rules_of(node).period(node, known, context)
    return periods


def observed_sizes(
    program: Program, samples: Mapping[Node, Array], margin: float, everywhere: bool = False
) -> dict[Node, int]:
    """The bits of each secret value's largest slot on the samples, plus twice the margin.

    `samples` are slot vectors by input node, with a leading sample axis. Only values where the program is narrow are
    measured; `everywhere`, those of every stretch of the program.
    """
    largest: dict[Node, float] = {}
    few = _in_every_stretch(program) if everywhere else _where_few_live(program)

    def look(node: Node, value: Array) -> None:
        # The bootstrap of a single value would lose the imaginary parts of a complex one.
        if node in few and not np.iscomplexobj(value):
            largest[node] = float(np.abs(value).max(initial=0.0))

    run_nodes(program, dict(samples), look)
    return {
        node: max(0, math.ceil(math.log2(max(size * (1 + 2 * margin), 1e-30))))
        for node, size in largest.items()
        if math.isfinite(size)
    }


def _made_by_server(node: Node) -> bool:
    return node.type.secret and node.op != "input"


def _where_few_live(program: Program) -> set[Node]:
    """The secret values where a program is narrow: where the fewest others wait to be read. At most `_MOST_SIZES` of
    them.

    A statement without any of these adds its own narrowest values. Inside a product of matrices there are many
    ciphertexts for each one before and after it.
    """
    ends = last_use_table(program.nodes, program.outputs)
    live, waiting = 0, {}
    for node, freed in zip(program.nodes, ends, strict=True):
        if _made_by_server(node):
            waiting[node] = live
            live += 1
        live -= sum(_made_by_server(program.nodes[place]) for place in freed)
    kept: set[Node] = set()
    for most in sorted(set(waiting.values()), reverse=True):
        kept = {node for node, others in waiting.items() if others <= most}
        if len(kept) <= _MOST_SIZES:
            break
        kept = set()
    # While values wait for a long time, a whole statement may have none of these; its own narrowest values are added.
    statements: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in waiting:
        statements[node.loc.layer, node.loc.short].append(node)
    for nodes in statements.values():
        if kept and kept.isdisjoint(nodes):
            fewest = min(waiting[node] for node in nodes)
            kept.update([node for node in nodes if waiting[node] == fewest][:_MOST_SIZES])
    return kept


def _in_every_stretch(program: Program) -> set[Node]:
    """The secret values that cut every stretch of a program: of those that a stretch makes, all that wait at its narrowest
    place.

    A stretch is some of the consecutive nodes of one statement: a softmax in groups of heads has stretches for each group,
    and a value of several ciphertexts waits with all of them. After its first layer, a program with a residual stream is
    nowhere as narrow as before, so a count of all values that wait does not find these.
    """
    depth: dict[Node, int] = {}
    waiting: dict[Node, None] = {}
    statement: tuple[str, str] | None = None
    own: set[Node] = set()
    # By stretch of this statement: the number of its nodes, and the fewest waiting values with its own among them.
    stretches: dict[int, tuple[int, int, list[Node]]] = {}
    found: set[Node] = set()

    def close() -> None:
        found.update(*(values for count, _, values in stretches.values() if count >= _FEWEST))
        stretches.clear()
        own.clear()

    for node, freed in zip(program.nodes, last_use_table(program.nodes, program.outputs), strict=True):
        made = _made_by_server(node)
        if made:
            waiting[node] = None
        for place in freed:
            waiting.pop(program.nodes[place], None)
        if not made:
            continue
        if statement != (node.loc.layer, node.loc.short):
            close()
            statement = node.loc.layer, node.loc.short
        own.add(node)
        depth[node] = node_depth(program, node) + max((depth.get(operand, 0) for operand in node.inputs), default=0)
        count, fewest, values = stretches.get(depth[node] // _LEVELS, (0, len(waiting), []))
        if len(waiting) <= fewest:
            fewest, values = len(waiting), [value for value in waiting if value in own]
        stretches[depth[node] // _LEVELS] = count + 1, fewest, values
    close()
    return found
