"""Multilayer perceptrons, layer by layer."""

from __future__ import annotations

import numpy as np
from sklearn.base import is_classifier

from heliograph.errors import UnsupportedError
from heliograph.frontends.sklearn.layer import Layer, two_classes
from heliograph.ir import Location, Node

_ACTIVATIONS = {"identity": None, "logistic": "sigmoid", "tanh": "tanh", "relu": "relu"}


def read_perceptron(layer: Layer) -> Node:
    """A linear map and an activation for each layer; for a classifier, without the last activation."""
    step, value, loc = layer.step, layer.value, layer.loc
    if not layer.last:
        raise UnsupportedError("a multilayer perceptron is the last step of a pipeline", where=loc)
    if step.out_activation_ not in (("softmax", "logistic") if is_classifier(step) else ("identity",)):
        raise layer.unsupported(f"its output is {step.out_activation_}")
    if step.out_activation_ == "logistic" and step.n_outputs_ > 1:
        raise layer.unsupported("it gives several labels to a sample")
    activation, depth = _ACTIVATIONS[step.activation], len(step.coefs_)
    for place, (coefficients, intercepts) in enumerate(zip(step.coefs_, step.intercepts_, strict=True), 1):
        weight, bias = np.asarray(coefficients.T, dtype=np.float64), np.asarray(intercepts, dtype=np.float64)
        if place == depth and step.out_activation_ == "logistic":
            weight, bias = two_classes(weight, bias)
        value = layer.linear(value, weight, bias, f"linear{place}")
        if place < depth and activation is not None:
            value = layer.builder.op(activation, (value,), Location(loc.file, layer=f"{loc.layer}.{activation}{place}"))
    return value
