"""The calls of each way to lower a product of two encrypted matrices."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import replace

from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.execution.prices import prices_on
from heliograph.ir import Node, Program
from heliograph.ir.maps.steps import Offsets, share_babies
from heliograph.ir.ops.slots.transforms import transform_offsets
from heliograph.ir.ops.table import Role, role_of
from heliograph.passes.packing.products.matrix_products import MatrixProduct

# Ops of these roles read ciphertexts of two parts.
_TWO_PARTS = (Role.ROTATION, Role.PLAIN_PRODUCT, Role.PART)


def count(product: MatrixProduct) -> Counter[str]:
    """The calls of a product by primitive, whatever its scale; rescales are not counted."""
    return _counted(replace(product, scale=1.0))


def price_ms(calls: Counter[str], ring: Ring, costs: CostTable, level: int) -> float:
    """Milliseconds of calls, all at one level."""
    prices = prices_on((ring,), costs)
    return sum(number * prices.at(name, level) for name, number in calls.items())


@functools.lru_cache(maxsize=1024)
def _counted(product: MatrixProduct) -> Counter[str]:
    return calls_of(product.program())


def calls_of(program: Program) -> Counter[str]:
    """The calls of a packed program by primitive, at whatever levels."""
    calls: Counter[str] = Counter()
    # Products not yet relinearized.
    three: set[Node] = set()

    offsets = {
        # Maps of products have the same period at both ends.
        node: [
            Offsets(each, node.attrs["geometry"].in_period * node.attrs["geometry"].samples)
            for each in transform_offsets(node.attrs, program.linear_map)
        ]
        for node in program.nodes
        if node.op == "linear_transform"
    }
    babies = share_babies(program.nodes, offsets.__getitem__, ())
    # Rotations of the same value share its decomposition.
    for turned in Counter(node.inputs[0] for node in program.nodes if node.op == "rotate").values():
        calls["rotate" if turned == 1 else "rotate_hoisted"] += turned
        calls["decompose"] += turned > 1
    for node in program.nodes:
        role = role_of(node)
        if role in _TWO_PARTS:
            calls["relinearize"] += len(three.intersection(node.inputs))
            three -= set(node.inputs)
        elif role is Role.PRODUCT or (role is Role.SUM and three.intersection(node.inputs)):
            three.add(node)
        if role is Role.SUM:
            calls["add"] += 1
        elif role is Role.PRODUCT:
            calls["mul"] += 1
        elif role is Role.PART:
            calls["conjugate"] += 1
        elif node.op == "mul_plain":
            calls["mul_plain"] += 1
        elif node.op == "linear_transform":
            calls["summed_product"] += sum(len(each.offsets) for each in offsets[node])
            calls["rotate"] += sum(1 for g in node.attrs["giant_steps"] if g)
            for position in range(len(node.inputs)):
                steps = babies[node, position]
                calls["rotate_hoisted" if steps.hoisted else "rotate"] += len(steps.make)
                calls["decompose"] += steps.decompose
    return calls
