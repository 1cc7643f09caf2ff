"""The program as its author wrote it, with the polynomials that a compilation would choose."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np

from heliograph.approx.fits.fit import METHODS
from heliograph.compiler.arguments import require_program
from heliograph.compiler.options import Options
from heliograph.compiler.pipeline import fused_program
from heliograph.compiler.reporting.held_out import observe
from heliograph.errors import ProgramError, UnsupportedError
from heliograph.ir import Array, Builder, Node, Program, Stage, TensorType
from heliograph.ir.ops.table import OPS
from heliograph.passes.base import apply
from heliograph.passes.tensors.expand import Expand
from heliograph.passes.tensors.simplify import Simplify

# Expanded only where a function inside them becomes one polynomial.
_WHOLE = ("softmax", "layer_norm")


def approximate(program: Program, options: Options | None = None) -> Program:
    """The tensor program with its activations replaced by the polynomials that `compile` would choose.

    Convolutions and other layers stay as they are. A polynomial with a range for each unit is written between a
    division and a product by the unit sizes. Functions that need a composition of polynomials (sign, softmax, ...)
    stay, layer norms too, and so does a ReLU of a value that is never negative. `to_torch(approximate(program,
    options))` is a module for training, which can recover the loss of the approximation. `compile` takes the result
    like any program, and keeps its polynomials on their intervals. Layers are those of the program, so that
    `Options.correct` has no effect.
    """
    require_program(program, "approximate")
    if program.stage is not Stage.TENSOR:
        raise ProgramError(
            f"approximate takes a program of the tensor stage, not of stage {program.stage.value}",
            hint="pass what trace or parse gave",
        )
    options = replace(options or Options(), correct=False)
    chosen = _by_activation(observe(fused_program(program, options), options).known.write())
    layers = {layer for layer, _ in chosen}

    def kept(node: Node) -> bool:
        return node.op in _WHOLE and node.loc.layer not in layers

    program = apply(Expand(kept=kept), apply(Simplify(), program))
    builder = Builder(program.name, Stage.TENSOR, program)

    def emit(node: Node, operands: list[Node]) -> Node:
        queue = chosen[node.loc.layer, node.op]
        if OPS[node.op].activation is None or not node.type.secret or not queue:
            return builder.copy(node, operands)
        coefficients, low, high, sizes = queue.pop(0)
        (x,) = operands
        if sizes is not None:
            assert isinstance(node.type, TensorType)
            sizes = sizes.reshape(node.type.shape)
            x = _scaled(builder, x, 1.0 / sizes)
        name = builder.constant(coefficients, f"{node.loc.layer or node.op}.poly")
        poly = builder.op("poly", (x,), node.loc, coefficients=name, low=low, high=high)
        return poly if sizes is None else _scaled(builder, poly, sizes)

    return builder.rewrite(program, emit)


def composed(program: Program, options: Options) -> Program:
    """The fused tensor program with all functions of one value as polynomials, also those that need several in sequence.

    What has no such form (a maximum over rows, for instance) raises UnsupportedError with its line.
    """
    written = observe(fused_program(program, options), options).known.write()
    builder = Builder(program.name, Stage.TENSOR, written)
    builder.ranges = []

    def emit(node: Node, operands: list[Node]) -> Node:
        if Stage.TENSOR not in OPS[node.op].stages:
            raise UnsupportedError(f"{node.op} has no form as polynomials of one value", where=node.loc)
        if node.op != "poly":
            return builder.copy(node, operands)
        kept = {name: node.attrs[name] for name in ("coefficients", "low", "high")}
        return builder.op("poly", operands, node.loc, **kept)

    return builder.rewrite(written, emit)


def _by_activation(made: Program) -> dict[tuple[str, str], list[tuple[Array, float, float, Array | None]]]:
    """Coefficients, interval and unit sizes of each activation's polynomial, by layer and op, in program order.

    With units, the interval is [-1, 1], and the coefficients are for f(w x) / w, with w a unit's size.
    """
    table: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for node in made.nodes:
        if node.op != "poly" or "range" not in node.attrs:
            continue
        entry = made.ranges[node.attrs["range"]]
        if entry.method not in METHODS:
            continue
        coefficients, low, high = made.array(node.attrs["coefficients"]), node.attrs["low"], node.attrs["high"]
        sizes = entry.unit_sizes
        if sizes is not None:
            coefficients, low, high, sizes = coefficients / high, -1.0, 1.0, np.array(sizes)
        table[entry.layer, entry.function].append((coefficients, low, high, sizes))
    return table


def _scaled(builder: Builder, x: Node, factors: Array) -> Node:
    """The product with a constant: one number for each channel if its places agree, else one for each element."""
    first_places = (slice(None), *(slice(0, 1) for _ in factors.shape[1:]))
    short = factors[first_places]
    factors = short if (short == factors).all() else factors
    loc = replace(x.loc, layer=f"{x.loc.layer}_unit")
    name = builder.constant(factors, f"{loc.layer}.sizes")
    return builder.op("mul", (x, builder.op("constant", (), loc, value=name)), loc)
