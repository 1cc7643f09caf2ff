"""How each product of two encrypted matrices is lowered: the cheapest way whose layouts its neighbours share."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.errors import PlanningError
from heliograph.ir import Node, Program, shape_of
from heliograph.ir.layout import Layout
from heliograph.passes.choose_layouts import Groups, pinned_layouts
from heliograph.passes.matrix_products import MatrixProduct, count, ways

# Products are priced at this level: their order does not depend on it.
_LEVEL = 3


def choose_products(
    program: Program, groups: Groups, ring: Ring, stride: int, costs: CostTable
) -> dict[Node, MatrixProduct]:
    """For each product of matrices the cheapest way, in program order; a PlanningError where none fits."""
    nodes = [node for node in program.nodes if node.op == "matrix_product" and node.type.secret]
    if not nodes:
        return {}
    pinned = dict(pinned_layouts(program, groups, ring.slots, stride))
    chosen: dict[Node, MatrixProduct] = {}
    for node in nodes:
        left, right = (shape_of(operand) for operand in node.inputs)
        all_ways = ways(node.attrs["kind"], (left, right), ring.slots, stride, node.attrs.get("scale", 1.0))  # type: ignore[arg-type]
        fitting = [
            way
            for way in all_ways
            if all(
                same(pinned.get(groups.of[value]), layout)
                for value, layout in zip((*node.inputs, node), way.layouts, strict=True)
            )
        ]
        if not fitting:
            raise PlanningError(
                f"no way to multiply matrices of shapes {left} and {right} on ring 2^{ring.log_ring}",
                where=node.loc,
                why="their values stand in other layouts for other operations"
                if all_ways
                else "one of them must have few rows, and a row of the other must fit into a ciphertext",
                hint="use a larger ring (Options.log_ring), or copy one of them by a linear map",
            )
        best = min(fitting, key=lambda way: count(way).price_ms(ring, costs, min(_LEVEL, ring.levels)))
        chosen[node] = best
        for value, layout in zip((*node.inputs, node), best.layouts, strict=True):
            pinned.setdefault(groups.of[value], layout)
    return chosen


def product_pins(groups: Groups, products: Mapping[Node, MatrixProduct]) -> dict[int, Layout]:
    """The layouts of the groups of values that products read and make."""
    pins: dict[int, Layout] = {}
    for node, product in products.items():
        for value, layout in zip((*node.inputs, node), product.layouts, strict=True):
            pins.setdefault(groups.of[value], layout)
    return pins


def same(known: Layout | None, layout: Layout) -> bool:
    """Whether elements stand where the layout has them, in copies of one period."""
    if known is None:
        return True
    return known.period == layout.period and np.array_equal(known.places(), layout.places())
