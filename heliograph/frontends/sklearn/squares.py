"""Polynomials of degree two in features: squared distances and quadratic forms, by one product."""

from __future__ import annotations

import numpy as np

from heliograph.frontends.sklearn.layer import Layer
from heliograph.ir import Array, Node
from heliograph.ir.node import next_power_of_two

# Eigenvalues of a quadratic form below this share of the largest are zero.
_ZERO = 1e-13


def squares(layer: Layer, centre: Array, square: Array, line: Array, bias: Array) -> Node:
    """square @ (x - centre)^2 + line @ (x - centre) + bias.

    It takes two levels. A scaler before it takes none: its factors join `square` and `line`. Numbers are small near the
    centre, so that little is lost where two large ones would cancel.
    """
    value, factor, shift = _unscaled(layer)
    moved = layer.op("sub", value, layer.constant((centre - shift) / factor, "centre"))
    if not np.any(square):
        return layer.linear(moved, line * factor, bias)
    squared = layer.op("mul", moved, moved)
    return layer.op("add", layer.linear(moved, line * factor, bias), layer.linear(squared, square * factor**2))


def forms(layer: Layer, centre: Array, matrices: Array, line: Array, bias: Array) -> Node:
    """(x - centre) @ matrix @ (x - centre) + line @ (x - centre) + bias, for each symmetric matrix.

    A form is a sum of as many squares of linear functions as its matrix has ranks. Several take three levels, one takes
    two.
    """
    scores = layer.linear(layer.value, line, bias - line @ centre)
    values, vectors = np.linalg.eigh(matrices)
    own, rank = np.nonzero(np.abs(values) > _ZERO * np.abs(values).max(initial=0.0))
    if not own.size:
        return scores
    values = values[own, rank]
    roots = vectors[own, :, rank] * np.sqrt(np.abs(values))[:, np.newaxis]
    signs = np.where(values < 0, -1.0, 1.0)
    if len(matrices) == 1:
        # Products that are added up by rotations: with the signs in one factor, the sum takes no level.
        run = next_power_of_two(len(roots))
        left, right = (np.pad(rows, ((0, run - len(roots)), (0, 0))) for rows in (roots, signs[:, np.newaxis] * roots))
        one = layer.linear(layer.value, left, -left @ centre)
        other = one if (signs > 0).all() else layer.linear(layer.value, right, -right @ centre)
        return layer.op("add", scores, layer.op("sum_runs", layer.op("mul", one, other), count=run))
    linear = layer.linear(layer.value, roots, -roots @ centre)
    summed: Array = np.zeros((len(matrices), len(roots)))
    summed[own, np.arange(len(roots))] = signs
    return layer.op("add", scores, layer.linear(layer.op("mul", linear, linear), summed))


def _unscaled(layer: Layer) -> tuple[Node, Array, Array]:
    """A node with factors and shifts of its elements that give the layer's features: those of a scaler before it."""
    value, context = layer.value, layer.builder.context
    if value.op == "linear":
        weight = context.array(value.attrs["weight"]).astype(np.float64)
        diagonal = np.diagonal(weight)
        if weight.shape[0] == weight.shape[1] and diagonal.all() and np.count_nonzero(weight) == len(weight):
            bias = value.attrs.get("bias")
            shift = np.zeros(len(weight)) if bias is None else context.array(bias).astype(np.float64)
            return value.inputs[0], diagonal, shift
    features = layer.seen.shape[1]
    return value, np.ones(features), np.zeros(features)
