"""Classes by votes of each pair of them."""

from __future__ import annotations

import numpy as np

from heliograph.frontends.sklearn.layer import Layer
from heliograph.ir import Array, Node

# The most that confidences or the order of classes add to a vote.
_TIE = 0.25


def pair_votes(layer: Layer, decisions: Node, confidences: Node | None, classes: int) -> Node:
    """Votes for each class from decisions about each pair, above zero for its first.

    A tie goes to the class with the larger sum of confidences; if there are none, to the first.
    """
    first, second = np.triu_indices(classes, 1)
    signs: Array = np.zeros((classes, len(first)))
    pairs = np.arange(len(first))
    signs[first, pairs], signs[second, pairs] = 1.0, -1.0
    won = layer.op("gt", decisions, layer.constant(0.0, "zero"), name="votes")
    bias = (signs < 0).sum(axis=1).astype(np.float64)
    if confidences is None:
        return layer.linear(won, signs, bias + order_of(classes))
    reach = float(np.abs(layer.reading.values(confidences) @ signs.T).max(initial=1e-300))
    return layer.op("add", layer.linear(won, signs, bias), layer.linear(confidences, signs * (_TIE / reach)))


def order_of(classes: int) -> Array:
    """What makes the first of classes with equal votes the largest, by less than half of a vote."""
    return -_TIE * np.arange(classes) / classes
