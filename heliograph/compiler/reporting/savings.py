"""Changes that would save a level: variants of the program, compiled far enough to know their depth and error."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from heliograph import rounding
from heliograph.approx.fits.fit import METHODS
from heliograph.compiler.pipeline import polynomial_passes
from heliograph.compiler.reporting.held_out import setting_of
from heliograph.errors import HeliographError
from heliograph.interpret import interpret_batch
from heliograph.ir import Array, Node, Program
from heliograph.ir.analysis.depth import critical_depth, depth_of_degree, node_depth, program_depth
from heliograph.passes.polynomials.approximate import degrees_by_layer
from heliograph.passes.polynomials.approximation import Approximations
from heliograph.report.figures import Saving

# At most this many candidates are combined: the text shows three.
_MAX_CANDIDATES = 24
_SHOWN = 3
# This many variants are compiled and compared. If a program's maps have more entries than this, only the shown ones are
# compiled, on few samples: each takes seconds.
_COMPARED = 8
_LARGE = 5_000_000
_FEW_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of one node of the polynomial program that saves a level there."""

    node: Node
    kind: str  # "degree" or "fusion"

    @property
    def layer(self) -> str:
        return self.node.loc.layer or self.node.op


def _candidates(program: Program) -> list[_Change]:
    found = []
    for node in program.nodes:
        if node.op == "poly" and node_depth(program, node) >= 2 and _chosen(program, node):
            found.append(_Change(node, "degree"))
        if node.op == "affine" and any(operand.op == "affine" for operand in node.inputs):
            found.append(_Change(node, "fusion"))
    return found[:_MAX_CANDIDATES]


def _chosen(program: Program, node: Node) -> bool:
    """Whether the compiler chose the polynomial, so that it can choose another."""
    return "range" in node.attrs and program.ranges[node.attrs["range"]].method in METHODS


def fuse_into(program: Program, node: Node) -> Program:
    """The program with `node`, an affine, merged with the affines among its operands."""
    from heliograph.ir import Builder, SparseMatrix

    builder = Builder(program.name, program.stage, program)
    new: dict[Node, Node] = {}
    for old in program.nodes:
        if old.op == "input":
            builder.inputs.append(old)
            new[old] = old
            continue
        if old is not node:
            new[old] = builder.copy(old, [new[operand] for operand in old.inputs])
            continue
        terms: dict[Node, Any] = {}
        bias: Any = builder.context.array(old.attrs["bias"]) if "bias" in old.attrs else 0.0
        for operand, name in zip(old.inputs, old.attrs["matrices"], strict=True):
            outer = program.linear_map(name).csr()
            if operand.op != "affine":
                terms[operand] = terms.get(operand, 0) + outer
                continue
            for inner, inner_name in zip(operand.inputs, operand.attrs["matrices"], strict=True):
                terms[inner] = terms.get(inner, 0) + outer @ program.linear_map(inner_name).csr()
            if "bias" in operand.attrs:
                bias = bias + outer @ program.array(operand.attrs["bias"])
        matrices = tuple(builder.constant(SparseMatrix.of(matrix), "fused") for matrix in terms.values())
        attrs = dict(old.attrs) | {"matrices": matrices}
        attrs.pop("bias", None)
        if isinstance(bias, np.ndarray):
            attrs["bias"] = builder.constant(bias, "fused.bias")
        new[old] = builder.op("affine", [new[operand] for operand in terms], old.loc, **attrs)
    return builder.finish(dict(zip(program.output_names, (new[n] for n in program.outputs), strict=True)))


def savings(
    polynomial: Program,
    table: Approximations,
    samples: Sequence[Array],
    exact: Sequence[Array],
) -> tuple[Saving, ...]:
    """The changes with the least error that save a level, each with its text, its depth and its error.

    `polynomial` is the program, `table` its approximations, `exact` the outputs of the exact program on `samples`.
    Single changes come first; where two longest paths run side by side, pairs are tried, then triples. Every variant is
    compiled, and its depth and its outputs' error on the samples are measured.
    """
    depth = program_depth(polynomial)
    changes = _candidates(polynomial)
    large = _entries(polynomial) > _LARGE
    if large:
        samples, exact = [x[:_FEW_SAMPLES] for x in samples], [y[:_FEW_SAMPLES] for y in exact]
    for size in (1, 2, 3):
        found = []
        for group in itertools.combinations(changes, size):
            if critical_depth(polynomial, frozenset(change.node for change in group))[0] < depth:
                made = _compiled(group, polynomial, table, samples, exact)
                if made is not None and made.depth < depth:
                    found.append(made)
            if len(found) >= (_SHOWN if large else _COMPARED):
                break
        if found:
            found.sort(key=lambda saving: (saving.approximation_error, saving.change))
            return tuple(found[:_SHOWN])
    return ()


def _compiled(
    group: Sequence[_Change],
    polynomial: Program,
    table: Approximations,
    samples: Sequence[Array],
    exact: Sequence[Array],
) -> Saving | None:
    """The variant with these changes; None if it cannot be compiled."""
    chosen = degrees_by_layer(table.fused, table.choice.degrees)
    degrees, texts, made = dict(chosen), [], polynomial
    for change in group:
        if change.kind != "degree":
            continue
        old = len(polynomial.array(change.node.attrs["coefficients"])) - 1
        # A polynomial of degree 2 may become a square, which takes one level.
        degree = 2 if old == 3 else 2 ** (depth_of_degree(old) - 1) - 1
        degrees[change.layer] = degree
        texts.append(f"degree {degree} instead of {old} for {_named(change)}")
    try:
        if degrees != chosen:
            other = table.anew(degrees=degrees)
            if table.choice.corrections:
                other = other.corrected(setting_of(table.fused))
            made = polynomial_passes(other)[-1].program
        for change in group:
            if change.kind != "fusion":
                continue
            target = _same(made, polynomial, change.node)
            if target is None:
                return None
            old_entries = _entries(made)
            made = fuse_into(made, target)
            texts.append(
                f"the map of {_named(change)} computed straight from what the map before it reads "
                f"({_entries(made)} matrix entries instead of {old_entries})"
            )
        outputs = interpret_batch(made, *samples)
    except HeliographError:
        return None
    error = largest_difference(exact, outputs, made.interface.scales)
    return Saving(
        " and ".join(texts),
        tuple(change.kind for change in group),
        tuple(change.layer for change in group),
        tuple(change.node.loc.short for change in group),
        program_depth(made),
        rounding.nearest(error),
    )


def largest_of(outputs: Sequence[Array], scales: Sequence[float]) -> float:
    """The largest value of the outputs, multiplied by their scales as on the client."""
    factors = scales or [1.0] * len(outputs)
    return max(factor * float(np.abs(out).max(initial=0.0)) for out, factor in zip(outputs, factors, strict=True))


def largest_difference(exact: Sequence[Array], approximate: Sequence[Array], scales: Sequence[float]) -> float:
    """The largest difference of two interpretations, multiplied by the interface's scales as on the client, and rounded
    so that it does not depend on the processor.
    """
    seen = largest_of([a - b for a, b in zip(exact, approximate, strict=True)], scales)
    return rounding.nearest(seen, rounding.SEEN_BITS)


def _named(change: _Change) -> str:
    return change.layer or change.node.loc.short


def _entries(program: Program) -> int:
    return sum(
        program.linear_map(name).nnz for node in program.nodes if node.op == "affine" for name in node.attrs["matrices"]
    )


def _same(made: Program, polynomial: Program, node: Node) -> Node | None:
    """The variant's node at the place of `node` among the maps; None if their number differs."""
    olds = [n for n in polynomial.nodes if n.op == "affine"]
    news = [n for n in made.nodes if n.op == "affine"]
    return news[olds.index(node)] if len(olds) == len(news) else None
