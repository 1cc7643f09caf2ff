"""The number of levels that a program takes, from its operations alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from heliograph.ckks.trigonometric import series_levels
from heliograph.ir import Node, Program, SlotsType, SparseMatrix
from heliograph.ir.ops.table import OPS

Vector = npt.NDArray[np.float64]
# The largest integer by which a ciphertext can be multiplied without spending a level (`mul_int`).
MOST_WHOLE = 1 << 20


def depth_of_degree(degree: int) -> int:
    """The levels of a polynomial of that degree: ceil(log2(degree + 1)), at least 1."""
    return max(1, degree.bit_length())


def depth_of_series(coefficients: Sequence[float] | Vector) -> int:
    """The levels of a Chebyshev series: as for its degree, or one if it is a whole number of squares."""
    kept = trim(coefficients)
    return 1 if whole_square(kept) is not None else depth_of_degree(len(kept) - 1)


def whole_square(coefficients: Sequence[float]) -> int | None:
    """The whole number n if a Chebyshev series in t is n t^2 plus a constant; else None."""
    if len(coefficients) != 3 or coefficients[1]:
        return None
    twice = 2.0 * float(coefficients[2])
    return int(twice) if twice.is_integer() and 0 < abs(twice) <= MOST_WHOLE else None


def trim(coefficients: Sequence[float] | Vector) -> tuple[float, ...]:
    """Coefficients without leading zeros (negligible ones count as zero)."""
    values = [float(c) for c in coefficients]
    limit = max((abs(c) for c in values), default=0.0) * 2.0**-60
    while len(values) > 1 and abs(values[-1]) <= limit:
        values.pop()
    return tuple(values)


def node_depth(program: Program, node: Node) -> int:
    """Levels that one node of a polynomial or packed program spends."""
    if not node.type.secret:
        return 0
    if node.op == "poly":
        # On tensors the scaling to [-1, 1] is folded into the preceding ops; on slots it is a multiplication.
        scaled = isinstance(node.type, SlotsType) and (node.attrs["low"], node.attrs["high"]) != (-1.0, 1.0)
        if node.attrs.get("merged"):
            return series_levels(program.array(node.attrs["series"]).shape[1] - 1)
        return depth_of_series(program.array(node.attrs["coefficients"])) + int(scaled)
    return OPS[node.op].depth


def weighted_operands(program: Program, node: Node) -> list[bool]:
    """Which operands of a map are multiplied by its weights where every element is a ciphertext of its own.

    Weights of 1 and -1 alone make a map of sums, which spends no level. In other maps products are added as they are,
    for their rescale spends the level; all other operands get their weights, so that scales agree. Maps in small forms,
    of convolutions, have other weights, and are not written out to see that.
    """
    maps = [program.linear_map(name) for name in node.attrs["matrices"]]
    whole = [isinstance(each, SparseMatrix) and bool((np.abs(each.data) == 1.0).all()) for each in maps]
    products = [operand.op == "mul" for operand in node.inputs]
    if all(whole) and not any(products):
        return [False] * len(whole)
    return [not (own and product) for own, product in zip(whole, products, strict=True)]


def levels_below(program: Program, instead: Mapping[Node, int] | None = None, apart: bool = False) -> dict[Node, int]:
    """For each value the levels that outputs still need after it; `instead` overrides the levels that nodes spend.

    `apart`: every element of a tensor is a ciphertext of its own.
    """
    need = dict.fromkeys(program.nodes, 0)
    for node in reversed(program.nodes):
        spent = instead[node] if instead and node in instead else node_depth(program, node)
        spends = [spent] * len(node.inputs)
        if apart and node.op == "affine" and node.type.secret:
            spends = [int(weighted) for weighted in weighted_operands(program, node)]
        for operand, own in zip(node.inputs, spends, strict=True):
            need[operand] = max(need[operand], need[node] + own)
    return need


def spends_carried(program: Program) -> bool:
    """Whether runs in sequence spend levels without end: some carried value leaves each run at a lower level than it
    had on entry, whatever it passes through.
    """
    inputs = {node.attrs["name"]: node for node in program.inputs}
    becomes = [(output, inputs[name]) for output, name in program.interface.carried if name in inputs]
    depth = {node: node_depth(program, node) for node in program.nodes}
    wanted = dict.fromkeys(program.output_names, 0)
    # Each round passes the needed levels on to one more carried value. Unless a cycle spends levels, nothing changes after
    # these rounds.
    for _ in range(len(becomes) + 1):
        need = dict.fromkeys(program.nodes, 0)
        for name, node in zip(program.output_names, program.outputs, strict=True):
            need[node] = max(need[node], wanted[name])
        for node in reversed(program.nodes):
            for operand in node.inputs:
                need[operand] = max(need[operand], need[node] + depth[node])
        following = dict.fromkeys(program.output_names, 0)
        for output, source in becomes:
            following[output] = max(following[output], need[source])
        if following == wanted:
            return False
        wanted = following
    return True


def program_depth(program: Program, apart: bool = False) -> int:
    """Levels between encrypted inputs and outputs; `apart` as in `levels_below`."""
    need = levels_below(program, apart=apart)
    return max((need[node] for node in program.inputs if node.type.secret), default=0)


def critical_depth(program: Program, cheaper: frozenset[Node] = frozenset()) -> tuple[int, list[Node]]:
    """The depth of a polynomial program and one longest path; `cheaper` nodes spend one level less."""
    depth: dict[Node, int] = {}
    before: dict[Node, Node | None] = {}
    for node in program.nodes:
        previous = max(node.inputs, key=lambda n: depth[n], default=None)
        before[node] = previous
        own = node_depth(program, node) - (1 if node in cheaper else 0)
        depth[node] = (depth[previous] if previous is not None else 0) + own
    last: Node | None = max(program.outputs, key=lambda n: depth[n])
    assert last is not None
    total, path = depth[last], []
    while last is not None:
        path.append(last)
        last = before[last]
    return total, path[::-1]
