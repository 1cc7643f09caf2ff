"""The values of a program under construction: on the calibration samples, or by intervals from input ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from heliograph.ir import Array, Builder, Node, SparseMatrix, shape_of, size_of
from heliograph.ir.node import Matrix
from heliograph.ir.ops.bounds import widened
from heliograph.ir.ops.table import OPS, Bounds, Context

# As many samples are taken as keep the largest value on all of them below this many elements; but at least so many.
_MOST_ELEMENTS = 1 << 22
_FEWEST = 32
# Values on samples are kept for later questions up to this number of elements in all.
_KEPT_ELEMENTS = 1 << 24
# Layers whose matrices might have more entries than this get no intervals: the matrices serve no other purpose here.
_MOST_ENTRIES = 1 << 24


class Reach:
    """Answers about nodes of a builder, from one array of samples per input, or none.

    Nothing is computed before a question is asked, and later questions start from what is known.
    """

    def __init__(self, builder: Builder, calibration: Sequence[Array] = ()) -> None:
        self._builder = builder
        self._calibration = tuple(calibration)
        self._values: dict[Node, Array] = {}
        self._bounds: dict[Node, Bounds | None] = {}

    def on_samples(self, node: Node) -> Array | None:
        """The node's values, with a leading sample axis (of length one where the node depends on no input), or None."""
        if not self._calibration or len(self._calibration) != len(self._builder.inputs):
            return None
        if node in self._values:
            return self._values[node]
        order = _before(node, self._values)
        samples = self._samples(order)
        readers = {operand: reader for reader in order for operand in reader.inputs}
        table = {operand: self._values[operand] for operand in readers if operand in self._values}
        context = self._builder.context
        for one in order:
            if one.op == "input":
                table[one] = np.asarray(samples[self._builder.inputs.index(one)], dtype=np.float64)
            else:
                table[one] = np.asarray(
                    OPS[one.op].evaluate([table[operand] for operand in one.inputs], one.attrs, context)
                )
            self._values[one] = table[one]
            for operand in one.inputs:
                if readers[operand] is one:
                    table.pop(operand, None)
        made = self._values[node]
        held = sum(value.size for value in self._values.values())
        for oldest in list(self._values):
            if held <= _KEPT_ELEMENTS:
                break
            held -= self._values.pop(oldest).size
        return made

    def size(self, node: Node) -> float:
        """The largest absolute value of the node, on the samples or by intervals; 0 if nothing is known."""
        values = self.on_samples(node)
        if values is None:
            bounds = self.intervals(node)
            values = np.zeros(1) if bounds is None else np.concatenate(bounds)
        found = float(np.abs(values).max(initial=0.0))
        return found if math.isfinite(found) else 0.0

    def _samples(self, order: Sequence[Node]) -> tuple[Array, ...]:
        """The calibration samples, or as many of them, evenly chosen, as are worth the time."""
        count = self._calibration[0].shape[0]
        largest = max((size_of(node) for node in order), default=1)
        most = max(_FEWEST, _MOST_ELEMENTS // largest)
        if self._values or most >= count:
            return self._calibration
        chosen = np.linspace(0, count - 1, most).astype(int)
        self._calibration = tuple(array[chosen] for array in self._calibration)
        return self._calibration

    def intervals(self, node: Node) -> Bounds | None:
        """The flat lower and upper bounds that follow from the declared ranges of the inputs, or None."""
        context = self._builder.context
        for one in _before(node, self._bounds):
            self._bounds[one] = _transfer(one, [self._bounds[operand] for operand in one.inputs], context)
        return self._bounds[node]


def _before(node: Node, known: Mapping[Node, object]) -> list[Node]:
    """The node and everything it needs that is not yet known, operands first."""
    order: list[Node] = []
    met: set[Node] = set()
    stack = [(node, False)]
    while stack:
        one, ready = stack.pop()
        if ready:
            order.append(one)
        elif one not in met and one not in known:
            met.add(one)
            stack.append((one, True))
            stack.extend((operand, False) for operand in one.inputs)
    return order


def _transfer(node: Node, operands: list[Bounds | None], context: Context) -> Bounds | None:
    """Bounds of a node of the tensor stage from the bounds of its operands; None if there is no bound."""
    spec, size = OPS[node.op], size_of(node)
    if node.op == "softmax":
        return np.zeros(size), np.ones(size)
    if node.op == "input":
        low, high = node.attrs.get("low"), node.attrs.get("high")
        return None if low is None or high is None else (np.full(size, low), np.full(size, high))
    if node.op == "constant":
        value = context.array(node.attrs["value"]).astype(np.float64).ravel()
        return value, value
    known = [operand for operand in operands if operand is not None]
    if len(known) < len(operands):
        return None
    if node.op in ("mul", "matmul"):
        # Products of intervals, term by term, in centre-radius form.
        (x, dx), (y, dy) = (
            ((low + high).reshape(shape_of(o)) / 2, (high - low).reshape(shape_of(o)) / 2)
            for (low, high), o in zip(known, node.inputs, strict=True)
        )

        def of(left: Array, right: Array) -> Array:
            return np.asarray(spec.evaluate([left[np.newaxis], right[np.newaxis]], node.attrs, context)).ravel()

        centre, reach = of(x, y), of(np.abs(x), dy) + of(dx, np.abs(y) + dy)
        return widened(centre - reach, centre + reach)
    if spec.activation is not None and spec.activation.of(node.attrs).increasing:
        low, high = (spec.activation(end, node.attrs) for end in known[0])
        return widened(low, high)
    dense = node.op in ("linear", "conv") and size * size_of(node.inputs[0]) > _MOST_ENTRIES
    if spec.linear is None or dense:
        return None
    matrices, bias = spec.linear([operand.type for operand in node.inputs], node.attrs, context)
    middle: Array = np.zeros(size) if bias is None else np.asarray(bias, dtype=np.float64).ravel()
    radius: Array = np.zeros(size)
    for (low, high), made in zip(known, matrices, strict=True):
        matrix = made if isinstance(made, Matrix) else SparseMatrix.of(made)
        middle = middle + matrix.apply((low + high)[np.newaxis] / 2)[0]
        radius = radius + matrix.absolute().apply((high - low)[np.newaxis] / 2)[0]
    return widened(middle - radius, middle + radius)
