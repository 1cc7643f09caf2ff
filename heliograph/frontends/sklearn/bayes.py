"""Models of one distribution for each class or cluster: naive Bayes, quadratic discriminants, Gaussian mixtures.

Their scores are logarithms of joint probabilities. What all classes have in common changes neither the largest score nor
the softmax, and is left out.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import digamma

from heliograph.frontends.sklearn.layer import Layer, two_classes
from heliograph.frontends.sklearn.squares import forms, squares
from heliograph.ir import Array, Node

# Matrices that differ by less than this share of their largest number are equal.
_EQUAL = 1e-13


def read_gaussian(layer: Layer) -> Node:
    """Naive Bayes of normal distributions: the square of each feature."""
    step = layer.step
    bias = np.log(step.class_prior_) - 0.5 * np.log(2.0 * math.pi * step.var_).sum(axis=1)
    return _diagonal(layer, step.theta_, 1.0 / step.var_, bias)


def read_counts(layer: Layer) -> Node:
    """Naive Bayes of counts: affine."""
    step = layer.step
    weight, bias = step.feature_log_prob_, step.class_log_prior_
    if type(step).__name__ == "ComplementNB" and len(step.classes_) > 1:
        bias = np.zeros(len(weight))
    return _linear(layer, layer.value, weight, bias)


def read_bernoulli(layer: Layer) -> Node:
    """Naive Bayes of bits, with a comparison of each feature unless it has bits already."""
    step, value = layer.step, layer.value
    if step.binarize is not None:
        value = layer.op("gt", value, layer.constant(float(step.binarize), "binarize"), name="binarize")
    absent = np.log1p(-np.exp(step.feature_log_prob_))
    return _linear(layer, value, step.feature_log_prob_ - absent, step.class_log_prior_ + absent.sum(axis=1))


def read_discriminant(layer: Layer) -> Node:
    """Quadratic discriminants: a quadratic form for each class."""
    step = layer.step
    roots = [rotation * scaling**-0.5 for rotation, scaling in zip(step.rotations_, step.scalings_, strict=True)]
    bias = np.log(step.priors_) - 0.5 * np.array([np.log(scaling).sum() for scaling in step.scalings_])
    return _full(layer, np.asarray(step.means_), np.stack([root @ root.T for root in roots]), bias)


def read_mixture(layer: Layer) -> Node:
    """Gaussian mixtures: a form for each cluster, as wide as its covariances."""
    step, means, roots = layer.step, layer.step.means_, layer.step.precisions_cholesky_
    clusters, features = means.shape
    kind = step.covariance_type
    if kind == "spherical":
        roots = np.repeat(roots[:, np.newaxis], features, axis=1)
    diagonal = roots if kind in ("spherical", "diag") else np.diagonal(roots, axis1=-2, axis2=-1)
    bias = np.log(diagonal).sum(axis=-1) + _log_weights(layer)
    if kind in ("spherical", "diag"):
        return _diagonal(layer, means, roots**2, bias)
    matrices = roots @ np.swapaxes(roots, -1, -2)
    return _full(layer, means, np.broadcast_to(matrices, (clusters, features, features)), bias)


def _log_weights(layer: Layer) -> Array:
    """What is added to the logarithm of each cluster's density."""
    step, features = layer.step, layer.seen.shape[1]
    if not hasattr(step, "weight_concentration_"):
        return np.asarray(np.log(step.weights_))
    # Variational inference: means of logarithms in place of the logarithms of means.
    if step.weight_concentration_prior_type == "dirichlet_process":
        first, second = step.weight_concentration_
        rest = digamma(second) - digamma(first + second)
        weights = digamma(first) - digamma(first + second) + np.concatenate([[0.0], np.cumsum(rest)[:-1]])
    else:
        weights = digamma(step.weight_concentration_) - digamma(np.sum(step.weight_concentration_))
    freedom = np.broadcast_to(step.degrees_of_freedom_, weights.shape)
    spread = digamma(0.5 * (freedom[:, np.newaxis] - np.arange(features))).sum(axis=1)
    return np.asarray(weights + 0.5 * (spread - features * np.log(freedom) - features / step.mean_precision_))


def read_envelope(layer: Layer) -> Node:
    """The decision of an elliptic envelope: the squared Mahalanobis distance below that of its boundary."""
    step = layer.step
    centre, matrix = np.asarray(step.location_), -np.asarray(step.precision_)[np.newaxis]
    return forms(layer, centre, matrix, np.zeros((1, centre.size)), np.array([-step.offset_]))


def _linear(layer: Layer, value: Node, weight: Array, bias: Array) -> Node:
    """Scores without what two classes have in common."""
    if len(weight) == 2:
        weight, bias = two_classes(weight[1:] - weight[:1], bias[1:] - bias[:1])
    return layer.linear(value, weight, bias)


def _diagonal(layer: Layer, means: Array, precisions: Array, bias: Array) -> Node:
    """Scores of normal distributions with independent features."""
    centre = means.mean(axis=0)
    away = means - centre
    square, line = -0.5 * precisions, precisions * away
    bias = bias - 0.5 * (precisions * away**2).sum(axis=1)
    return squares(layer, centre, square - square.mean(axis=0), line - line.mean(axis=0), bias - bias.mean())


def _full(layer: Layer, means: Array, precisions: Array, bias: Array) -> Node:
    """Scores of normal distributions, above that of the first."""
    line = np.einsum("kij,kj->ki", precisions, means)
    bias = bias - 0.5 * np.einsum("ki,ki->k", line, means)
    matrices, line, bias = -0.5 * (precisions - precisions[0]), line - line[0], bias - bias[0]
    if np.abs(matrices).max() <= _EQUAL * np.abs(precisions).max():
        return _linear(layer, layer.value, line, bias)
    centre = means.mean(axis=0)
    # From x to x - centre.
    bias = bias + line @ centre + np.einsum("i,kij,j->k", centre, matrices, centre)
    line = line + 2.0 * matrices @ centre
    return forms(layer, centre, matrices, line, bias)
