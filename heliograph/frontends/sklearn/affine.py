"""Scalers, PCA and linear models: affine maps, found from their values.

Such a map is known from its values at the samples' mean and at one step along each feature, and must extend the same
way far from the samples. An estimator that does not is refused, so there is no list of supported classes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from heliograph.errors import ProgramError
from heliograph.frontends.sklearn.layer import Layer, output_of, two_classes
from heliograph.ir import Array, Node

# An affine map must agree with its estimator to this share of the largest value; long sums err less.
TOLERANCE = 1e-7
# The affine map must also hold this many times as far from the samples' mean as the samples themselves lie.
_FAR = 8.0
_MOST_CHECKED = 256


def read_affine(layer: Layer) -> Node:
    """The value of an affine estimator: scores of a classifier, predictions of a regressor, or transformed features."""
    output = output_of(layer.step) if layer.last else "transform"
    method = "decision_function" if output == "scores" else output
    weight, bias = affine_map(layer, layer.method(method), method)
    if output == "scores" and len(weight) == 1:
        weight, bias = two_classes(weight, bias)
    return layer.linear(layer.value, weight, bias)


def affine_map(layer: Layer, apply: Callable[[Array], Array], method: str) -> tuple[Array, Array]:
    """Weight (values, features) and bias of an affine map; an UnsupportedError where the method is not one."""
    seen = layer.seen
    centre = seen.mean(axis=0)
    width = np.ptp(seen, axis=0)
    width[width == 0] = 1.0
    checked = seen[:: max(1, len(seen) // _MOST_CHECKED)]
    apply(checked)
    try:
        origin = apply(centre[np.newaxis])[0]
        weight = ((apply(centre + np.diag(width)) - origin) / width[:, np.newaxis]).T
    except ProgramError:
        # The estimator accepted the samples themselves.
        raise layer.unsupported("it knows the values of its samples only, and nothing between them") from None
    bias = origin - weight @ centre
    for rows in (checked, centre + _FAR * (checked - centre), centre - _FAR * (checked - centre)):
        found = apply(rows)
        size = max(np.abs(found).max(initial=0.0), np.abs(weight).max(initial=0.0) * np.abs(rows).max(initial=0.0))
        if not np.abs(rows @ weight.T + bias - found).max(initial=0.0) <= TOLERANCE * max(size, 1e-300):
            raise layer.unsupported(f"its {method} is not an affine function of its input")
    return weight, bias
