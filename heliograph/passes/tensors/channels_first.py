"""Bring the features of token-major values to the front: (tokens, features) becomes (features, tokens).

A linear layer on the last axis of (tokens, features) is the same small matrix for every token. With the features first it
is a convolution of length one over the tokens, whose map is a single Kronecker product; sums over features become sums of
channels, and the layouts of convolutional networks apply. Elementwise operations, sums and means over the features follow
their operands; other operations read a permutation, which costs nothing where it joins a linear map.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from heliograph.ir import Builder, Node, Program, Stage, shape_of
from heliograph.ir.ops.table import OPS, Role, role_of

# The operations that sum over axes.
_REDUCTIONS = ("sum", "mean")


@dataclass(frozen=True, slots=True)
class ChannelsFirst:
    """Computes linear layers of several tokens, and what follows them element by element, with the features first."""

    name: ClassVar[str] = "channels-first"
    needs: ClassVar[Stage] = Stage.TENSOR
    makes: ClassVar[Stage] = Stage.TENSOR

    def run(self, program: Program) -> Program:
        return _Turner(Builder(program.name, Stage.TENSOR, program)).run(program)


def has_tokens(program: Program) -> bool:
    """Whether the pass would change a program."""
    return any(_by_token(node) for node in program.nodes)


def _by_token(node: Node) -> bool:
    """Whether the node is a linear layer of several tokens."""
    return node.op == "linear" and node.type.secret and math.prod(shape_of(node)[:-1]) > 1


@dataclass(slots=True)
class _Turner:
    """The rewriting of one program.

    `plain`: the values of the new program in the axes of the old one, by node of the old program.
    `turned`: the values with the last axis first.
    `computed`: the nodes of the old program that are computed in that form.
    """

    builder: Builder
    plain: dict[Node, Node] = field(default_factory=dict)
    turned: dict[Node, Node] = field(default_factory=dict)
    computed: set[Node] = field(default_factory=set)

    def run(self, program: Program) -> Program:
        for node in program.nodes:
            made = self._turned_form(node)
            if made is not None:
                self.turned[node] = made
                self.computed.add(node)
            elif node.op == "input":
                self.plain[node] = self.builder.copy(node, ())
            else:
                self.plain[node] = self.builder.copy(node, [self._plain(operand) for operand in node.inputs])
        return self.builder.finish_as(program, {node: self._plain(node) for node in program.outputs})

    def _plain(self, node: Node) -> Node:
        if node not in self.plain:
            rank = len(shape_of(node))
            self.plain[node] = self.builder.op("permute", (self.turned[node],), node.loc, axes=(*range(1, rank), 0))
        return self.plain[node]

    def _turn(self, node: Node, rank: int) -> Node:
        """The value with its last axis first, as an operand of so many axes: missing ones have length one."""
        own = shape_of(node)
        if node in self.turned and len(own) == rank:
            return self.turned[node]
        made = self._plain(node)
        if len(own) < rank:
            made = self.builder.op("reshape", (made,), node.loc, shape=(*(1,) * (rank - len(own)), *own))
        made = self.builder.op("permute", (made,), node.loc, axes=(rank - 1, *range(rank - 1)))
        if len(own) == rank:
            self.turned[node] = made
        return made

    def _turned_form(self, node: Node) -> Node | None:
        """The node with its last axis first; None where it stays as it is."""
        builder, rank = self.builder, len(shape_of(node))
        if _by_token(node):
            operand = self._turn(node.inputs[0], rank)
            features, *tokens = shape_of(operand)
            weight = builder.context.array(node.attrs["weight"])
            attrs = {"weight": builder.constant(weight[:, :, None], node.attrs["weight"])}
            if "bias" in node.attrs:
                attrs["bias"] = node.attrs["bias"]
            flat = builder.op("reshape", (operand,), node.loc, shape=(features, math.prod(tokens)))
            made = builder.op("conv", (flat,), node.loc, **attrs, stride=(1,), padding=(0,), dilation=(1,), groups=1)
            return builder.op("reshape", (made,), node.loc, shape=(weight.shape[0], *tokens))
        if not self.computed.intersection(node.inputs):
            return None
        if node.op in _REDUCTIONS:
            (operand,) = node.inputs
            last = len(shape_of(operand)) - 1
            if node.attrs["keepdims"] and tuple(axis % (last + 1) for axis in node.attrs["axes"]) == (last,):
                return builder.op(node.op, (self._turn(operand, rank),), node.loc, axes=(0,), keepdims=True)
            return None
        if rank < 2 or not _by_element(node):
            return None
        return builder.op(node.op, [self._turn(operand, rank) for operand in node.inputs], node.loc, **node.attrs)


def _by_element(node: Node) -> bool:
    """Whether each element of the result depends on the same element of each operand alone, broadcast over axes."""
    if role_of(node) is Role.SUM or node.op in ("mul", "neg", "power"):
        return True
    return OPS[node.op].activation is not None and role_of(node) is not Role.ALONG_ROWS
