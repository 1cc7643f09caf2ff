"""Bounds on an untrusted artifact's computations in the clear: memory and operations, checked before it runs.

The contract of a stage bounds types. But an op may need far more memory or time than its operands and result (a padded
image of which one pixel is kept, a matrix that averages millions of elements into millions), and a map in compact form
may need far more than its size in the file. `check_costs` checks every node: numpy's work for plain values, and the
tables of ciphertexts' maps.
"""

from __future__ import annotations

import math
from typing import Any

from heliograph.artifact.validate import check_layout, check_shape, refuse, whole
from heliograph.ckks.ring import Ring
from heliograph.ir import Matrix, Node, Program, SlotsType, SparseMatrix, TensorType
from heliograph.ir.analysis.liveness import last_use_table
from heliograph.ir.maps.placed import PlacedMatrix
from heliograph.ir.ops.spec import FEW_ARRAYS, NUMPY_CALL
from heliograph.ir.ops.table import OPS, Context

# Numbers alive at once (8 bytes each), including temporary ones, and operations on them: some 10 s of numpy on one core.
MAX_ALIVE = 1 << 26
MAX_OPERATIONS = 1 << 32
# Elementwise functions cost more than a product.
_PER_ELEMENT = 8
# The most numbers in the tables of a ciphertext's map: a constant, and an allowance for each of its numbers in the
# file.
_MAX_TABLE = 1 << 27
_TABLE_PER_NUMBER = 64
# The numbers in the tables for each entry of a map with listed entries, and for each outer product of a compact form or
# distance of listed entries.
_PER_ENTRY, _PER_TERM = 4, 16


def check_costs(program: Program, ring: Ring) -> None:
    """Raise a WireError if a verified executable program would need too much memory or time for its plain values or the
    tables of its maps; ciphertexts and keys are bounded elsewhere.
    """
    _check_plain_values(program, ring)
    maps: dict[tuple[Any, int, bool], Node] = {}
    for node in program.nodes:
        if node.op == "linear_transform":
            for name in node.attrs["matrices"]:
                maps.setdefault((name, node.attrs["geometry"].out_copies, True), node)
        elif node.op == "weighted_sum":
            maps.setdefault((node.attrs["matrix"], 1, False), node)
    for (name, copies, worked_out), node in maps.items():
        _check_tables(node, program.linear_map(name), copies, worked_out)


def _check_plain_values(program: Program, ring: Ring) -> None:
    freed = last_use_table(program.nodes, program.outputs)
    sizes: list[int] = []
    alive = operations = 0
    for i, node in enumerate(program.nodes):
        sizes.append(0 if node.type.secret else _size(node, ring))
        if not node.type.secret:
            temporary, work = _cost(node, program, ring)
            alive += sizes[i]
            operations += work + NUMPY_CALL
            if alive + temporary > MAX_ALIVE:
                raise refuse(f"its plain values take more than {MAX_ALIVE} numbers at once (in a {node.op})")
            if operations > MAX_OPERATIONS:
                raise refuse(f"its plain values take more than {MAX_OPERATIONS} operations (in a {node.op})")
        alive -= sum(sizes[number] for number in freed[i])


def _size(node: Node, ring: Ring) -> int:
    if isinstance(node.type, TensorType):
        return math.prod(check_shape(node.type.shape, f"a plain {node.op}"))
    assert isinstance(node.type, SlotsType)
    if node.op in ("input", "linear_transform"):
        raise refuse(f"an {node.op} on plain slots is nothing that is compiled")
    if node.op == "pack":
        check_layout(node.attrs["layout"], ring.slots, "a plain value")
    return whole(node.type.slots, f"the slots of a plain {node.op}", ring.slots, ring.slots)


def _cost(node: Node, program: Program, ring: Ring) -> tuple[int, int]:
    """The cost of evaluating a node: (temporary numbers beside operands and result, operations)."""
    if not node.inputs:
        return 0, 0
    elements = _size(node, ring) + sum(_size(operand, ring) for operand in node.inputs)
    effort = OPS[node.op].effort
    held, operations = (0, 0) if effort is None else effort(node, Context(program.constants))
    return FEW_ARRAYS * elements + held, _PER_ELEMENT * elements + operations


def _check_tables(node: Node, matrix: Matrix, copies: int, worked_out: bool) -> None:
    """Raise a WireError if the tables for computing a map's diagonals or rows would be too large.

    With `worked_out`, the diagonals of a compact form are computed from it; entries are listed for rows.
    """
    if worked_out and isinstance(matrix, PlacedMatrix):
        numbers = matrix.map.weights.size * 4 + matrix.most_terms * copies * _PER_TERM
    else:
        # Each copy of the result has each distance of the entries, which are at most as many as the columns.
        numbers = matrix.nnz * _PER_ENTRY + min(matrix.nnz, matrix.shape[1]) * copies * _PER_TERM
    stored = matrix.nnz if isinstance(matrix, SparseMatrix) else sum(part.size for part in matrix.numbers)
    if numbers > _MAX_TABLE + _TABLE_PER_NUMBER * stored:
        raise refuse(f"the tables of a {node.op} would hold {numbers} numbers, of {stored} in the file")
