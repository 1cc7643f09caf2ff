"""Refresh two values in one bootstrap: x and y as the real and the imaginary part of x + iy.

A real vector uses half of its ciphertext's capacity, whatever the number of slots. A bootstrap that keeps imaginary
parts reduces two polynomials instead of one, but runs its linear transforms once; it takes less time than two
bootstraps. Each part is then extracted by a conjugation, which spends no level. x + iy enters at half the size, because
the sum with the conjugate doubles the real part, so each part has one bit less of precision. Values of different sizes
are not paired: the smaller one would also lose the difference in size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import networkx as nx

from heliograph.ckks.costs import BUILT_IN, CostTable
from heliograph.ckks.ring import Ring
from heliograph.execution.bootstrap_work import bootstrap_ms
from heliograph.ir import Attr, Builder, Node, Program, Stage


@dataclass(frozen=True, slots=True)
class PairBootstraps:
    """Joins independent bootstraps with the same number of slots in pairs.

    It does so for each number of slots where all bootstraps of that number together become faster. They then all keep
    imaginary parts, also one that is left without a partner (`ir/bootstraps/asked.py`).
    """

    ring: Ring
    costs: CostTable = field(default=BUILT_IN)

    name: ClassVar[str] = "pair-bootstraps"
    needs: ClassVar[Stage] = Stage.PACKED
    makes: ClassVar[Stage] = Stage.PACKED

    def run(self, program: Program) -> Program:
        by_slots: dict[int, dict[int, list[Node]]] = defaultdict(lambda: defaultdict(list))
        for node in program.nodes:
            # A bootstrap that computes a series takes a single value.
            if node.op == "bootstrap" and node.attrs.get("series") is None:
                by_slots[node.attrs["slots"]][node.attrs.get("size_bits", 0)].append(node)
        graph = nx.DiGraph()
        graph.add_nodes_from(program.nodes)
        graph.add_edges_from((operand, node) for node in program.nodes for operand in node.inputs)
        partner: dict[Node, Node] = {}
        for slots, by_size in sorted(by_slots.items()):
            tried, pairs = graph.copy(), dict[Node, Node]()
            for nodes in by_size.values():
                pairs |= _pairs(tried, nodes)
            count = sum(map(len, by_size.values()))
            together = (count - len(pairs)) * bootstrap_ms(self.ring, slots, self.costs, paired=True)
            if together < count * bootstrap_ms(self.ring, slots, self.costs):
                graph = tried
                partner.update(pairs)
        return _rewritten(program, graph, partner) if partner else program


def _pairs(graph: nx.DiGraph, nodes: Iterable[Node]) -> dict[Node, Node]:
    """Each bootstrap with the first later one that does not depend on it; `graph` gets edges that make both wait."""
    pairs: dict[Node, Node] = {}
    left = list(nodes)
    while left:
        first = left.pop(0)
        for second in left:
            # Neither operand may depend on the other's result.
            if nx.has_path(graph, first, second.inputs[0]) or nx.has_path(graph, second, first.inputs[0]):
                continue
            graph.add_edges_from([(first.inputs[0], second), (second.inputs[0], first)])
            pairs[first] = second
            left.remove(second)
            break
    return pairs


def _rewritten(program: Program, graph: nx.DiGraph, pairs: Mapping[Node, Node]) -> Program:
    order = {node: number for number, node in enumerate(program.nodes)}
    builder = Builder(program.name, Stage.PACKED, program)
    new: dict[Node, Node] = {}
    firsts = {second: first for first, second in pairs.items()}
    for node in nx.lexicographical_topological_sort(graph, key=order.__getitem__):
        if node in new:
            continue
        first = firsts.get(node, node)
        if node.op == "input":
            builder.inputs.append(node)
            new[node] = node
        elif first in pairs:
            both = (first, pairs[first])
            joined = builder.op("bootstrap", [new[each.inputs[0]] for each in both], first.loc, **_joined(both))
            for each, part in zip(both, ("real_part", "imaginary_part"), strict=True):
                new[each] = builder.op(part, (joined,), each.loc)
        else:
            new[node] = builder.copy(node, [new[operand] for operand in node.inputs])
    return builder.finish(dict(zip(program.output_names, (new[node] for node in program.outputs), strict=True)))


def _joined(pair: tuple[Node, Node]) -> dict[str, Attr]:
    attrs: dict[str, Attr] = {
        "slots": pair[0].attrs["slots"],
        "size_bits": 1 + pair[0].attrs.get("size_bits", 0),
    }
    if observed := sum(node.attrs.get("observed", 0) for node in pair):
        attrs["observed"] = observed
    if any("ranges" in node.attrs for node in pair):
        attrs["ranges"] = tuple(node.attrs.get("ranges", (-1,))[0] for node in pair)
        attrs["chunks"] = tuple(node.attrs.get("chunks", (0,))[0] for node in pair)
    return attrs
