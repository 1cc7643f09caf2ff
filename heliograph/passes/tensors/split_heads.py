"""Split attention into groups of heads whose scores fit one ciphertext."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from heliograph.ir import Builder, Node, Program, Stage, shape_of
from heliograph.ir.node import next_power_of_two
from heliograph.ir.writer import Writer

# The slots of N = 2^16, the largest ring in which programs are planned that bootstrap.
_SLOTS = 1 << 15
# Elementwise ops between the product that makes scores and their softmax: scaling, and masks that are added.
_ELEMENTWISE = ("add", "sub", "mul")


@dataclass(frozen=True, slots=True)
class SplitHeads:
    """Replaces a softmax along the last axis of (heads, rows, columns) by one for each group of heads, with the products
    before and after it, where the scores of all heads take more slots than a ciphertext has.

    A softmax is made of operations on rows, which work within one ciphertext (passes/packing/choose_layouts.py).
    """

    name: ClassVar[str] = "split-heads"
    needs: ClassVar[Stage] = Stage.TENSOR
    makes: ClassVar[Stage] = Stage.TENSOR

    def run(self, program: Program) -> Program:
        builder = Builder(program.name, Stage.TENSOR, program)
        new: dict[Node, Node] = {}
        groups: dict[Node, list[Node]] = {}
        for node in program.nodes:
            operands = [new[operand] for operand in node.inputs]
            writer = Writer(builder, node.loc)
            if size := _heads_in_a_group(node):
                spans = list(_spans(shape_of(node)[0], size))
                scores = [_part(writer, operands[0], start, stop) for start, stop in spans]
                groups[node] = [builder.copy(node, [each]) for each in scores]
                new[node] = writer.op("concat", *groups[node], axis=0)
            elif node.op == "matmul" and node.inputs[0] in groups and len(shape_of(node.inputs[1])) == 3:
                start, made = 0, []
                for weights in groups[node.inputs[0]]:
                    stop = start + shape_of(weights)[0]
                    made.append(builder.copy(node, [weights, _part(writer, operands[1], start, stop)]))
                    start = stop
                new[node] = writer.op("concat", *made, axis=0)
            else:
                new[node] = builder.copy(node, operands)
        return builder.finish_as(program, new)


def has_many_heads(program: Program) -> bool:
    """Whether the pass changes the program."""
    return any(_heads_in_a_group(node) for node in program.nodes)


def _heads_in_a_group(node: Node) -> int:
    """The heads of a softmax that fit one ciphertext, at most; 0 if all do, or if not even one does."""
    if node.op != "softmax" or not node.type.secret or len(shape_of(node)) != 3 or node.attrs["axis"] != 2:
        return 0
    heads, rows, columns = shape_of(node)
    # In slots, the columns are rows of a power of two of entries, one for each head and row.
    most = _SLOTS // next_power_of_two(columns) // rows
    while most and next_power_of_two(most * rows) * next_power_of_two(columns) > _SLOTS:
        most -= 1
    return most if most < heads else 0


def _spans(heads: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, heads, size):
        yield start, min(start + size, heads)


def _part(writer: Writer, node: Node, start: int, stop: int) -> Node:
    """The heads from `start` to `stop` of a value with the heads first; products are made of these alone."""
    shape = shape_of(node)
    if len(shape) < 3 or shape[0] == 1:
        return node
    if node.op == "constant":
        return writer.constant(writer.builder.context.array(node.attrs["value"])[start:stop], "heads")
    whole = [operand for operand in node.inputs if len(shape_of(operand)) == 3]
    if node.op in _ELEMENTWISE or (node.op == "matmul" and len(whole) == 2):
        operands = [_part(writer, operand, start, stop) for operand in node.inputs]
        return writer.builder.op(node.op, operands, node.loc, **node.attrs)
    return writer.op("slice", node, starts=(start, 0, 0), stops=(stop, *shape[1:]), steps=(1, 1, 1))
