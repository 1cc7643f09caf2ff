"""What estimators inside others give to them: probabilities, decisions, chosen classes or predictions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heliograph.frontends.sklearn.layer import Layer
from heliograph.ir import Array, Node, shape_of

# The largest difference from the estimator, as a share of the largest value.
_AGREES = 1e-6


def probabilities(layer: Layer, inner: Sequence[Layer]) -> list[Node]:
    """What the predict_proba of each estimator gives, for each class.

    Estimators of one kind share a sigmoid or softmax: its polynomials work on all of them at once.
    """
    scores = [one.reading.read(one) for one in inner]
    made = dict(enumerate(scores))
    # Estimators that need a softmax, by their number of classes.
    waiting: dict[int, list[int]] = {}
    for place, (one, node) in enumerate(zip(inner, scores, strict=True)):
        found, wanted = one.reading.values(node), one.method("predict_proba")(one.seen)
        if _close(found, wanted):
            continue
        shifted = np.exp(found - found.max(axis=1, keepdims=True))
        if not _close(shifted / shifted.sum(axis=1, keepdims=True), wanted):
            raise one.unsupported("its predict_proba is not the softmax of its scores")
        waiting.setdefault(found.shape[1], []).append(place)
    for classes, places in waiting.items():
        own = [scores[place] for place in places]
        if classes == 2:
            # One function of one value in place of a softmax.
            zs = layer.joined([_difference(layer, node) for node in own])
            logistic = layer.op("sigmoid", zs, name="probabilities")
            rows = [both(layer, row) for row in _parts(layer, logistic, len(own))]
        else:
            stacked = layer.op("reshape", layer.joined(own), shape=(len(own), classes))
            rows = _parts(layer, layer.op("softmax", stacked, axis=1, name="probabilities"), len(own))
        made |= dict(zip(places, rows, strict=True))
    return [made[place] for place in range(len(inner))]


def _parts(layer: Layer, value: Node, count: int) -> list[Node]:
    """The elements in equal parts, one behind the other."""
    size = math.prod(shape_of(value))
    flat = layer.op("reshape", value, shape=(size,))
    if count == 1:
        return [flat]
    return [layer.linear(flat, own) for own in np.split(np.eye(size), count)]


def second(layer: Layer, values: Sequence[Node]) -> Node:
    """The probabilities of the second of two classes, one behind the other."""
    return layer.joined([layer.linear(value, np.array([[0.0, 1.0]])) for value in values])


def both(layer: Layer, second: Node) -> Node:
    """The probabilities of two classes from that of the second."""
    return layer.linear(second, np.array([[-1.0], [1.0]]), np.array([1.0, 0.0]))


def decisions(inner: Layer) -> Node:
    """What the estimator's decision_function gives: one value for two classes."""
    wanted = inner.method("decision_function")(inner.seen)
    scores = inner.reading.read(replace(inner, scores=True))
    if wanted.shape[1] == 1 and shape_of(scores) == (2,):
        scores = _difference(inner, scores)
    if not _close(inner.reading.values(scores), wanted):
        raise inner.unsupported("its scores are not those of its decision_function")
    return scores


def _difference(layer: Layer, scores: Node) -> Node:
    return layer.linear(scores, np.array([[-1.0, 1.0]]))


def choices(layer: Layer, inner: Sequence[Layer]) -> list[Node]:
    """For each estimator 1 for the class that it predicts, 0 for others; all have as many classes."""
    scores = [one.reading.read(replace(one, scores=True)) for one in inner]
    if shape_of(scores[0]) == (2,):
        differences = layer.joined([_difference(layer, node) for node in scores])
        chosen = layer.op("gt", differences, layer.constant(0.0, "zero"), name="choice")
        return [both(layer, row) for row in _parts(layer, chosen, len(inner))]
    stacked = layer.op("reshape", layer.joined(scores), shape=(len(inner), *shape_of(scores[0])))
    return _parts(layer, layer.op("argmax", stacked, axis=1, name="choice"), len(inner))


def predictions(inner: Layer) -> Node:
    """What the predict of a regressor gives."""
    return inner.reading.read(inner)


def mean(layer: Layer, values: list[Node], weights: Array | None = None) -> Node:
    """The mean of vectors, as one affine map of all of them."""
    shares = np.full(len(values), 1.0 / len(values)) if weights is None else np.asarray(weights) / np.sum(weights)
    (width,) = shape_of(values[0])
    return layer.linear(layer.joined(values), np.kron(shares, np.eye(width)))


def _close(found: Array, wanted: Array) -> bool:
    size = np.abs(wanted).max(initial=0.0)
    return found.shape == wanted.shape and bool(np.abs(found - wanted).max(initial=0.0) <= _AGREES * max(size, 1e-300))
