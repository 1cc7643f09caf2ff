"""Many noisy copies of one input through a network, as one program on tensors with a last axis of copies.

For values that are linear in the input, W(x + n) = Wx + Wn: the part that all copies share is computed once, and the
noise part in the clear. Only a nonlinear function combines the two parts, into a value for each copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from heliograph.errors import UnsupportedError
from heliograph.ir import Array, Builder, Location, Matrix, Node, Program, SparseMatrix, shape_of, size_of
from heliograph.ir.maps.kronecker import KroneckerMatrix, identity_places
from heliograph.ir.ops.functions import ALONG_ROWS
from heliograph.ir.ops.table import OPS

# A larger matrix, in entries, is repeated entry by entry, not as a dense matrix of channels.
_MOST_CHANNELS = 1 << 24
# The size to which products are scaled. The error of a plaintext matrix grows with the size of its operand; the error
# of a key switch does not (ckks/noise.py). On the benchmark's network, both are then equal.
_SIZE_OF_PRODUCTS = 32.0


@dataclass(frozen=True, slots=True)
class Value:
    """A node's value for all copies: `shared`, of the node's shape, plus `own`, with a last axis of copies."""

    shared: Node | None
    own: Node | None


@dataclass(frozen=True, slots=True)
class Averaged:
    """A copy that is the mean of other copies, of which only the noise is computed, in `aside`.

    Its noise is the mean of their noise. Linear functions preserve means. The mean of a product of values u + v, with u
    shared
    and v noise, is the product of the means plus the covariance of the noise, which the server knows: so one copy can
    represent all of them.
    """

    column: int
    aside: Copies


def _linear(node: Node) -> bool:
    return OPS[node.op].linear is not None or node.op == "constant"


def averages(network: Program) -> bool:
    """Whether means pass through the network: its only nonlinear ops are products of values linear in the input."""
    behind: set[Node] = set()
    for node in network.nodes:
        if not node.type.secret:
            continue
        if (
            not _linear(node)
            and node.op != "input"
            and (node.op != "mul" or any(operand in behind for operand in node.inputs))
        ):
            return False
        if node.op == "mul" or any(operand in behind for operand in node.inputs):
            behind.add(node)
    return True


class Copies:
    """Writes a network of linear maps, polynomials and products (`FuseLinear` makes it) for `count` copies.

    `inputs` has the value of each input node of the network, and `sizes` the sizes of products, if known. With
    `averaged` one of the copies is a mean.
    """

    def __init__(
        self,
        builder: Builder,
        network: Program,
        inputs: Mapping[Node, Value],
        count: int,
        sizes: Mapping[Node, float],
        averaged: Averaged | None = None,
    ) -> None:
        self.averaged = averaged
        self.builder, self.network, self.count, self.sizes = builder, network, count, sizes
        self.values: dict[Node, Value] = {}
        # Products whose operands were scaled, and the factors by which they still have to be multiplied.
        self.resized: dict[Node, tuple[Node, float]] = {}
        for node in network.nodes:
            self.values[node] = inputs[node] if node.op == "input" else _value(self, node, self.values)

    @property
    def output(self) -> Node:
        """The network's output for each copy, (*shape, count)."""
        return self.full(self.values[self.network.outputs[0]], self.network.outputs[0])

    def mean_output(self, run: int) -> Node:
        """The mean of the outputs over each run of this many copies, (*shape, count / run).

        The linear end of the network works on means of the values before it, which gives the same result.
        """
        means = _Means(self, run)
        (node,) = self.network.outputs
        return means.full(means.values[node], node)

    def full(self, value: Value, node: Node) -> Node:
        """The sum of shared and own part, for each copy."""
        own = self.own(value, node)
        if value.shared is None:
            assert own is not None
            return own
        shared = self.builder.op("repeat", (value.shared,), node.loc, count=self.count)
        return shared if own is None else self.builder.op("add", (shared, own), node.loc)

    def own(self, value: Value, node: Node) -> Node | None:
        """The own part, including the averaged copy's if there is one."""
        own = value.own
        if self.averaged is None or (own is not None and own.type.secret):
            return own
        return self._with_mean(own, node, self.averaged)

    def _with_mean(self, own: Node | None, node: Node, averaged: Averaged) -> Node | None:
        """The noise of all copies, with the averaged copy's mean noise in its column."""
        aside = averaged.aside.values[node].own
        if aside is None:
            return own
        places = np.zeros((self.count, averaged.aside.count))
        places[averaged.column] = 1.0 / averaged.aside.count
        mean = moved_columns(self.builder, aside, places, node.loc)
        if own is None:
            return mean
        keep = np.diag((np.arange(self.count) != averaged.column).astype(np.float64))
        return self.op(node, "add", moved_columns(self.builder, own, keep, node.loc), mean)

    def op(self, node: Node, op: str, *operands: Node, **attrs: Any) -> Node:
        return self.builder.op(op, operands, node.loc, **attrs)


class _Means(Copies):
    """The linear end of a network on means over runs of copies."""

    def __init__(self, copies: Copies, run: int) -> None:
        self.builder, self.network, self.count = copies.builder, copies.network, copies.count // run
        self.sizes, self.averaged, self.resized, self.values = {}, None, {}, {}
        # Compute only what reaches the output through linear ops.
        wanted, stack = set(), list(copies.network.outputs)
        while stack:
            node = stack.pop()
            wanted.add(node)
            stack += [operand for operand in node.inputs if _linear(node)]
        for node in copies.network.nodes:
            if node not in wanted:
                continue
            known = copies.values[node]
            if known.own is not None and not _linear(node):
                own, factor = copies.resized.get(node, (known.own, 1.0))
                total = self.op(node, "sum_runs", own, count=run)
                share = self.op(node, "constant", value=self.builder.constant(np.array(factor / run), "share"))
                mean = self.op(node, "mul", total, share)
                own = self.op(node, "reshape", mean, shape=(*shape_of(node), self.count))
                self.values[node] = Value(known.shared, own)
            else:
                self.values[node] = known if known.own is None else _value(self, node, self.values)


def for_copies(matrix: Matrix, count: int) -> Matrix:
    """The map applied to each copy separately, on tensors with a last axis of copies."""
    if isinstance(matrix, KroneckerMatrix):
        identity = scipy.sparse.eye_array(count, format="csr")
        places = [SparseMatrix.of(scipy.sparse.kron(place.csr(), identity, format="csr")) for place in matrix.places]
        return KroneckerMatrix.of(matrix.weights, places)
    rows, columns = matrix.shape
    if rows * columns <= _MOST_CHANNELS:
        return KroneckerMatrix.of(matrix.csr().toarray()[np.newaxis], [identity_places(count)])
    return SparseMatrix.of(scipy.sparse.kron(matrix.csr(), scipy.sparse.eye_array(count, format="csr"), format="csr"))


def _value(copies: Copies, node: Node, values: Mapping[Node, Value]) -> Value:
    operands = [values[operand] for operand in node.inputs]
    # With an averaged copy, even a product of shared values gets noise of its own: the covariance in that copy's
    # column.
    alike = copies.averaged is None or _linear(node) or not node.type.secret
    if alike and all(operand.own is None for operand in operands):
        shared = [operand.shared for operand in operands if operand.shared is not None]
        return Value(copies.builder.copy(node, shared), None)
    rule = _RULES.get(node.op) or (_elementwise if OPS[node.op].activation is not None else None)
    if rule is None:
        raise UnsupportedError(
            f"no rule says what {node.op} is for many copies of its input",
            where=node.loc,
            hint="certify takes networks of linear layers, polynomials, products and activations",
        )
    return rule(copies, node, operands)


def _settled(copies: Copies, node: Node, operands: Sequence[Value]) -> Sequence[Value]:
    """The operands; if one has an encrypted own part, the others' noise includes the averaged copy's."""
    if copies.averaged is None or not any(value.own is not None and value.own.type.secret for value in operands):
        return operands
    return [Value(each.shared, copies.own(each, of)) for each, of in zip(operands, node.inputs, strict=True)]


def _affine(copies: Copies, node: Node, operands: Sequence[Value]) -> Value:
    builder, names = copies.builder, node.attrs["matrices"]
    operands = _settled(copies, node, operands)
    shared = [(each.shared, name) for each, name in zip(operands, names, strict=True) if each.shared is not None]
    own = [(each.own, name) for each, name in zip(operands, names, strict=True) if each.own is not None]
    bias = node.attrs.get("bias")
    common = None
    if shared:
        attrs = {"matrices": tuple(name for _, name in shared), "bias": bias, "shape": shape_of(node)}
        common = copies.op(node, "affine", *(value for value, _ in shared), **attrs)
    matrices = []
    for _, name in own:
        matrices.append(builder.constant(for_copies(builder.context.linear_map(name), copies.count), name))
    offset = None
    if bias is not None and not shared:
        offset = builder.constant(np.repeat(builder.context.array(bias), copies.count), bias)
    shape = (*shape_of(node), copies.count)
    made = copies.op(node, "affine", *(value for value, _ in own), matrices=tuple(matrices), bias=offset, shape=shape)
    return Value(common, made)


def _sum(copies: Copies, node: Node, operands: Sequence[Value]) -> Value:
    left, right = _settled(copies, node, operands)
    return Value(
        _added(copies, node, left.shared, right.shared),
        _added(copies, node, left.own, right.own),
    )


def _added(copies: Copies, node: Node, left: Node | None, right: Node | None) -> Node | None:
    if right is None:
        return left
    if left is None:
        return right if node.op == "add" else copies.op(node, "neg", right)
    return copies.op(node, node.op, left, right)


def _reshape(copies: Copies, node: Node, operands: Sequence[Value]) -> Value:
    (value,) = operands
    shared = None if value.shared is None else copies.op(node, "reshape", value.shared, shape=shape_of(node))
    if value.own is None:
        return Value(shared, None)
    return Value(shared, copies.op(node, "reshape", value.own, shape=(*shape_of(node), copies.count)))


def _elementwise(copies: Copies, node: Node, operands: Sequence[Value]) -> Value:
    full = {operand: copies.full(value, operand) for operand, value in zip(node.inputs, operands, strict=True)}
    return Value(None, copies.op(node, node.op, *(full[operand] for operand in node.inputs), **node.attrs))


def _product(copies: Copies, node: Node, operands: Sequence[Value]) -> Value:
    """The product of operands that are first multiplied by a power of two, by which the product is later divided.

    The maps on both sides absorb the sizes. The argmax must resolve logits that are nearly equal, and their error depends
    on the size.
    """
    builder, loc = copies.builder, node.loc
    size = copies.sizes.get(node, _SIZE_OF_PRODUCTS)
    factor = 2.0 ** round(math.log2(_SIZE_OF_PRODUCTS / size) / 2) if size > 0 else 1.0

    def times(value: Node, factor: float) -> Node:
        number = builder.op("constant", (), loc, value=builder.constant(np.array(factor), "size"))
        return builder.op("mul", (value, number), loc)

    resized = {}
    for operand, value in zip(node.inputs, operands, strict=True):
        if value.shared is None:
            resized[operand] = times(copies.full(value, operand), factor)
            continue
        # Scale before the value is repeated for the copies, so that a map absorbs the factor.
        shared = builder.op("repeat", (times(value.shared, factor),), loc, count=copies.count)
        own = copies.own(value, operand)
        resized[operand] = shared if own is None else builder.op("add", (shared, times(own, factor)), loc)
    made = builder.op("mul", [resized[operand] for operand in node.inputs], loc)
    if copies.averaged is not None:
        made = builder.op("add", (made, times(_covariance(copies, node, copies.averaged), factor**2)), loc)
    copies.resized[node] = made, factor**-2
    return Value(None, times(made, factor**-2))


def _covariance(copies: Copies, node: Node, averaged: Averaged) -> Node:
    """The mean of products minus the product of means, in the averaged copy's column, computed in the clear."""
    left, right = (averaged.aside.values[operand].own for operand in node.inputs)
    assert left is not None
    assert right is not None
    axes = (len(shape_of(node)),)
    means = [copies.op(node, "mean", part, axes=axes, keepdims=True) for part in (left, right)]
    both = copies.op(node, "mean", copies.op(node, "mul", left, right), axes=axes, keepdims=True)
    column = np.zeros((copies.count, 1))
    column[averaged.column] = 1.0
    above = copies.op(node, "sub", both, copies.op(node, "mul", *means))
    return moved_columns(copies.builder, above, column, node.loc)


def moved_columns(builder: Builder, values: Node, places: Array, loc: Location) -> Node:
    """The copies of a value (*shape, copies) times the matrix `places` (new copies, copies)."""
    *shape, _ = shape_of(values)
    size = math.prod(shape)
    place = SparseMatrix.of(scipy.sparse.csr_array(places))
    matrix: Matrix
    if size * size <= _MOST_CHANNELS:
        matrix = KroneckerMatrix.of(np.eye(size)[np.newaxis], [place])
    else:
        matrix = SparseMatrix.of(scipy.sparse.kron(scipy.sparse.eye_array(size), place.csr(), format="csr"))
    name = builder.constant(matrix, "columns")
    return builder.op("affine", (values,), loc, matrices=(name,), shape=(*shape, len(places)))


def _along_rows(copies: Copies, node: Node, operands: Sequence[Value]) -> Value:
    """A row op on all copies at once: their columns are put side by side, and the op treats each column alike."""
    (operand,) = node.inputs
    rows, columns = shape_of(operand)
    flat = copies.op(node, "reshape", copies.full(operands[0], operand), shape=(rows, columns * copies.count))
    made = copies.op(node, node.op, flat, **node.attrs)
    assert size_of(made) == size_of(node) * copies.count
    return Value(None, copies.op(node, "reshape", made, shape=(*shape_of(node), copies.count)))


_RULES: Mapping[str, Callable[[Copies, Node, Sequence[Value]], Value]] = {
    "affine": _affine,
    "add": _sum,
    "sub": _sum,
    "reshape": _reshape,
    "poly": _elementwise,
    "mul": _product,
    **dict.fromkeys(ALONG_ROWS, _along_rows),
}
