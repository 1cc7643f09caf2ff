"""Support vectors, kernel ridge regression and features by kernels: functions of products with known points."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from heliograph.frontends.sklearn.affine import read_affine
from heliograph.frontends.sklearn.layer import Layer
from heliograph.frontends.sklearn.squares import squares
from heliograph.frontends.sklearn.votes import pair_votes
from heliograph.ir import Array, Node


def kernel(layer: Layer, points: Any, kind: Any, gamma: float, shift: float, degree: float) -> Node:
    """The kernel of the features with each point."""
    points = np.asarray(points.toarray() if hasattr(points, "toarray") else points, dtype=np.float64)
    if kind == "rbf":
        # -gamma |x - p|^2, with the square of x once for all points.
        middle = points.mean(axis=0)
        away = points - middle
        exponents = squares(
            layer,
            middle,
            np.full_like(away, -gamma),
            2.0 * gamma * away,
            -gamma * (away**2).sum(axis=1),
        )
        return layer.op("exp", exponents, name="kernel")
    if kind in ("poly", "polynomial") and float(degree).is_integer() and degree >= 1:
        return layer.op("power", _products(layer, points, gamma, shift), name="kernel", exponent=int(degree))
    if kind == "sigmoid":
        return layer.op("tanh", _products(layer, points, gamma, shift), name="kernel")
    if kind == "linear":
        return layer.linear(layer.value, points)
    raise layer.unsupported(f"its kernel is {kind}", "kernels linear, rbf, poly with a whole degree, and sigmoid")


def _products(layer: Layer, points: Array, gamma: float, shift: float) -> Node:
    return layer.linear(layer.value, gamma * points, np.full(len(points), float(shift)))


def read_vectors(layer: Layer) -> Node:
    """Support vector machines: scores of classes, a prediction, or the decision about an outlier."""
    step = layer.step
    if step.kernel == "precomputed" or callable(step.kernel):
        raise layer.unsupported("its kernel is computed elsewhere", "kernels linear, rbf, poly and sigmoid")
    classes = len(step.classes_) if is_classifier(step) else 0
    if step.kernel == "linear" and classes <= 2:
        return read_affine(layer)
    weights, bias = _decisions(step, classes)
    vectors = step.support_vectors_
    if step.kernel == "linear":
        vectors = vectors.toarray() if hasattr(vectors, "toarray") else vectors
        return _voted(layer, layer.linear(layer.value, weights @ vectors, bias), classes)
    values = kernel(layer, vectors, step.kernel, step._gamma, step.coef0, step.degree)
    if classes == 2:
        halves = np.array([[-0.5], [0.5]])
        return layer.linear(values, halves @ weights, halves @ bias)
    decisions = layer.linear(values, weights, bias)
    return _voted(layer, decisions, classes) if classes else decisions


def _decisions(step: Any, classes: int) -> tuple[Array, Array]:
    """Weights of support vectors, and biases: for more than two classes of each pair, above zero for its first."""
    weights = step.dual_coef_.toarray() if hasattr(step.dual_coef_, "toarray") else np.asarray(step.dual_coef_)
    if classes <= 2:
        return weights, np.asarray(step.intercept_)
    ends = np.concatenate([[0], np.cumsum(step.n_support_)])
    own = [slice(start, stop) for start, stop in pairwise(ends)]
    first, second = np.triu_indices(classes, 1)
    pairs: Array = np.zeros((len(first), weights.shape[1]))
    for row, i, j in zip(pairs, first, second, strict=True):
        # The row of the other class among those that are not one's own.
        row[own[i]], row[own[j]] = weights[j - 1, own[i]], weights[i, own[j]]
    return pairs, np.asarray(step.intercept_)


def _voted(layer: Layer, decisions: Node, classes: int) -> Node:
    return pair_votes(layer, decisions, decisions if layer.step.break_ties else None, classes)


def read_kernel_ridge(layer: Layer) -> Node:
    """A sum of kernels with the points of the training."""
    step = layer.step
    if step.kernel == "linear":
        return read_affine(layer)
    values = kernel(layer, step.X_fit_, step.kernel, _gamma(step, layer), step.coef0, step.degree)
    return layer.linear(values, np.asarray(step.dual_coef_).reshape(len(step.X_fit_), -1).T)


def read_kernel_components(layer: Layer) -> Node:
    """Kernel PCA: kernels, centred as they were in training, and their components."""
    step = layer.step
    if step.kernel == "linear":
        return read_affine(layer)
    gamma = getattr(step, "gamma_", None)
    values = kernel(
        layer, step.X_fit_, step.kernel, _gamma(step, layer) if gamma is None else gamma, step.coef0, step.degree
    )
    kept = np.flatnonzero(step.eigenvalues_)
    scaled: Array = np.zeros_like(step.eigenvectors_)
    scaled[:, kept] = step.eigenvectors_[:, kept] / np.sqrt(step.eigenvalues_[kept])
    centred = scaled - scaled.mean(axis=0)
    centring = step._centerer
    return layer.linear(values, centred.T, (centring.K_fit_all_ - centring.K_fit_rows_) @ scaled)


def read_nystroem(layer: Layer) -> Node:
    """Kernels with some points, made independent."""
    step = layer.step
    shift, degree = (1.0 if step.coef0 is None else step.coef0), (3 if step.degree is None else step.degree)
    values = kernel(layer, step.components_, step.kernel, _gamma(step, layer), shift, degree)
    return layer.linear(values, step.normalization_)


def read_random_features(layer: Layer) -> Node:
    """Cosines of random linear functions, whose products are about the kernel."""
    step = layer.step
    angles = layer.linear(layer.value, step.random_weights_.T, step.random_offset_)
    waves = layer.op("cos", angles, name="cosine")
    width = len(step.random_offset_)
    return layer.linear(waves, np.sqrt(2.0 / width) * np.eye(width))


def _gamma(step: Any, layer: Layer) -> float:
    return 1.0 / layer.seen.shape[1] if step.gamma is None else float(step.gamma)
