"""The predicted time of each layer, and how much of it is linear maps, polynomials or bootstraps, where that is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from heliograph.ckks.costs import CostTable
from heliograph.execution.prices import priced_ms
from heliograph.execution.protocol import Call
from heliograph.ir import Node, Program
from heliograph.ir.bootstraps.asked import REFRESHED, bootstraps, written_out
from heliograph.report.figures import LayerTime

LINEAR, ACTIVATION, BOOTSTRAP = "linear", "activation", "bootstrap"
Calls = Mapping[Node, Mapping[Call, int]]


def layer_name(node: Node) -> str:
    """The name of a node's layer, or its operation if it has no layer."""
    return node.loc.layer or node.op


def calls_by_layer(calls: Calls) -> dict[str, Counter[Call]]:
    """The calls of each layer, in program order."""
    table: dict[str, Counter[Call]] = {}
    for node, found in calls.items():
        table.setdefault(layer_name(node), Counter()).update(found)
    return table


def layer_times(program: Program, calls: Calls, costs: CostTable) -> tuple[LayerTime, ...]:
    """A row for each layer, in program order."""
    chains, kinds = program.planned.chains, kinds_of_work(program, calls)
    split: dict[tuple[str, str], float] = {}
    for node, found in calls.items():
        place = layer_name(node), kinds[node]
        split[place] = split.get(place, 0.0) + sum(
            count * priced_ms(call, chains, costs) for call, count in found.items()
        )
    return tuple(
        LayerTime(
            layer,
            sum(count * priced_ms(call, chains, costs) for call, count in found.items()),
            *(split.get((layer, kind), 0.0) for kind in (LINEAR, ACTIVATION, BOOTSTRAP)),
        )
        for layer, found in calls_by_layer(calls).items()
    )


def kinds_of_work(program: Program, calls: Calls) -> dict[Node, str]:
    """The kind of each node's work; empty for products of ciphertexts that no polynomial of the table of ranges explains.

    A bootstrap's are those of its nodes. At the place of a polynomial in the sources, all that follows a linear map before
    the first product or weighted sum belongs to the map, and the rest to the polynomial. At any other place the work is
    linear if no two ciphertexts are multiplied there.
    """
    within = {node for end in bootstraps(program) if end.op == REFRESHED for node in written_out(program, end)}
    fitted = {(entry.layer, entry.location) for entry in program.ranges}
    multiplied = {
        (node.loc.layer, node.loc.short)
        for node, found in calls.items()
        if node not in within and any(call.primitive == "mul" for call in found)
    }
    kinds: dict[Node, str] = {}
    for node, found in calls.items():
        place = (node.loc.layer, node.loc.short)
        if node in within:
            kinds[node] = BOOTSTRAP
        elif place not in fitted:
            kinds[node] = "" if place in multiplied else LINEAR
        else:
            read = {
                kinds[value] for value in node.inputs if value in kinds and (value.loc.layer, value.loc.short) == place
            }
            starts = node.op == "linear_transform" and ACTIVATION not in read
            follows = read == {LINEAR} and node.op != "lincomb" and all(call.primitive != "mul" for call in found)
            kinds[node] = LINEAR if starts or follows else ACTIVATION
    return kinds
