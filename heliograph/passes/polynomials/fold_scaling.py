"""Bring the input of every polynomial to [-1, 1] without spending a level, by scaling the ops before and after it.

Polynomials of degree 2 become squares in the same way, which saves one of their two levels (squares.py).

Each value is kept divided by a factor. Values that are added share one factor. Linear maps, polynomials and products of
matrices convert any factor to any other at no cost, because their coefficients absorb it (for products of matrices, the
maps before and after them). A polynomial needs a scaling of its own, which costs a level, only where an elementwise
product or an input fixes the factor.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import networkx
import numpy as np
import scipy.sparse

from heliograph.approx.fits.trigonometric import as_polynomial
from heliograph.ir import Builder, Node, Program, SparseMatrix, Stage, TensorType
from heliograph.ir.analysis.depth import trim
from heliograph.ir.bootstraps.series import series_of
from heliograph.ir.ops.table import Context, Role, role_of
from heliograph.passes.polynomials.squares import Square, square

# Roles of ops whose operands and result are kept divided by the same factor.
_SHARING = (Role.SUM, Role.ROWS, Role.MOVE)


@dataclass(frozen=True, slots=True)
class FoldScaling:
    """Moves every `poly` to [-1, 1]."""

    name: ClassVar[str] = "fold-scaling"
    needs: ClassVar[Stage] = Stage.POLYNOMIAL
    makes: ClassVar[Stage] = Stage.POLYNOMIAL

    def run(self, program: Program) -> Program:
        users = program.users()
        factors, squares = _factors(program)
        builder = Builder(program.name, Stage.POLYNOMIAL, program)
        # The unit sizes are part of the maps by now; here they would only make the text longer.
        builder.ranges = [replace(entry, unit_sizes=None) for entry in program.ranges]
        for node, made in squares.items():
            if "range" in node.attrs:
                entry = builder.ranges[node.attrs["range"]]
                builder.ranges[node.attrs["range"]] = replace(entry, frame=made.frame)

        def emit(node: Node, operands: list[Node]) -> Node:
            factor = factors[node]
            if not node.type.secret and node.op != "constant":
                # The server's own values are not divided. A constant may be, for readers that are.
                return builder.copy(
                    node, [old if old.op == "constant" else o for old, o in zip(node.inputs, operands, strict=True)]
                )
            if node.op == "constant":
                value = builder.constant(builder.context.array(node.attrs["value"]) / factor, node.attrs["value"])
                return builder.op("constant", (), node.loc, value=value)
            if node.op == "affine":
                return _affine(builder, node, operands, [factors[operand] / factor for operand in node.inputs], factor)
            if node.op == "matrix_product":
                scale = node.attrs.get("scale", 1.0) * factors[node.inputs[0]] * factors[node.inputs[1]] / factor
                return builder.op(node.op, operands, node.loc, kind=node.attrs["kind"], scale=scale)
            if node.op == "poly":
                shared = len(users[node.inputs[0]]) > 1 or node.inputs[0] in program.outputs
                scaling = _Scaling(factors[node.inputs[0]], factor, shared, squares.get(node))
                return self._poly(builder, node, operands[0], scaling)
            return builder.copy(node, [self._divided(builder, operand, factor) for operand in operands])

        return builder.rewrite(program, emit)

    @staticmethod
    def _divided(builder: Builder, operand: Node, factor: float) -> Node:
        """A plain operand of a sum, divided by the factor of the sum; the server divides it in the clear."""
        if operand.type.secret or operand.op == "constant" or factor == 1.0:
            return operand
        scale = builder.op("constant", (), operand.loc, value=builder.constant(np.array(1.0 / factor), "scale"))
        return builder.op("mul", (operand, scale), operand.loc)

    @staticmethod
    def _poly(builder: Builder, node: Node, operand: Node, scaling: _Scaling) -> Node:
        """The polynomial on [-1, 1]."""
        square, factor_in, factor_out = scaling.square, scaling.factor_in, scaling.factor_out
        low, high = (node.attrs["low"], node.attrs["high"]) if square is None else (square.low, square.high)
        half, middle = (high - low) / 2, (high + low) / 2
        assert isinstance(operand.type, TensorType)
        if is_linear(builder.context, node):
            # a + b x works with any factor; there is no interval to keep.
            constant, slope = builder.context.array(node.attrs["coefficients"])
            values = np.array([constant - slope * middle / half, slope * factor_in / half]) / factor_out
            scaled = builder.constant(values, node.attrs["coefficients"])
            attrs = {**node.attrs, "coefficients": scaled, "low": -1.0, "high": 1.0}
            return builder.op("poly", (operand,), node.loc, **attrs)
        size, shape = operand.type.size, operand.type.shape
        if factor_in != half:
            scale = SparseMatrix.of(scipy.sparse.eye_array(size, format="csr") * (factor_in / half))
            offset = builder.constant(np.full(size, -middle / half), "centre") if middle else None
            matrix = builder.constant(scale, "to_interval")
            operand = builder.op("affine", (operand,), node.loc, matrices=(matrix,), bias=offset, shape=shape)
        elif middle:
            if operand.op == "affine" and not scaling.shared:
                old = builder.context.array(operand.attrs["bias"]) if "bias" in operand.attrs else np.zeros(size)
                bias = builder.constant(old - middle / half, operand.attrs.get("bias", "centre"))
                operand = builder.op("affine", operand.inputs, operand.loc, **{**operand.attrs, "bias": bias})
            else:
                centre = builder.constant(np.full(shape, -middle / half), "centre")
                operand = builder.op("add", (operand, builder.op("constant", (), node.loc, value=centre)), node.loc)
        own = _scaled_series(builder, node, factor_out) if square is None else {}
        values = (
            builder.context.array(node.attrs["coefficients"]) / factor_out if square is None else square.coefficients
        )
        if own.get("merged"):
            # What the bootstrap computes is the scaled series.
            values = as_polynomial(builder.context.array(own["series"]), own["half_period"])
        coefficients = builder.constant(values, node.attrs["coefficients"])
        return builder.op(
            "poly",
            (operand,),
            node.loc,
            coefficients=coefficients,
            low=-1.0,
            high=1.0,
            range=node.attrs.get("range"),
            **own,
        )


def _scaled_series(builder: Builder, node: Node, factor: float) -> dict[str, Any]:
    """The attributes of the series that a bootstrap may compute in place of the polynomial, divided by the factor."""
    attrs = series_of(node.attrs)
    if "series" in attrs:
        attrs["series"] = builder.constant(builder.context.array(attrs["series"]) / factor, attrs["series"])
    return attrs if node.attrs.get("merged") is None else {**attrs, "merged": 1}


@dataclass(frozen=True, slots=True)
class _Scaling:
    """The scaling of a polynomial.

    `factor_in`, `factor_out`: the factors by which its operand and its value are divided.
    `shared`: whether the operand has other readers; it is then not computed a second time with another bias.
    `square`: the square that replaces the polynomial; None for no square.
    """

    factor_in: float
    factor_out: float
    shared: bool
    square: Square | None


def _affine(builder: Builder, node: Node, operands: list[Node], ratios: list[float], factor: float) -> Node:
    """The map from operands divided by their factors to a value divided by `factor`; `ratios` are theirs over it."""
    matrices = []
    for ratio, name in zip(ratios, node.attrs["matrices"], strict=True):
        matrix = builder.context.linear_map(name)
        if ratio != 1.0:
            matrix = matrix.times(ratio)
        matrices.append(builder.constant(matrix, name))
    attrs = dict(node.attrs) | {"matrices": tuple(matrices)}
    if "bias" in attrs:
        attrs["bias"] = builder.constant(builder.context.array(attrs["bias"]) / factor, attrs["bias"])
    return builder.op("affine", operands, node.loc, **attrs)


def is_linear(context: Context, node: Node) -> bool:
    """Whether a polynomial is a scaling without an entry in the table of ranges: its operand may have any size."""
    return context.shape(node.attrs["coefficients"]) == (2,) and node.attrs.get("range") is None


def _factors(program: Program) -> tuple[dict[Node, float], dict[Node, Square]]:
    """The factor of each value, and the polynomials that become squares."""
    graph: networkx.Graph = networkx.Graph()
    graph.add_nodes_from(program.nodes)
    for node in program.nodes:
        if role_of(node) in _SHARING and node.type.secret:
            graph.add_edges_from((node, o) for o in node.inputs if o.type.secret or o.op == "constant")
    products = [node for node in program.nodes if node.op == "mul"]
    fixed = {*program.outputs, *products, *(node for node in program.nodes if node.op == "input")}
    fixed |= {operand for node in products for operand in node.inputs}
    groups = list(networkx.connected_components(graph))
    group_of = {node: number for number, group in enumerate(groups) for node in group}
    context = Context(program.constants)
    readers: dict[int, list[Node]] = {number: [] for number in range(len(groups))}
    for node in program.nodes:
        if node.op == "poly" and node.type.secret and not is_linear(context, node):
            readers[group_of[node.inputs[0]]].append(node)
    # A square's interval follows from the factor of its result, which must therefore be known first.
    alone = {(group_of[own[0].inputs[0]], group_of[own[0]]): own[0] for own in readers.values() if len(own) == 1}
    after: networkx.DiGraph = networkx.DiGraph()
    after.add_nodes_from(range(len(groups)))
    after.add_edges_from(
        edge for edge, node in alone.items() if len(trim(context.array(node.attrs["coefficients"]))) == 3
    )
    circles = {
        number for members in networkx.strongly_connected_components(after) if len(members) > 1 for number in members
    }
    circles |= {number for number, _ in networkx.selfloop_edges(after)}
    found: dict[int, float] = {}
    squares: dict[Node, Square] = {}
    for number in _last_first(after, circles):
        factor = 1.0
        is_fixed = bool(groups[number] & fixed)
        if not is_fixed:
            factor = max(((each.attrs["high"] - each.attrs["low"]) / 2 for each in readers[number]), default=1.0)
        for target in after.successors(number) if number not in circles else ():
            node = alone[number, target]
            a = node.attrs
            made = square(trim(context.array(a["coefficients"])), a["low"], a["high"], found[target])
            # If the factor is fixed and already fits the interval, another one would cost the level that the square
            # saves.
            if made is not None and not (is_fixed and factor == (a["high"] - a["low"]) / 2):
                squares[node] = made
                factor = factor if is_fixed else made.half
        found[number] = factor
    return {node: found[group_of[node]] for node in program.nodes}, squares


def _last_first(graph: networkx.DiGraph, circles: set[int]) -> list[int]:
    """The groups, each after its successors; groups on cycles come first, in any order."""
    free = graph.subgraph(set(graph) - circles)
    return [*sorted(circles), *reversed(list(networkx.lexicographical_topological_sort(free)))]
