"""Polynomials of degree two in features: squared distances and quadratic forms, by one product."""

from __future__ import annotations

import numpy as np

from heliograph.frontends.sklearn.layer import Layer
from heliograph.ir import Array, Node

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


def forms(layer: Layer, centres: Array, matrices: Array, bias: Array) -> Node:
    """(x - centre) @ matrix @ (x - centre) + bias, for each centre and symmetric matrix; two levels.

    Each form is a sum of as many products of linear functions as its matrix has ranks.
    """
    middle = centres.mean(axis=0)
    away = centres - middle
    line = -2.0 * np.einsum("kij,kj->ki", matrices, away)
    bias = bias + np.einsum("ki,kij,kj->k", away, matrices, away) - line @ middle
    scores = layer.linear(layer.value, line, bias)
    values, vectors = np.linalg.eigh(matrices)
    size = np.abs(values)
    ranks = int((size > _ZERO * size.max(initial=0.0)).sum(axis=1).max())
    if not ranks:
        return scores
    order = np.argsort(-size, axis=1)[:, :ranks]
    values = np.take_along_axis(values, order, axis=1)
    vectors = np.take_along_axis(vectors, order[:, np.newaxis], axis=2)
    left = (vectors * np.sqrt(np.abs(values))[:, np.newaxis]).transpose(0, 2, 1).reshape(-1, middle.size)
    signs = np.where(values < 0, -1.0, 1.0).reshape(-1, 1)
    one = layer.linear(layer.value, left, -left @ middle)
    # With signs inside one of the factors the sum has none, and takes no level.
    other = one if (signs > 0).all() else layer.linear(layer.value, signs * left, -(signs * left) @ middle)
    products = layer.op("reshape", layer.op("mul", one, other), shape=(len(centres), ranks))
    return layer.op("add", scores, layer.op("sum", products, axes=(1,), keepdims=False))


def _unscaled(layer: Layer) -> tuple[Node, Array, Array]:
    """A node with factors and shifts of its elements that give the layer's features: those of a scaler before it."""
    value, context = layer.value, layer.builder.context
    if value.op == "linear":
        weight = context.array(value.attrs["weight"]).astype(np.float64)
        diagonal = np.diagonal(weight)
        if weight.shape[0] == weight.shape[1] and diagonal.all() and np.count_nonzero(weight) == len(weight):
            return value.inputs[0], diagonal, context.array(value.attrs["bias"]).astype(np.float64)
    features = layer.seen.shape[1]
    return value, np.ones(features), np.zeros(features)
