"""Divide large outputs by a power of two, by which the client multiplies them after decryption.

A ciphertext holds numbers of a fixed size: an output of 3e7 takes 25 bits of the first modulus away from the precision
of small outputs, and one of 1e12 does not fit at all. The division is part of the last linear map, or of the maps
before a final product. Precision is then relative to each output, as it is for outputs near one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from heliograph import rounding
from heliograph.ir import Array, Builder, Node, Program, Stage, shape_of
from heliograph.ir.interface import LARGEST_SCALE, TensorSpec

# Smaller outputs stay as they are: there is room for them.
_LARGE = 2.0**16
# A power is divided by at most this many bits more; and scales stay this many bits below the largest, which leaves room
# for that.
_MOST_MORE, _ROOM = 3, 16


@dataclass(frozen=True)
class ScaleOutputs:
    """Divides outputs of a tensor program by their scales or a little more; the interface gets the actual scales.

    `scales`: powers of two by output name.
    """

    scales: Mapping[str, float]

    name: ClassVar[str] = "scale-outputs"
    needs: ClassVar[Stage] = Stage.TENSOR
    makes: ClassVar[Stage] = Stage.TENSOR

    def run(self, program: Program) -> Program:
        builder = Builder(program.name, Stage.TENSOR, program)
        outputs: dict[str, Node] = {}
        for node in program.inputs:
            builder.copy(node, ())
        scales: dict[str, float] = {}
        for name, node in zip(program.output_names, program.outputs, strict=True):
            outputs[name] = node
            if name in self.scales:
                outputs[name], bits = _divided(builder, node, math.frexp(self.scales[name])[1] - 1)
                scales[name] = 2.0**bits
        made = builder.finish(outputs)
        known = {spec.name: spec for spec in program.interface.outputs}
        specs = tuple(
            replace(known.get(name, TensorSpec(name, shape_of(node))), scale=scales.get(name))
            for name, node in zip(program.output_names, program.outputs, strict=True)
        )
        return replace(made, interface=replace(program.interface, outputs=specs))


def _divided(builder: Builder, node: Node, bits: int) -> tuple[Node, int]:
    """The value divided by 2^bits or a little more, and the bits.

    Each factor of a product takes a share: a ciphertext of large numbers times a tiny constant would lose their
    precision.
    """
    if node.op == "power":
        exponent = int(node.attrs["exponent"])
        if -bits % exponent <= _MOST_MORE:
            base, each = _divided(builder, node.inputs[0], -(-bits // exponent))
            return builder.op("power", (base,), node.loc, exponent=exponent), exponent * each
    if node.op == "mul" and all(operand.type.secret for operand in node.inputs):
        left, right = node.inputs
        first, taken = _divided(builder, left, -(-bits // 2))
        second, rest = (first, taken) if left is right else _divided(builder, right, bits // 2)
        return builder.op("mul", (first, second), node.loc), taken + rest
    share = builder.op("constant", (), node.loc, value=builder.constant(2.0**-bits, "share"))
    return builder.op("mul", (node, share), node.loc), bits


def output_scales(program: Program, outputs: Sequence[Array]) -> dict[str, float]:
    """The powers of two by which large outputs are divided, by name; `outputs` are the program's results on some
    samples.

    Outputs that the next run takes up, and those that are already divided, stay as they are.
    """
    left = {name for name, _ in program.interface.carried}
    left |= {spec.name for spec in program.interface.outputs if spec.scale is not None}
    scales = {}
    for name, values in zip(program.output_names, outputs, strict=True):
        size = float(np.abs(values).max(initial=0.0))
        if name not in left and _LARGE < size < LARGEST_SCALE * 2.0**-_ROOM:
            scales[name] = 2.0 * rounding.power_of_two(size)
    return scales
