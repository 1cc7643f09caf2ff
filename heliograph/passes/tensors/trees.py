"""Write a `tree_ensemble` as linear maps, one comparison of all splits at once, and a polynomial.

Splits are gathered by a linear map and compared together. A second map counts for each leaf the conditions that its path
lacks. The polynomial (1 - u)(1 - u/2)...(1 - u/d) of such a number u in 0, ..., d is 1 where none is lacking, else 0;
between whole numbers it stays within -1 and 1, and it increases errors by 1 + 1/2 + ... + 1/d at most. A third map adds
up the values of the leaves reached. The number of trees has no influence on the depth.

A sign that compares the number with 1/2 would do the same, but it has to resolve a share 1/(2d) of its interval, for which
its degree is about 2d ln(1/error) (Eremenko and Yuditskii, 2007): never cheaper. With as many samples as slots, products
along the paths (tree_products.py) need no polynomial; compiler/driver.py plans both.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from heliograph.errors import ProgramError
from heliograph.interpret import calibration_chunks, run_nodes
from heliograph.ir import Array, Node, Program, SparseMatrix, size_of
from heliograph.ir.ops.table import Attrs, Bounds, Context
from heliograph.ir.ops.trees import entries, split_bits, unfulfilled
from heliograph.ir.writer import Writer
from heliograph.passes.ranges.intervals import program_bounds
from heliograph.passes.tensors.tree_products import Turns, trees_of, written_products

# A split that occurs in several trees is compared once for each of them, up to so many slots: then the map to the leaves
# has few diagonals. Beyond, it is compared once.
_MOST_SPLITS = 1 << 13
# The share of the trees, averaged over samples, that may have a split nearer to its threshold than the gap on the path
# that the sample takes.
_SOFT = 0.0025
_CHUNK = 64
# Whole numbers may be off by this share of the largest.
_ROUNDING = 1e-9
# A gap that whole numbers prove is taken if it is no smaller; each halving takes up to a level more.
_LEAST_PROVED = 2.0**-12
# Numbers of lacking conditions may be off by so much from rounding and comparisons.
_ROOM = 1.0 / 16.0


@dataclass(frozen=True, slots=True)
class Splits:
    """What samples show of the splits of an ensemble.

    `low`, `high`: the range of each feature: proved, or that of the samples where nothing is.
    `gap`: the distance from thresholds that must be resolved, as a share of the larger side of the feature's range; None
        without samples.
    `source`: how it is known.
    """

    low: Array
    high: Array
    gap: float | None
    source: str = ""


def observed_splits(program: Program) -> Mapping[Node, Splits]:
    """The ranges of the features of encrypted ensembles on the calibration samples, and how near they come to thresholds."""
    nodes = [node for node in program.nodes if node.op == "tree_ensemble" and node.type.secret]
    if not nodes or not program.calibration:
        return {}
    values: dict[Node, list[Array]] = {node: [] for node in nodes}

    def observe(node: Node, value: Array) -> None:
        for reader in nodes:
            if reader.inputs[0] is node:
                values[reader].append(np.array(value))

    for chunk in calibration_chunks(program):
        run_nodes(program, chunk, observe)
    proved = program_bounds(program, {})
    return {node: _splits(program, node, np.concatenate(values[node]), proved.get(node.inputs[0])) for node in nodes}


def _splits(program: Program, node: Node, x: Array, bounds: Bounds | None) -> Splits:
    a, context = node.attrs, Context(program.constants)
    low, high = (x.min(axis=0), x.max(axis=0)) if bounds is None else bounds
    features, thresholds = context.array(a["features"]).astype(np.int64), context.array(a["thresholds"])
    compared = np.flatnonzero(~_is_binary(a, context, features))
    if not compared.size:
        return Splits(low, high, None)
    scale = _scale(low, high, features, thresholds)
    whole = np.flatnonzero(context.array(a["whole"])) if "whole" in a else np.arange(0)
    off = np.abs(x[:, whole] - np.rint(x[:, whole]))
    if (off > _ROUNDING * np.maximum(np.abs(low[whole]), np.abs(high[whole]))).any():
        raise ProgramError("tree_ensemble: features that are declared whole are not, on the samples", where=node.loc)
    if np.isin(features[compared], whole).all():
        steps = np.abs(thresholds - np.rint(thresholds)) * scale
        if (proved := float(steps[compared].min())) >= _LEAST_PROVED:
            return Splits(low, high, proved, "proved: no whole number is nearer")
    paths = entries(a, context, "paths")
    if "branches" in a:
        paths = paths @ entries(a, context, "branches")
    used = abs(paths)[:, compared]
    nearest: list[Array] = []
    for start in range(0, len(x), _CHUNK):
        rows = x[start : start + _CHUNK]
        reached = unfulfilled(split_bits(rows, a, context), a, context) < 0.5
        distance = np.abs(rows[:, features[compared]] - thresholds[compared]) * scale[compared]
        for sample, leaves in zip(distance, reached, strict=True):
            own = used[np.flatnonzero(leaves)]
            # The smallest distance on each path; the paths of leaves without a comparison have none.
            own = own.astype(bool).multiply(sample + 1e-300).tocsr()
            ends = own.indptr
            nearest.append(np.array([own.data[b:e].min() for b, e in itertools.pairwise(ends) if e > b]))
    sizes = np.sort(np.concatenate(nearest)) if nearest else np.zeros(0)
    if not sizes.size:
        return Splits(low, high, None)
    gap = float(sizes[min(int(_SOFT * sizes.size), sizes.size - 1)])
    soft = float((sizes < gap).mean())
    return Splits(low, high, gap, f"observed: samples come nearer in {soft:.2%} of their trees")


def _scale(low: Array, high: Array, features: Array, thresholds: Array) -> Array:
    """The factors that bring the distances from each split's threshold into [-1, 1]."""
    reach = np.maximum(np.abs(high[features] - thresholds), np.abs(low[features] - thresholds))
    return np.asarray(1.0 / np.where(reach > 0, reach, 1.0))


def _is_binary(a: Attrs, context: Context, features: Array) -> Array:
    """Whether each split reads a feature that is 0 or 1."""
    return np.asarray(context.array(a["binary"])[features] != 0 if "binary" in a else np.zeros(features.size, bool))


def expand_trees(w: Writer, node: Node, x: Node, seen: Splits | None, products: bool = False) -> Node:
    """The nodes of a `tree_ensemble` of x; with `products`, those of tree_products.py if its paths form trees."""
    a, context = node.attrs, w.builder.context
    turns = _turns(w, node, x, seen)
    if products and (trees := trees_of(a, context)) is not None:
        return written_products(w, node, turns, trees)
    paths, offsets = entries(a, context, "paths"), context.array(a["offsets"])
    most = round(float((offsets + np.asarray(paths.maximum(0).sum(axis=1)).ravel()).max()))
    lacking = w.op(
        "affine",
        *turns.operands,
        matrices=tuple(w.builder.constant(SparseMatrix.of(paths @ each), "paths") for each in turns.matrices),
        bias=w.builder.constant(offsets + paths @ turns.constants, "offsets"),
        shape=(len(offsets),),
    )
    reached = w.poly(lacking, _none_of(most).tolist(), -_ROOM, most + _ROOM)
    bias = {"bias": a["bias"]} if "bias" in a else {}
    return w.op("linear", reached, weight=w.builder.constant(context.array(a["values"]), "values"), **bias)


def _turns(w: Writer, node: Node, x: Node, seen: Splits | None) -> Turns:
    """The turns of the nodes: 0 and 1 are read as they are, other features compared with their thresholds."""
    a, context = node.attrs, w.builder.context
    features, thresholds = context.array(a["features"]).astype(np.int64), context.array(a["thresholds"])
    count = features.size
    binary = _is_binary(a, context, features)
    # The bit of a split on 0 or 1 is 1 - x if the threshold is between them.
    between = (thresholds >= 0.0) & (thresholds < 1.0)
    bits = np.where(binary, thresholds >= 0.0, 0.5)
    operands, matrices = list[Node](), []
    if binary.any():
        own = np.flatnonzero(binary & between)
        operands.append(x)
        matrices.append(_placed(-np.ones(own.size), own, features[own], (count, size_of(x))))
    if not binary.all():
        compared = np.flatnonzero(~binary)
        at, thresholds_at, place = features[compared], thresholds[compared], np.arange(compared.size)
        if compared.size > _MOST_SPLITS:
            distinct, inverse = np.unique(np.stack([at, thresholds_at], axis=1), axis=0, return_inverse=True)
            at, thresholds_at, place = distinct[:, 0].astype(np.int64), distinct[:, 1], inverse.ravel()
        operands.append(_signs(w, node, x, seen, at, thresholds_at))
        matrices.append(_placed(np.full(compared.size, 0.5), compared, place, (count, at.size)))
    if "branches" in a:
        branches = entries(a, context, "branches")
        matrices, bits = [branches @ each for each in matrices], branches @ bits + context.array(a["constants"])
    return Turns(tuple(operands), tuple(matrices), bits)


def _placed(values: Array, rows: Array, columns: Array, shape: tuple[int, int]) -> Any:
    return scipy.sparse.csr_array((values, (rows, columns)), shape=shape)


def _signs(w: Writer, node: Node, x: Node, seen: Splits | None, features: Array, thresholds: Array) -> Node:
    """The signs of threshold minus feature of all splits, each scaled by its feature's range."""
    low, high = (seen.low, seen.high) if seen is not None else (np.full(size_of(x), -1.0), np.full(size_of(x), 1.0))
    scale = _scale(low, high, features, thresholds)
    matrix = _placed(-scale, np.arange(features.size), features, (features.size, size_of(x)))
    distance = w.op(
        "affine",
        x,
        matrices=(w.builder.constant(SparseMatrix.of(matrix), "splits"),),
        bias=w.builder.constant(scale * thresholds, "thresholds"),
        shape=(features.size,),
    )
    attrs = {key: node.attrs[key] for key in ("gap", "bits") if key in node.attrs}
    if "gap" not in attrs and seen is not None and seen.gap is not None:
        attrs |= {"gap": seen.gap, "gap_source": seen.source}
    return w.op("sign", distance, **attrs)


def _none_of(most: int) -> Array:
    """Chebyshev coefficients, on the interval of `expand_trees`, of (1 - u)(1 - u/2)...(1 - u/most)."""
    low, high = -_ROOM, most + _ROOM
    points = np.cos(math.pi * (np.arange(most + 1) + 0.5) / (most + 1))
    u = (high - low) / 2 * points + (high + low) / 2
    values = np.prod(1.0 - u[:, np.newaxis] / np.arange(1, most + 1), axis=1)
    return np.asarray(np.polynomial.chebyshev.chebfit(points, values, most))
