"""Removal of the sample axis from a program that was traced with all of torch's axes.

Each input of such a program gets an axis in front, along which its sample lies once, or as often as the graph has
samples. A node then drops one axis along which all of its entries are equal, as long as operations treat the entries
along that axis separately. An operation that does not gets the whole tensor, and so do the ones behind it, up to a
tensor whose first axis is of length one. Whatever the axes mean, the program computes the same values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse

from heliograph.errors import UnsupportedError
from heliograph.frontends.torch.refusals import APART
from heliograph.ir import Builder, ConstantName, Node, Program, SparseMatrix, shape_of
from heliograph.ir.node import Matrix
from heliograph.ir.ops.table import OPS

# Ops whose operands are broadcast against each other, beside activations.
_BY_ELEMENT = frozenset(
    {"add", "sub", "mul", "div", "neg", "power", "poly", "where", "maximum", "minimum", "gt", "ge", "lt", "le"}
)


def unbatched(program: Program, samples: int, entries: Collection[Node]) -> Program:
    """The program for one sample, without its axis.

    `samples` is the length of the axis in front of inputs and outputs. `entries` are reshapes that drop the first axis of
    their operand, of length one. Raises an UnsupportedError for an output that has no entry for each of several samples.
    """
    return _Unbatched(program, samples, entries).program()


@dataclass(frozen=True, slots=True)
class _Bare:
    """The replacement of a node.

    node: without `axis`.
    axis: an axis of the replaced node, along which all entries are equal; None if no axis is left out.
    """

    node: Node
    axis: int | None = None


class _Unbatched:
    def __init__(self, program: Program, samples: int, entries: Collection[Node]) -> None:
        self.old, self.samples, self.entries = program, samples, entries
        self.builder = Builder(program.name, program.stage)
        self.builder.calibration, self.builder.gradients = program.calibration, program.gradients
        self.bare: dict[Node, _Bare] = {}
        self._whole: dict[Node, Node] = {}
        self._emitted: dict[Any, Node] = {}

    def program(self) -> Program:
        for node in self.old.nodes:
            if node.op != "constant":
                self.bare[node] = self._of(node)
        named = zip(self.old.output_names, self.old.outputs, strict=True)
        made = self.builder.finish({name: self._output(name, node) for name, node in named})
        specs = []
        for spec, old, new in zip(self.old.interface.outputs, self.old.outputs, made.outputs, strict=False):
            dropped = len(shape_of(old)) - len(shape_of(new))
            axis = None if spec.finish_axis is None else spec.finish_axis - dropped
            specs.append(replace(spec, shape=shape_of(new), finish_axis=axis))
        return replace(made, interface=replace(self.old.interface, outputs=tuple(specs)))

    def _output(self, name: str, node: Node) -> Node:
        shape = shape_of(node)
        if 0 in self._free(node) and shape[0] == self.samples:
            return self._made(node).node
        if self.samples > 1 and shape[:1] != (self.samples,):
            raise UnsupportedError(
                f"output {name!r} has shape {shape} for {self.samples} samples",
                where=node.loc,
                why="axis 0 of every input and output is the batch axis: the model mixes samples, or the example has no "
                "batch axis",
                hint=APART,
            )
        made = self._all(node)
        if self.samples > 1:
            ends = (1, *shape[1:])
            made = self._emit(node, "slice", made, starts=(0,) * len(shape), stops=ends, steps=(1,) * len(shape))
        return self._reshaped(node, made, shape[1:]) if shape[:1] == (self.samples,) else made

    # ------------------------------------------------------------------ nodes

    def _emit(self, node: Node, op: str, *operands: Node, **attrs: Any) -> Node:
        """The op in place of a node; a repeated op becomes one node."""
        kept = {name: self._constants(value) for name, value in attrs.items()}
        key = (op, operands, tuple(kept.items()), node.loc)
        if key not in self._emitted:
            self._emitted[key] = self.builder.op(op, operands, node.loc, **kept)
        return self._emitted[key]

    def _constants(self, value: Any) -> Any:
        """An attribute, with its constants copied to the new program."""
        if isinstance(value, ConstantName):
            held, names = self.old.constants[value], self.builder.constants
            if value not in names:
                names.put(value, held)
            return value if names[value] is held else self.builder.constant(held, value)
        return tuple(map(self._constants, value)) if isinstance(value, tuple) else value

    def _reshaped(self, node: Node, made: Node, shape: Sequence[int]) -> Node:
        return made if shape_of(made) == tuple(shape) else self._emit(node, "reshape", made, shape=tuple(shape))

    def _made(self, node: Node) -> _Bare:
        """The replacement of a node; a constant is emitted in the shape in which it is read."""
        return _Bare(self._emit(node, "constant", **node.attrs)) if node.op == "constant" else self.bare[node]

    def _all(self, node: Node) -> Node:
        """The node with all of its axes."""
        made, shape = self._made(node), shape_of(node)
        if made.axis is None:
            return made.node
        if node not in self._whole:
            grown = self._reshaped(node, made.node, (*shape[: made.axis], 1, *shape[made.axis + 1 :]))
            self._whole[node] = grown if shape_of(grown) == shape else self._emit(node, "broadcast", grown, shape=shape)
        return self._whole[node]

    def _free(self, node: Node) -> list[int]:
        """The axes any of which could be the omitted one; the omitted one comes first."""
        shape = shape_of(node)
        axis = None if node.op == "constant" else self.bare[node].axis
        if axis is None:
            return []
        found = [axis]
        if shape[axis] == 1:
            for step in (-1, 1):
                place = axis + step
                while 0 <= place < len(shape) and shape[place] == 1:
                    found.append(place)
                    place += step
        return found

    def _without(self, node: Node, axis: int) -> Node | None:
        """The replacement of the node without that axis; None where its entries along the axis may differ."""
        shape = shape_of(node)
        if axis in self._free(node):
            return self._made(node).node
        if node.op == "constant":
            array = self.old.array(node.attrs["value"])
            first = np.take(array, 0, axis)
            if shape[axis] == 1 or (array == np.expand_dims(first, axis)).all():
                name = self.builder.constant(first, str(node.attrs["value"]))
                return self.builder.op("constant", (), node.loc, value=name)
            return None
        made = self._made(node)
        if shape[axis] > 1 or made.axis is not None:
            return None
        source = made.node.inputs[0] if made.node.op == "reshape" else made.node
        return self._reshaped(node, source, (*shape[:axis], *shape[axis + 1 :]))

    # ------------------------------------------------------------------ operations

    def _of(self, node: Node) -> _Bare:
        op, operands = node.op, node.inputs
        if op == "input":
            return _Bare(self.builder.copy(node, ()))
        if op in _BY_ELEMENT or op == "matmul" or OPS[op].activation is not None:
            made = self._aligned(node, 3 if op == "matmul" else 1)
        else:
            rule = getattr(self, f"_{op}", None)
            made = None if rule is None else rule(node, shape_of(operands[0]), self._free(operands[0]), **node.attrs)
        return made or _Bare(self._emit(node, op, *map(self._all, operands), **node.attrs))

    def _aligned(self, node: Node, least: int) -> _Bare | None:
        """Broadcast operands without one axis of the result: the `least`-th from the end, or one before it."""
        ranks = [len(shape_of(operand)) for operand in node.inputs]
        places = [rank - axis for operand, rank in zip(node.inputs, ranks, strict=True) for axis in self._free(operand)]
        for place in dict.fromkeys(place for place in places if place >= least):
            found = [
                self._all(operand) if rank < place else self._without(operand, rank - place)
                for operand, rank in zip(node.inputs, ranks, strict=True)
            ]
            if all(one is not None for one in found):
                made = self._emit(node, node.op, *(one for one in found if one is not None), **node.attrs)
                return _Bare(made, len(shape_of(node)) - place)
        return None

    def _reshape(self, node: Node, old: tuple[int, ...], free: list[int], shape: tuple[int, ...]) -> _Bare | None:
        (operand,) = node.inputs
        made = self._made(operand)
        if node in self.entries:
            first = made.node if 0 in free else self._all(operand)
            return _Bare(self._reshaped(node, first, shape))
        length = old[free[0]] if free else 1
        before = int(np.prod(old[: free[0]])) if free else 1
        ones = [axis for axis, size in enumerate(shape) if size == length]
        same = [axis for axis in ones if int(np.prod(shape[:axis])) == before]
        if free[:1] and free[0] in same:
            same.insert(0, free[0])
        if length > 1 and not same:
            return None
        elsewhere = ones if free and shape_of(made.node) != shape else []
        axis = next(iter([*same, *elsewhere]), None)
        target = shape if axis is None else (*shape[:axis], *shape[axis + 1 :])
        return _Bare(self._reshaped(node, made.node, target), axis)

    def _permute(self, node: Node, old: tuple[int, ...], free: list[int], axes: tuple[int, ...]) -> _Bare:
        made = self._made(node.inputs[0])
        if not free:
            if [axis for axis in axes if old[axis] > 1] == [axis for axis in range(len(old)) if old[axis] > 1]:
                # Only axes of length one are moved.
                return self._reshape(node, old, free, shape_of(node)) or _Bare(made.node)
            return _Bare(self._emit(node, "permute", made.node, axes=axes))
        order = _less(axes, free[0])
        turned = made.node if order == tuple(range(len(order))) else self._emit(node, "permute", made.node, axes=order)
        return _Bare(turned, axes.index(free[0]))

    def _broadcast(self, node: Node, old: tuple[int, ...], free: list[int], shape: tuple[int, ...]) -> _Bare | None:
        made, new = self._made(node.inputs[0]), len(shape) - len(old)
        if not free and not new:
            return None
        axis = next((axis + new for axis in free if shape[axis + new] == old[axis]), free[0] + new if free else 0)
        target = (*shape[:axis], *shape[axis + 1 :])
        spread = made.node
        if shape_of(spread) != target:
            spread = self._emit(node, "broadcast", spread, shape=target)
        return _Bare(spread, axis)

    def _concat(self, node: Node, old: tuple[int, ...], free: list[int], axis: int) -> _Bare | None:
        if all(
            axis in self._free(one) and self._made(one).node is self._made(node.inputs[0]).node for one in node.inputs
        ):
            return _Bare(self._made(node.inputs[0]).node, axis)
        for place in dict.fromkeys(place for one in node.inputs for place in self._free(one) if place != axis):
            parts = [self._without(one, place) for one in node.inputs]
            if all(part is not None for part in parts):
                made = self._emit(
                    node, "concat", *(part for part in parts if part is not None), axis=axis - (axis > place)
                )
                return _Bare(made, place)
        return None

    def _on_others(self, node: Node, old: tuple[int, ...], free: list[int], **attrs: Any) -> _Bare | None:
        """An op of one operand, without an axis other than the ones on which it works."""
        taken = _worked_on(node.op, attrs, len(old))
        axis = next((axis for axis in free if axis not in taken), None)
        if axis is None:
            return None
        made, kept = self._made(node.inputs[0]).node, dict(attrs)
        for name in ("starts", "stops", "steps", "before", "after"):
            if name in attrs:
                kept[name] = (*attrs[name][:axis], *attrs[name][axis + 1 :])
        if "axes" in attrs:
            kept["axes"] = tuple(one - (one > axis) for one in attrs["axes"])
        if "axis" in attrs:
            kept["axis"] = attrs["axis"] - (attrs["axis"] > axis)
        whole = (
            node.op == "slice"
            and kept["stops"] == shape_of(made)
            and not any(kept["starts"])
            and set(kept["steps"]) <= {1}
        )
        dropped = sum(one < axis for one in taken) if len(shape_of(node)) < len(old) else 0
        return _Bare(made if whole else self._emit(node, node.op, made, **kept), axis - dropped)

    _slice = _pad = _linear = _layer_norm = _sum = _mean = _max = _min = _argmax = _softmax = _on_others

    def _affine(self, node: Node, old: tuple[int, ...], free: list[int], **attrs: Any) -> _Bare:
        """A map of flattened operands."""
        shape: tuple[int, ...] = attrs["shape"]
        matrices = [self.old.constants[name] for name in attrs["matrices"]]
        for number, operand in enumerate(node.inputs):
            made = self._made(operand)
            if made.axis is not None and shape_of(operand)[made.axis] > 1:
                # Each of the equal entries is multiplied by its own part: the parts are added.
                index = np.arange(int(np.prod(shape_of(made.node)))).reshape(shape_of(made.node))
                index = np.broadcast_to(np.expand_dims(index, made.axis), shape_of(operand)).ravel()
                ones = scipy.sparse.csr_array((np.ones(index.size), (np.arange(index.size), index)))
                matrices[number] = SparseMatrix.of(_sparse(matrices[number]) @ ones)
        bias = self.old.array(attrs["bias"]) if "bias" in attrs else None
        axis = next((axis for axis in (*free, 0) if axis < len(shape) and shape[axis] == 1), None)
        several = [place for place in (*free, 0) if place < len(shape)] if axis is None and self.samples > 1 else []
        for place in dict.fromkeys(several):
            order = np.moveaxis(np.arange(int(np.prod(shape))).reshape(shape), place, 0).reshape(shape[place], -1)
            rows = [_sparse(matrix) for matrix in matrices]
            if all(_alike(matrix, order) for matrix in (*rows, *([] if bias is None else [bias.reshape(-1, 1)]))):
                # Equal entries have equal rows.
                axis = place
                matrices = [SparseMatrix.of(matrix[order[0]]) for matrix in rows]
                bias = None if bias is None else bias[order[0]]
                break
        names = tuple(
            self._constants(name) if matrix is self.old.constants[name] else self.builder.constant(matrix, name)
            for name, matrix in zip(attrs["matrices"], matrices, strict=True)
        )
        offset = {} if bias is None else {"bias": self.builder.constant(bias, attrs["bias"])}
        target = shape if axis is None else (*shape[:axis], *shape[axis + 1 :])
        operands = [self._made(operand).node for operand in node.inputs]
        return _Bare(self.builder.op("affine", operands, node.loc, matrices=names, shape=target, **offset), axis)


def _worked_on(op: str, attrs: Mapping[str, Any], rank: int) -> Collection[int]:
    """The axes of an operand of that rank on which an op works; a slice may take any one of equal entries."""
    if op in ("linear", "layer_norm"):
        return range(rank - attrs.get("rank", 1), rank)
    if op == "pad":
        return [axis for axis in range(rank) if attrs["before"][axis] or attrs["after"][axis]]
    return () if op == "slice" else attrs.get("axes", (attrs.get("axis"),))


def _less(axes: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """An order of axes without one of them; the others are renumbered."""
    return tuple(one - (one > axis) for one in axes if one != axis)


def _sparse(matrix: Any) -> Any:
    return matrix.csr() if isinstance(matrix, Matrix) else scipy.sparse.csr_array(matrix)


def _alike(matrix: Any, order: Any) -> bool:
    """Whether a matrix has the same rows in each of several groups of places."""
    differences = [matrix[order[0]] != matrix[places] for places in order[1:]]
    return not any(one.nnz if scipy.sparse.issparse(one) else one.any() for one in differences)
