"""What estimators inside others give to them: probabilities, decisions, chosen classes or predictions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heliograph.frontends.sklearn.layer import Layer
from heliograph.ir import Array, Node, shape_of

# The largest difference from the estimator, as a share of the largest value.
_AGREES = 1e-6


def probabilities(inner: Layer) -> Node:
    """What the estimator's predict_proba gives, for each class."""
    wanted = inner.method("predict_proba")(inner.seen)
    scores = inner.reading.read(inner)
    found = inner.reading.values(scores)
    if _close(found, wanted):
        return scores
    shifted = np.exp(found - found.max(axis=1, keepdims=True))
    if not _close(shifted / shifted.sum(axis=1, keepdims=True), wanted):
        raise inner.unsupported("its predict_proba is not the softmax of its scores")
    if found.shape[1] > 2:
        return inner.op("softmax", scores, axis=0, name="probabilities")
    # One function of one value in place of a softmax.
    return both(inner, inner.op("sigmoid", _difference(inner, scores), name="probabilities"))


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


def choice(inner: Layer) -> Node:
    """1 for the class that the estimator predicts, 0 for others."""
    scores = inner.reading.read(replace(inner, scores=True))
    if shape_of(scores) == (2,):
        zero = inner.constant(0.0, "zero")
        return both(inner, inner.op("gt", _difference(inner, scores), zero, name="choice"))
    return inner.op("argmax", scores, axis=0, name="choice")


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
