"""Nearest neighbours, centroids and clusters.

A squared distance |x - c|^2 is affine in x up to |x|^2, which all distances have in common: the nearest point has the
largest of the affine values c.x - |c|^2 / 2.
"""

from __future__ import annotations

import numpy as np
from sklearn.base import is_classifier

from heliograph.frontends.sklearn.affine import read_affine
from heliograph.frontends.sklearn.layer import Layer, two_classes
from heliograph.frontends.sklearn.squares import squares
from heliograph.ir import Array, Node

# Two neighbours or more take a comparison of each pair of points.
MOST_POINTS = 128
_FEWER = (
    "fit it on fewer points (such as the centres of KMeans for each class), or take NearestCentroid, or n_neighbors=1"
)


def _nearness(points: Array) -> tuple[Array, Array]:
    """Weight and bias of values of which the largest is that of the nearest point."""
    centre = points.mean(axis=0)
    away = points - centre
    return away, -(away @ centre) - 0.5 * (away**2).sum(axis=1)


def read_centroids(layer: Layer) -> Node:
    """The nearest centroid: affine scores; in units of deviations where classes have priors that differ."""
    step, centroids = layer.step, np.asarray(layer.step.centroids_, dtype=np.float64)
    if step.metric not in ("euclidean", "manhattan"):
        raise layer.unsupported(f"its metric is {step.metric}", 'NearestCentroid(metric="euclidean")')
    priors = getattr(step, "class_prior_", None)
    if priors is None or np.allclose(priors, 1.0 / len(centroids)):
        if step.metric == "manhattan":
            return _manhattan(layer, centroids)
        weight, bias = _nearness(centroids)
    elif step.metric == "manhattan":
        raise layer.unsupported("its metric is manhattan, and its classes have priors", 'metric="euclidean"')
    else:
        deviation = np.where(step.within_class_std_dev_ == 0, 1.0, step.within_class_std_dev_)
        weight, bias = _nearness(centroids / deviation)
        weight, bias = 2.0 * weight / deviation, 2.0 * (bias + np.log(priors))
    if len(weight) == 2:
        weight, bias = two_classes(weight[1:] - weight[:1], bias[1:] - bias[:1])
    return layer.linear(layer.value, weight, bias)


def _manhattan(layer: Layer, centroids: Array) -> Node:
    """Negative sums of distances along each axis."""
    away = layer.op("sub", layer.value, layer.constant(centroids, "centroids"))
    distance = layer.op("sum", layer.op("abs", away, name="distance"), axes=(1,), keepdims=False)
    return layer.op("neg", distance)


def read_clusters(layer: Layer) -> Node:
    """Scores of clusters by the nearness of their centres; before other steps, the distances from the centres."""
    centres = np.asarray(layer.step.cluster_centers_, dtype=np.float64)
    if layer.last:
        return layer.linear(layer.value, *_nearness(centres))
    if not hasattr(layer.step, "transform"):
        return read_affine(layer)
    middle = centres.mean(axis=0)
    away = centres - middle
    squared = squares(layer, middle, np.ones_like(away), -2.0 * away, (away**2).sum(axis=1))
    return layer.op("sqrt", squared, name="distance")


def read_neighbours(layer: Layer) -> Node:
    """The share of each class among the k nearest points, or the mean of their targets."""
    step, points = layer.step, layer.step._fit_X
    count = step.n_neighbors
    if step.effective_metric_ not in ("euclidean", "sqeuclidean"):
        raise layer.unsupported(f"its metric is {step.effective_metric_}", 'metric="euclidean"')
    if step.weights not in (None, "uniform"):
        raise layer.unsupported("its neighbours have weights that grow without bound near a point", 'weights="uniform"')
    if hasattr(points, "toarray"):
        points = points.toarray()
    targets = _targets(layer)
    # Points at one place and with one target, k times or more, are as good as k of them.
    if count == 1:
        points, first = np.unique(points, axis=0, return_index=True)
        targets = targets[first]
        if len(points) == 1:
            raise layer.unsupported("all of its points are one")
        nearest = layer.op("argmax", layer.linear(layer.value, *_nearness(points)), axis=0, name="nearest")
        return layer.linear(nearest, targets.T)
    if len(points) > MOST_POINTS:
        raise layer.unsupported(
            f"it compares the distances of each two of its {len(points)} points, and {MOST_POINTS} are the most", _FEWER
        )
    if count == len(points):
        return layer.linear(layer.value, np.zeros((targets.shape[1], points.shape[1])), targets.mean(axis=0))
    return layer.linear(_nearest(layer, points, count), targets.T / count)


def _targets(layer: Layer) -> Array:
    """What each point adds to the output: one-hot classes, or targets."""
    step = layer.step
    if not is_classifier(step):
        return np.asarray(step._y, dtype=np.float64).reshape(len(step._y), -1)
    if step.outputs_2d_:
        raise layer.unsupported("it gives several labels to a sample")
    return np.asarray(np.eye(len(step.classes_))[step._y.ravel()])


def _nearest(layer: Layer, points: Array, count: int) -> Node:
    """1 for each of the `count` nearest points, else 0: those with fewer than `count` points before them."""
    weight, bias = _nearness(points)
    first, second = np.triu_indices(len(points), 1)
    # Points at one place have one distance: the earlier one counts as nearer.
    same = (points[first] == points[second]).all(axis=1)
    before: Array = np.zeros(len(points))
    np.add.at(before, second[same], 1.0)
    first, second = first[~same], second[~same]
    difference = layer.linear(layer.value, weight[first] - weight[second], bias[first] - bias[second], "differences")
    # 1 where the first of two is nearer.
    nearer = layer.op("gt", difference, layer.constant(0.0, "zero"), name="nearer")
    pairs = np.arange(len(first))
    ranks: Array = np.zeros((len(points), len(first)))
    ranks[second, pairs], ranks[first, pairs] = 1.0, -1.0
    np.add.at(before, first, 1.0)
    rank = layer.linear(nearer, ranks, before, "ranks")
    return layer.op("lt", rank, layer.constant(float(count), "count"), name="nearest")
