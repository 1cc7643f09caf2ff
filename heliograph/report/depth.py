"""Where the levels go: the depth, level and scale of every node of a managed program, and the critical path."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import networkx

from heliograph.errors import ProgramError
from heliograph.ir import CipherType, Program, Stage
from heliograph.ir.bootstraps.asked import REFRESHED, WHOLE, bootstrapped, inside_bootstraps
from heliograph.report.compiled import Compiled

# Among paths with the same number of levels, prefer the one with the most nodes: it starts at an input and ends at an
# output.
_LEVEL_WEIGHT = 1 << 32


@dataclass(frozen=True, slots=True)
class DepthRow:
    """One node. `depth` is the number of levels spent on the way from the inputs, `level` the number left."""

    name: str
    op: str
    inputs: tuple[str, ...]
    stage: str
    depth: int
    level: int
    scale_bits: float
    location: str
    layer: str
    critical: bool


@dataclass(frozen=True, slots=True)
class DepthReport:
    """The depth of every node, and the critical path.

    `rows`: the nodes in program order.
    `critical_path`: the names of the nodes on the critical path.
    `spent`: (location, layer, levels), the levels that each source line spends on the path, in its order.
    """

    rows: tuple[DepthRow, ...]
    critical_path: tuple[str, ...]
    spent: tuple[tuple[str, str, int], ...]
    depth: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "depth": self.depth,
            "critical_path": list(self.critical_path),
            "spent": [{"location": place, "layer": layer, "levels": levels} for place, layer, levels in self.spent],
            "nodes": [{**asdict(row), "inputs": list(row.inputs)} for row in self.rows],
        }

    def __str__(self) -> str:
        lines = [f"depth {self.depth}; the critical path (*) spends"]
        for place, layer, levels in self.spent:
            lines.append(f"  {levels} level{'s' if levels > 1 else ' '} at {place}{f' ({layer})' if layer else ''}")
        header = ("", "node", "op", "depth", "level", "scale bits", "line")
        cells = [
            (
                "*" if row.critical else "",
                row.name,
                row.op,
                str(row.depth),
                str(row.level),
                f"{row.scale_bits:.3f}",
                f"{row.location}{f' ({row.layer})' if row.layer else ''}",
            )
            for row in self.rows
        ]
        widths = [max(len(line[i]) for line in (header, *cells)) for i in range(len(header))]
        for line in (header, *cells):
            lines.append(" ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        return "\n".join(lines)


def depth_report(program: Program) -> DepthReport:
    """The report of a program at the managed or executable stage.

    A rescale spends a level, which counts for the line of the rescaled product. A written-out bootstrap has one row,
    like a bootstrap that is a single op; the program's text has the rest.
    """
    if program.stage not in (Stage.MANAGED, Stage.EXECUTABLE):
        raise ProgramError(f"levels are planned at the managed stage; this program is at {program.stage.value}")
    names, inside = program.names(), inside_bootstraps(program)
    depth: dict[Any, int] = {}
    graph = networkx.DiGraph()
    for node in program.nodes:
        if not node.type.secret or node in inside:
            continue  # plain values have no level
        cost = int(node.op == "rescale")
        depth[node] = (
            max((depth.get(operand, 0) for operand in bootstrapped(node) if operand.type.secret), default=0) + cost
        )
        graph.add_node(names[node])
        for operand in bootstrapped(node):
            if operand.type.secret:
                graph.add_edge(names[operand], names[node], weight=cost * _LEVEL_WEIGHT + 1)
    path = tuple(networkx.dag_longest_path(graph, weight="weight"))
    critical = set(path)
    spent: Counter[tuple[str, str]] = Counter()
    rows = []
    for node in program.nodes:
        if not isinstance(node.type, CipherType) or node in inside:
            continue  # plain values have no level
        name = names[node]
        if name in critical and node.op == "rescale":
            spent[node.loc.short, node.loc.layer] += 1
        rows.append(
            DepthRow(
                name,
                WHOLE if node.op == REFRESHED else node.op,
                tuple(names[operand] for operand in bootstrapped(node) if operand.type.secret),
                program.stage.value,
                depth[node],
                node.type.level,
                node.type.log_scale,
                node.loc.short,
                node.loc.layer,
                name in critical,
            )
        )
    by_line = tuple((place, layer, levels) for (place, layer), levels in spent.items())
    return DepthReport(tuple(rows), path, by_line, max(depth.values(), default=0))


def artifact_depth(artifact: Compiled) -> DepthReport:
    """The report of an artifact's executable program; texts of earlier stages are unverified claims of its author."""
    return depth_report(artifact.program)
