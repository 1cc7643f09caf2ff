"""Ranges by unit: the values with units that may be divided by sizes of their own, and these sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import networkx
import numpy as np

from heliograph import rounding
from heliograph.ir import Array, Node, Program, shape_of
from heliograph.ir.ops.table import OPS, Bounds, Role, role_of
from heliograph.passes.ranges.calibrate import Observed

# The least size of a unit, as a share of the largest: a unit that is zero in all samples needs some size to divide by.
_SMALLEST = 1e-6
# The same for units after another polynomial: its errors come from units of all sizes, so even a small unit may have an
# error as large as a share of the largest unit's range.
_SMALLEST_BEHIND = 0.25


@dataclass(slots=True)
class UnitGroup:
    """Values that are divided by the same sizes, linked by sums and by activations.

    A homogeneous activation has f(x) = r f(x / r), so its result and its input are divided by the same sizes; so are
    the operands of a sum. An identity shortcut therefore stays an identity. The activations of one group share the
    shape of their ranges.

    `activations`: the activations, in program order.
    `reaches`: half the observed range of each activation's input, by element.
    `sizes`: the sizes, one for each element; None until they are settled.
    `reach`: half the range of each activation's input, as a multiple of the sizes.
    """

    activations: list[Node]
    reaches: list[Array]
    sizes: Array | None = None
    reach: dict[Node, float] = field(default_factory=dict)
    # A proved range replaces the observed one if it is wider by no more than this factor, in the geometric mean over
    # the units.
    worth_a_proof: float = 1.0

    def settle(self, node: Node, proved: Bounds | None) -> Array:
        """The sizes, fixed on the first call, which is for the group's first value.

        If that is the input of the group's only activation, its proved bounds narrow the range.
        """
        if self.sizes is not None:
            return self.sizes
        if len(self.activations) == 1:
            (reach,) = self.reaches
            if node is self.activations[0].inputs[0] and proved is not None:
                whole = _by_unit(np.maximum(np.abs(proved[0]), np.abs(proved[1])), shape_of(node))
                further = float(np.log(np.maximum(whole / reach, 1.0)).mean())
                reach = whole if 0.0 < further <= math.log(self.worth_a_proof) else np.minimum(reach, whole)
                reach = np.maximum(reach, _SMALLEST * max(float(reach.max()), _SMALLEST))
            self.sizes, self.reach = rounding.upward_all(reach), {self.activations[0]: 1.0}
        else:
            self.sizes = rounding.upward_all(np.max([reach / reach.max() for reach in self.reaches], axis=0))
            self.reach = {
                activation: rounding.upward(float((reach / self.sizes).max()))
                for activation, reach in zip(self.activations, self.reaches, strict=True)
            }
        return self.sizes


def _by_unit(sizes: Array, shape: tuple[int, ...]) -> Array:
    """The largest size of each element's unit: a channel of a map, an element of a vector."""
    if len(shape) < 2:
        return sizes
    table = sizes.reshape(shape[0], -1)
    return np.broadcast_to(table.max(axis=1, keepdims=True), table.shape).ravel()


def unit_groups(
    program: Program, observed: Mapping[Node, Observed], margin: float, worth_a_proof: float = 1.0
) -> dict[Node, UnitGroup]:
    """The group of every value that can be divided by unit.

    Only linear maps surround the sums and activations of a group; their rows and columns absorb the sizes.
    """
    users = program.users()
    graph: networkx.Graph = networkx.Graph()
    for node in program.nodes:
        if _links(node, observed):
            graph.add_edges_from((node, operand) for operand in node.inputs)
    outputs = set(program.outputs)
    behind = _behind_polynomials(program)
    order = {node: place for place, node in enumerate(program.nodes)}
    table: dict[Node, UnitGroup] = {}
    for members in networkx.connected_components(graph):
        activations = sorted((node for node in members if _is_activation(node)), key=order.__getitem__)
        if not activations or members & outputs or not all(_may_divide(node, users, graph) for node in members):
            continue
        reaches = [_reach(node, observed, margin, node in behind) for node in activations]
        group = UnitGroup(activations, reaches, worth_a_proof=worth_a_proof)
        table.update(dict.fromkeys(members, group))
    return table


def _is_activation(node: Node) -> bool:
    family = OPS[node.op].activation
    return family is not None and family.homogeneous


def _links(node: Node, observed: Mapping[Node, Observed]) -> bool:
    """Whether the node's result and its operands are divided by the same sizes."""
    if not node.type.secret:
        return False
    if role_of(node) is Role.SUM:
        return all(shape_of(operand) == shape_of(node) for operand in node.inputs)
    if not _is_activation(node) or {"low", "high", "gap"} & node.attrs.keys():
        return False
    seen = observed.get(node.inputs[0])
    return seen is not None and seen.reach is not None


def _may_divide(node: Node, users: Mapping[Node, list[Node]], graph: networkx.Graph) -> bool:
    """Whether the node's value can be divided by sizes that all its readers can absorb."""
    if node.op == "constant":
        return all(graph.has_edge(node, user) for user in users[node])
    if not node.type.secret or (node.op != "affine" and not any(graph.has_edge(node, o) for o in node.inputs)):
        return False
    return all(user.op == "affine" or graph.has_edge(node, user) for user in users[node])


def _reach(node: Node, observed: Mapping[Node, Observed], margin: float, behind: bool) -> Array:
    """Half the range of each element of an activation's input, margin included."""
    seen = observed[node.inputs[0]].reach
    assert seen is not None
    reach: Array = np.broadcast_to(seen * (1.0 + margin), shape_of(node)).ravel()
    largest = float(reach.max())
    return np.maximum(reach, (_SMALLEST_BEHIND if behind else _SMALLEST) * max(largest, _SMALLEST))


def _behind_polynomials(program: Program) -> set[Node]:
    """The nodes that depend on the result of a polynomial."""
    behind: set[Node] = set()
    for node in program.nodes:
        if any(operand in behind or _approximated(operand) for operand in node.inputs):
            behind.add(node)
    return behind


def _approximated(node: Node) -> bool:
    return node.type.secret and OPS[node.op].activation is not None
