"""Evaluate two groups of samples at once: x and y as the real and the imaginary part of x + iy.

A real vector uses half of its ciphertext's capacity. Maps, sums and the transforms of bootstraps treat both parts alike,
so they cost as much for two groups as for one; products and polynomials are computed of each part. Parts are taken apart
by a conjugation, which spends no level, and put together at no cost. They are put together as late as possible: where a
map, a rotation or a bootstrap reads them, or a value that is not in parts.

Inputs and outputs have a ciphertext for each group, so that clients encrypt and decrypt real numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import numpy as np

from heliograph.errors import PlanningError
from heliograph.ir import Builder, Node, Program, Stage
from heliograph.ir.interface import Interface, TensorSpec

_GROUPS = 2
# Linear operations that take the parts as they come, or both together.
_EITHER = ("add_ct", "sub_ct", "negate", "lincomb", "mul_int", "add_plain", "add_scalar", "mul_plain")
# Operations of which both parts together take the time of one.
_TOGETHER = ("linear_transform", "rotate", "bootstrap")
_APART = ("mul_ct", "poly")
_Parts: TypeAlias = "tuple[Node, Node]"


def refuse_pairs(program: Program) -> None:
    """Raise a PlanningError unless all operations of a packed program are among these, on ciphertexts alone."""
    known = {"input", *_EITHER, *_TOGETHER, *_APART}
    for node in program.nodes:
        if node.type.secret and not (node.op in known and all(operand.type.secret for operand in node.inputs)):
            raise PlanningError(f"{node.op} is not computed of samples in pairs", where=node.loc)


@dataclass(frozen=True, slots=True)
class PairSamples:
    """Turns a program for some samples into one for twice as many."""

    name: ClassVar[str] = "pair-samples"
    needs: ClassVar[Stage] = Stage.PACKED
    makes: ClassVar[Stage] = Stage.PACKED

    def run(self, program: Program) -> Program:
        return _Pairing(program).run()


class _Pairing:
    """The rewriting of one program: each of its values as two parts, as x + iy, or both."""

    def __init__(self, program: Program) -> None:
        self.program, self.builder = program, Builder(program.name, Stage.PACKED, program)
        self.parts: dict[Node, _Parts] = {}
        self.whole: dict[Node, Node] = {}

    def run(self) -> Program:
        program, builder = self.program, self.builder
        self._inputs()
        for node in program.nodes:
            if node.op != "input":
                self._write(node)
        outputs: dict[str, Node] = {}
        position, interface = 0, program.interface
        for spec in interface.outputs:
            count = spec.placed.ciphertexts
            apart = [self._apart(node) for node in program.outputs[position : position + count]]
            made = [part for group in zip(*apart, strict=True) for part in group]
            outputs |= {f"{spec.name}/{place}": node for place, node in enumerate(made)}
            position += count
        builder.interface = Interface(_grouped(interface.inputs), _grouped(interface.outputs))
        return builder.finish(outputs)

    def _inputs(self) -> None:
        """The inputs of each group, those of the first one first."""
        counts = {spec.name: spec.placed.ciphertexts for spec in self.program.interface.inputs}
        made: dict[Node, list[Node]] = {}
        for group in range(_GROUPS):
            for node in self.program.inputs:
                name = node.attrs["name"]
                chunk = node.attrs.get("chunk", 0) + group * counts[name]
                made.setdefault(node, []).append(self.builder.input(name, node.loc, **{**node.attrs, "chunk": chunk}))
        self.parts = {node: (first, second) for node, (first, second) in made.items()}

    def _apart(self, node: Node) -> _Parts:
        """The two parts of a value."""
        if node not in self.parts:
            z = self.whole[node]
            self.parts[node] = (
                self.builder.op("real_part", (z,), node.loc), self.builder.op("imaginary_part", (z,), node.loc)
            )  # fmt: skip
        return self.parts[node]

    def _together(self, node: Node) -> Node:
        """A value as x + iy."""
        if node not in self.whole:
            self.whole[node] = self.builder.op("complex_of", self.parts[node], node.loc)
        return self.whole[node]

    def _write(self, node: Node) -> None:
        apart = node.op in _APART or (node.op in _EITHER and all(each in self.parts for each in node.inputs))
        if apart:
            first, second = (
                self.builder.copy(node, [self._apart(operand)[group] for operand in node.inputs])
                for group in range(_GROUPS)
            )
            self.parts[node] = first, second
        else:
            self.whole[node] = self._of_both(node, [self._together(operand) for operand in node.inputs])

    def _of_both(self, node: Node, operands: list[Node]) -> Node:
        """A linear operation on x + iy. What is added to x is added to y too."""
        builder, a = self.builder, dict(node.attrs)
        if node.op == "bootstrap":
            return builder.op("bootstrap", operands, node.loc, **a, complex=True)
        if node.op == "add_plain":
            return builder.op("add_plain", operands, node.loc, **a, imaginary=a["value"])
        constant = {"lincomb": "constant", "add_scalar": "value"}.get(node.op)
        if constant is None or not a[constant]:
            return builder.copy(node, operands)
        added = builder.constant(np.full(1, float(a[constant])))
        made = operands[0]
        if node.op == "lincomb":
            made = builder.op("lincomb", operands, node.loc, **{**a, "constant": 0.0})
        return builder.op("add_plain", (made,), node.loc, value=added, imaginary=added)


def _grouped(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    return tuple(replace(spec, layout=replace(spec.placed, groups=_GROUPS)) for spec in specs)
