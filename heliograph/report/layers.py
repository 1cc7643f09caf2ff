"""The program by layers: runs of consecutive operations, and a graph with a box for each layer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import networkx

from heliograph.report.depth import DepthRow

_BOOTSTRAP = "bootstrap"
# Ops that bring a value of one layer to the level and chain of its reader; they are not a layer's own work.
_BETWEEN = ("level_drop", "switch_chain")


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive operations of one layer: the first one, and their number."""

    layer: str
    first: int
    count: int


def layer_of(row: DepthRow) -> str:
    """The name of a row's layer, or its operation if it has no layer."""
    return row.layer or row.op


def runs(rows: Sequence[DepthRow]) -> list[Run]:
    """The rows in program order, grouped into runs of one layer; a level drop joins the run around it."""
    found: list[Run] = []
    for place, row in enumerate(rows):
        if found and (found[-1].layer == layer_of(row) or row.op in _BETWEEN):
            found[-1] = Run(found[-1].layer, found[-1].first, found[-1].count + 1)
        else:
            found.append(Run(layer_of(row), place, 1))
    return found


def is_bootstrap(row: DepthRow) -> bool:
    return row.op == _BOOTSTRAP


@dataclass(frozen=True, slots=True)
class Box:
    """The operations of a layer between two bootstraps, or the bootstraps between two layers.

    `layers`: the names of its layers; `layer` is what the box is called.
    `high`: the highest level of the box's operands.
    `low`: the highest level of its results that others read; a bootstrap raises it.
    `critical_inputs`: the boxes from which the critical path comes.
    """

    name: str
    inputs: tuple[str, ...]
    layer: str
    layers: tuple[str, ...]
    location: str
    operations: int
    high: int
    low: int
    bootstraps: int
    critical_inputs: tuple[str, ...]
    critical: bool


def layer_graph(rows: Sequence[DepthRow]) -> list[Box]:
    """The boxes in topological order; layers that read each other share a box."""
    by_name = {row.name: row for row in rows}
    # The most bootstraps before a row on any path. A layer with rows before and after a bootstrap has two boxes.
    passed: dict[str, int] = {}
    group: dict[str, tuple[int, str]] = {}
    graph = networkx.DiGraph()
    for row in rows:
        before = max((passed[name] for name in row.inputs), default=0)
        passed[row.name] = before + is_bootstrap(row)
        if is_bootstrap(row):
            group[row.name] = (2 * before + 1, _BOOTSTRAP)
        elif row.op in _BETWEEN and group[row.inputs[0]][1] != _BOOTSTRAP:
            # Assigning it to its reader would merge two layers that do not read each other.
            group[row.name] = group[row.inputs[0]]
        else:
            group[row.name] = (2 * before, layer_of(row))
        graph.add_node(group[row.name])
        graph.add_edges_from((group[name], group[row.name]) for name in row.inputs if group[name] != group[row.name])
    condensed = networkx.condensation(graph)
    held: dict[int, list[DepthRow]] = {}
    of = {row.name: condensed.graph["mapping"][group[row.name]] for row in rows}
    for row in rows:
        held.setdefault(of[row.name], []).append(row)
    order = {node: place for place, node in enumerate(held)}
    # A box's results: values that are read in another box, or nowhere.
    inner = {name for row in rows for name in row.inputs if of[name] == of[row.name]}
    outer = {name for row in rows for name in row.inputs if of[name] != of[row.name]}
    # The critical path from box to box; each of its rows follows the previous one.
    critical = [row for row in rows if row.critical]
    path: dict[int, set[str]] = {}
    for source, target in itertools.pairwise(critical):
        if of[source.name] != of[target.name]:
            path.setdefault(of[target.name], set()).add(str(of[source.name]))
    boxes = []
    for node in networkx.lexicographical_topological_sort(condensed, key=order.__getitem__):
        members = held[node]
        work = [row for row in members if row.op not in _BETWEEN] or members
        layers = list(dict.fromkeys(layer_of(row) for row in work))
        count = sum(map(is_bootstrap, members))
        read = [by_name[name].level for row in members for name in row.inputs if of[name] != node]
        boxes.append(
            Box(
                str(node),
                tuple(str(operand) for operand in sorted(condensed.predecessors(node))),
                _BOOTSTRAP if count else ", ".join(layers),
                tuple(layers),
                members[0].location,
                len(members),
                max(read, default=max(row.level for row in members)),
                max(row.level for row in members if row.name in outer or row.name not in inner),
                count,
                tuple(sorted(path.get(node, ()))),
                any(row.critical for row in members),
            )
        )
    return boxes
