"""Bring the input of every polynomial to [-1, 1] without spending a level, by scaling what comes before and after.

Each value is kept divided by a factor. Values that are added share one factor; linear maps and polynomials take any
factor in and give any out, at no cost, because their coefficients absorb it. Only where a product or an input fixes the
factor does a polynomial need a scaling of its own, which costs a level.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import networkx
import numpy as np
import scipy.sparse

from heliograph.ir import Builder, Node, Program, SparseMatrix, Stage, TensorType
from heliograph.ir.ops import Context, Role, role_of

# Whose operands and result are kept divided by the same factor.
_SHARING = (Role.SUM, Role.ROWS, Role.MOVE)


@dataclass(frozen=True, slots=True)
class FoldScaling:
    """After it every `poly` is on [-1, 1]."""

    name: ClassVar[str] = "fold-scaling"
    needs: ClassVar[Stage] = Stage.POLYNOMIAL
    makes: ClassVar[Stage] = Stage.POLYNOMIAL

    def run(self, program: Program) -> Program:
        factors, users = _factors(program), program.users()
        builder = Builder(program.name, Stage.POLYNOMIAL, program)
        # The sizes are inside the maps by now; they would only swell the text.
        builder.ranges = [replace(entry, unit_sizes=None) for entry in program.ranges]

        def emit(node: Node, operands: list[Node]) -> Node:
            factor = factors[node]
            if not node.type.secret and node.op != "constant":
                # The server's own values are not divided; a constant may be, for those that are.
                return builder.copy(
                    node, [old if old.op == "constant" else o for old, o in zip(node.inputs, operands, strict=True)]
                )
            if node.op == "constant":
                value = builder.constant(builder.context.array(node.attrs["value"]) / factor, node.attrs["value"])
                return builder.op("constant", (), node.loc, value=value)
            if node.op == "affine":
                return _affine(builder, node, operands, [factors[operand] / factor for operand in node.inputs], factor)
            if node.op == "poly":
                shared = len(users[node.inputs[0]]) > 1 or node.inputs[0] in program.outputs
                return self._poly(builder, node, operands[0], factors[node.inputs[0]], factor, shared)
            return builder.copy(node, [self._divided(builder, operand, factor) for operand in operands])

        return builder.rewrite(program, emit)

    @staticmethod
    def _divided(builder: Builder, operand: Node, factor: float) -> Node:
        """A plain operand of a sum that is kept divided by a factor, divided too; the server does that in the clear."""
        if operand.type.secret or operand.op == "constant" or factor == 1.0:
            return operand
        scale = builder.op("constant", (), operand.loc, value=builder.constant(np.array(1.0 / factor), "scale"))
        return builder.op("mul", (operand, scale), operand.loc)

    @staticmethod
    def _poly(builder: Builder, node: Node, operand: Node, factor_in: float, factor_out: float, shared: bool) -> Node:
        """The polynomial on [-1, 1]; an operand that others read too is not computed a second time with another bias."""
        low, high = node.attrs["low"], node.attrs["high"]
        half, middle = (high - low) / 2, (high + low) / 2
        assert isinstance(operand.type, TensorType)
        if _is_linear(builder.context, node):
            # a + b x takes any factor; there is no interval to keep.
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
            if operand.op == "affine" and not shared:
                old = builder.context.array(operand.attrs["bias"]) if "bias" in operand.attrs else np.zeros(size)
                bias = builder.constant(old - middle / half, operand.attrs.get("bias", "centre"))
                operand = builder.op("affine", operand.inputs, operand.loc, **{**operand.attrs, "bias": bias})
            else:
                centre = builder.constant(np.full(shape, -middle / half), "centre")
                operand = builder.op("add", (operand, builder.op("constant", (), node.loc, value=centre)), node.loc)
        coefficients = builder.constant(
            builder.context.array(node.attrs["coefficients"]) / factor_out, node.attrs["coefficients"]
        )
        return builder.op(
            "poly",
            (operand,),
            node.loc,
            coefficients=coefficients,
            low=-1.0,
            high=1.0,
            range=node.attrs.get("range"),
        )


def _affine(builder: Builder, node: Node, operands: list[Node], ratios: list[float], factor: float) -> Node:
    """The map from operands divided by their factors to a value divided by its own; ratios are those of the factors."""
    matrices = []
    for ratio, name in zip(ratios, node.attrs["matrices"], strict=True):
        matrix = builder.context.matrix(name)
        if ratio != 1.0:
            matrix = SparseMatrix(matrix.shape, matrix.data * ratio, matrix.indices, matrix.indptr)
        matrices.append(builder.constant(matrix, name))
    attrs = dict(node.attrs) | {"matrices": tuple(matrices)}
    if "bias" in attrs:
        attrs["bias"] = builder.constant(builder.context.array(attrs["bias"]) / factor, attrs["bias"])
    return builder.op("affine", operands, node.loc, **attrs)


def _is_linear(context: Context, node: Node) -> bool:
    """Whether a polynomial is a scaling that no range is watched for."""
    return context.shape(node.attrs["coefficients"]) == (2,) and "range" not in node.attrs


def _factors(program: Program) -> dict[Node, float]:
    """The factor that each value is divided by."""
    graph: networkx.Graph = networkx.Graph()
    graph.add_nodes_from(program.nodes)
    for node in program.nodes:
        if role_of(node) in _SHARING and node.type.secret:
            graph.add_edges_from((node, o) for o in node.inputs if o.type.secret or o.op == "constant")
    fixed = set(program.outputs) | {node for node in program.nodes if node.op in ("input", "mul")}
    fixed |= {operand for node in program.nodes if node.op == "mul" for operand in node.inputs}
    wanted: dict[Node, float] = {}
    for node in program.nodes:
        if node.op == "poly" and not _is_linear(Context(program.constants), node):
            half = (node.attrs["high"] - node.attrs["low"]) / 2
            wanted[node.inputs[0]] = max(half, wanted.get(node.inputs[0], 0.0))
    factors: dict[Node, float] = {}
    for group in networkx.connected_components(graph):
        # The reader with the widest interval sets the factor; others with another interval scale for themselves.
        factor = 1.0 if group & fixed else max((wanted[node] for node in group if node in wanted), default=1.0)
        factors.update(dict.fromkeys(group, factor))
    return factors
