"""The slot layout of every tensor of a polynomial program: the cheapest choice over the whole graph.

Values that meet in a sum, a product or a polynomial share one layout: they are one group, a variable. The cost of a map
is the cost of its rotations and products, which depends on the layouts of its two ends. The sum is minimised exactly by
eliminating one variable after the other (Bertele and Brioschi, Nonserial Dynamic Programming, 1972), in the order that
fills in least. Where a table would grow too large, groups are improved one at a time instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import networkx
import numpy as np

from heliograph.ckks.ring import Ring
from heliograph.errors import InternalError, PlanningError, said
from heliograph.ir import Array, Node, Program, TensorType, shape_of
from heliograph.ir.analysis.carried import carried_pairs
from heliograph.ir.analysis.depth import program_depth
from heliograph.ir.maps.layout import MOST_STACKED, Layout, gap_axes
from heliograph.ir.node import next_power_of_two
from heliograph.ir.ops.table import Role, role_of

_MOST_CELLS = 1 << 22
_ROUNDS = 3
# Layouts with places that are sums over their axes may take this many times as many ciphertexts as others.
_MOST_FOR_EVEN = 4 / 3
# A value that takes more ciphertexts than this is refused: nothing else limits a program's memory.
MOST_CIPHERTEXTS = 256
# If each element is a ciphertext of its own: roughly how many nodes a polynomial becomes, and the most nodes for a
# program.
_NODES_OF_A_POLYNOMIAL, _MOST_NODES = 12, 1 << 16

Costs = Callable[[Node, Node, Any, Layout, Layout], float]


@dataclass(slots=True)
class Groups:
    """The secret values of a program, grouped by shared layout.

    `of`: the number of each value's group.
    `members`: the values of each group.
    """

    of: dict[Node, int]
    members: list[list[Node]]

    def shape(self, number: int) -> tuple[int, ...]:
        """The richest shape in a group: a spatial one if there is any."""
        shapes = [node.type.shape for node in self.members[number] if isinstance(node.type, TensorType)]
        return max(shapes, key=lambda shape: (len(shape) in (2, 3), len(shape)))


def in_the_clear(node: Node) -> bool:
    """Whether the server computes this value at run time from plain inputs (constants are known earlier)."""
    return not node.type.secret and node.op != "constant"


def group_values(program: Program) -> Groups:
    """The groups, in program order."""
    graph: networkx.Graph = networkx.Graph()
    graph.add_nodes_from(node for node in program.nodes if not in_the_clear(node))
    for node in graph:
        # An op's operands and result share a layout. The exceptions are maps, which lead from any layout to any other,
        # and ops on rows other than roll_rows: `pinned_layouts` gives their operands and results layouts of their own.
        # Products of matrices get their layouts from passes/packing/products/choose_products.py.
        if node.op not in ("affine", "input", "constant", "matrix_product") and (
            role_of(node) is not Role.ROWS or node.op == "roll_rows"
        ):
            graph.add_edges_from((node, operand) for operand in node.inputs if not in_the_clear(operand))
    # A value carried to the next run has the layout in which that run reads it.
    graph.add_edges_from(carried_pairs(program))
    order = {node: i for i, node in enumerate(program.nodes)}
    components = [sorted(c, key=order.__getitem__) for c in networkx.connected_components(graph)]
    groups = Groups({}, [])
    for members in sorted(components, key=lambda c: order[c[0]]):
        groups.of.update(dict.fromkeys(members, len(groups.members)))
        groups.members.append(members)
    return groups


def _gap_layout(
    shape: tuple[int, ...], slots: int, samples: int, gap: int = 1, width: int = 0, block: int = 0
) -> Layout:
    """A gap layout with its period: the least power of two that holds every place, at most one sample's slots."""
    layout = Layout(shape, slots, 1, gap_axes(shape, gap, width, block), samples=samples)
    return replace(layout, period=min(layout.own_slots, next_power_of_two(layout.last_place + 1)))


def pinned_layouts(program: Program, groups: Groups, slots: int, samples: int) -> dict[int, Layout]:
    """The layouts that ops on rows fix; a row takes the next power of two of its columns in slots."""
    pinned: dict[int, Layout] = {}
    for node in program.nodes:
        for member in (node, *node.inputs) if role_of(node) is Role.ROWS else ():
            shape, number = shape_of(member), groups.of[member]
            if node.op == "sum_runs":
                # Elements are adjacent, and the sum of a run is at the start of the run.
                gap = node.attrs["count"] if member is node else 1
                _pin(pinned, number, _gap_layout(shape, slots, samples, gap))
                continue
            block = next_power_of_two(shape[-1]) if len(shape) == 2 else 0
            layout = _gap_layout(shape, slots, samples, block=block)
            if layout.ciphertexts > 1:
                raise PlanningError(
                    f"{node.op} of a tensor of shape {shape} needs {next_power_of_two(layout.last_place + 1)} slots; "
                    f"a ciphertext has {slots // samples}",
                    hint="operations on rows work within one ciphertext",
                )
            _pin(pinned, number, layout)
    return pinned


def _pin(pinned: dict[int, Layout], number: int, layout: Layout) -> None:
    """Give a group of values its layout; an InternalError if it already has one with other places."""
    known = pinned.setdefault(number, layout)
    if known.period != layout.period or not np.array_equal(known.places(), layout.places()):
        raise InternalError(f"rows of two shapes share a layout: {known.shape} and {layout.shape}")


def candidate_layouts(
    program: Program,
    groups: Groups,
    slots: int,
    samples: int = 1,
    most_moved: int = 0,
    pins: Mapping[int, Layout] | None = None,
) -> list[list[Layout]]:
    """The layouts worth trying for each group: with the gaps, row widths and blocks of some tensor of the program.

    Values between maps may also have moved copies, over at most `most_moved` slots of a sample (ir/maps/diagonals.py):
    a map from these has fewer diagonals. `pins` are the layouts that are already settled.
    """
    pinned = {**(pins or {}), **pinned_layouts(program, groups, slots, samples)}
    shapes = [groups.shape(number) for number in range(len(groups.members))]
    frames = {(shape[-2], shape[-1]) for shape in shapes if len(shape) == 3}
    frames |= {(1, shape[-1]) for shape in shapes if len(shape) == 2}
    table = []
    for number, shape in enumerate(shapes):
        # Each with its gap and its block.
        layouts = [(1, 0, pinned.get(number) or _gap_layout(shape, slots, samples))]
        if len(shape) in (2, 3) and number not in pinned:
            rows, columns = (shape[-2] if len(shape) == 3 else 1), shape[-1]
            for frame_rows, frame_columns in sorted(frames):
                # Frames that fill more than a ciphertext end where a row does.
                wide = frame_rows * frame_columns > slots // samples
                width = next_power_of_two(frame_columns) if wide else frame_columns
                gap = 1
                while rows * gap <= max(frame_rows, gap if rows == 1 else 0) and columns * gap <= frame_columns:
                    area = max(frame_rows, rows * gap) * width
                    for block in {area, next_power_of_two(area)}:
                        layouts.append((gap, block, _gap_layout(shape, slots, samples, gap, width, block)))
                    gap *= 2
        if len(shape) == 2 and number not in pinned:
            # Columns outside, channels inside: a matrix and its transpose then have the same places.
            gap = next_power_of_two(shape[0])
            layouts.append((gap, 0, _gap_layout(shape, slots, samples, gap)))
        distinct = list({each[-1].places().tobytes(): each for each in reversed(layouts)}.values())
        most = MOST_STACKED if samples == slots else MOST_CIPHERTEXTS
        # More ciphertexts than necessary make everything more expensive.
        fewest = min(layout.ciphertexts for *_, layout in distinct)
        if fewest > 1:
            # But maps between layouts in which no channel is split between ciphertexts are far smaller.
            even = [each for each in distinct if each[-1].parts]
            count = min((layout.ciphertexts for *_, layout in even), default=0)
            if fewest <= count <= min(_MOST_FOR_EVEN * fewest, most):
                distinct, fewest = even, count
        if fewest > most:
            raise PlanningError(
                f"a tensor of shape {shape} needs {fewest} ciphertexts of {slots // samples} slots; at most {most} are "
                "supported",
                hint=said("use a larger ring ({Options.log_ring}), or a smaller tensor"),
            )
        fewer = [each for each in distinct if each[-1].ciphertexts == fewest]
        fitting = [layout for *_, layout in sorted(fewer, key=lambda each: (each[-1].period, *each[:-1]))]
        if fewest == 1 and number not in pinned and _between_maps(program, groups.members[number]):
            fitting += [moved for layout in fitting for moved in _moved(layout, most_moved)]
        table.append(fitting)
    return table


def _between_maps(program: Program, members: Sequence[Node]) -> bool:
    """Whether a group has only values between maps: no inputs, no outputs, no ops with plain vectors."""
    return not any(
        node.op == "input" or node in program.outputs or any(in_the_clear(operand) for operand in node.inputs)
        for node in members
    )


def _moved(layout: Layout, most: int) -> list[Layout]:
    """The layout with 2, 4, ... moved copies."""
    made, copies = [], 2
    while layout.period * copies <= most and copies <= layout.period:
        made.append(replace(layout, shift=layout.period // copies, copies=copies))
        copies *= 2
    return made


def largest_batch(program: Program, slots: int) -> int:
    """The largest power of two of samples that fit side by side: the slots over the largest period of a tensor."""
    groups = group_values(program)
    period = 1
    for layouts in candidate_layouts(program, groups, slots):
        if layouts[0].ciphertexts > 1:
            return 1
        period = max(period, min(layout.period for layout in layouts))
    return slots // period


def one_for_each_slot(program: Program, ring: Ring) -> bool:
    """Whether as many samples as slots can be evaluated at once: no op needs a tensor's elements in one ciphertext.

    Programs that need bootstraps are excluded, because each element would take its own. So are programs of very many
    nodes, which would not fit any memory.
    """
    secret = [node for node in program.nodes if not in_the_clear(node)]
    sizes = [(node, math.prod(shape_of(node))) for node in secret]
    nodes = sum(size * (_NODES_OF_A_POLYNOMIAL if node.op == "poly" else 1) for node, size in sizes)
    few = all(size <= MOST_STACKED for _, size in sizes) and nodes <= _MOST_NODES
    return (
        few
        and program_depth(program, apart=True) <= ring.levels
        and not any(role_of(node) is Role.ROWS for node in secret)
    )


def choose_layouts(
    program: Program, groups: Groups, candidates: Sequence[Sequence[Layout]], cost: Costs
) -> list[Layout]:
    """The layout of each group; `cost(node, operand, matrix, layout, out)` prices one map of an `affine`."""
    tables: dict[tuple[int, ...], Array] = {}
    for node in program.nodes:
        if node.op != "affine" or not node.type.secret:
            continue
        end = groups.of[node]
        for operand, name in zip(node.inputs, node.attrs["matrices"], strict=True):
            start = groups.of[operand]
            if start == end:
                prices = np.array([cost(node, operand, name, layout, layout) for layout in candidates[end]])
                key: tuple[int, ...] = (end,)
            else:
                prices = np.array(
                    [
                        [cost(node, operand, name, layout, out) for out in candidates[end]]
                        for layout in candidates[start]
                    ]
                )
                key = (start, end)
                if start > end:
                    key, prices = (end, start), prices.T
            tables[key] = tables[key] + prices if key in tables else prices
    sizes = [len(layouts) for layouts in candidates]
    picked = _eliminate(tables, sizes)
    if picked is None:
        picked = _descend(tables, sizes)
    return [layouts[number] for layouts, number in zip(candidates, picked, strict=True)]


def _eliminate(tables: Mapping[tuple[int, ...], Array], sizes: Sequence[int]) -> list[int] | None:
    """The choice with the least total cost; None if a table would have too many cells."""
    graph: networkx.Graph = networkx.Graph()
    graph.add_nodes_from(range(len(sizes)))
    for key in tables:
        graph.add_edges_from((a, b) for a in key for b in key if a < b)
    left = list(tables.items())
    steps: list[tuple[int, tuple[int, ...], Array]] = []
    for _ in sizes:
        variable = min(graph, key=lambda v: (_fill(graph, v), graph.degree(v), v))
        around = tuple(sorted(graph[variable]))
        if int(np.prod([sizes[v] for v in (*around, variable)], dtype=np.int64)) > _MOST_CELLS:
            return None
        total = np.zeros([sizes[v] for v in (*around, variable)])
        for key, table in (item for item in left if variable in item[0]):
            total = total + _spread(table, key, (*around, variable))
        left = [item for item in left if variable not in item[0]]
        steps.append((variable, around, total.argmin(axis=-1)))
        left.append((around, total.min(axis=-1)))
        graph.add_edges_from((a, b) for a in around for b in around if a < b)
        graph.remove_node(variable)
    picked = [0] * len(sizes)
    for variable, around, best in reversed(steps):
        picked[variable] = int(best[tuple(picked[v] for v in around)])
    return picked


def _fill(graph: networkx.Graph, variable: int) -> int:
    """The edges that eliminating a variable adds."""
    around = list(graph[variable])
    return sum(not graph.has_edge(a, b) for i, a in enumerate(around) for b in around[:i])


def _spread(table: Array, key: tuple[int, ...], over: tuple[int, ...]) -> Array:
    """The table with its axes in the order of `over`; axes on which it does not depend have length one."""
    order = sorted(range(len(key)), key=lambda axis: over.index(key[axis]))
    there = dict(zip((key[axis] for axis in order), np.transpose(table, order).shape, strict=True))
    return np.transpose(table, order).reshape([there.get(v, 1) for v in over])


def _descend(tables: Mapping[tuple[int, ...], Array], sizes: Sequence[int]) -> list[int]:
    """A choice found by improving one group after the other, until nothing changes or `_ROUNDS` are over."""
    picked = [0] * len(sizes)
    for _ in range(_ROUNDS):
        before = list(picked)
        for variable, size in enumerate(sizes):
            prices = np.zeros(size)
            for key, table in tables.items():
                if variable in key:
                    prices += table[tuple(slice(None) if v == variable else picked[v] for v in key)]
            picked[variable] = int(prices.argmin())
        if picked == before:
            break
    return picked
