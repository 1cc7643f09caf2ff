"""Copies of small operands that two products of matrices read in different layouts.

Sometimes no choice of ways gives every value a single layout (in backpropagation, a weight is multiplied from either
side). Then one product reads a copy of an operand: an identity map from one layout to the other, which takes as many
rotations as diagonals, and a level.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import scipy.sparse

from heliograph.ckks.costs import CostTable
from heliograph.ckks.ring import Ring
from heliograph.errors import PlanningError
from heliograph.ir import Builder, Node, Program, SparseMatrix, Stage, shape_of
from heliograph.passes.packing.choose_layouts import Groups, group_values
from heliograph.passes.packing.products.choose_products import choose_products
from heliograph.passes.packing.products.matrix_products import MatrixProduct

# Operands larger than this are not copied: a map between two layouts takes a rotation for each of its diagonals.
_MOST_COPIED = 1 << 12


def with_products(
    program: Program, ring: Ring, samples: int, costs: CostTable
) -> tuple[Program, Groups, dict[Node, MatrixProduct]]:
    """The program, with one copy of an operand if necessary, its groups of values and the ways of its products.

    Raises PlanningError if there is no choice of ways even so.
    """
    groups = group_values(program)
    try:
        return program, groups, choose_products(program, groups, ring, samples, costs)
    except PlanningError:
        for copied in _copies(program):
            of = group_values(copied)
            try:
                return copied, of, choose_products(copied, of, ring, samples, costs)
            except PlanningError:
                continue
        raise


def _copies(program: Program) -> Iterator[Program]:
    """The programs with one operand of a product copied, the smallest operands first."""
    reads = [
        (node, position)
        for node, position in itertools.product(program.nodes, (0, 1))
        if node.op == "matrix_product" and node.inputs[position].type.secret
    ]
    sizes = {read: math.prod(shape_of(read[0].inputs[read[1]])) for read in reads}
    for node, position in sorted(reads, key=sizes.__getitem__):
        if sizes[node, position] <= _MOST_COPIED:
            yield _copied(program, node, position)


def _copied(program: Program, node: Node, position: int) -> Program:
    builder = Builder(program.name, Stage.POLYNOMIAL, program)

    def emit(each: Node, operands: list[Node]) -> Node:
        if each is node:
            operand = operands[position]
            shape = shape_of(operand)
            same = SparseMatrix.of(scipy.sparse.eye_array(math.prod(shape), format="csr"))
            name = builder.constant(same, "product.copy")
            operands[position] = builder.op("affine", (operand,), node.loc, matrices=(name,), shape=shape)
        return builder.copy(each, operands)

    return builder.rewrite(program, emit)
