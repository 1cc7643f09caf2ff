"""The lowering of each product of two encrypted matrices: the cheapest ways with matching layouts."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.errors import PlanningError, said
from heliograph.execution.bootstrap_work import bootstrap_ms
from heliograph.execution.prices import Work, prices_on
from heliograph.ir import Node, Program, shape_of
from heliograph.ir.maps.layout import Layout
from heliograph.ir.ops.table import Role, role_of
from heliograph.passes.levels.node_work import program_work
from heliograph.passes.packing.choose_layouts import Groups, pinned_layouts
from heliograph.passes.packing.products.matrix_products import Combine, MatrixProduct, ways

# The level of a product's result where it is priced: the order of the ways hardly depends on it.
_LEVEL = 1
# Where values are bootstrapped, this many levels cost about as much as one bootstrap.
_LEVELS_OF_A_BOOTSTRAP = 8
# At most this many choices are examined; after that, the best one so far is taken.
_MOST_CHOICES = 20_000


def choose_products(
    program: Program, groups: Groups, ring: Ring, samples: int, costs: CostTable
) -> dict[Node, MatrixProduct]:
    """The way of each product of matrices: the cheapest choice in which every value has a single layout.

    Raises PlanningError if there is no such choice.
    """
    nodes = [node for node in program.nodes if node.op == "matrix_product" and node.type.secret]
    if not nodes:
        return {}
    level_ms = 0.0 if ring.bootstrap is None else bootstrap_ms(ring, ring.slots, costs) / _LEVELS_OF_A_BOOTSTRAP

    @functools.cache
    def priced(kind: str, left: tuple[int, int], right: tuple[int, int]) -> list[tuple[float, MatrixProduct]]:
        """The ways to lower a product of this kind and these shapes, the cheapest first."""
        found = [
            (product_ms(way, ring, costs) + way.more_levels * level_ms, way)
            for way in ways(kind, (left, right), ring.slots, samples, 1.0)
        ]
        return sorted(found, key=lambda item: item[0])

    def options(node: Node) -> list[tuple[float, MatrixProduct]]:
        left, right = (cast("tuple[int, int]", shape_of(operand)) for operand in node.inputs)
        return priced(node.attrs["kind"], left, right)

    search = _Search(groups, nodes, [options(node) for node in nodes])
    pinned = {
        number: _places(layout) for number, layout in pinned_layouts(program, groups, ring.slots, samples).items()
    }
    search.choose(0, 0.0, pinned, [])
    if search.best is None:
        node = nodes[search.reached]
        left, right = (shape_of(operand) for operand in node.inputs)
        raise PlanningError(
            f"no way to multiply matrices of shapes {left} and {right} on ring 2^{ring.log_ring}",
            where=node.loc,
            why="their values have other layouts for other operations"
            if options(node)
            else "one of them must have few rows, and a row of the other must fit into a ciphertext",
            hint=said("use a larger ring ({Options.log_ring}), or copy one of them by a linear map"),
        )
    made = {node: way.scaled(node.attrs.get("scale", 1.0)) for node, way in zip(nodes, search.best, strict=True)}
    return _cleaned(program, groups, made)


@functools.lru_cache(maxsize=1024)
def product_work(product: MatrixProduct) -> Work:
    """The work of a product as it is written, relative to the level of its result."""
    return program_work(product.program(), product.out.slots)


def product_ms(product: MatrixProduct, ring: Ring, costs: CostTable) -> float:
    """Milliseconds of a product, each call at its own level."""
    return float(prices_on((ring,), costs).ms(product_work(product).calls, _LEVEL))


def _cleaned(program: Program, groups: Groups, products: Mapping[Node, MatrixProduct]) -> dict[Node, MatrixProduct]:
    """The products, with `cleaned` set where one needs zeros beside its small operand's elements and other values are
    there.
    """
    dirty = {groups.of[node] for node in program.nodes if node in groups.of and _leaves_values(program, node)}
    before = -1
    while len(dirty) != before:
        before = len(dirty)
        for node, product in products.items():
            # Values beside the columns of X end up beside the columns of the result.
            if isinstance(product.how, Combine) and groups.of[node.inputs[product.big]] in dirty:
                dirty.add(groups.of[node])
    return {
        node: replace(product, cleaned=product.how.wants_zeros and groups.of[node.inputs[1 - product.big]] in dirty)
        for node, product in products.items()
    }


def _leaves_values(program: Program, node: Node) -> bool:
    """Whether an op may leave nonzero values beside the elements, in slots that hold zero before it."""
    if node.op == "poly":
        coefficients = program.array(node.attrs["coefficients"])
        return abs(float(np.polynomial.chebyshev.chebval(0.0, coefficients))) > 0.0
    return role_of(node) is Role.ROWS


class _Search:
    """A depth-first search over all choices of ways, the cheapest first."""

    def __init__(
        self, groups: Groups, nodes: Sequence[Node], options: Sequence[Sequence[tuple[float, MatrixProduct]]]
    ) -> None:
        self._groups, self._nodes, self._options = groups, nodes, options
        self.best: list[MatrixProduct] | None = None
        self.reached = 0
        self._cost, self._looked = math.inf, 0

    def choose(self, number: int, cost: float, pinned: dict[int, str], chosen: list[MatrixProduct]) -> None:
        """Search the choices for the products from `number` on, with the layouts pinned so far; keep the best."""
        self.reached = max(self.reached, min(number, len(self._nodes) - 1))
        if cost >= self._cost:
            return
        if number == len(self._nodes):
            self._cost, self.best = cost, chosen
            return
        node = self._nodes[number]
        for price, way in self._options[number]:
            self._looked += 1
            if self._looked > _MOST_CHOICES and self.best is not None:
                return
            now = dict(pinned)
            values = zip((*node.inputs, node), way.layouts, strict=True)
            if all(
                now.setdefault(self._groups.of[value], _places(layout)) == _places(layout) for value, layout in values
            ):
                self.choose(number + 1, cost + price, now, [*chosen, way])


@functools.lru_cache(maxsize=256)
def _places(layout: Layout) -> str:
    """A digest of a layout's places, with its period and its number of ciphertexts."""
    return f"{layout.period} {layout.ciphertexts} {hashlib.blake2b(layout.places().tobytes()).hexdigest()}"


def product_pins(groups: Groups, products: Mapping[Node, MatrixProduct]) -> dict[int, Layout]:
    """The layouts of the products' operands and results, by group."""
    pins: dict[int, Layout] = {}
    for node, product in products.items():
        for value, layout in zip((*node.inputs, node), product.layouts, strict=True):
            pins.setdefault(groups.of[value], layout)
    return pins
