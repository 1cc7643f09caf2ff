"""The readers of estimators, by their class."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heliograph.frontends.sklearn.affine import read_affine
from heliograph.frontends.sklearn.layer import Layer
from heliograph.frontends.sklearn.perceptron import read_perceptron
from heliograph.frontends.sklearn.trees import read_boosted, read_isolation_forest, read_trees
from heliograph.frontends.trees.lightgbm import is_lightgbm
from heliograph.frontends.trees.xgboost import is_xgboost
from heliograph.ir import Node

# By the name of a class of scikit-learn, or of the one that it is derived from. All others are read as affine maps.
READERS: Mapping[str, Callable[[Layer], Node]] = {
    "BaseMultilayerPerceptron": read_perceptron,
    "BaseDecisionTree": read_trees,
    "IsolationForest": read_isolation_forest,
    "BaseBagging": read_trees,
    "BaseForest": read_trees,
    "BaseGradientBoosting": read_trees,
    "BaseHistGradientBoosting": read_trees,
    "BaseWeightBoosting": read_trees,
}


def read(layer: Layer) -> Node:
    """The value of an estimator."""
    if is_xgboost(layer.step) or is_lightgbm(layer.step):
        return read_boosted(layer)
    for kind in type(layer.step).__mro__:
        reader = READERS.get(kind.__name__)
        if reader is not None and kind.__module__.startswith("sklearn."):
            return reader(layer)
    return read_affine(layer)
