"""Bounds on what an untrusted artifact makes the server compute in the clear: memory and operations, before it runs.

The contract of a stage bounds types; an op may still need far more room or time than its operands and result together (a
padded image of which one pixel is kept, a matrix that averages millions of elements into millions).
"""

from __future__ import annotations

import math
from typing import Any

from heliograph.artifact.validate import check_layout, check_shape, refuse, whole
from heliograph.ckks.ring import Ring
from heliograph.ir import Node, Program, SlotsType, TensorType, shape_of
from heliograph.ir.liveness import last_use_table
from heliograph.ir.plain_ops import layout_of_pack

# Numbers alive at once (8 bytes each), including temporary ones, and operations on them: some 10 s of numpy on one core.
MAX_ALIVE = 1 << 26
MAX_OPERATIONS = 1 << 32
# The cost of one numpy call, in operations.
_CALL = 1 << 12
# Elementwise ops hold a few temporary arrays, and their functions cost more than a product.
_ARRAYS, _PER_ELEMENT = 4, 8


def check_plain_part(program: Program, ring: Ring) -> None:
    """Raise a WireError where the plain values of a verified executable program would take too much memory or time."""
    freed = last_use_table(program.nodes, program.outputs)
    sizes: list[int] = []
    alive = operations = 0
    for i, node in enumerate(program.nodes):
        sizes.append(0 if node.type.secret else _size(node, ring))
        if not node.type.secret:
            temporary, work = _cost(node, program, ring)
            alive += sizes[i]
            operations += work + _CALL
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
        check_layout(layout_of_pack(tuple(node.attrs["shape"]), node.attrs), ring.slots, "a plain value")
    return whole(node.type.slots, f"the slots of a plain {node.op}", ring.slots, ring.slots)


def _cost(node: Node, program: Program, ring: Ring) -> tuple[int, int]:
    """(numbers held beside operands and result, operations) of evaluating the node."""
    if node.op == "input":
        return 0, 0
    a, result = node.attrs, _size(node, ring)
    operands = [_size(operand, ring) for operand in node.inputs]
    around = _ARRAYS * (result + sum(operands)), _PER_ELEMENT * (result + sum(operands))
    extra = 0, 0
    if node.op == "conv":
        weight = program.array(a["weight"]).shape
        places = result // weight[0]
        taps = math.prod(weight[1:])
        extra = _padded(node) + places * taps, places * math.prod(weight) + a["groups"] * _CALL
    elif node.op in ("avg_pool", "max_pool"):
        taps = result * math.prod(a["kernel"])
        # The maximum is taken over a table of all windows, the mean over a view.
        extra = 2 * _padded(node) + (_ARRAYS * taps if node.op == "max_pool" else 0), _ARRAYS * taps
    elif node.op == "adaptive_avg_pool":
        extra = _averaged(node)
    elif node.op == "matmul":
        extra = sum(operands), result * shape_of(node.inputs[0])[-1]
    elif node.op == "linear":
        extra = 0, result * shape_of(node.inputs[0])[-1]
    elif node.op == "affine":
        extra = 0, sum(program.linear_map(name).nnz for name in a["matrices"])
    elif node.op == "poly":
        extra = 0, result * program.array(a["coefficients"]).size
    return around[0] + extra[0], around[1] + extra[1]


def _padded(node: Node) -> int:
    channels, *spatial = shape_of(node.inputs[0])
    padding: Any = node.attrs["padding"]
    return channels * math.prod(size + 2 * int(pad) for size, pad in zip(spatial, padding, strict=True))


def _averaged(node: Node) -> tuple[int, int]:
    """One axis after the other, each by a dense matrix."""
    shape = list(shape_of(node.inputs[0]))
    temporary = operations = 0
    for axis, out in enumerate(node.attrs["output_size"], start=1):
        matrix, size = shape[axis] * out, math.prod(shape)
        shape[axis] = out
        temporary = max(temporary, matrix + 2 * math.prod(shape) + size)
        operations += size * out + matrix
    return temporary, operations
